//! The example reads as it looks; each kind of mistake is found, placed and
//! explained; nothing that a file may hold panics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;

const EXAMPLE: &str = include_str!("../../../examples/trapeze.toml");

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, "trapeze.toml")
}

#[test]
fn the_example_parses() {
    let config = parse(EXAMPLE).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.name, "example");
    assert_eq!(config.keys[0].id, 1);
    assert_eq!(config.keys[0].secret[..3], [0, 1, 2]);

    let d1 = config.dispatcher("d1").unwrap();
    assert_eq!((d1.attach, d1.workers), (Attach::Tc, 1));
    let b3 = config.backend("b3").unwrap();
    assert_eq!(b3.server, Some("127.0.0.1:8080".parse().unwrap()));
    assert!(config.backend("d1").is_none());

    assert_eq!(config.pools[0].policy.kind(), PolicyKind::Hrw);
    let weights: Vec<_> = config.pools[0]
        .members
        .iter()
        .map(|m| (m.backend, m.weight))
        .collect();
    assert_eq!(weights, [(0, 1), (1, 1), (2, 2)]);
    assert_eq!(
        config.pools[1].members[1].server,
        Some("127.0.0.1:8081".parse().unwrap())
    );

    let site = config
        .service_at("10.77.0.100:80".parse().unwrap())
        .unwrap();
    assert_eq!(
        (site.name.as_str(), site.ecn, site.default_pool),
        ("site", true, Some(0))
    );
    let rule = &site.rules[0];
    assert_eq!((rule.path_prefix.as_deref(), rule.pool), (Some("/img"), 1));
    assert_eq!(line(EXAMPLE, rule.line), "[[service.rule]]");
    assert_eq!(
        site.rules[1].header.as_ref().unwrap().value.as_deref(),
        Some("yes")
    );

    assert_eq!(
        config.limits,
        Limits {
            head_bytes: 32768,
            ..Limits::default()
        }
    );
    assert!(
        config
            .service_at("10.77.0.100:81".parse().unwrap())
            .is_none()
    );
}

#[test]
fn an_error_shows_its_line_with_a_caret() {
    let text = EXAMPLE.replace(
        "pool = \"images\"\n\n[[service.rule]]\nhost",
        "pool = \"imgaes\"\n\n[[service.rule]]\nhost",
    );
    let errors = parse(&text).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "trapeze.toml:55:8: there is no pool `imgaes`; did you mean `images`?\n    \
            |\n \
         55 | pool = \"imgaes\"\n    \
            |        ^^^^^^^^"
    );
    let error = errors.iter().next().unwrap();
    assert_eq!((error.line, error.column), (55, 8));
}

#[test]
fn the_caret_counts_characters_not_bytes() {
    let errors = parse("\"å\" = 1\n").unwrap_err();
    let shown = errors.to_string();
    assert!(shown.contains(":1:1: the file has no key `å`"), "{shown}");
    let errors = parse("[cluster]\nname = \"é\" # x\n").unwrap_err();
    assert!(
        errors
            .to_string()
            .contains(" 2 | name = \"é\" # x\n   |        ^^^"),
        "{errors}"
    );
}

#[test]
fn several_errors_are_reported_at_once_in_order() {
    let text = EXAMPLE
        .replace("attach = \"tc\"", "attach = \"tcp\"")
        .replace("weight = 2", "weight = 257")
        .replace("head_timeout = \"10s\"", "head_timeout = \"10\"");
    let errors = parse(&text).unwrap_err();
    let messages: Vec<_> = errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`attach`: expected one of \"xdp\", \"xdp-generic\", \"tc\", found \"tcp\"; did you mean `tc`?",
            "`weight`: expected a number from 0 to 256, found 257",
            "`head_timeout`: expected a duration from \"100ms\" to \"1h\", such as \"10s\", \"200ms\" or \
             \"1m30s\", found \"10\"",
        ]
    );
}

