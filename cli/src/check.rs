//! `trapeze check`: is a configuration right? Asks no daemon, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use trapeze_core::config::{Config, ConfigErrors, Retry, Rule, Service};

use crate::file::FileError;
use crate::output::Output;
use crate::{amount, file};

/// Check a configuration, without changing anything
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's configuration
    #[arg(short, long, value_name = "FILE", default_value = file::DEFAULT)]
    config: PathBuf,
    /// The cluster's configuration, without `--config`
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    ok: bool,
    summary: Option<Summary>,
    /// Right, and perhaps not meant.
    remarks: Vec<String>,
    errors: Vec<Mistake>,
    /// The errors with the lines that they are in.
    #[serde(skip)]
    text: String,
}

/// How much of everything there is.
#[derive(Debug, Serialize)]
struct Summary {
    cluster: String,
    sprays: usize,
    dispatchers: usize,
    backends: usize,
    pools: usize,
    services: usize,
    rules: usize,
}

/// Line and column count from 1.
#[derive(Debug, Serialize)]
struct Mistake {
    line: usize,
    column: usize,
    message: String,
}

/// Checks it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.file.as_ref().unwrap_or(&args.config);
    let found = match file::read(file) {
        Ok(config) => Ok(config),
        Err(FileError::Wrong(errors)) => Err(errors),
        Err(error) => return Err(error.into()),
    };
    let report = Report::of(&found, &file.display().to_string());
    args.output.one(&report)?;
    Ok(match report.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Report {
    fn of(found: &Result<Config, ConfigErrors>, name: &str) -> Self {
        Self {
            file: name.to_owned(),
            ok: found.is_ok(),
            summary: found.as_ref().ok().map(Summary::of),
            remarks: found.as_ref().map(remarks).unwrap_or_default(),
            errors: found.as_ref().err().map(mistakes).unwrap_or_default(),
            text: found
                .as_ref()
                .err()
                .map_or_else(String::new, ToString::to_string),
        }
    }
}

impl Summary {
    fn of(config: &Config) -> Self {
        Self {
            cluster: config.name.clone(),
            sprays: config.sprays.len(),
            dispatchers: config.dispatchers.len(),
            backends: config.backends.len(),
            pools: config.pools.len(),
            services: config.services.len(),
            rules: config.services.iter().map(|s| s.rules.len()).sum(),
        }
    }
}

fn mistakes(errors: &ConfigErrors) -> Vec<Mistake> {
    (errors.iter())
        .map(|error| Mistake {
            line: error.line,
            column: error.column,
            message: error.message.clone(),
        })
        .collect()
}

fn remarks(config: &Config) -> Vec<String> {
    let in_pools: BTreeSet<usize> = (config.pools.iter())
        .flat_map(|pool| pool.members.iter().map(|member| member.backend))
        .collect();
    let used: BTreeSet<usize> = (config.services.iter()).flat_map(Service::pools).collect();
    let backends = (config.backends.iter().enumerate())
        .filter(|(index, _)| !in_pools.contains(index))
        .map(|(_, backend)| format!("backend {} is in no pool", backend.name));
    let pools = (config.pools.iter().enumerate())
        .filter(|(index, _)| !used.contains(index))
        .map(|(_, pool)| format!("pool {} is used by no service", pool.name));
    let deserted = (config.pools.iter())
        .filter(|pool| pool.members.iter().all(|member| member.weight == 0))
        .map(|pool| {
            format!(
                "pool {}: each backend's weight is 0, so its requests get 503",
                pool.name
            )
        });
    (backends.chain(pools).chain(deserted))
        .chain(shared_ports(config))
        .chain(never_for_all(config))
        .chain(nobody_announces(config))
        .chain(others_join(config))
        .collect()
}

/// What is counted here is not all.
fn others_join(config: &Config) -> Option<String> {
    let etcd = config.membership.as_ref()?;
    Some(format!(
        "other sprays and dispatchers join by etcd, under {}; a node that is one needs its own \
         section here",
        etcd.directory(&config.name)
    ))
}

/// Several dispatchers without a spray leave the service addresses to somebody else.
fn nobody_announces(config: &Config) -> Option<String> {
    let is_open = config.membership.is_some();
    let several = config.dispatchers.len() > 1 && config.sprays.is_empty() && !is_open;
    several.then(|| {
        format!(
            "there are {} dispatchers and no [[spray]]: none of them answers ARP for the service \
             addresses; a router has to choose one for each flow (ECMP)",
            config.dispatchers.len()
        )
    })
}

/// The services that send to one port of a backend, by their names.
#[derive(Default)]
struct Senders<'c> {
    tls: BTreeSet<&'c str>,
    plain: BTreeSet<&'c str>,
}

