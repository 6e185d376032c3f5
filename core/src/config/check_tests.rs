//! How checks are read: whole ones, members that differ, and each kind of mistake.

use std::time::Duration;

use super::*;
use crate::health::{Target, targets};

const NODES: &str = "[cluster]\nname = \"c\"\n\
    keys = [{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }]\n\
    [[dispatcher]]\nname = \"d1\"\naddress = \"10.0.0.11\"\ninterface = \"eth0\"\nsplice_address = \"10.0.0.12\"\n\
    [[backend]]\nname = \"b1\"\naddress = \"10.0.0.21\"\ninterface = \"eth0\"\n\
    [[backend]]\nname = \"b2\"\naddress = \"10.0.0.22\"\ninterface = \"eth0\"\nserver = \"127.0.0.1:8080\"\n\
    [[backend]]\nname = \"b3\"\naddress = \"10.0.0.23\"\ntransfer = \"splice\"\n";
const SERVICES: &str = "[[service]]\nname = \"s\"\naddress = \"10.0.0.100:80\"\npool = \"web\"\n\
    [[service]]\nname = \"t\"\naddress = \"10.0.0.100:443\"\npool = \"web\"\n";

fn read(pool: &str) -> Result<Config, ConfigErrors> {
    let text = format!("{NODES}[[pool]]\nname = \"web\"\n{pool}\n{SERVICES}");
    Config::parse(&text, "trapeze.toml")
}

fn checks(pool: &str) -> Vec<Option<Check>> {
    let config = read(pool).unwrap_or_else(|e| panic!("{e}"));
    (config.pools[0].members.iter())
        .map(|m| m.check.clone())
        .collect()
}

const ALL: &str = "backends = [\"b1\", \"b2\", \"b3\"]\n";

#[test]
fn a_check_has_defaults_that_work() {
    assert_eq!(checks(ALL), [None, None, None]);
    let tcp = Check {
        probe: Probe::Tcp,
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        port: None,
    };
    let read = checks(&format!("{ALL}[pool.check]\ntype = \"tcp\""));
    assert_eq!(
        read,
        [Some(tcp.clone()), Some(tcp.clone()), Some(tcp.clone())]
    );
    let read = checks(&format!("{ALL}check = {{ type = \"http\" }}"));
    let http = Check {
        probe: Probe::Http(HttpProbe {
            method: "GET".into(),
            path: "/".into(),
            host: None,
            status: vec![200..=399],
            body: None,
        }),
        ..tcp
    };
    assert_eq!(read[0], Some(http));
}

#[test]
fn all_of_a_check_is_read() {
    let read = checks(&format!(
        "{ALL}[pool.check]\ntype = \"http\"\nmethod = \"HEAD\"\npath = \"/up?deep=1\"\n\
         host = \"a.example\"\nstatus = [200, \"3xx\", \"401-403\"]\n\
         interval = \"500ms\"\ntimeout = \"250ms\"\nrise = 1\nfall = 5\nport = 9000"
    ));
    let expected = Check {
        probe: Probe::Http(HttpProbe {
            method: "HEAD".into(),
            path: "/up?deep=1".into(),
            host: Some("a.example".into()),
            status: vec![200..=200, 300..=399, 401..=403],
            body: None,
        }),
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(250),
        rise: 1,
        fall: 5,
        port: Some(9000),
    };
    assert_eq!(read[0], Some(expected));
}

#[test]
fn a_member_differs_in_what_it_says() {
    let read = checks(
        "backends = [\"b1\", { name = \"b2\", check = { port = 9000, fall = 1 } }, \
         { name = \"b3\", check = false }]\n\
         [pool.check]\ntype = \"http\"\npath = \"/up\"\nrise = 7",
    );
    let of_pool = read[0].clone().unwrap();
    assert_eq!(
        read[1],
        Some(Check {
            port: Some(9000),
            fall: 1,
            ..of_pool.clone()
        })
    );
    assert_eq!(read[2], None);
    // Of another type; and where the pool has none.
    let read = checks(
        "backends = [{ name = \"b1\", check = { type = \"tcp\" } }]\n\
         [pool.check]\ntype = \"http\"\nrise = 7",
    );
    let read = read[0].clone().unwrap();
    assert_eq!((read.probe, read.rise), (Probe::Tcp, 7));
    let read = checks("backends = [\"b1\", { name = \"b2\", check = { type = \"tcp\" } }]");
    assert_eq!(
        (read[0].is_none(), read[1].as_ref().unwrap().fall),
        (true, 3)
    );
}