/// What is replaced in the example, by what, and the start of the only message.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str)] = &[
    // Syntax and shape.
    ("name = \"example\"", "name = ", "string values must be quoted"),
    ("[cluster]\n", "[[cluster]]\n", "`cluster` must be a table: write [cluster]"),
    ("[[dispatcher]]", "[dispatcher]", "there can be several of `dispatcher`: write [[dispatcher]]"),
    ("interface = \"eth0\"\nattach", "attach", "[[dispatcher]] lacks `interface`: add"),
    ("attach = ", "atach = ", "[[dispatcher]] has no key `atach`; did you mean `attach`?"),
    ("attach = ", "colour = ", "[[dispatcher]] has no key `colour`; it has name, address"),
    ("head_bytes = 32768", "head_bytes = \"32k\"", "`head_bytes`: expected a number from 1024 to 65536, found a string"),
    ("head_bytes = 32768", "head_bytes = -1", "`head_bytes`: expected a number from 1024 to 65536, found -1"),
    ("head_bytes = 32768", "head_bytes = 32768\nreading_bytes = 32767", "`reading_bytes`: expected a number from 32768"),
    ("head_bytes = 32768", "heartbeat = \"9ms\"", "`heartbeat`: expected a duration from \"10ms\" to \"5s\""),
    ("head_bytes = 32768", "update_interval = \"6s\"\ncache_timeout = \"11s\"", "`cache_timeout`: expected a duration from \"12s\" to \"1h\", such as \"10s\", \"200ms\" or \"1m30s\", found \"11s\"; it is twice `update_interval` at least"),
    ("head_bytes = 32768", "drain_timeout = \"2d\"", "`drain_timeout`: expected a duration from \"0s\" to \"1d\""),
    ("[limits]", "[limit]", "the file has no key `limit`; did you mean `limits`?"),
    // Names.
    ("name = \"b1\"\n", "name = \"b2\"\n", "there is a node `b2` already"),
    ("name = \"d1\"\n", "name = \"b2\"\n", "there is a node `b2` already"),
    ("name = \"d1\"", "name = \"D1\"", "`name`: a name consists of a-z"),
    ("name = \"d1\"", "name = \"\"", "`name`: a name has 1 to 31 bytes, this one has 0"),
    ("name = \"d1\"", "name = \"d2345678901234567890123456789012\"", "`name`: a name has 1 to 31 bytes, this one has 32"),
    ("name = \"example\"", "name = \"..\"", "`name`: a name needs a letter or digit"),
    ("name = \"example\"", "name = \"a/b\"", "`name`: a name consists of a-z"),
    ("name = \"site-tls\"", "name = \"site\"", "there is a service `site` already"),
    // References.
    ("\"b2\", { name = \"b3\", weight", "\"bb2\", { name = \"b3\", weight", "there is no backend `bb2`; did you mean `b2`?"),
    ("\"b2\", { name = \"b3\", weight", "\"nginx\", { name = \"b3\", weight", "there is no backend `nginx`; add a [[backend]]"),
    ("\"b2\", { name = \"b3\", weight", "\"b1\", { name = \"b3\", weight", "this backend is in the pool already"),
    ("\"b2\", { name = \"b3\", weight", "7, { name = \"b3\", weight", "a pool's backend is \"b1\" or {"),
    ("backends = [\"b2\", { name = \"b3\", server = \"127.0.0.1:8081\" }]", "backends = []", "a pool needs a backend"),
    // Keys.
    ("0e0f\"", "0e0\"", "`secret`: expected 32 hex digits"),
    ("0e0f\"", "0e+f\"", "`secret`: expected 32 hex digits"),
    ("0e0f\" }", "0e0f\" }, { id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }", "there is a key 1 already"),
    ("id = 1", "id = 256", "`id`: expected a number from 0 to 255"),
    ("keys = [{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }]", "keys = []", "[cluster] lacks a key"),
    // Addresses.
    ("address = \"10.77.0.11\"", "address = \"10.77.0.11:80\"", "`address`: a node has no port here: write \"10.77.0.11\""),
    ("address = \"10.77.0.11\"", "address = \"d1.example\"", "`address`: expected an IP address"),
    ("address = \"10.77.0.11\"", "address = \"0.0.0.0\"", "`address`: 0.0.0.0 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"255.255.255.255\"", "`splice_address`: 255.255.255.255 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"0.0.0.1\"", "`splice_address`: 0.0.0.1 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"127.0.0.1\"", "`splice_address`: 127.0.0.1 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"224.0.0.1\"", "`splice_address`: 224.0.0.1 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"240.0.0.1\"", "`splice_address`: 240.0.0.1 is not the address of one host"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"::1\"", "`splice_address`: ::1 is not the address of one host"),
    ("address = \"10.77.0.22\"", "address = \"10.77.0.21\"", "another backend has the address 10.77.0.21"),
    ("address = \"10.77.0.23\"", "address = \"fd00::1\"", "fd00::1 is IPv6, which is not served yet: write an IPv4 address"),
    ("address = \"10.77.0.23\"", "address = \"::ffff:10.77.0.23\"", "`address`: ::ffff:10.77.0.23 is an IPv4 address: write 10.77.0.23"),
    ("10.77.0.100:443", "10.77.0.100:0", "`address`: port 0 cannot be served"),
    ("10.77.0.100:443", "10.77.0.100", "`address`: the port is missing: write \"10.77.0.100:80\""),
    ("10.77.0.100:443", "10.77.0.100:80", "another service is at this address"),
    ("10.77.0.100:443", "10.77.0.21:443", "10.77.0.21 is the own address of `b1`"),
    ("127.0.0.1:8081", "[::1]:8081", "::1 is IPv6"),
    ("10.77.0.100:443", "[fd00::1]:443", "fd00::1 is IPv6"),
    ("10.77.0.100:443", "[fd00::1%1]:443", "`address`: an address with a scope"),
    ("10.77.0.100:443", "224.0.0.1:443", "`address`: 224.0.0.1 is not the address of one host"),
    ("interface = \"eth0\"\nattach", "interface = \"a/b\"\nattach", "`interface`: expected an interface's name"),
    // Rules.
    ("path_prefix = \"/img\"\n", "", "this rule has no condition"),
    ("path_prefix = \"/img\"", "path_prefix = \"img\"", "`path_prefix`: a path starts with `/`: write \"/img\""),
    ("path_prefix = \"/img\"", "path = \"/img?a\"", "`path`: rules see the path without its query"),
    ("path_prefix = \"/img\"", "path = \"/my img\"", "`path`: a path holds no spaces"),
    ("path_prefix = \"/img\"\npool = \"images\"", "path_prefix = \"/img\"", "[[service.rule]] lacks `pool`"),
    ("sni = \"img.example\"", "sni = \"img.example\"\npath = \"/\"", "`sni` is a condition on a TLS ClientHello and `path` one"),
    ("sni = \"img.example\"", "alpn = \"h2\"\nhost = \"a\"", "`alpn` is a condition on a TLS ClientHello and `host` one"),
    ("sni = \"img.example\"", "sni = \"10.0.0.1\"", "`sni`: clients send no server name for an address"),
    ("host = \"*.static.example\"", "host = \"a.*.example\"", "`host`: `*` stands only for whole names in front"),
    ("host = \"*.static.example\"", "host = \"a.example:80\"", "`host`: a host is written without port"),
    ("host = \"*.static.example\"", "host = \"*.\"", "`host`: expected a host"),
    ("method = \"GET\"", "method = \"GET POST\"", "`method`: expected a word"),
    ("value = \"yes\"", "value = \" yes\"", "`value`: a header's value has no white space around"),
    ("header = { name", "header = { nam", "`header = { name = \"...\" }` lacks `name`"),
    ("policy = \"hrw\"", "policy = \"hwr\"", "`policy`: expected one of \"round-robin\", \"least-connections\", \"hrw\", \"lard\""),
    // Policies, stickiness, costs, classes.
    ("policy = \"hrw\"", "policy = 7", "`policy`: expected one of"),
    ("policy = \"hrw\"", "policy = { t_low = 5 }", "[pool.policy] lacks `name`"),
    ("policy = \"hrw\"", "policy = { name = \"hrw\", k = \"1s\" }", "[pool.policy] has no key `k`"),
    ("policy = \"hrw\"", "policy = { name = \"lard\", t_hgih = 5 }", "[pool.policy] has no key `t_hgih`; did you mean `t_high`?"),
    ("policy = \"hrw\"", "policy = { name = \"lard\", t_low = 66 }", "`t_low` is 66, which is above `t_high`, 65"),
    ("policy = \"hrw\"", "policy = { name = \"lacp\", t_low = 6, t_high = 5 }", "`t_low` is 6, which is above"),
    ("policy = \"hrw\"", "policy = { name = \"lard-r\", k = 20 }", "`k`: expected a duration from \"1ms\" to \"1d\""),
    ("policy = \"hrw\"", "policy = { name = \"maglev\", m = 65536 }", "`m`: expected a prime such as 65537, found 65536"),
    ("policy = \"hrw\"", "policy = { name = \"bounded-loads\", c = 1 }", "`c`: expected a number from 1.01 to 100"),
    ("policy = \"hrw\"", "policy = { name = \"bounded-loads\", c = nan }", "`c`: expected a number from 1.01 to 100"),
    ("policy = \"hrw\"", "policy = { name = \"bounded-loads\", c = \"2\" }", "`c`: expected a number from 1.01 to 100, found a string"),
    ("policy = \"hrw\"", "stickiness = \"sorce\"", "`stickiness`: expected one of \"source\", found \"sorce\"; did you mean `source`?"),
    ("policy = \"hrw\"", "stickiness = {}", "stickiness is by one thing"),
    ("policy = \"hrw\"", "stickiness = { cookie = \"a\", header = \"b\" }", "stickiness is by one thing"),
    ("policy = \"hrw\"", "stickiness = { header = \"b\", value = \"name\" }", "`value` says what a cookie's value is"),
    ("policy = \"hrw\"", "stickiness = { cookie = \"a\", value = \"nme\" }", "`value`: expected one of \"name\", \"hash\""),
    ("policy = \"hrw\"", "costs = \"learned\"", "`costs`: expected one of \"learnt\", \"packets\""),
    ("policy = \"hrw\"", "costs = { statc = 9 }", "`costs = { static = 9, dynamic = 90 }` has no key `statc`; did you mean `static`?"),
    ("path_prefix = \"/img\"", "path_prefix = \"/img\"\nclass = \"dynmic\"", "`class`: expected one of \"static\", \"dynamic\", \"cpu-bound\""),
    ("path_prefix = \"/img\"", "class = \"static\"", "this rule has no condition"),
    ("name = \"b3\"", "name = \"b3\"\ntransfer = \"splic\"", "`transfer`: expected one of \"rebuild\", \"splice\", \"split-splice\""),
    ("name = \"b3\"", "name = \"b3\"\ntransfer = \"splice\"", "`transfer = \"splice\"` needs an address"),
    ("name = \"b3\"", "name = \"b3\"\ntransfer = \"split-splice\"", "`transfer = \"split-splice\"` needs an address"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"10.77.0.11\"", "10.77.0.11 is an address of `d1`"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"10.77.0.100\"", "10.77.0.100 is the `splice_address` of the dispatcher `d1`: a service needs one"),
    ("name = \"d1\"", "name = \"d1\"\nsplice_address = \"10.77.0.22\"", "10.77.0.22 is an address of `b2`: a splice address"),
    ("policy = \"hrw\"", "survive_close = true\nhandoff = \"none\"", "`survive_close` cannot be where the pool says `handoff = \"none\"`"),
    ("policy = \"hrw\"", "handoff = \"none\"\npark = true", "`park` cannot be where the pool says `handoff = \"none\"`"),
    ("path_prefix = \"/img\"", "path_suffix = \".php?\"", "`path_suffix`: expected the end of a path"),
];

