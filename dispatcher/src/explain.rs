//! Where a request would go, and why: by the daemon's own rules and policies,
//! for the backends as they are now or, without a daemon, as if all were up.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde::{Deserialize, Serialize};
use trapeze_core::config::{Config, Member, Pool, Rescue, Service, Stickiness};
use trapeze_core::head::{self, ClientHello, Inspection};
use trapeze_core::policy::{self, BackendId, Backends, Bound, Candidate, Request};
use trapeze_core::route::{self, Asked};

/// A request or connection that nobody has made yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The service address; may be left out when there is one service.
    pub vip: Option<SocketAddr>,
    /// Who asks, for policies that look at it.
    pub client: SocketAddr,
    /// The request head, for HTTP.
    pub head: Option<String>,
    /// The server name, for TLS.
    pub sni: Option<String>,
    /// The protocols offered, for TLS.
    pub alpn: Vec<String>,
}

/// Where a request would go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// The service.
    pub service: String,
    /// Its address.
    pub vip: SocketAddr,
    /// The pool, if there is one.
    pub pool: Option<String>,
    /// Its policy.
    pub policy: Option<String>,
    /// The backend, if one is alive.
    pub backend: Option<String>,
    /// Why, a sentence a step.
    pub because: Vec<String>,
}

/// What is known of the backends.
pub(crate) trait View {
    /// A sentence's part about a pool's member, asked at that port of the VIP.
    fn describe(&self, pool: usize, member: &Member, port: u16) -> String;

    /// The number by which policies know the backend of that index.
    fn id(&self, backend: usize) -> BackendId;

    /// The backend that the pool's policy would choose now.
    fn choose(&self, pool: usize, port: u16, request: Request) -> Option<BackendId>;
}

/// By a configuration alone: all backends up, none with a connection.
pub fn explain_offline(config: &Config, question: &Question) -> anyhow::Result<Explained> {
    explain(config, &AllUp(config), question)
}

pub(crate) fn explain(
    config: &Config,
    view: &dyn View,
    question: &Question,
) -> anyhow::Result<Explained> {
    let Some(head) = &question.head else {
        let hello = ClientHello {
            len: 0,
            server_name: question.sni.as_deref().map(str::to_ascii_lowercase),
            alpn: (question.alpn.iter())
                .map(|name| name.as_bytes().to_vec())
                .collect(),
        };
        return explain_asked(config, view, question, &Asked::Tls(&hello));
    };
    match head::inspect(head.as_bytes(), config.limits.head_bytes) {
        Inspection::Http(parsed) => explain_asked(config, view, question, &Asked::Http(&parsed)),
        Inspection::Bad(bad) => bail!("the dispatcher itself would refuse this: {bad}"),
        _ => bail!("this is no whole HTTP/1 request"),
    }
}

fn explain_asked(
    config: &Config,
    view: &dyn View,
    question: &Question,
    asked: &Asked<'_>,
) -> anyhow::Result<Explained> {
    let service = find_service(config, question.vip)?;
    let port = service.address.port();
    let explanation = route::explain(service, asked);
    let mut because: Vec<String> = explanation.to_string().lines().map(str::to_owned).collect();
    let index = explanation.routed.pool();
    let pool = index.map(|index| &config.pools[index]);
    let request = index.map(|index| {
        let class = explanation.routed.class(service);
        let id = |backend| view.id(backend);
        config.request(index, asked, question.client, class, id)
    });
    let name = |id: BackendId| {
        let backend = (0..config.backends.len()).find(|&b| view.id(b) == id)?;
        Some(config.backends[backend].name.as_str())
    };
    let backend = (index.zip(request))
        .and_then(|(index, request)| view.choose(index, port, request))
        .and_then(name);
    let vip = service.address;
    let rescue = config.rescue(vip, asked).map(|(_, rescue)| rescue);
    let said = rescue.filter(|&rescue| rescue != Rescue::default());
    because.extend(said.map(|rescue| rescue.to_string()));
    if let (Some(rescue), Some(pool)) = (said, pool)
        && (rescue.protection.is_any() || rescue.retry.keeps())
    {
        because.extend(not_rescued(config, pool));
    }
    for (index, pool) in index.iter().zip(pool) {
        let members = pool.members.iter();
        because.extend(members.map(|member| view.describe(*index, member, port)));
    }
    let tls = matches!(asked, Asked::Tls(_));
    because.push(match (backend, pool) {
        (Some(chosen), Some(pool)) => {
            let bound = request.and_then(|request| request.bound);
            why(pool, bound.zip(pool.stickiness.as_ref()), chosen, name)
        }
        (None, Some(pool)) => format!(
            "pool {} has no backend to choose: the client gets {}",
            pool.name,
            if tls { "a TLS alert" } else { "503" }
        ),
        (_, None) => format!(
            "nobody is asked: the client gets {}",
            if tls { "a TLS alert" } else { "404" }
        ),
    });
    Ok(Explained {
        service: service.name.clone(),
        vip: service.address,
        pool: pool.map(|p| p.name.clone()),
        policy: pool.map(|p| p.policy.name().to_owned()),
        backend: backend.map(str::to_owned),
        because,
    })
}

