//! Each condition as a table of requests; the first rule wins; reasons in words.

use super::*;
use crate::head::{Inspection, inspect};

#[rustfmt::skip]
const CONDITIONS: &[(&str, &str, bool)] = &[
    ("host = 'a.example'", "GET / HTTP/1.1|Host: A.Example:80", true),
    ("host = 'A.example'", "GET / HTTP/1.1|Host: a.example", true),
    ("host = 'a.example'", "GET / HTTP/1.1|Host: b.a.example", false),
    ("host = 'a.example'", "GET / HTTP/1.1", false),
    ("host = 'a.example'", "GET http://a.example/ HTTP/1.1|Host: b", true),
    ("host = '[2001:db8::1]'", "GET / HTTP/1.1|Host: [2001:DB8::1]:81", true),
    ("host = '*.example'", "GET / HTTP/1.1|Host: a.example", true),
    ("host = '*.example'", "GET / HTTP/1.1|Host: b.a.example", true),
    ("host = '*.example'", "GET / HTTP/1.1|Host: example", false),
    ("host = '*.example'", "GET / HTTP/1.1|Host: .example", false),
    ("host = '*.example'", "GET / HTTP/1.1|Host: anexample", false),
    ("path = '/a'", "GET /a?q HTTP/1.1", true),
    ("path = '/a'", "GET /a/ HTTP/1.1", false),
    ("path = '*'", "OPTIONS * HTTP/1.1", true),
    ("path_prefix = '/img'", "GET /img HTTP/1.1", true),
    ("path_prefix = '/img'", "GET /img?x HTTP/1.1", true),
    ("path_prefix = '/img'", "GET /img/a HTTP/1.1", true),
    ("path_prefix = '/img'", "GET /imgs HTTP/1.1", false),
    ("path_prefix = '/img'", "GET /im HTTP/1.1", false),
    ("path_prefix = '/img/'", "GET /img/ HTTP/1.1", true),
    ("path_prefix = '/img/'", "GET /img/a HTTP/1.1", true),
    ("path_prefix = '/img/'", "GET /img HTTP/1.1", false),
    ("path_prefix = '/'", "GET /x HTTP/1.1", true),
    ("path_prefix = '/'", "OPTIONS * HTTP/1.1", false),
    ("path_suffix = '.php'", "GET /a.php?x HTTP/1.1", true),
    ("path_suffix = '.php'", "GET /a.PHP HTTP/1.1", false),
    ("path_suffix = '.php'", "GET /a?x.php HTTP/1.1", false),
    ("method = 'GET'", "GET / HTTP/1.1", true),
    ("method = 'GET'", "get / HTTP/1.1", false),
    ("header = { name = 'X-A' }", "GET / HTTP/1.1|x-a:", true),
    ("header = { name = 'X-A' }", "GET / HTTP/1.1|x-ab: 1", false),
    ("header = { name = 'X-A', value = '1' }", "GET / HTTP/1.1|x-a: 2|X-A: 1 ", true),
    ("header = { name = 'X-A', value = '1' }", "GET / HTTP/1.1|x-a: 11", false),
    ("host = 'a'\nmethod = 'GET'", "GET / HTTP/1.1|Host: a", true),
    ("host = 'a'\nmethod = 'GET'", "PUT / HTTP/1.1|Host: a", false),
    ("host = 'a'\nmethod = 'GET'", "GET / HTTP/1.1|Host: b", false),
    ("sni = 'a'", "GET / HTTP/1.1|Host: a", false),
];

#[test]
fn conditions_on_requests() {
    for &(condition, request, matches) in CONDITIONS {
        let service = service(&[condition], true);
        let bytes = head(request);
        let Inspection::Http(head) = inspect(&bytes, 4096) else {
            panic!("{request}")
        };
        let asked = Asked::Http(&head);
        let matched = matches!(route(&service, &asked), Routed::ByRule { .. });
        assert_eq!(matched, matches, "{condition} of {request}");
        assert_eq!(explain(&service, &asked).passed_over.is_empty(), matches);
    }
}