#[test]
fn each_mistake_is_explained() {
    for &(from, to, message) in MISTAKES {
        assert!(EXAMPLE.contains(from), "the example has no {from:?}");
        let text = EXAMPLE.replacen(from, to, 1);
        let errors = match parse(&text) {
            Ok(_) => panic!("{to:?} is accepted"),
            Err(errors) => errors,
        };
        let found = errors.iter().any(|e| e.message.starts_with(message));
        assert!(found, "{to:?} should give {message:?} but gives\n{errors}");
    }
}

#[test]
fn without_a_handoff_it_may_be_said_that_nothing_follows_of_one() {
    let pool = first_pool("handoff = \"none\"\nsurvive_close = false\npark = false");
    assert_eq!(pool.handoff, Handoff::None);
    assert!(!pool.survive_close && !pool.park);
}

#[test]
fn a_misspelt_transfer_is_the_only_mistake() {
    let backend = "[[backend]]\nname = \"b9\"\naddress = \"10.77.0.29\"\ntransfer = \"spice\"\n";
    let errors = parse(&format!("{EXAMPLE}{backend}")).unwrap_err();
    let messages: Vec<_> = errors.iter().map(|e| e.message.as_str()).collect();
    let wanted = "`transfer`: expected one of \"rebuild\", \"splice\", \"split-splice\", found \"spice\"; \
                  did you mean `splice`?";
    assert_eq!(messages, [wanted]);
}

