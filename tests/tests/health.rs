//! Servers that do not do their work, while their hosts are well: active checks find out, new
//! requests go elsewhere, and come back (docs/decisions/0024).

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use trapeze_dispatcher::{BackendStatus, CheckStatus};
use trapeze_lab::{Options, Process};
use trapeze_tests::saved::Download;
use trapeze_tests::{Cluster, Connection, Content, same, until};

/// More than client, network and server have room for.
const LARGE: u64 = 64 << 20;

const HTTP: &str = "[pool.check]\ntype = \"http\"\npath = \"/healthz\"\nstatus = 200\n\
                    body = \"well\"\ninterval = \"100ms\"\ntimeout = \"2s\"\nrise = 2\nfall = 2\n";
const SERVICE: &str =
    "[[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

/// Two backends with nginx, whose servers are checked.
struct Site {
    cluster: Cluster,
    root: TempDir,
}

impl Site {
    fn up(test: &str, pool: &str, check: &str) -> Self {
        Self::of(test, &(Cluster::nodes(2) + &Self::pool(pool, check)))
    }

    /// The dispatcher opens the connections to both.
    fn spliced(test: &str, check: &str) -> Self {
        let nodes = Cluster::nodes(2)
            .replace(
                "attach = \"tc\"",
                "attach = \"tc\"\nsplice_address = \"10.77.0.111\"",
            )
            .replace("[[backend]]", "[[backend]]\ntransfer = \"splice\"");
        Self::of(test, &(nodes + &Self::pool("", check)))
    }

    fn pool(pool: &str, check: &str) -> String {
        format!("[[pool]]\nname = \"web\"\n{pool}backends = [\"b1\", \"b2\"]\n{check}{SERVICE}")
    }

    fn of(test: &str, text: &str) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let large = Content::new(7, LARGE).bytes();
        let documents = [
            ("1k", vec![b'x'; 1024]),
            ("healthz", b"all is well".to_vec()),
            ("large", large),
        ];
        for (name, bytes) in documents {
            std::fs::write(root.path().join(name), bytes).expect("a temporary file");
        }
        let path = root.path().to_owned();
        let change = |options: &mut Options| options.root = Some(path);
        let cluster = Cluster::configured_whole(test, text, change);
        let site = Self { cluster, root };
        for backend in ["b1", "b2"] {
            if text.contains("[pool.check]") {
                site.await_check(backend, "up");
            } else {
                site.await_state(backend, "up");
            }
        }
        site
    }

    fn check(&self, backend: &str) -> Option<CheckStatus> {
        self.cluster.backend(backend).checks.pop()
    }

    fn await_check(&self, backend: &str, state: &str) {
        until("the dispatcher has heard of the check", || {
            (self.check(backend)?.state == state).then_some(())
        });
    }

    fn await_state(&self, backend: &str, state: &str) -> BackendStatus {
        until(&format!("{backend} is {state}"), || {
            let status = self.cluster.backend(backend);
            (status.state == state).then_some(status)
        })
    }

    /// Who has the next eight requests, each on a connection of its own.
    fn owners(&self) -> Vec<String> {
        let ask = || Connection::open().ask("/1k").ok().to_owned();
        let mut owners: Vec<_> = (self.cluster).on("c1", || (0..8).map(|_| ask()).collect());
        owners.sort();
        owners.dedup();
        owners
    }

    /// What a backend's nginx answers at /healthz from now on.
    fn say(&self, backend: &str, answer: &str) {
        self.say_at("location = /healthz", backend, answer);
    }

    /// What it answers to anything.
    fn say_everywhere(&self, backend: &str, answer: &str) {
        self.say_at("location /", backend, answer);
    }

    fn say_at(&self, location: &str, backend: &str, answer: &str) {
        let status = self.cluster.status().expect("the lab is up");
        let directory = status.config.parent().expect("the lab's directory");
        let configuration = directory.join(backend).join("nginx.conf");
        let text = std::fs::read_to_string(&configuration).expect("nginx's configuration");
        let ours = format!("{location} {{");
        let text: String = (text.lines())
            .filter(|line| !line.contains(&ours))
            .map(|line| format!("{line}\n"))
            .collect();
        let own = "location = /upload {\n";
        let text = match answer {
            "" => text,
            answer => text.replacen(own, &format!("{ours} {answer} }}\n    {own}"), 1),
        };
        std::fs::write(&configuration, text).expect("it is written");
        let processes = &status.host(backend).expect("a host").processes;
        let pid = processes[&Process::Server].pid.expect("it runs");
        let sent = Command::new("kill")
            .args(["-HUP", &pid.to_string()])
            .status();
        assert!(sent.expect("kill is installed").success());
    }
}

