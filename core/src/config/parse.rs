//! From text to the checked model. A mistake is recorded and a placeholder put
//! in its place, so that all of a file is checked in one run; the model comes
//! out only if nothing was recorded.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::{Check, read_check, read_member_check, read_outliers};
use super::checks::{Checks, Found};
use super::errors::ConfigErrors;
use super::etcd::read_membership;
use super::parse_policy::{read_costs, read_policy, read_stickiness};
use super::rescue::{Answers, NOT_FOLLOWED, Rescue, read_rescue};
use super::section::{Section, Source};
use super::{
    Attach, Backend, ClusterKey, Config, Dispatcher, Handoff, HeaderRule, Limits, Member, Pool,
    PoolNumber, Rule, Service, Spray, SprayMode, Spraying, Transfer, value,
};

pub(super) fn parse(text: &str, file: &str) -> Result<Config, ConfigErrors> {
    let source = Source::new(text, file);
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    if !syntax_errors.is_empty() {
        for error in syntax_errors {
            source.error(error.span().unwrap_or(0..0), error.message());
        }
        return Err(ConfigErrors::new(source.into_errors()));
    }
    let config = read(
        &source,
        Section::new(&source, "the file", document.get_ref(), 0..0),
    );
    match source.into_errors() {
        none if none.is_empty() => Ok(config),
        errors => Err(ConfigErrors::new(errors)),
    }
}

fn read(source: &Source<'_>, mut file: Section<'_>) -> Config {
    let mut checks = Checks::new(source);
    let (name, keys) = match file.table("cluster", "[cluster]") {
        Some(cluster) => read_cluster(cluster),
        None => {
            file.error("there is no [cluster]: add it, with `name` and `keys`");
            Default::default()
        }
    };
    let membership = file
        .table("membership", "[membership]")
        .and_then(read_membership);
    // Others may join.
    let is_open = file.has("membership");
    let sprays = read_sprays(file.tables("spray", "[[spray]]"), &mut checks);
    let spraying = file
        .table("spraying", "[spraying]")
        .map_or_else(Spraying::default, |table| {
            if sprays.is_empty() && !is_open {
                table.error("there is no [[spray]] for it: add one, or remove [spraying]");
            }
            read_spraying(table)
        });
    let dispatchers = read_dispatchers(file.tables("dispatcher", "[[dispatcher]]"), &mut checks);
    if dispatchers.is_empty() && !is_open {
        file.error("there is no [[dispatcher]]: add at least one host that reads requests");
    }
    if !is_open {
        checks.sub_clusters(&dispatchers);
    }
    for (what, count) in [("dispatcher", dispatchers.len()), ("spray", sprays.len())] {
        if count > MEMBERS_MAX {
            file.error(format!(
                "there are {count} [[{what}]], and {MEMBERS_MAX} can be told apart: split the cluster"
            ));
        }
    }
    let backends = read_backends(
        file.tables("backend", "[[backend]]"),
        &dispatchers,
        &mut checks,
    );
    if backends.is_empty() {
        file.error("there is no [[backend]]: add at least one host that serves");
    }
    checks.splice_addresses();
    let pools = read_pools(file.tables("pool", "[[pool]]"), &backends, &mut checks);
    let services = read_services(
        file.tables("service", "[[service]]"),
        (&pools, &backends),
        &mut checks,
    );
    if services.is_empty() {
        file.error("there is no [[service]]: add at least one address to serve");
    }
    let limits = file
        .table("limits", "[limits]")
        .map_or_else(Limits::default, read_limits);
    file.finish();
    Config {
        name,
        keys,
        membership,
        sprays,
        spraying,
        dispatchers,
        backends,
        pools,
        services,
        limits,
    }
}