#[test]
fn a_backend_without_an_agent_needs_no_interface() {
    let text = EXAMPLE.replacen(
        "name = \"d1\"",
        "name = \"d1\"\nsplice_address = \"10.77.0.111\"",
        1,
    ) + "[[backend]]\nname = \"b9\"\naddress = \"10.77.0.29\"\ntransfer = \"splice\"\n";
    let config = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let transfer = |name| config.backend(name).unwrap().transfer;
    assert_eq!(transfer("b9"), Transfer::Splice);
    assert_eq!(transfer("b3"), Transfer::Rebuild);
    // Its agent has to know where packets leave.
    let split = text.replace("\"splice\"", "\"split-splice\"");
    assert!(parse(&split).is_err(), "an interface is missing");
    let config = parse(&(split + "interface = \"eth0\"\n")).unwrap();
    assert_eq!(
        config.backend("b9").unwrap().transfer,
        Transfer::SplitSplice
    );
    let config = parse(&text).unwrap();
    let splice_address = config.splice_addresses().map(|(_, address)| address);
    let mut front = config.vips();
    front.extend(splice_address);
    assert_eq!(config.front_addresses(), front);
}

/// Whichever of them is read first.
#[test]
fn a_splice_address_is_nobody_elses() {
    let d2 = "[[dispatcher]]\nname = \"d2\"\naddress = \"10.77.0.12\"\ninterface = \"eth0\"\n";
    let with = |first: &str, second: &str| {
        let own = |address: &str| format!("splice_address = \"{address}\"\n");
        let text = EXAMPLE.replacen("attach", &(own(first) + "attach"), 1);
        parse(&format!("{text}{d2}{}{SPRAYS}", own(second)))
    };
    assert!(with("10.77.0.111", "10.77.0.112").is_ok());
    let taken = [
        ("10.77.0.12", "d2"),
        ("10.77.0.11", "d1"),
        ("10.77.0.23", "b3"),
        ("10.77.0.92", "s2"),
        ("10.77.0.110", "d1"),
    ];
    for (address, node) in taken {
        for order in [(address, "10.77.0.110"), ("10.77.0.110", address)] {
            let Err(errors) = with(order.0, order.1) else {
                panic!("{order:?} is accepted")
            };
            let what = format!("{address} is an address of `{node}`");
            assert!(errors.to_string().contains(&what), "{order:?}: {errors}");
            assert_eq!(errors.iter().count(), 1, "{order:?}: {errors}");
        }
    }
}