#[test]
fn a_frozen_server_gets_nothing_until_it_is_back() {
    let site = Site::up("health-frozen", "", HTTP);
    assert_eq!(site.owners(), ["b1", "b2"]);
    site.cluster.signal_server("b1", "-STOP");
    let status = site.await_state("b1", "down");
    assert_eq!(status.reason, "web:80: no answer within the timeout");
    assert_eq!(site.owners(), ["b2"]);
    assert_eq!(site.cluster.backend("b2").state, "up");
    site.cluster.signal_server("b1", "-CONT");
    let status = site.await_state("b1", "up");
    let changes: Vec<_> = status.history.iter().map(|c| (&*c.from, &*c.to)).collect();
    assert!(
        changes.ends_with(&[("up", "down"), ("down", "up")]),
        "{changes:?}"
    );
    assert_eq!(site.owners(), ["b1", "b2"]);
}

#[test]
fn a_server_whose_answer_is_wrong_gets_nothing() {
    let site = Site::up("health-wrong", "", HTTP);
    for (answer, reason) in [
        ("return 503;", "web:80: status 503"),
        (
            "return 200 'all is lost';",
            "web:80: not the body that is expected",
        ),
        ("return 301 /elsewhere;", "web:80: status 301"),
        ("return 444;", "web:80: closed without an answer"),
    ] {
        site.say("b2", answer);
        let status = site.await_state("b2", "down");
        assert_eq!(status.reason, reason);
        assert_eq!(site.owners(), ["b1"]);
        site.say("b2", "");
        site.await_state("b2", "up");
        assert_eq!(site.owners(), ["b1", "b2"]);
    }
}

/// Checks from the dispatcher, to a server whose host runs nothing of ours.
#[test]
fn a_server_without_an_agent_is_checked_from_the_dispatcher() {
    let site = Site::spliced("health-spliced", HTTP);
    assert_eq!(site.check("b1").expect("it is checked").by, "dispatcher");
    assert_eq!(site.owners(), ["b1", "b2"]);
    site.say("b1", "return 500;");
    let status = site.await_state("b1", "down");
    assert_eq!(status.reason, "web:80: status 500");
    assert_eq!(site.owners(), ["b2"]);
    site.say("b1", "");
    site.await_state("b1", "up");
    assert_eq!(site.owners(), ["b1", "b2"]);
}

/// A TCP check is content with a listener, and says so when that is gone, though nobody asks
/// for anything.
#[test]
fn a_tcp_check_finds_a_listener_gone() {
    let tcp = "[pool.check]\ntype = \"tcp\"\ninterval = \"100ms\"\n";
    let site = Site::up("health-tcp", "", tcp);
    site.say("b1", "return 500;");
    site.cluster
        .kill("b2", Some(Process::Server))
        .expect("it runs");
    let status = site.await_state("b2", "down");
    assert_eq!(status.reason, "web:80: nothing listens");
    assert_eq!(site.check("b1").expect("it is checked").state, "up");
    assert_eq!(site.owners(), ["b1"]);
    site.cluster
        .start("b2", Some(Process::Server))
        .expect("it starts");
    site.await_state("b2", "up");
    assert_eq!(site.owners(), ["b1", "b2"]);
}