/// Ports given by `server` to which one service sends TLS and another does not:
/// hardly any server takes both.
fn shared_ports(config: &Config) -> impl Iterator<Item = String> {
    let mut senders: BTreeMap<(usize, u16), Senders> = BTreeMap::new();
    for service in &config.services {
        for member in service.pools().flat_map(|pool| &config.pools[pool].members) {
            let server = member.server.or(config.backends[member.backend].server);
            let Some(server) = server.filter(|_| member.weight > 0) else {
                continue;
            };
            let at = senders.entry((member.backend, server.port())).or_default();
            match is_for_tls(service) {
                true => at.tls.insert(&service.name),
                false => at.plain.insert(&service.name),
            };
        }
    }
    senders.retain(|_, at| !at.tls.is_empty() && !at.plain.is_empty());
    senders
        .into_iter()
        .map(|((backend, port), Senders { tls, plain })| {
            let list = |names: BTreeSet<&str>| Vec::from_iter(names).join(", ");
            format!(
                "port {port} of backend {} is for TLS ({}) and for plain HTTP ({}): give the \
             backend a `server` of its own in the pool of one of them",
                config.backends[backend].name,
                list(tls),
                list(plain)
            )
        })
}

/// A backend that runs a request once more, because its server has closed on it, knows neither its pool nor
/// its rule (docs/protocol/retry.md 1).
fn never_for_all(config: &Config) -> impl Iterator<Item = String> {
    let backends = |pool: usize| -> BTreeSet<usize> {
        let members = config.pools[pool].members.iter();
        members.map(|member| member.backend).collect()
    };
    let never = |pool: &usize| {
        let mut rescues = config.rescues(*pool);
        rescues.any(|rescue| rescue.retry == Retry::Never)
    };
    let (says, others): (Vec<usize>, Vec<usize>) = (0..config.pools.len()).partition(never);
    let shared = move |says: usize| {
        let own = backends(says);
        let sharing = (others.iter()).filter(|other| !backends(**other).is_disjoint(&own));
        let names: Vec<&str> = sharing.map(|&other| &*config.pools[other].name).collect();
        (!names.is_empty()).then(|| {
            format!(
                "pool {}, or a rule for it, says retry = \"never\": on the backends that it shares with {} \
                 a request whose server closes without a word is not tried again, whoever's it is",
                config.pools[says].name,
                names.join(", ")
            )
        })
    };
    says.into_iter().filter_map(shared)
}