fn first_pool(how: &str) -> Pool {
    let text = EXAMPLE.replacen("policy = \"hrw\"", how, 1);
    parse(&text)
        .unwrap_or_else(|e| panic!("{e}"))
        .pools
        .swap_remove(0)
}

#[test]
fn a_pool_that_says_nothing_has_the_default_policy() {
    let lines = EXAMPLE.lines();
    let silent = lines.filter(|line| !line.starts_with("policy = "));
    let text: String = silent.map(|line| format!("{line}\n")).collect();
    let config = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.pools[0].policy, PolicyKind::Rent.into());
}

#[test]
fn what_a_pool_says_of_retries_is_what_is_kept() {
    assert_eq!(first_pool("").rescue.retry, Retry::Unheard);
    for (name, retry, keeps) in [
        ("never", Retry::Never, false),
        ("unheard", Retry::Unheard, false),
        ("idempotent", Retry::Idempotent, true),
        ("always", Retry::Always, true),
    ] {
        let read = first_pool(&format!("retry = \"{name}\"")).rescue.retry;
        assert_eq!((read, read.keeps()), (retry, keeps));
    }
    let error = parse(&EXAMPLE.replacen("policy = \"hrw\"", "retry = \"twice\"", 1));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("idempotent"), "{error}");
}

#[test]
fn every_policy_has_a_short_form_with_defaults_and_a_long_one() {
    for kind in PolicyKind::ALL {
        let name = kind.name();
        let short = first_pool(&format!("policy = \"{name}\"")).policy;
        let long = first_pool(&format!("policy = {{ name = \"{name}\" }}")).policy;
        assert_eq!(short, PolicyConfig::from(kind));
        assert_eq!(long, short);
    }
    // As [pool.policy], after the pool's other keys.
    let text = EXAMPLE.replacen("policy = \"hrw\"", "", 1).replacen(
        "[[pool]]\nname = \"images\"",
        "[pool.policy]\nname = \"ewma\"\n\n[[pool]]\nname = \"images\"",
        1,
    );
    assert_eq!(parse(&text).unwrap().pools[0].policy.name(), "ewma");
}

#[test]
fn parameters_are_read() {
    use crate::policy::*;
    let policy = |how: &str| first_pool(&format!("policy = {{ {how} }}")).policy;
    let lard = LardParameters {
        t_low: 5,
        t_high: 9,
        objects: 77,
    };
    let second = Duration::from_secs(1);
    let read = policy("name = \"lard\", t_low = 5, t_high = 9, objects = 77");
    assert_eq!(read, PolicyConfig::Lard(lard));
    let read = policy("name = \"lard-r\", t_low = 5, t_high = 9, objects = 77, k = \"1s\"");
    assert_eq!(
        read,
        PolicyConfig::LardR(LardRParameters { lard, k: second })
    );
    let xlard = XlardRParameters {
        handoff_cost: 1,
        disk_cost: 2,
        t_high: 3,
        k: second,
        objects: 5,
    };
    let keys = "handoff_cost = 1, disk_cost = 2, t_high = 3, k = \"1s\", objects = 5";
    let read = policy(&format!("name = \"xlard-r\", {keys}"));
    assert_eq!(read, PolicyConfig::XlardR(xlard));
    let read = policy(&format!("name = \"cahrd\", {keys}"));
    assert_eq!(read, PolicyConfig::Cahrd(xlard));
    let cache = CacheParameters {
        memory_mib: 64,
        objects: 5,
    };
    let read = policy("name = \"cache-prediction\", memory_mib = 64, objects = 5");
    assert_eq!(read, PolicyConfig::CachePrediction(cache));
    let read = policy("name = \"lacp\", t_low = 0, t_high = 4, memory_mib = 64, objects = 5");
    let lacp = LacpParameters {
        t_low: Some(0),
        t_high: Some(4),
        cache,
    };
    assert_eq!(read, PolicyConfig::Lacp(lacp));
    let read = policy("name = \"maglev\", m = 251");
    assert_eq!(read, PolicyConfig::Maglev(MaglevParameters { m: 251 }));
    for (c, written) in [(1.5, "1.5"), (2.0, "2")] {
        let read = policy(&format!("name = \"bounded-loads\", c = {written}"));
        assert_eq!(
            read,
            PolicyConfig::BoundedLoads(BoundedLoadsParameters { c })
        );
    }
    let read = policy("name = \"ewma\", tau = \"1s\"");
    assert_eq!(read, PolicyConfig::Ewma(EwmaParameters { tau: second }));
    let read = policy("name = \"rent\", objects = 5");
    assert_eq!(read, PolicyConfig::Rent(RentParameters { objects: 5 }));
}