/// A check comes, changes and goes by reload, and a connection does not notice.
#[test]
fn checks_change_by_reload_and_no_flow_is_lost() {
    let site = Site::up("health-reload", "", HTTP);
    let mut kept = site.cluster.on("c1", Connection::open);
    kept.ask("/1k").ok();
    let with = |check: &str| {
        let config = site.cluster.config();
        let (before, rest) = config.split_once("[pool.check]").expect("there is one");
        let (_, after) = rest.split_once("[[service]]").expect("there is one");
        format!("{before}{check}[[service]]{after}")
    };
    let reload = |config: &str| {
        for (host, process) in [
            ("b1", Process::Agent),
            ("b2", Process::Agent),
            ("d1", Process::Dispatch),
        ] {
            let said = site.cluster.reload(host, process, config);
            assert!(said.starts_with("reloaded"), "{said}");
        }
    };
    let (elsewhere, none) = (
        with("[pool.check]\ntype = \"http\"\npath = \"/nowhere\"\ninterval = \"100ms\"\n"),
        with(""),
    );
    // A mistake changes nothing.
    let wrong = with("[pool.check]\ntype = \"http\"\nstatus = 99\n");
    let said = site.cluster.reload("d1", Process::Dispatch, &wrong);
    assert!(said.contains("expected a status such as 200"), "{said}");
    reload(&elsewhere);
    for backend in ["b1", "b2"] {
        let status = site.await_state(backend, "down");
        assert_eq!(status.reason, "web:80: status 404");
    }
    let refused = site.cluster.on("c1", || Connection::open().ask("/1k"));
    assert_eq!(refused.status, 503, "all are down");
    reload(&none);
    for backend in ["b1", "b2"] {
        site.await_state(backend, "up");
        assert_eq!(site.check(backend), None);
    }
    assert_eq!(site.owners(), ["b1", "b2"]);
    kept.ask("/1k").ok();
}

/// Its share grows step by step to what it was.
#[test]
fn who_has_recovered_starts_slowly() {
    let site = Site::up("health-slow", "slow_start = \"1h\"\n", HTTP);
    let count = |of: &str| {
        let ask = || Connection::open().ask("/1k").ok().to_owned();
        let owners: Vec<_> = (site.cluster).on("c1", || (0..44).map(|_| ask()).collect());
        owners.iter().filter(|owner| *owner == of).count()
    };
    assert_eq!(count("b1"), 22, "a daemon that starts takes all for warm");
    site.say("b1", "return 503;");
    site.await_state("b1", "down");
    site.say("b1", "");
    site.await_state("b1", "up");
    // One to ten, in the first of ten steps.
    assert_eq!(site.cluster.backend("b1").slow_start, Some(10));
    assert_eq!(site.cluster.backend("b2").slow_start, None);
    assert_eq!(count("b1"), 4);
}

/// Its host answers heartbeats and acknowledges what clients send: it is dead all the same, and
/// its answers are gone on with as those of a host that has lost its power.
#[test]
fn downloads_outlive_a_server_that_freezes() {
    let site = Site::up("health-take", "protect_from = 1000000\n", HTTP);
    let large = std::fs::read(site.root.path().join("large")).expect("it was written");
    let mut downloads: Vec<(Connection, String)> = (0..4)
        .map(|_| {
            site.cluster.on("c1", || {
                let mut client = Connection::open();
                client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
                let owner = client.try_response(false).expect("a head").backend().into();
                (client, owner)
            })
        })
        .collect();
    until("they are protected", || {
        (site.cluster.daemon().protected_answers == 4).then_some(())
    });
    let of_b1 = downloads.iter().filter(|(_, owner)| owner == "b1").count();
    assert_eq!(of_b1, 2);
    site.cluster.signal_server("b1", "-STOP");
    std::thread::scope(|scope| {
        for (client, _) in &mut downloads {
            let large = &large;
            scope.spawn(move || {
                let mut bytes = client.unread().to_vec();
                let had = bytes.len();
                bytes.resize(large.len(), 0);
                let mut stream = client.stream();
                stream.read_exact(&mut bytes[had..]).expect("all of it");
                same(&bytes, large);
            });
        }
    });
    let counters = site.cluster.daemon().counters;
    assert_eq!(counters.get("taken-over"), Some(&2));
    // No operator has wanted that.
    let moved = ["moved-from-down", "migrated"].map(|what| counters.get(what));
    assert_eq!(moved, [Some(&2), None]);
    assert_eq!(site.cluster.backend("b1").state, "down");
    // Nothing that it wakes up with does harm, and none of it stays.
    site.cluster.signal_server("b1", "-CONT");
    site.await_state("b1", "up");
    drop(downloads);
    until("its sockets have gone", || {
        let sockets = site.cluster.run("b1", &["ss", "-Htn", "sport", "=", ":80"]);
        let of_client = sockets.lines().filter(|line| line.contains("10.77.0.1:"));
        (of_client.count() == 0).then_some(())
    });
}

