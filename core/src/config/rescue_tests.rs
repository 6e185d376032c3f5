//! What pools and rules say of answers and requests whose backend dies: read, inherited key by key, and
//! each kind of mistake.

use std::time::Duration;

use super::*;
use crate::head::{Inspection, inspect};

/// The pool says this, and so does the rule for `/a`.
fn read(pool: &str, rule: &str) -> Result<Config, ConfigErrors> {
    let text = format!(
        "[cluster]\nname = \"c\"\n\
         keys = [{{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }}]\n\
         [[dispatcher]]\nname = \"d1\"\naddress = \"10.0.0.11\"\ninterface = \"eth0\"\n\
         [[backend]]\nname = \"b1\"\naddress = \"10.0.0.21\"\ninterface = \"eth0\"\n\
         [[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n{pool}\n\
         [[service]]\nname = \"s\"\naddress = \"10.0.0.100:80\"\npool = \"web\"\n\
         [[service.rule]]\npath_prefix = \"/a\"\npool = \"web\"\n{rule}\n"
    );
    Config::parse(&text, "trapeze.toml")
}

/// Of the rule, as far as answers go.
fn of_rule(pool: &str, rule: &str) -> Protection {
    let config = read(pool, rule).unwrap_or_else(|e| panic!("{e}"));
    config.services[0].rules[0].rescue.protection
}

const fn protection(from: Option<u64>, after_s: Option<u64>) -> Protection {
    let after = match after_s {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => None,
    };
    Protection { from, after }
}

#[test]
fn nothing_is_protected_where_nothing_is_said() {
    let config = read("", "").unwrap();
    assert_eq!(config.pools[0].rescue, Rescue::default());
    assert_eq!(config.services[0].rules[0].rescue, Rescue::default());
    assert!(!Rescue::default().protection.is_any());
    assert_eq!(Rescue::default().retry, Retry::Unheard);
}

#[test]
fn a_rule_has_what_its_pool_says_but_for_what_it_says_itself() {
    let both = "protect_from = 1000\nprotect_after = \"2s\"\nretry = \"always\"";
    let cases = [
        (both, "", protection(Some(1000), Some(2))),
        (both, "protect_from = 5", protection(Some(5), Some(2))),
        (
            both,
            "protect_after = \"9s\"",
            protection(Some(1000), Some(9)),
        ),
        (both, "protect_from = false", protection(None, Some(2))),
        (both, "protect_after = false", protection(Some(1000), None)),
        (
            both,
            "protect_from = false\nprotect_after = false",
            protection(None, None),
        ),
        ("", "protect_from = 7", protection(Some(7), None)),
        ("", "protect_after = \"1m\"", protection(None, Some(60))),
        ("protect_from = false", "", protection(None, None)),
    ];
    for (pool, rule, expected) in cases {
        assert_eq!(of_rule(pool, rule), expected, "{pool:?}, {rule:?}");
    }
    for (rule, retry) in [("", Retry::Always), ("retry = \"never\"", Retry::Never)] {
        let config = read(both, rule).unwrap();
        assert_eq!(config.services[0].rules[0].rescue.retry, retry);
        assert_eq!(config.pools[0].rescue.retry, Retry::Always);
    }
}

#[test]
fn large_answers_are_protected_at_once_and_others_when_they_take_long() {
    let second = Duration::from_secs(1);
    let of = |from, after_s, bytes| protection(from, after_s).delay(bytes);
    assert_eq!(of(None, None, 1 << 40), None);
    assert_eq!(of(Some(10), None, 9), None);
    assert_eq!(of(Some(10), None, 10), Some(Duration::ZERO));
    assert_eq!(of(None, Some(1), 1 << 40), Some(second));
    assert_eq!(of(Some(10), Some(1), 9), Some(second));
    assert_eq!(of(Some(10), Some(1), 10), Some(Duration::ZERO));
    let least = |from, after_s| protection(from, after_s).least();
    assert_eq!(least(None, None), None);
    assert_eq!(least(Some(10), None), Some(10));
    assert_eq!(least(None, Some(1)), Some(1), "any may take long");
    assert_eq!(least(Some(10), Some(1)), Some(1));
}

#[test]
fn a_request_has_the_rescue_of_its_rule_and_else_of_its_pool() {
    let config = read("protect_from = 1000", "protect_from = 5\nretry = \"never\"").unwrap();
    let vip = "10.0.0.100:80".parse().unwrap();
    let of = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let Inspection::Http(head) = inspect(head.as_bytes(), 4096) else {
            panic!("no request");
        };
        config.rescue(vip, &Asked::Http(&head))
    };
    let by_rule = Rescue {
        protection: protection(Some(5), None),
        retry: Retry::Never,
    };
    let by_pool = Rescue {
        protection: protection(Some(1000), None),
        ..Rescue::default()
    };
    assert_eq!(of("/a/b"), Some((0, by_rule)));
    assert_eq!(of("/b"), Some((0, by_pool)));
    let all: Vec<Rescue> = config.rescues(0).collect();
    assert_eq!(all, [by_rule, by_pool]);
    let elsewhere = config.rescue("10.0.0.100:81".parse().unwrap(), &Asked::H2Preface);
    assert_eq!(elsewhere, None);
}

#[test]
fn what_a_pool_says_is_not_wanted_where_no_way_leads_to_it() {
    let mut config = read("protect_from = 1000", "protect_from = false").unwrap();
    config.services[0].default_pool = None;
    let wanted: Vec<_> = (config.rescues(0))
        .filter_map(|rescue| rescue.protection.least())
        .collect();
    assert_eq!(wanted, []);
}