fn read_cluster(mut cluster: Section<'_>) -> (String, Vec<ClusterKey>) {
    let name = cluster.required("name", "\"example\"", value::name);
    let source = cluster.source;
    let mut keys: Vec<ClusterKey> = Vec::new();
    let mut key_sections = cluster.tables("keys", "`keys = [{ id = 1, secret = \"...\" }]`");
    for key in &mut key_sections {
        let id = key.required("id", "1", |v| value::integer(v, 0..=255));
        let secret = key
            .required("secret", "\"...\"", value::secret)
            .map(Spanned::into_inner);
        let Some(id) = id else { continue };
        let span = id.span();
        let id = id.into_inner() as u8;
        if keys.iter().any(|k| k.id == id) {
            source.error(
                span,
                format!("there is a key {id} already: packets name keys by id"),
            );
        }
        keys.push(ClusterKey {
            id,
            secret: secret.unwrap_or_default(),
        });
    }
    if key_sections.is_empty() {
        cluster.error(
            "[cluster] lacks a key: add `keys = [{ id = 1, secret = \"...\" }]` \
             with 32 hex digits from `openssl rand -hex 16`",
        );
    }
    key_sections.into_iter().for_each(Section::finish);
    cluster.finish();
    (value_or(name, String::new()), keys)
}

/// Dispatchers, and sprays, that a data path has room for.
pub(super) const MEMBERS_MAX: usize = 256;

fn read_sprays(sections: Vec<Section<'_>>, checks: &mut Checks<'_>) -> Vec<Spray> {
    let mut addresses = Vec::new();
    (sections.into_iter())
        .map(|mut section| {
            let name = section.required("name", "\"s1\"", value::name);
            let address = section.required("address", "\"10.0.0.91\"", value::address);
            checks.node(&name, &address, "spray", &mut addresses);
            let interface = section.required("interface", "\"eth0\"", value::interface);
            let attach = section.optional("attach", value::attach);
            section.finish();
            Spray {
                name: value_or(name, String::new()),
                address: value_or(address, PLACEHOLDER),
                interface: value_or(interface, String::new()),
                attach: value_or(attach, Attach::Xdp),
            }
        })
        .collect()
}

fn read_spraying(mut section: Section<'_>) -> Spraying {
    let default = Spraying::default();
    let mode = section.optional("mode", value::spray_mode);
    let batch = section.optional("batch", |v| value::integer(v, 1..=u16::MAX.into()));
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let heartbeat = section.optional("heartbeat", |v| value::duration(v, ms(10)..=s(5)));
    let mut mode = value_or(mode, default.mode);
    match (&mut mode, batch) {
        (_, None) => {}
        (SprayMode::Batch(packets), Some(batch)) => *packets = batch.into_inner() as u16,
        (_, Some(batch)) => section.source.error(
            batch.span(),
            "`batch` is for `mode = \"batch\"`: write that, or remove it",
        ),
    }
    section.finish();
    Spraying {
        mode,
        heartbeat: value_or(heartbeat, default.heartbeat),
    }
}

fn read_dispatchers(sections: Vec<Section<'_>>, checks: &mut Checks<'_>) -> Vec<Dispatcher> {
    let mut addresses = Vec::new();
    (sections.into_iter())
        .map(|mut section| {
            let name = section.required("name", "\"d1\"", value::name);
            let address = section.required("address", "\"10.0.0.11\"", value::address);
            checks.node(&name, &address, "dispatcher", &mut addresses);
            let interface = section.required("interface", "\"eth0\"", value::interface);
            let attach = section.optional("attach", value::attach);
            let workers = section.optional("workers", |v| value::integer(v, 1..=64));
            let splice_address = section.optional("splice_address", value::address);
            checks.splice_address(&name, &splice_address);
            let sub_cluster = section.optional("sub_cluster", value::sub_cluster);
            checks.sub_cluster(&sub_cluster);
            section.finish();
            Dispatcher {
                name: value_or(name, String::new()),
                address: value_or(address, PLACEHOLDER),
                interface: value_or(interface, String::new()),
                attach: value_or(attach, Attach::Xdp),
                workers: value_or(workers, 1) as usize,
                splice_address: splice_address.map(Spanned::into_inner),
                sub_cluster: value_or(sub_cluster, 0),
            }
        })
        .collect()
}