#[test]
fn mistakes_say_what_to_do() {
    for (pool, expected) in [
        ("[pool.check]", "lacks `type`"),
        (
            "[pool.check]\ntyp = \"http\"",
            "[pool.check] has no key `typ`; did you mean `type`?",
        ),
        ("[pool.check]\ntyp = \"http\"", "lacks `type`"),
        (
            "[pool.check]\ntype = \"htpp\"\nrises = 2",
            "has no key `rises`",
        ),
        ("check = true", "must be a table"),
        (
            "[pool.check]\ntype = \"icmp\"",
            "expected \"tcp\" or \"http\"",
        ),
        ("[pool.check]\ntype = \"tcp\"\npath = \"/\"", "is for HTTP"),
        (
            "[pool.check]\ntype = \"tcp\"\nrises = 1",
            "has no key `rises`",
        ),
        ("[pool.check]\ntype = \"tcp\"\nrise = 0", "from 1 to 100"),
        ("[pool.check]\ntype = \"tcp\"\nport = 0", "from 1 to 65535"),
        (
            "[pool.check]\ntype = \"tcp\"\ninterval = \"10ms\"",
            "from \"50ms\"",
        ),
        ("[pool.check]\ntype = \"tcp\"\ntimeout = 1", "a duration"),
        (
            "[pool.check]\ntype = \"http\"\npath = \"up\"",
            "write \"/up\"",
        ),
        (
            "[pool.check]\ntype = \"http\"\npath = \"/a b\"",
            "no spaces",
        ),
        (
            "[pool.check]\ntype = \"http\"\nhost = \"a\\r\\nb\"",
            "line breaks",
        ),
        (
            "[pool.check]\ntype = \"http\"\nmethod = \"G T\"",
            "expected a word",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = []",
            "no status would do",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = 99",
            "expected a status",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = \"9xx\"",
            "from 200 to 599",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = 101",
            "from 200 to 599",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = \"101-200\"",
            "from 200 to 599",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = \"300-200\"",
            "the lower one first",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = \"ok\"",
            "expected a status",
        ),
        (
            "[pool.check]\ntype = \"http\"\nbody = \"\"",
            "found nothing",
        ),
        (
            "[pool.check]\ntype = \"http\"\nmethod = \"CONNECT\"",
            "CONNECT asks for no path",
        ),
        (
            "[pool.check]\ntype = \"http\"\nmethod = \"HEAD\"\nbody = \"a\"",
            "HEAD has no body",
        ),
        (
            "[pool.check]\ntype = \"http\"\nstatus = [204, 304]\nbody = \"a\"",
            "no answer with such a status has a body",
        ),
        ("slow_start = \"500ms\"", "from \"1s\""),
        ("[pool.outliers]\nfailures = 0", "from 1 to"),
        ("[pool.outliers]\nwithout = 0", "has no key"),
    ] {
        let error = read(&format!("{ALL}{pool}")).expect_err(pool).to_string();
        assert!(error.contains(expected), "{pool}: {error}");
    }
    let member = "backends = [{ name = \"b1\", check = true }]";
    let error = read(member).unwrap_err().to_string();
    assert!(error.contains("expected false, or a table"), "{error}");
    // It is named as what it is.
    let member = "backends = [{ name = \"b1\", check = { status = 201, falls = 1 } }]";
    let error = read(member).unwrap_err().to_string();
    let lacks = "a backend's `check` lacks `type`: add";
    let unknown = "a backend's `check` has no key `falls`; did you mean `fall`?";
    assert!(error.contains(lacks) && error.contains(unknown), "{error}");
}

#[test]
fn what_is_checked_is_where_clients_are_served() {
    let config = read(
        "backends = [\"b1\", \"b2\", \"b3\"]\n[pool.check]\ntype = \"tcp\"\n\
         [[pool]]\nname = \"unused\"\nbackends = [\"b1\"]\n[pool.check]\ntype = \"tcp\"",
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let at = |backend| -> Vec<String> {
        let all = targets(&config, backend).into_iter();
        all.map(|Target { key, address, .. }| format!("{}:{} at {address}", key.pool, key.port))
            .collect()
    };
    assert_eq!(
        at(0),
        ["web:80 at 10.0.0.100:80", "web:443 at 10.0.0.100:443"]
    );
    assert_eq!(at(1), ["web:8080 at 127.0.0.1:8080"]);
    assert_eq!(
        at(2),
        ["web:80 at 10.0.0.23:80", "web:443 at 10.0.0.23:443"]
    );
    let elsewhere = read("backends = [\"b1\"]\n[pool.check]\ntype = \"tcp\"\nport = 9000").unwrap();
    let all = targets(&elsewhere, 0);
    assert_eq!((all[0].key.port, all[0].address.port()), (80, 9000));
}