#[test]
fn stickiness_costs_and_classes_are_read() {
    let stickiness = |how: &str| first_pool(&format!("stickiness = {how}")).stickiness;
    assert_eq!(stickiness("\"source\""), Some(Stickiness::Source));
    let header = Stickiness::Header("X-Tenant".into());
    assert_eq!(stickiness("{ header = \"X-Tenant\" }"), Some(header));
    let cookie = |value| {
        Some(Stickiness::Cookie {
            name: "SRV".into(),
            value,
        })
    };
    assert_eq!(
        stickiness("{ cookie = \"SRV\" }"),
        cookie(CookieValue::Name)
    );
    let read = stickiness("{ cookie = \"SRV\", value = \"hash\" }");
    assert_eq!(read, cookie(CookieValue::Hash));

    let costs = |how: &str| first_pool(&format!("costs = {how}")).costs;
    assert_eq!(first_pool("").costs, Costs::Learnt);
    assert_eq!(costs("\"packets\""), Costs::Packets);
    assert_eq!(
        costs("{ dynamic = 90, disk-bound = 7 }"),
        Costs::Fixed([9, 90, 9, 7, 9])
    );

    let rule = "path_prefix = \"/img\"\npath_suffix = \".php\"\nclass = \"cpu-bound\"";
    let config = parse(&EXAMPLE.replacen("path_prefix = \"/img\"", rule, 1)).unwrap();
    let rule = &config.services[0].rules[0];
    assert_eq!(rule.class, Some(Class::CpuBound));
    assert_eq!(rule.path_suffix.as_deref(), Some(".php"));
}

#[test]
fn a_service_needs_a_pool_or_rules() {
    let text = EXAMPLE.replace("pool = \"web\"               # when no rule matches\n", "");
    assert!(parse(&text).is_ok(), "rules suffice");
    let text = text.replace(
        "[[service.rule]]\npath_prefix = \"/img\"\npool = \"images\"\n",
        "",
    );
    let from = text.find("[[service.rule]]\nhost").unwrap();
    let to = text.find("[[service]]\nname = \"site-tls\"").unwrap();
    let text = [&text[..from], &text[to..]].concat();
    let errors = parse(&text).unwrap_err();
    assert!(
        errors
            .iter()
            .next()
            .unwrap()
            .message
            .contains("neither rules nor a pool"),
        "{errors}"
    );
}

#[test]
fn what_is_not_utf8_is_placed() {
    let at = EXAMPLE.find("\"eth0\"").unwrap() + 1;
    let bytes = [
        &EXAMPLE.as_bytes()[..at],
        b"\xfcber",
        &EXAMPLE.as_bytes()[at..],
    ]
    .concat();
    let errors = Config::from_bytes(&bytes, "trapeze.toml").unwrap_err();
    let said = errors.to_string();
    let place = EXAMPLE[..at].lines().count();
    let start = format!("trapeze.toml:{place}:14: the byte 0xfc is not UTF-8");
    assert!(said.starts_with(&start), "{said}");
    assert!(said.contains("interface = \"\u{fffd}ber"), "{said}");
    assert!(Config::from_bytes(EXAMPLE.as_bytes(), "trapeze.toml").is_ok());
}

#[test]
fn a_host_that_is_not_named_hears_who_is() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.own_backend("b2").unwrap().name, "b2");
    assert_eq!(config.own_dispatcher("d1").unwrap().name, "d1");
    let said = config.own_backend("d1").unwrap_err().to_string();
    assert_eq!(said, "no [[backend]] is named d1; there are: b1, b2, b3");
    let said = config.own_dispatcher("b1").unwrap_err().to_string();
    assert_eq!(said, "no [[dispatcher]] is named b1; there are: d1");
}

#[test]
fn an_empty_file_says_all_that_is_missing() {
    let errors = parse("").unwrap_err();
    assert_eq!(errors.iter().count(), 4, "{errors}");
}

#[test]
fn a_wildcard_server_address_may_be_of_either_family() {
    assert!(parse(&EXAMPLE.replace("127.0.0.1:8081", "[::]:8081")).is_ok());
}