fn read_backends(
    sections: Vec<Section<'_>>,
    dispatchers: &[Dispatcher],
    checks: &mut Checks<'_>,
) -> Vec<Backend> {
    let mut addresses = Vec::new();
    let has_splice_addresses = dispatchers.iter().all(|d| d.splice_address.is_some());
    (sections.into_iter())
        .map(|mut section| {
            let name = section.required("name", "\"b1\"", value::name);
            let address = section.required("address", "\"10.0.0.21\"", value::address);
            checks.node(&name, &address, "backend", &mut addresses);
            let transfer = section.optional("transfer", value::transfer);
            let is_misspelt = section.has("transfer") && transfer.is_none();
            let transfer = checks.transfer(transfer, has_splice_addresses);
            // What runs nothing of ours may have any; and of a transfer that cannot be read nobody
            // knows whether it needs one.
            let interface = match transfer.has_agent() && !is_misspelt {
                true => section.required("interface", "\"eth0\"", value::interface),
                false => section.optional("interface", value::interface),
            };
            let server = section.optional("server", value::server_address);
            checks.server(&server);
            section.finish();
            Backend {
                name: value_or(name, String::new()),
                address: value_or(address, PLACEHOLDER),
                interface: value_or(interface, String::new()),
                server: server.map(Spanned::into_inner),
                transfer,
            }
        })
        .collect()
}

fn read_pools<'s>(
    sections: Vec<Section<'s>>,
    backends: &[Backend],
    checks: &mut Checks<'s>,
) -> Vec<Pool> {
    let mut names = Vec::new();
    let mut pools: Vec<Pool> = (sections.into_iter())
        .map(|mut section| {
            let name = section.required("name", "\"web\"", value::name);
            checks.unique(&name, "pool", &mut names);
            let policy = read_policy(&mut section);
            let stickiness = read_stickiness(&mut section);
            let costs = read_costs(&mut section);
            let handoff = section.optional("handoff", value::handoff);
            let survive_close = section.optional("survive_close", value::boolean);
            let park = section.optional("park", value::boolean);
            let handoff = value_or(handoff, Handoff::default());
            for (key, wanted) in [("survive_close", &survive_close), ("park", &park)] {
                let wanted = wanted.as_ref().filter(|wanted| *wanted.get_ref());
                if let (Handoff::None, Some(wanted)) = (handoff, wanted) {
                    let message = format!("`{key}` {NOT_FOLLOWED}");
                    section.source.error(wanted.span(), message);
                }
            }
            let check = read_check(&mut section);
            let outliers = read_outliers(&mut section);
            let slow_start = section.optional("slow_start", |v| {
                value::duration(v, Duration::from_secs(1)..=Duration::from_secs(3600))
            });
            let listed = section.required("backends", "[\"b1\"]", |v| {
                v.as_array().ok_or_else(|| "expected an array such as [\"b1\", \"b2\"]".to_owned())
            });
            let mut members: Vec<Member> = Vec::new();
            if let Some(listed) = listed {
                if listed.get_ref().is_empty() {
                    let message = "a pool needs a backend: write `backends = [\"b1\"]`, or remove the pool";
                    checks.source.error(listed.span(), message);
                }
                for item in listed.get_ref().iter() {
                    let member = read_member(item, backends, check.as_ref(), checks);
                    let Some(member) = member else { continue };
                    if members.iter().any(|m| m.backend == member.backend) {
                        let message = "this backend is in the pool already: for a larger share write \
                                       `{ name = \"...\", weight = 2 }`";
                        checks.source.error(item.span(), message);
                    }
                    members.push(member);
                }
            }
            let answers = Answers::of(handoff, transfers(&members, backends));
            let rescue = read_rescue(&mut section, Rescue::default(), answers);
            section.finish();
            Pool {
                name: value_or(name, String::new()),
                number: PoolNumber::default(),
                policy,
                stickiness,
                costs,
                handoff,
                survive_close: value_or(survive_close, true),
                park: value_or(park, true),
                rescue,
                slow_start: slow_start.map(Spanned::into_inner),
                outliers,
                members,
            }
        })
        .collect();
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let numbers = PoolNumber::all_of(&names);
    for (pool, number) in pools.iter_mut().zip(numbers) {
        pool.number = number;
    }
    pools
}