/// Nobody else is awake: those downloads go on that would have gone on without protection.
#[test]
fn servers_that_all_sleep_for_a_while_lose_no_protected_download() {
    let site = Site::up("health-asleep", "protect_from = 1000000\n", HTTP);
    let large = std::fs::read(site.root.path().join("large")).expect("it was written");
    let start = || {
        site.cluster
            .on("c1", || Download::start(Connection::open()))
    };
    let mut downloads = [(); 4].map(|()| start());
    until("they are protected", || {
        (site.cluster.daemon().protected_answers == 4).then_some(())
    });
    for backend in ["b1", "b2"] {
        site.cluster.signal_server(backend, "-STOP");
    }
    for backend in ["b1", "b2"] {
        site.await_state(backend, "down");
    }
    std::thread::sleep(Duration::from_millis(700));
    for backend in ["b1", "b2"] {
        site.cluster.signal_server(backend, "-CONT");
    }
    for download in &mut downloads {
        download.finish().expect("all of it");
        same(&download.body, &large);
    }
    let counters = site.cluster.daemon().counters;
    assert_eq!(counters.get("not-taken-over"), None);
}

/// Its client is in the midst of its next request, which nobody else could have the rest of. The host
/// says every so often that the answer is in progress: that is one answer that is not taken over.
#[test]
fn what_a_frozen_server_keeps_is_counted_once_and_goes_on_when_it_wakes_up() {
    let site = Site::up("health-kept", "protect_from = 1000000\n", HTTP);
    let large = std::fs::read(site.root.path().join("large")).expect("it was written");
    let count = |what: &str| {
        let counters = site.cluster.daemon().counters;
        counters.get(what).copied().unwrap_or(0)
    };
    site.cluster.kill("b2", None).unwrap();
    site.await_state("b2", "silent");
    let mut client = site.cluster.on("c1", Connection::open);
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    client.try_response(false).expect("a head");
    until("it is protected", || (count("updates") == 1).then_some(()));
    client.send(
        "POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
    );
    until("its owner has it", || {
        (count("stayed-with-owner") == 1).then_some(())
    });
    site.cluster.signal_server("b1", "-STOP");
    until("it is found out", || {
        (count("not-taken-over") > 0).then_some(())
    });
    let said = count("updates");
    until("it is said again", || {
        (count("updates") >= said + 2).then_some(())
    });
    assert_eq!((count("not-taken-over"), count("takeovers")), (1, 0));
    site.cluster.signal_server("b1", "-CONT");
    let mut bytes = client.unread().to_vec();
    let had = bytes.len();
    bytes.resize(large.len(), 0);
    (client.stream().read_exact(&mut bytes[had..])).expect("all of it");
    same(&bytes, &large);
}

const OUTLIERS: &str = "[pool.outliers]\nfailures = 4\nwithin = \"10s\"\neject = \"20s\"\n";

/// Nobody asks it, and its heartbeats are well: what it says to clients does not arrive.
#[test]
fn a_backend_whose_clients_hear_nothing_is_ejected() {
    let site = Site::up("health-mute", "", OUTLIERS);
    let neighbour = ["ip", "neigh", "replace", "10.77.0.1", "lladdr"];
    let nobody = ["02:00:00:00:99:99", "dev", "eth0", "nud", "permanent"];
    site.cluster.run("b1", &[&neighbour[..], &nobody].concat());
    let hanging: Vec<Connection> = (site.cluster).on("c1", || {
        let ask = || {
            let mut client = Connection::open();
            client.send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        };
        (0..6).map(|_| ask()).collect()
    });
    let status = site.await_state("b1", "ejected");
    assert_eq!(status.reason, "resets connections, or acknowledges nothing");
    assert_eq!(site.owners(), ["b2"]);
    drop(hanging);
}

/// Its server resets what it should answer.
#[test]
fn a_backend_that_resets_connections_is_ejected() {
    let site = Site::up("health-resets", "", OUTLIERS);
    site.say_everywhere("b1", "reset_timedout_connection on; return 444;");
    let is_reset = || {
        let mut client = Connection::open();
        let sent = client.try_send("GET /1k HTTP/1.1\r\nHost: a\r\n\r\n");
        sent.expect("it is connected");
        client.try_response(true).is_err()
    };
    until("it is ejected", || {
        site.cluster.on("c1", is_reset);
        (site.cluster.backend("b1").state == "ejected").then_some(())
    });
    assert_eq!(site.owners(), ["b2"]);
}