#[test]
fn hosts_are_kept_in_lower_case_without_the_root_dot() {
    let config = parse(&EXAMPLE.replace("*.static.example", "*.Static.EXAMPLE.")).unwrap();
    assert_eq!(
        config.services[0].rules[1].host.as_deref(),
        Some("*.static.example")
    );
}

#[test]
fn what_is_said_again_later_is_kept_for_longer() {
    let timeout = |text: &str| {
        let text = EXAMPLE.replace("head_timeout = \"10s\"", text);
        let limits = parse(&text).unwrap().limits;
        (
            limits.update_interval.as_secs(),
            limits.cache_timeout.as_secs(),
        )
    };
    assert_eq!(timeout(""), (3, 10));
    assert_eq!(timeout("update_interval = \"1s\""), (1, 10));
    assert_eq!(timeout("update_interval = \"20s\""), (20, 60));
    assert_eq!(timeout("cache_timeout = \"6s\""), (3, 6));
}

#[test]
fn durations() {
    let with = |text: &str| {
        let text = EXAMPLE.replace(
            "head_timeout = \"10s\"",
            &format!("idle_timeout = \"{text}\""),
        );
        parse(&text).ok().map(|c| c.limits.idle_timeout)
    };
    let seconds = |s| Some(Duration::from_secs(s));
    assert_eq!(with("10s"), seconds(10));
    assert_eq!(with("1h"), seconds(3600));
    assert_eq!(with("1m30s"), seconds(90));
    assert_eq!(with("2d1h"), seconds(176_400));
    assert_eq!(with("1s500ms"), Some(Duration::from_millis(1500)));
    for wrong in [
        "",
        "10",
        "s",
        "1.5s",
        "-1s",
        "1 s",
        "30s1m",
        "1s1s",
        "1y",
        "0s",
        "31d",
        "99999999999999999999s",
        "9999999999999999d",
    ] {
        assert_eq!(with(wrong), None, "{wrong}");
    }
}