/// `"b1"` or `{ name = "b1", weight = 2, server = "127.0.0.1:8080" }`.
fn read_member<'t>(
    item: &'t Spanned<DeValue<'t>>,
    backends: &[Backend],
    check: Option<&Check>,
    checks: &mut Checks<'t>,
) -> Option<Member> {
    let backend_named = |name: &str, span| {
        checks.resolve(
            name,
            span,
            "backend",
            backends.iter().map(|b| b.name.as_str()),
        )
    };
    if let Some(name) = item.get_ref().as_str() {
        let backend = backend_named(name, item.span())?;
        return Some(Member {
            backend,
            weight: 1,
            server: None,
            check: check.cloned(),
        });
    }
    let Some(table) = item.get_ref().as_table() else {
        let message = "a pool's backend is \"b1\" or { name = \"b1\", weight = 2 }";
        checks.source.error(item.span(), message);
        return None;
    };
    let mut section = Section::new(checks.source, "a pool's backend", table, item.span());
    let name = section.required("name", "\"b1\"", value::text);
    let backend = name.and_then(|name| backend_named(name.get_ref(), name.span()));
    let weight = section.optional("weight", |v| value::integer(v, 0..=256));
    let server = section.optional("server", value::server_address);
    checks.server(&server);
    let check = read_member_check(&mut section, check);
    section.finish();
    Some(Member {
        backend: backend?,
        weight: value_or(weight, 1) as u16,
        server: server.map(Spanned::into_inner),
        check,
    })
}

/// How connections get to each of these.
fn transfers(members: &[Member], backends: &[Backend]) -> impl Iterator<Item = Transfer> {
    (members.iter()).filter_map(|member| Some(backends.get(member.backend)?.transfer))
}

fn read_services(
    sections: Vec<Section<'_>>,
    (pools, backends): (&[Pool], &[Backend]),
    checks: &mut Checks<'_>,
) -> Vec<Service> {
    let mut names = Vec::new();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut services = Vec::new();
    for mut section in sections {
        let name = section.required("name", "\"site\"", value::name);
        checks.unique(&name, "service", &mut names);
        let address = section.required("address", "\"10.0.0.100:80\"", value::service_address);
        if let Some(address) = &address {
            checks.vip(address);
            if addresses.contains(address.get_ref()) {
                let message =
                    "another service is at this address: join them, with rules to tell them apart";
                checks.source.error(address.span(), message);
            }
            addresses.push(*address.get_ref());
        }
        let ecn = section.optional("ecn", value::boolean);
        let default_pool = section.optional("pool", value::text);
        let rule_sections = section.tables("rule", "[[service.rule]]");
        if !section.has("pool") && !section.has("rule") {
            section.error("[[service]] has neither rules nor a pool: add `pool = \"...\"`");
        }
        let rules = (rule_sections.into_iter())
            .map(|r| read_rule(r, (pools, backends), checks))
            .collect();
        section.finish();
        services.push(Service {
            name: value_or(name, String::new()),
            address: value_or(address, SocketAddr::new(PLACEHOLDER, 0)),
            ecn: value_or(ecn, true),
            rules,
            default_pool: default_pool.and_then(|pool| checks.pool(&pool, pools)),
        });
    }
    services
}