/// By its port, or because its rules look at nothing but ClientHellos.
fn is_for_tls(service: &Service) -> bool {
    let asks_tls = |rule: &Rule| rule.sni.is_some() || rule.alpn.is_some();
    let only_tls = !service.rules.is_empty() && service.rules.iter().all(asks_tls);
    // 443, 8443 and the like, by custom.
    service.address.port() % 1000 == 443 || only_tls
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(summary) = &self.summary else {
            writeln!(f, "{}", self.text)?;
            let count = amount::count(self.errors.len(), "error");
            return writeln!(f, "\n{}: {count}", self.file);
        };
        writeln!(
            f,
            "ok: {}: cluster {}, {}{}, {}, {}, {}, {}",
            self.file,
            summary.cluster,
            match summary.sprays {
                0 => String::new(),
                count => amount::count(count, "spray") + ", ",
            },
            amount::count(summary.dispatchers, "dispatcher"),
            amount::count(summary.backends, "backend"),
            amount::count(summary.pools, "pool"),
            amount::count(summary.services, "service"),
            amount::count(summary.rules, "rule"),
        )?;
        for remark in &self.remarks {
            writeln!(f, "remark: {remark}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../examples/trapeze.toml");

    fn report(text: &str) -> Report {
        Report::of(&Config::parse(text, "t.toml"), "t.toml")
    }

    #[test]
    fn a_right_file_is_summed_up() {
        assert_eq!(
            report(FILE).to_string(),
            "ok: t.toml: cluster example, 1 dispatcher, 3 backends, 4 pools, 2 services, 3 rules\n"
        );
    }

    #[test]
    fn mistakes_come_with_their_place() {
        let report = report(&FILE.replacen("\"hrw\"", "\"hwr\"", 1));
        assert!(!report.ok);
        let place = format!(
            "t.toml:{}:{}:",
            report.errors[0].line, report.errors[0].column
        );
        let text = report.to_string();
        assert!(text.starts_with(&place), "{text}");
        assert!(text.ends_with("t.toml: 1 error\n"), "{text}");
    }

    #[test]
    fn what_nothing_uses_is_remarked() {
        let text = FILE.replace("pool = \"images\"", "pool = \"web\"");
        assert_eq!(report(&text).remarks, ["pool images is used by no service"]);
    }

    #[test]
    fn dispatchers_that_nobody_stands_before_are_remarked() {
        let second =
            "[[dispatcher]]\nname = \"d2\"\naddress = \"10.77.0.12\"\ninterface = \"eth0\"\n";
        let text = format!("{FILE}{second}");
        assert!(report(&text).remarks[0].contains("ECMP"));
        let spray = "[[spray]]\nname = \"s1\"\naddress = \"10.77.0.91\"\ninterface = \"eth0\"\n";
        let text = format!("{text}{spray}");
        assert!(report(&text).remarks.is_empty());
        assert!(report(&text).to_string().contains("1 spray, 2 dispatchers"));
    }

    #[test]
    fn a_pool_without_any_weight_is_remarked() {
        let text = FILE.replace("[\"b2\"]", "[{ name = \"b2\", weight = 0 }]");
        assert_eq!(
            report(&text).remarks,
            ["pool images-tls: each backend's weight is 0, so its requests get 503"]
        );
    }

    #[test]
    fn what_is_never_tried_again_for_others_is_remarked() {
        let never = "retry = \"never\"";
        let rule = FILE.replace("pool = \"images\"", &format!("pool = \"images\"\n{never}"));
        let remarks = report(&rule).remarks;
        let begun = "pool images, or a rule for it, says retry = \"never\": on the backends that it \
                     shares with web, web-tls, images-tls a request";
        assert!(remarks[0].starts_with(begun), "{remarks:?}");
        let all = FILE.replace("[[pool]]\n", &format!("[[pool]]\n{never}\n"));
        assert_eq!(report(&all).remarks, [""; 0]);
    }

    #[test]
    fn a_server_that_is_to_take_tls_and_plain_http_is_remarked() {
        let text = FILE.replace("pool = \"web-tls\"", "pool = \"web\"");
        assert_eq!(
            report(&text).remarks,
            [
                "pool web-tls is used by no service",
                "port 8080 of backend b3 is for TLS (site-tls) and for plain HTTP (site): give \
                 the backend a `server` of its own in the pool of one of them"
            ]
        );
        // On another port, but with rules for ClientHellos only.
        let other = text.replace("10.77.0.100:443", "10.77.0.100:4430");
        assert_eq!(report(&other).remarks.len(), 2);
    }
}