/// The pool's backends of which that does not hold.
fn not_rescued(config: &Config, pool: &Pool) -> Option<String> {
    let backends = pool.members.iter().map(|m| &config.backends[m.backend]);
    let spliced = backends.filter(|backend| backend.transfer.connects());
    let names: Vec<&str> = spliced.map(|backend| &*backend.name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "spliced, so that nothing outlives them but requests that they have not acknowledged: {}",
            names.join(", ")
        )
    })
}

/// Who of stickiness and the policy has chosen, in words.
fn why<'n>(
    pool: &Pool,
    bound: Option<(Bound, &Stickiness)>,
    chosen: &str,
    name: impl Fn(BackendId) -> Option<&'n str>,
) -> String {
    let by_policy = format!(
        "{} of pool {} chooses {chosen}",
        pool.policy.name(),
        pool.name
    );
    let Some((bound, stickiness)) = bound else {
        return by_policy;
    };
    let by = match stickiness {
        Stickiness::Cookie { name, .. } => format!("the cookie {name}"),
        Stickiness::Header(name) => format!("the header {name}"),
        Stickiness::Source => "the client's address".to_owned(),
    };
    match bound {
        // Whoever is there has some share of the keys.
        Bound::Key(_) => format!(
            "stickiness of pool {}: the hash of {by} chooses {chosen}",
            pool.name
        ),
        Bound::To(id) => match name(id) {
            Some(named) if named == chosen => {
                format!("stickiness of pool {}: {by} names {chosen}", pool.name)
            }
            named => format!(
                "{by} names {}, which takes no requests now; {by_policy}",
                named.unwrap_or("a backend")
            ),
        },
    }
}

fn find_service(config: &Config, vip: Option<SocketAddr>) -> anyhow::Result<&Service> {
    let services = &config.services;
    let names = || {
        let names = services
            .iter()
            .map(|s| format!("{} ({})", s.address, s.name));
        names.collect::<Vec<_>>().join(", ")
    };
    match (vip, &services[..]) {
        (Some(vip), _) => config
            .service_at(vip)
            .ok_or_else(|| anyhow!("no service at {vip}; there are: {}", names())),
        (None, [service]) => Ok(service),
        (None, _) => bail!(
            "there are several services: name one with --vip: {}",
            names()
        ),
    }
}

struct AllUp<'a>(&'a Config);