fn read_rule(
    mut section: Section<'_>,
    (pools, backends): (&[Pool], &[Backend]),
    checks: &Checks<'_>,
) -> Rule {
    let span = section.span.clone();
    let host = section.optional("host", value::host);
    let sni = section.optional("sni", value::server_name);
    let alpn = section.optional("alpn", value::alpn);
    let path = section.optional("path", value::path);
    let path_prefix = section.optional("path_prefix", value::path_prefix);
    let path_suffix = section.optional("path_suffix", value::path_suffix);
    let method = section.optional("method", value::token);
    let header = section
        .table("header", "`header = { name = \"...\" }`")
        .and_then(read_header);
    let class = section.optional("class", value::class);
    let pool = section.required("pool", "\"web\"", value::text);
    let pool = pool.and_then(|pool| checks.pool(&pool, pools)).unwrap_or(0);

    let of_tls = [("sni", section.has("sni")), ("alpn", section.has("alpn"))];
    let of_http = [
        "host",
        "path",
        "path_prefix",
        "path_suffix",
        "method",
        "header",
    ]
    .map(|k| (k, section.has(k)));
    let present = |keys: &[(&'static str, bool)]| keys.iter().find(|k| k.1).map(|k| k.0);
    match (present(&of_tls), present(&of_http)) {
        (None, None) => section.error(
            "this rule has no condition and would match everything: \
             remove it and write its pool as the service's `pool`",
        ),
        (Some(tls), Some(http)) => section.error(format!(
            "`{tls}` is a condition on a TLS ClientHello and `{http}` one on an HTTP request: \
             no connection has both, so make two rules"
        )),
        _ => {}
    }
    // There is none where they all were wrong.
    let of_pool = pools.get(pool);
    let answers = match present(&of_tls) {
        Some(_) => Answers::Tls,
        None => of_pool.map_or(Answers::Followed, |pool| {
            Answers::of(pool.handoff, transfers(&pool.members, backends))
        }),
    };
    let inherited = of_pool.map_or(Rescue::default(), |pool| pool.rescue);
    let rescue = read_rescue(&mut section, inherited, answers);
    section.finish();
    Rule {
        host: host.map(Spanned::into_inner),
        sni: sni.map(Spanned::into_inner),
        alpn: alpn.map(Spanned::into_inner),
        path: path.map(Spanned::into_inner),
        path_prefix: path_prefix.map(Spanned::into_inner),
        path_suffix: path_suffix.map(Spanned::into_inner),
        method: method.map(Spanned::into_inner),
        header,
        class: class.map(Spanned::into_inner),
        rescue,
        pool,
        line: checks.source.line(&span),
    }
}

fn read_header(mut section: Section<'_>) -> Option<HeaderRule> {
    let name = section.required("name", "\"X-Canary\"", value::token);
    let value = section.optional("value", value::header_value);
    section.finish();
    Some(HeaderRule {
        name: name?.into_inner(),
        value: value.map(Spanned::into_inner),
    })
}

fn read_limits(mut section: Section<'_>) -> Limits {
    let default = Limits::default();
    let head_bytes = section.optional("head_bytes", |v| value::integer(v, 1 << 10..=64 << 10));
    let head_bytes = value_or(head_bytes, default.head_bytes as u64);
    let reading_flows = section.optional("reading_flows", |v| value::integer(v, 1..=1 << 24));
    let reading_bytes = section.optional("reading_bytes", |v| {
        value::integer(v, head_bytes..=64 << 30)
    });
    let flows = section.optional("flows", |v| value::integer(v, 1..=1 << 28));
    // `rule`: what the range follows from, in words.
    let mut ruled = |key, range: RangeInclusive<Duration>, default, rule: &str| {
        let read = |v| value::duration(v, range).map_err(|error| error + rule);
        value_or(section.optional(key, read), default)
    };
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let update_interval = ruled(
        "update_interval",
        ms(100)..=s(60),
        default.update_interval,
        "",
    );
    let cache_timeout = ruled(
        "cache_timeout",
        update_interval * 2..=s(3600),
        default.cache_timeout.max(update_interval * 3),
        "; it is twice `update_interval` at least",
    );
    let mut duration = |key, range, default| ruled(key, range, default, "");
    let limits = Limits {
        head_bytes: head_bytes as usize,
        head_timeout: duration("head_timeout", ms(100)..=s(3600), default.head_timeout),
        reading_flows: value_or(reading_flows, default.reading_flows as u64) as usize,
        reading_bytes: value_or(reading_bytes, default.reading_bytes as u64) as usize,
        flows: value_or(flows, default.flows.into()) as u32,
        idle_timeout: duration("idle_timeout", s(1)..=s(30 * 86_400), default.idle_timeout),
        fin_timeout: duration("fin_timeout", s(1)..=s(3600), default.fin_timeout),
        drain_timeout: duration("drain_timeout", s(0)..=s(86_400), default.drain_timeout),
        heartbeat: duration("heartbeat", ms(10)..=s(5), default.heartbeat),
        update_interval,
        cache_timeout,
    };
    section.finish();
    limits
}

/// Stands where an address was wrong; never leaves [`parse`].
const PLACEHOLDER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

pub(super) fn value_or<T>(found: Found<T>, default: T) -> T {
    found.map_or(default, Spanned::into_inner)
}