/// It answers, but not as expected: what it has begun it may finish.
#[test]
fn a_server_that_is_only_ill_finishes_its_downloads() {
    let site = Site::up("health-ill", "protect_from = 1000000\n", HTTP);
    let mut client = site.cluster.on("c1", Connection::open);
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.try_response(false).expect("a head");
    let owner = head.backend().to_owned();
    until("it is protected", || {
        (site.cluster.daemon().protected_answers == 1).then_some(())
    });
    site.say(&owner, "return 503;");
    site.await_state(&owner, "down");
    client.skip(LARGE as usize).expect("all of it");
    assert_eq!(site.cluster.daemon().counters.get("takeovers"), None);
    // Its next request is another's.
    assert_ne!(client.ask("/1k").ok(), owner);
}

/// A backend's agent asks once, and all dispatchers hear of it; those that ask themselves find it,
/// each for itself. Commands show it.
#[test]
fn each_dispatcher_knows() {
    for transfer in [None, Some("splice"), Some("split-splice")] {
        let test = format!("health-{}", transfer.map_or("two", |name| &name[..5]));
        let cluster = Cluster::with(&test, |options| {
            options.dispatchers = Some(2);
            options.sprays = Some(1);
            options.backends = Some(2);
            options.transfer = transfer.map(Into::into);
        });
        let check = "[pool.check]\ntype = \"http\"\npath = \"/1k\"\ninterval = \"100ms\"\n";
        let config = cluster.config();
        let at = config.find("[[service]]").expect("there is one");
        let config = format!("{}{check}{}", &config[..at], &config[at..]);
        let agents = ["b1", "b2"].map(|host| (host, Process::Agent));
        let dispatchers = ["d1", "d2"].map(|host| (host, Process::Dispatch));
        let agents = agents.iter().filter(|_| transfer != Some("splice"));
        for (host, process) in agents.chain(&dispatchers) {
            let said = cluster.reload(host, *process, &config);
            assert!(said.starts_with("reloaded"), "{said}");
        }
        let shows = |dispatcher: &str, text: &str| {
            let words = ["backends", "--history", "--node", dispatcher];
            let output = cluster.trapeze(dispatcher, &words);
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            shown.contains(text).then_some(())
        };
        let b2 = |dispatcher: &str| {
            let words = ["backends", "--json", "--node", dispatcher];
            let output = cluster.trapeze(dispatcher, &words);
            let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            answer[0]["backends"][1].clone()
        };
        let asked = |dispatcher| (b2(dispatcher)["checks"][0]["state"] == "up").then_some(());
        for (dispatcher, _) in &dispatchers {
            until("it has heard of the checks", || asked(dispatcher));
        }
        cluster.signal_server("b2", "-STOP");
        for (dispatcher, _) in &dispatchers {
            until("it shows why", || {
                shows(
                    dispatcher,
                    "its server fails its checks: web:80: no answer within",
                )
            });
            let history = b2(dispatcher)["history"].clone();
            let last = history.as_array().and_then(|all| all.last().cloned());
            let last = last.expect("it remembers");
            assert_eq!((&last["from"], &last["to"]), (&"up".into(), &"down".into()));
            assert_eq!(last["reason"], "web:80: no answer within the timeout");
        }
        cluster.signal_server("b2", "-CONT");
    }
}

/// Nobody but its host can ask it.
#[test]
fn a_server_on_the_loopback_address_is_checked_by_its_agent() {
    let members = "backends = [\"b1\", { name = \"b2\", server = \"127.0.0.1:8080\", \
                   check = { fall = 1 } }]\n";
    let text = format!(
        "{}[[pool]]\nname = \"web\"\n{members}{HTTP}{SERVICE}",
        Cluster::nodes(2)
    );
    let site = Site::of("health-local", &text);
    let check = site.check("b2").expect("it is checked");
    assert_eq!((&*check.by, &*check.address), ("agent", "127.0.0.1:8080"));
    assert_eq!(site.owners(), ["b1", "b2"]);
    site.say("b2", "return 503;");
    let status = site.await_state("b2", "down");
    assert_eq!(status.reason, "web:8080: status 503");
    assert_eq!(site.owners(), ["b1"]);
}