/// The least is what holds where nobody knows whose rule it was.
#[test]
fn retries_are_in_order() {
    use Retry::*;
    let mut all = [Always, Never, Idempotent, Unheard];
    all.sort();
    assert_eq!(all, [Never, Unheard, Idempotent, Always]);
}

#[test]
fn each_mistake_is_explained() {
    let none = "handoff = \"none\"";
    let cases = [
        (
            "",
            "protect_from = 0",
            "`protect_from`: expected a number from 1 to 1099511627776, found 0; or write false, for none",
        ),
        (
            "",
            "protect_from = true",
            "`protect_from`: expected a number from 1 to 1099511627776, found true or false; or write false",
        ),
        (
            "protect_from = \"1M\"",
            "",
            "`protect_from`: expected a number from 1 to 1099511627776, found a string",
        ),
        (
            "",
            "protect_after = 2",
            "`protect_after`: expected a duration from \"100ms\" to \"1d\"",
        ),
        (
            "protect_after = \"99ms\"",
            "",
            "`protect_after`: expected a duration from \"100ms\" to \"1d\"",
        ),
        (
            "",
            "protect_after = \"2d\"",
            "`protect_after`: expected a duration from \"100ms\" to \"1d\"",
        ),
        (
            "",
            "protect_form = 9",
            "[[service.rule]] has no key `protect_form`; did you mean `protect_from`?",
        ),
        (
            "",
            "retry = \"alwais\"",
            "`retry`: expected one of \"never\"",
        ),
        (
            none,
            "protect_after = \"2s\"",
            "`protect_after` cannot be where the pool says `handoff = \"none\"`",
        ),
        (
            "handoff = \"none\"\nprotect_from = 9",
            "",
            "`protect_from` cannot be where the pool says `handoff = \"none\"`",
        ),
        (
            none,
            "retry = \"always\"",
            "`retry` cannot be where the pool says `handoff = \"none\"`",
        ),
    ];
    for (pool, rule, message) in cases {
        let errors = match read(pool, rule) {
            Ok(_) => panic!("{pool:?}, {rule:?}: accepted"),
            Err(errors) => errors,
        };
        let found = errors.iter().any(|e| e.message.starts_with(message));
        assert!(found, "{pool:?}, {rule:?}: {errors}");
        assert_eq!(errors.iter().count(), 1, "{errors}");
    }
    assert!(read(none, "protect_from = false\nretry = \"never\"").is_ok());
}

/// As [`read`], with these two backends in its pool.
fn spliced(transfers: [&str; 2], pool: &str, rule: &str) -> Result<Config, ConfigErrors> {
    let backend = |(transfer, number): (&str, u8)| {
        format!(
            "[[backend]]\nname = \"b{number}\"\naddress = \"10.0.0.2{number}\"\ninterface = \"eth0\"\n\
             transfer = \"{transfer}\"\n"
        )
    };
    let text = format!(
        "[cluster]\nname = \"c\"\n\
         keys = [{{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }}]\n\
         [[dispatcher]]\nname = \"d1\"\naddress = \"10.0.0.11\"\ninterface = \"eth0\"\n\
         splice_address = \"10.0.0.111\"\n{}{}\
         [[pool]]\nname = \"web\"\nbackends = [\"b1\", \"b2\"]\n{pool}\n\
         [[service]]\nname = \"s\"\naddress = \"10.0.0.100:80\"\npool = \"web\"\n\
         [[service.rule]]\npath_prefix = \"/a\"\npool = \"web\"\n{rule}\n",
        backend((transfers[0], 1)),
        backend((transfers[1], 2)),
    );
    Config::parse(&text, "trapeze.toml")
}

#[test]
fn nothing_outlives_backends_that_are_all_spliced() {
    let all = ["splice", "split-splice"];
    for (pool, rule) in [
        ("protect_from = 1000", ""),
        ("", "protect_after = \"2s\""),
        ("retry = \"always\"", ""),
        ("", "retry = \"idempotent\""),
    ] {
        let errors = spliced(all, pool, rule).expect_err("they are all spliced");
        let key = pool.split(' ').chain(rule.split(' '));
        let key = key.into_iter().find(|word| !word.is_empty()).unwrap();
        let message =
            format!("`{key}` cannot be where all backends of the pool are spliced, for no answer");
        let found = errors.iter().any(|e| e.message.starts_with(&message));
        assert!(found, "{errors}");
        assert_eq!(errors.iter().count(), 1, "{errors}");
        assert!(spliced(["splice", "rebuild"], pool, rule).is_ok());
    }
    let nothing = "protect_from = false\nretry = \"never\"";
    assert!(spliced(all, nothing, nothing).is_ok());
}

#[test]
fn of_tls_nobody_can_read_what_they_are_about() {
    for key in [
        "protect_from = false",
        "protect_after = \"2s\"",
        "retry = \"never\"",
    ] {
        let rule = format!("[[service.rule]]\nsni = \"a.example\"\npool = \"web\"\n{key}");
        let errors = read("", &rule).unwrap_err();
        let name = key.split(' ').next().unwrap();
        let message = format!("`{name}` is about requests of HTTP/1, and this rule about TLS");
        let found = errors.iter().any(|e| e.message.starts_with(&message));
        assert!(found, "{errors}");
    }
}

#[test]
fn it_is_said_in_a_sentence() {
    let said = |pool: &str| read(pool, "").unwrap().pools[0].rescue.to_string();
    assert_eq!(
        said(""),
        "answers that outlive their backend: none; requests that do: unheard"
    );
    assert_eq!(
        said("protect_from = 9\nprotect_after = \"90s\"\nretry = \"never\""),
        "answers that outlive their backend: from 9 bytes on, or in progress for 90s; requests that do: never"
    );
}