impl View for AllUp<'_> {
    fn describe(&self, _pool: usize, member: &Member, _port: u16) -> String {
        let name = &self.0.backends[member.backend].name;
        format!("{name}: taken to be up, weight {}", member.weight)
    }

    fn id(&self, backend: usize) -> BackendId {
        BackendId(backend as u16)
    }

    fn choose(&self, pool: usize, _port: u16, request: Request) -> Option<BackendId> {
        let pool = &self.0.pools[pool];
        let backends = Backends::new(pool.members.iter().map(|member| {
            let name = &self.0.backends[member.backend].name;
            Candidate::new(BackendId(member.backend as u16), name, member.weight)
        }));
        let mut policy = policy::build(&pool.policy, 0);
        policy::preview(&mut *policy, Duration::ZERO, &request, &backends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../examples/trapeze.toml");

    fn ask(vip: &str, head: Option<&str>, sni: Option<&str>) -> anyhow::Result<Explained> {
        let config = Config::parse(FILE, "trapeze.toml").unwrap();
        let question = Question {
            vip: Some(vip.parse().unwrap()),
            client: "192.0.2.1:50000".parse().unwrap(),
            head: head.map(str::to_owned),
            sni: sni.map(str::to_owned),
            alpn: Vec::new(),
        };
        explain_offline(&config, &question)
    }

    #[test]
    fn rules_and_policy_of_the_file_decide() {
        let image = "GET /img/a HTTP/1.1\r\nHost: a\r\n\r\n";
        let explained = ask("10.77.0.100:80", Some(image), None).unwrap();
        assert_eq!(explained.service, "site");
        assert_eq!(explained.pool.as_deref(), Some("images"));
        assert_eq!(explained.backend.as_deref(), Some("b2"));
        assert_eq!(
            explained.because.last().unwrap(),
            "least-connections of pool images chooses b2"
        );
    }

    #[test]
    fn what_is_saved_is_said_where_anything_is() {
        let said = |file: &str| {
            let config = Config::parse(file, "trapeze.toml").unwrap();
            let question = Question {
                vip: Some("10.77.0.100:80".parse().unwrap()),
                client: "192.0.2.1:50000".parse().unwrap(),
                head: Some("GET /img/a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
                sni: None,
                alpn: Vec::new(),
            };
            explain_offline(&config, &question).unwrap().because
        };
        let rule = "path_prefix = \"/img\"";
        let with = said(&FILE.replacen(rule, &format!("{rule}\nprotect_from = 5"), 1));
        let saved =
            "answers that outlive their backend: from 5 bytes on; requests that do: unheard";
        assert!(with.iter().any(|why| why == saved), "{with:?}");
        assert_eq!(said(FILE).len() + 1, with.len());
        // Not of all of them.
        let mixed = FILE
            .replacen(rule, &format!("{rule}\nretry = \"always\""), 1)
            .replacen("name = \"b2\"", "name = \"b2\"\ntransfer = \"splice\"", 1)
            .replacen(
                "[[dispatcher]]",
                "[[dispatcher]]\nsplice_address = \"10.77.0.111\"",
                1,
            );
        let not = "spliced, so that nothing outlives them but requests that they have not acknowledged: b2";
        let mixed = said(&mixed);
        assert!(mixed.iter().any(|why| why == not), "{mixed:?}");
    }

    /// A view in which one backend takes nothing.
    struct Without<'a>(&'a Config, &'a str);

    impl View for Without<'_> {
        fn describe(&self, pool: usize, member: &Member, port: u16) -> String {
            AllUp(self.0).describe(pool, member, port)
        }

        fn id(&self, backend: usize) -> BackendId {
            AllUp(self.0).id(backend)
        }

        fn choose(&self, pool: usize, _port: u16, request: Request) -> Option<BackendId> {
            let pool = &self.0.pools[pool];
            let there = pool.members.iter().filter_map(|member| {
                let name = &*self.0.backends[member.backend].name;
                let id = self.id(member.backend);
                (name != self.1).then(|| Candidate::new(id, name, member.weight))
            });
            let mut policy = policy::build(&pool.policy, 0);
            policy::preview(
                &mut *policy,
                Duration::ZERO,
                &request,
                &Backends::new(there),
            )
        }
    }

    #[test]
    fn stickiness_is_named_where_it_decides() {
        let why = |stickiness: &str, header: &str, gone: &str| {
            let pool = "name = \"images\"";
            let file = FILE.replacen(pool, &format!("{pool}\nstickiness = {stickiness}"), 1);
            assert_ne!(file, FILE);
            let config = Config::parse(&file, "trapeze.toml").unwrap();
            let question = Question {
                vip: Some("10.77.0.100:80".parse().unwrap()),
                client: "192.0.2.1:50000".parse().unwrap(),
                head: Some(format!("GET /img/a HTTP/1.1\r\nHost: a\r\n{header}\r\n")),
                sni: None,
                alpn: Vec::new(),
            };
            let explained = explain(&config, &Without(&config, gone), &question).unwrap();
            (
                explained.backend.unwrap(),
                explained.because.last().unwrap().clone(),
            )
        };
        let cookie = "{ cookie = \"SRV\" }";
        let (backend, because) = why(cookie, "Cookie: SRV=b3\r\n", "");
        assert_eq!(backend, "b3");
        assert_eq!(
            because,
            "stickiness of pool images: the cookie SRV names b3"
        );
        let (backend, because) = why(cookie, "Cookie: SRV=b3\r\n", "b3");
        assert_eq!(backend, "b2");
        assert_eq!(
            because,
            "the cookie SRV names b3, which takes no requests now; \
             least-connections of pool images chooses b2"
        );
        let (_, because) = why(cookie, "", "");
        assert_eq!(because, "least-connections of pool images chooses b2");
        let (backend, because) = why("{ header = \"X-T\" }", "X-T: a\r\n", "");
        assert_eq!(
            because,
            format!("stickiness of pool images: the hash of the header X-T chooses {backend}")
        );
        let (backend, because) = why("\"source\"", "", "");
        assert_eq!(
            because,
            format!(
                "stickiness of pool images: the hash of the client's address chooses {backend}"
            )
        );
    }

    #[test]
    fn a_server_name_is_compared_in_any_case() {
        let explained = ask("10.77.0.100:443", None, Some("IMG.example")).unwrap();
        assert_eq!(explained.pool.as_deref(), Some("images-tls"));
        let explained = ask("10.77.0.100:443", None, None).unwrap();
        assert_eq!(explained.pool.as_deref(), Some("web-tls"));
    }

    #[test]
    fn what_cannot_be_asked_is_an_error() {
        let nowhere = ask(
            "10.77.0.1:80",
            Some("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            None,
        );
        let text = nowhere.unwrap_err().to_string();
        assert!(text.contains("10.77.0.100:443 (site-tls)"), "{text}");
        let cut = ask("10.77.0.100:80", Some("GET / HTTP/1.1\r\n"), None);
        assert!(cut.unwrap_err().to_string().contains("no whole"));
    }
}