#[test]
fn conditions_on_hellos() {
    let hello = |name: Option<&str>, alpn: &[&str]| ClientHello {
        len: 0,
        server_name: name.map(str::to_owned),
        alpn: alpn.iter().map(|p| p.as_bytes().to_vec()).collect(),
    };
    let matched = |condition, hello: &ClientHello| {
        matches!(
            route(&service(&[condition], true), &Asked::Tls(hello)),
            Routed::ByRule { .. }
        )
    };
    assert!(matched("sni = 'a.example'", &hello(Some("a.example"), &[])));
    assert!(matched("sni = '*.example'", &hello(Some("a.example"), &[])));
    assert!(!matched(
        "sni = 'b.example'",
        &hello(Some("a.example"), &[])
    ));
    assert!(!matched("sni = 'a.example'", &hello(None, &[])));
    assert!(matched("alpn = 'h2'", &hello(None, &["http/1.1", "h2"])));
    assert!(!matched("alpn = 'h2'", &hello(None, &["http/1.1"])));
    assert!(!matched("sni = 'a'\nalpn = 'h2'", &hello(Some("a"), &[])));
    assert!(!matched(
        "host = 'a.example'",
        &hello(Some("a.example"), &[])
    ));
}

#[test]
fn the_first_rule_that_matches_decides() {
    let service = service(
        &["path = '/b'", "path_prefix = '/a'", "method = 'GET'"],
        true,
    );
    let bytes = head("GET /a HTTP/1.1");
    let Inspection::Http(head) = inspect(&bytes, 4096) else {
        panic!()
    };
    let routed = route(&service, &Asked::Http(&head));
    assert_eq!(
        routed,
        Routed::ByRule {
            rule: 1,
            line: service.rules[1].line,
            pool: 1
        }
    );
    assert_eq!(routed.pool(), Some(1));
}

#[test]
fn a_rule_may_say_what_its_requests_need() {
    let service = service(&["path = '/a'\nclass = 'cpu-bound'", "path = '/b'"], true);
    let class = |request| {
        let bytes = head(request);
        let Inspection::Http(head) = inspect(&bytes, 4096) else {
            panic!()
        };
        route(&service, &Asked::Http(&head)).class(&service)
    };
    assert_eq!(class("GET /a HTTP/1.1"), Some(Class::CpuBound));
    assert_eq!(class("GET /b HTTP/1.1"), None);
    assert_eq!(class("GET /c HTTP/1.1"), None);
}

#[test]
fn without_a_match_the_default_decides_or_nothing() {
    let with = service(&["method = 'PUT'"], true);
    let without = service(&["method = 'PUT'"], false);
    assert_eq!(
        route(&with, &Asked::H2Preface),
        Routed::ByDefault { pool: 0 }
    );
    assert_eq!(route(&without, &Asked::H2Preface), Routed::Nowhere);
    assert_eq!(Routed::Nowhere.pool(), None);
}

#[test]
fn an_explanation_reads_as_the_operator_thinks() {
    let service = service(
        &[
            "host = 'b'",
            "path_prefix = '/img'",
            "sni = 'x'",
            "method = 'GET'",
        ],
        true,
    );
    let bytes = head("GET /a HTTP/1.1");
    let Inspection::Http(head) = inspect(&bytes, 4096) else {
        panic!()
    };
    let lines: Vec<usize> = service.rules.iter().map(|r| r.line).collect();
    assert_eq!(
        explain(&service, &Asked::Http(&head)).to_string(),
        format!(
            "line {}: no host, not b\nline {}: path /a does not start with /img\n\
             line {}: asks about TLS, and this is a plain HTTP request\nline {}: every condition holds",
            lines[0], lines[1], lines[2], lines[3]
        )
    );
}

/// The example's first service with these rules, all of which choose pool 1.
fn service(rules: &[&str], default: bool) -> Service {
    let example = include_str!("../../../examples/trapeze.toml");
    let mut text = example[..example.find("[[service]]").unwrap()].to_owned();
    text.push_str("[[service]]\nname = 'site'\naddress = '10.77.0.100:80'\n");
    if default {
        text.push_str("pool = 'web'\n");
    }
    for rule in rules {
        text.push_str(&format!("[[service.rule]]\n{rule}\npool = 'images'\n"));
    }
    let config = crate::config::Config::parse(&text, "test").unwrap_or_else(|e| panic!("{e}"));
    config.services.into_iter().next().unwrap()
}

/// A head whose lines are parted by `|`.
fn head(request: &str) -> Vec<u8> {
    format!("{}\r\n\r\n", request.replace('|', "\r\n")).into_bytes()
}
