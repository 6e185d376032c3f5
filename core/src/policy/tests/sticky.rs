//! What binds a request, as configured.

use std::net::SocketAddr;

use super::*;
use crate::config::{CookieValue, Stickiness};
use crate::head::{Inspection, inspect};
use crate::route::Asked;

const MEMBERS: [(&str, BackendId); 3] = [
    ("b1", BackendId(4)),
    ("b11", BackendId(5)),
    ("b.2", BackendId(6)),
];

fn of(stickiness: &Stickiness, fields: &str, client: &str) -> Option<Bound> {
    let bytes = format!("GET / HTTP/1.1\r\n{fields}\r\n");
    let Inspection::Http(head) = inspect(bytes.as_bytes(), 4096) else {
        panic!("{fields}")
    };
    let client: SocketAddr = client.parse().unwrap();
    binding(stickiness, &Asked::Http(&head), client, MEMBERS)
}

#[test]
fn a_cookie_names_a_backend() {
    let cookie = Stickiness::Cookie {
        name: "SRV".into(),
        value: CookieValue::Name,
    };
    let to = |id| Some(Bound::To(BackendId(id)));
    let cases = [
        ("Cookie: SRV=b1\r\n", to(4)),
        ("cookie: a=1; SRV=b11; c=2\r\n", to(5)),
        ("Cookie: a=1\r\nCookie: SRV=\"b1\"\r\n", to(4)),
        ("Cookie: SRV=0123456789.b1\r\n", to(4)),
        ("Cookie: SRV=x.b.2\r\n", to(6)),
        ("Cookie: SRV=xb1\r\n", None),
        ("Cookie: SRV=b3\r\n", None),
        ("Cookie: SRV=\r\n", None),
        ("Cookie: XSRV=b1; srv=b1; SRVX=b1\r\n", None),
        ("", None),
    ];
    for (fields, expected) in cases {
        assert_eq!(of(&cookie, fields, "192.0.2.1:1"), expected, "{fields}");
    }
}

#[test]
fn keys_are_hashed() {
    let cookie = Stickiness::Cookie {
        name: "user".into(),
        value: CookieValue::Hash,
    };
    let client = "192.0.2.1:1";
    let anna = of(&cookie, "Cookie: user=anna\r\n", client);
    assert!(matches!(anna, Some(Bound::Key(_))));
    assert_eq!(
        anna,
        of(&cookie, "Cookie: x=1; user=anna\r\n", "192.0.2.9:7")
    );
    assert_ne!(anna, of(&cookie, "Cookie: user=ann\r\n", client));
    let header = Stickiness::Header("X-Tenant".into());
    let tenant = of(&header, "x-tenant:  a \r\n", client);
    assert!(tenant.is_some());
    assert_eq!(tenant, of(&header, "X-Tenant: a\r\n", client));
    assert_eq!(of(&header, "X-Tenant:\r\n", client), None);
}

#[test]
fn a_source_is_an_address_or_a_network_of_ipv6() {
    let source = |client| of(&Stickiness::Source, "", client);
    assert_eq!(source("192.0.2.1:1"), source("192.0.2.1:2"));
    assert_ne!(source("192.0.2.1:1"), source("192.0.2.2:1"));
    assert_eq!(source("[2001:db8::1]:1"), source("[2001:db8::2]:1"));
    assert_ne!(source("[2001:db8::1]:1"), source("[2001:db8:0:1::1]:1"));
    // Of a connection whose content is hidden, that is all there is.
    let hidden = |stickiness: &Stickiness| {
        binding(
            stickiness,
            &Asked::H2Preface,
            "192.0.2.1:1".parse().unwrap(),
            MEMBERS,
        )
    };
    assert_eq!(hidden(&Stickiness::Source), source("192.0.2.1:1"));
    assert_eq!(hidden(&Stickiness::Header("x".into())), None);
}