#[test]
fn secrets_do_not_appear_in_errors_or_debug_output() {
    let config = parse(EXAMPLE).unwrap();
    assert!(!format!("{config:?}").contains("[0, 1, 2"));
    for (from, to) in [
        ("0e0f", "0e0"),
        ("id = 1", "id = 256"),
        ("secret =", "secrt ="),
        ("0e0f\" }", "0e0f\""),
    ] {
        let errors = parse(&EXAMPLE.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(
            errors.contains("keys = [{") && errors.contains("**"),
            "{errors}"
        );
        assert!(!errors.contains("000102"), "{errors}");
    }
}

fn line(text: &str, number: usize) -> &str {
    text.lines().nth(number - 1).unwrap()
}

mod mutation {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

    /// Pieces that move a mutated file somewhere new.
    const PIECES: &[&str] = &[
        "\"",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        "\n",
        ".",
        ",",
        "'",
        "\"\"\"",
        "\\u00e9",
        "é",
        "\t",
        "\r\n",
        "0x",
        "1e9",
        "true",
        "inf",
        "1979-05-27",
        "service",
        "rule",
        "pool",
        "name",
        "99999999999999999999",
    ];

    /// Seeded and bounded: the same thousand odd files on every machine.
    #[test]
    fn mutated_files_never_panic_and_every_error_has_a_place() {
        let mut random = SmallRng::seed_from_u64(0x7261_7065);
        for _ in 0..1500 {
            let mut text = EXAMPLE.to_owned();
            for _ in 0..random.random_range(1..6) {
                let at = boundary(&text, random.random_range(0..=text.len()));
                let to = boundary(&text, (at + random.random_range(0..20)).min(text.len()));
                text.replace_range(at..to, PIECES.choose(&mut random).unwrap());
            }
            if let Err(errors) = parse(&text) {
                let lines = text.lines().count().max(1);
                assert!(!errors.to_string().is_empty());
                for error in errors.iter() {
                    assert!(error.line <= lines + 1 && error.column >= 1, "{error}");
                }
            }
        }
    }

    fn boundary(text: &str, mut at: usize) -> usize {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

const SPRAYS: &str = r#"
[[spray]]
name = "s1"
address = "10.77.0.91"
interface = "eth0"
attach = "tc"

[[spray]]
name = "s2"
address = "10.77.0.92"
interface = "eth0"
"#;

#[test]
fn sprays_stand_in_the_order_in_which_they_lead() {
    let config = parse(&format!("{EXAMPLE}{SPRAYS}")).unwrap();
    let names: Vec<&str> = config.sprays.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["s1", "s2"]);
    let hooks: Vec<Attach> = config.sprays.iter().map(|s| s.attach).collect();
    assert_eq!(hooks, [Attach::Tc, Attach::Xdp]);
    assert_eq!(config.spraying, Spraying::default());
    assert_eq!(config.spraying.mode, SprayMode::FlowHash);
    assert!(config.dispatchers_are_behind());
    assert!(config.own_spray("s2").is_ok());
    let error = config.own_spray("d1").unwrap_err().to_string();
    assert!(
        error.contains("[[spray]]") && error.contains("s1, s2"),
        "{error}"
    );
    assert!(!parse(EXAMPLE).unwrap().dispatchers_are_behind());
}

#[test]
fn how_sprays_spread_is_configured_once() {
    let spraying = |text: &str| {
        let text = format!("{EXAMPLE}{SPRAYS}\n[spraying]\n{text}");
        parse(&text).map(|config| config.spraying)
    };
    let batch = spraying("mode = \"batch\"\nheartbeat = \"10ms\"").unwrap();
    assert_eq!(batch.mode, SprayMode::Batch(40));
    assert_eq!(batch.heartbeat, Duration::from_millis(10));
    assert_eq!(
        spraying("mode = \"batch\"\nbatch = 7").unwrap().mode,
        SprayMode::Batch(7)
    );
    assert_eq!(
        spraying("mode = \"workload\"").unwrap().mode,
        SprayMode::Workload
    );
    for (text, what) in [
        ("batch = 7", "`batch` is for"),
        ("mode = \"hash\"", "flow-hash"),
        ("heartbeat = \"9ms\"", "10ms"),
        ("heartbeat = \"6s\"", "5s"),
        ("mode = \"batch\"\nbatch = 0", "1 to 65535"),
        ("modes = 1", "no key `modes`"),
    ] {
        let error = spraying(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
    let error = parse(&format!("{EXAMPLE}[spraying]\nmode = \"batch\"\n")).unwrap_err();
    assert!(error.to_string().contains("no [[spray]]"), "{error}");
}

#[test]
fn a_spray_is_a_node_like_others() {
    for (from, to, what) in [
        ("\"s2\"", "\"d1\"", "a node `d1` already"),
        ("10.77.0.92", "10.77.0.91", "another spray has the address"),
        ("10.77.0.92", "10.77.0.100", "own address of `s2`"),
    ] {
        let sprays = SPRAYS.replace(from, to);
        // Before services, whose addresses are compared with those of nodes.
        let error = parse(&format!("{sprays}{EXAMPLE}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(what), "{to}: {error}");
    }
}

/// What is known of a flow by its pool's number is of that pool after every reload.
#[test]
fn a_pools_number_comes_of_its_name_alone() {
    let numbers = |names: &[&str]| -> BTreeMap<String, PoolNumber> {
        let numbers = PoolNumber::all_of(names);
        names
            .iter()
            .map(|&name| name.to_owned())
            .zip(numbers)
            .collect()
    };
    let all = numbers(&["web", "images", "api"]);
    assert_eq!(all, numbers(&["api", "web", "images"]));
    assert_eq!(all["api"], numbers(&["api"])["api"]);

    // So many that some names have one number.
    let names: Vec<String> = (0..2000).map(|n| format!("pool{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let distinct: BTreeSet<_> = PoolNumber::all_of(&names).into_iter().collect();
    assert_eq!(distinct.len(), names.len());
}

#[test]
fn sub_clusters_have_a_front_end_and_no_gap() {
    let parse_with = |own: &str, others: &[&str]| {
        let section = |(n, number): (usize, &&str)| {
            format!(
                "[[dispatcher]]\nname = \"x{n}\"\naddress = \"10.78.0.{n}\"\n\
                 interface = \"eth0\"\nsub_cluster = {number}\n"
            )
        };
        let others: String = others.iter().enumerate().map(section).collect();
        let interface = "[[dispatcher]]\n";
        let first = EXAMPLE.replacen(interface, &format!("{interface}{own}"), 1);
        parse(&format!("{first}{others}"))
    };
    let config = parse_with("", &["0", "2", "1"]).unwrap();
    assert_eq!(config.sub_clusters(), 3);
    let front: Vec<&str> = config.front_end().map(|d| &*d.name).collect();
    assert_eq!(front, ["d1", "x0"]);
    assert_eq!(parse(EXAMPLE).unwrap().sub_clusters(), 1);
    for (own, others, what) in [
        ("", &["3", "1", "6"][..], "no dispatcher in 2, 4, 5"),
        (
            "sub_cluster = 1\n",
            &["1"],
            "no dispatcher is in the front end",
        ),
        ("", &["256"], "a number from 0 to 255"),
        ("", &["\"back\""], "a number from 0 to 255"),
    ] {
        let error = parse_with(own, others).unwrap_err().to_string();
        assert!(error.contains(what), "{others:?}: {error}");
    }
}
