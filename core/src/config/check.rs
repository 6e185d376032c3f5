//! `[pool.check]`: how it is found out whether a pool's servers do their work, and what a member
//! of the pool has different.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::checks::Found;
use super::section::{Section, WordOrTable};
use super::value;
use crate::health::answer::LONGEST;

/// How a server is checked, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it is asked.
    pub probe: Probe,
    /// From the beginning of one check to that of the next (50 ms..=1 h; default 2 s).
    pub interval: Duration,
    /// How long one may take, connecting included (10 ms..=1 m; default 1 s).
    pub timeout: Duration,
    /// Checks in a row that must pass before one that is down is up (1..=100; default 2).
    pub rise: u32,
    /// Checks in a row that must fail before one that is up is down (1..=100; default 3).
    pub fall: u32,
    /// Where it is asked, if not where it serves.
    pub port: Option<u16>,
}

/// What a server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A connection.
    Tcp,
    /// An HTTP/1.1 request without a body.
    Http(HttpProbe),
}

/// A request, and what is expected of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// Its method (default GET).
    pub method: String,
    /// Its path, with a query if need be (default `/`).
    pub path: String,
    /// Its Host; none: the server's address.
    pub host: Option<String>,
    /// Statuses that will do (default 200..=399).
    pub status: Vec<RangeInclusive<u16>>,
    /// What the first 64 KiB of the answer, its head included, must hold in its body.
    pub body: Option<String>,
}

/// When a backend stands out by what becomes of clients' requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// So many failures (1..=1,000,000; default 10)
    pub failures: u32,
    /// in this time (1 s..=10 m; default 10 s)
    pub within: Duration,
    /// eject it for so long (1 s..=1 h; default 30 s), and longer the next time.
    pub eject: Duration,
}

impl Default for HttpProbe {
    fn default() -> Self {
        HttpProbe {
            method: "GET".into(),
            path: "/".into(),
            host: None,
            status: vec![200..=399],
            body: None,
        }
    }
}

impl Check {
    fn new(probe: Probe) -> Self {
        Check {
            probe,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            port: None,
        }
    }
}

/// A pool's.
pub(super) fn read_check(pool: &mut Section<'_>) -> Option<Check> {
    let mut section = pool.table("check", "[pool.check]")?;
    let kind = section.required("type", "\"http\"", kind);
    let check = read(&mut section, Check::new(kind_or_any(kind)));
    section.finish();
    Some(check)
}

/// `[pool.outliers]`.
pub(super) fn read_outliers(pool: &mut Section<'_>) -> Option<Outliers> {
    let mut section = pool.table("outliers", "[pool.outliers]")?;
    let s = Duration::from_secs;
    let failures = section.optional("failures", |v| value::integer(v, 1..=1_000_000));
    let within = section.optional("within", |v| value::duration(v, s(1)..=s(600)));
    let eject = section.optional("eject", |v| value::duration(v, s(1)..=s(3600)));
    section.finish();
    Some(Outliers {
        failures: failures.map_or(10, |v| v.into_inner() as u32),
        within: within.map_or(s(10), |v| v.into_inner()),
        eject: eject.map_or(s(30), |v| v.into_inner()),
    })
}

/// A member's: as the pool's, but for what it says itself.
pub(super) fn read_member_check(
    member: &mut Section<'_>,
    of_pool: Option<&Check>,
) -> Option<Check> {
    const TITLE: &str = "a backend's `check`";
    let never = |value: &DeValue<'_>| match value.as_bool() {
        Some(false) => Ok(()),
        _ => Err("expected false, or a table such as { port = 8081 }".to_owned()),
    };
    let mut section = match member.word_or_table("check", TITLE, never) {
        None => return of_pool.cloned(),
        Some(WordOrTable::Word(())) => return None,
        Some(WordOrTable::Table(section)) => section,
    };
    let kind = match of_pool {
        Some(_) => section.optional("type", kind),
        None => section.required("type", "\"http\"", kind),
    };
    let inherited = match (kind, of_pool) {
        (Some(kind), Some(of_pool)) if !is_like(kind.get_ref(), &of_pool.probe) => Check {
            probe: kind.into_inner(),
            ..of_pool.clone()
        },
        (_, Some(of_pool)) => of_pool.clone(),
        (kind, None) => Check::new(kind_or_any(kind)),
    };
    let check = read(&mut section, inherited);
    section.finish();
    Some(check)
}

/// Where none is said, or a wrong one: the one with the most keys, for the other mistakes.
fn kind_or_any(kind: Found<Probe>) -> Probe {
    kind.map_or_else(|| Probe::Http(HttpProbe::default()), Spanned::into_inner)
}

fn is_like(one: &Probe, other: &Probe) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn read(section: &mut Section<'_>, inherited: Check) -> Check {
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let interval = section.optional("interval", |v| value::duration(v, ms(50)..=s(3600)));
    let timeout = section.optional("timeout", |v| value::duration(v, ms(10)..=s(60)));
    let rise = section.optional("rise", |v| value::integer(v, 1..=100));
    let fall = section.optional("fall", |v| value::integer(v, 1..=100));
    let port = section.optional("port", |v| value::integer(v, 1..=u16::MAX.into()));
    let probe = match inherited.probe {
        Probe::Tcp => {
            refuse_http(section);
            Probe::Tcp
        }
        Probe::Http(probe) => Probe::Http(read_http(section, probe)),
    };
    Check {
        probe,
        interval: interval.map_or(inherited.interval, |v| v.into_inner()),
        timeout: timeout.map_or(inherited.timeout, |v| v.into_inner()),
        rise: rise.map_or(inherited.rise, |v| v.into_inner() as u32),
        fall: fall.map_or(inherited.fall, |v| v.into_inner() as u32),
        port: port.map_or(inherited.port, |v| Some(v.into_inner() as u16)),
    }
}

fn read_http(section: &mut Section<'_>, inherited: HttpProbe) -> HttpProbe {
    let method = section.optional("method", |v| match value::token(v)? {
        method if method == "CONNECT" => {
            Err("CONNECT asks for no path: write `method = \"GET\"`, or \"HEAD\"".to_owned())
        }
        method => Ok(method),
    });
    let path = section.optional("path", target);
    let host = section.optional("host", value::header_value);
    let status = section.optional("status", statuses);
    let body = section.optional("body", |v| match value::text(v)? {
        "" => Err("expected a text that the answer holds, found nothing".to_owned()),
        text if text.len() >= LONGEST => Err(format!(
            "{LONGEST} bytes of an answer are looked at, its head included: write a shorter text"
        )),
        text => Ok(text.to_owned()),
    });
    if let Some(body) = &body
        && method.as_ref().map_or(&inherited.method, |m| m.get_ref()) == "HEAD"
    {
        let message = "an answer to HEAD has no body: write `method = \"GET\"`, or remove `body`";
        section.source.error(body.span(), message);
    }
    if let Some(body) = &body
        && let Some(status) = &status
        && (status.get_ref().iter())
            .all(|range| range.clone().all(|status| BODILESS.contains(&status)))
    {
        let message =
            "no answer with such a status has a body: allow another `status`, or remove `body`";
        section.source.error(body.span(), message);
    }
    HttpProbe {
        method: method.map_or(inherited.method, |v| v.into_inner()),
        path: path.map_or(inherited.path, |v| v.into_inner()),
        host: host.map_or(inherited.host, |v| Some(v.into_inner())),
        status: status.map_or(inherited.status, |v| v.into_inner()),
        body: body.map_or(inherited.body, |v| Some(v.into_inner())),
    }
}

/// A better word than that the key is not known.
fn refuse_http(section: &mut Section<'_>) {
    for key in ["method", "path", "host", "status", "body"] {
        section.optional(key, |_| {
            Err::<(), _>("is for HTTP: write `type = \"http\"`, or remove it".to_owned())
        });
    }
}

fn kind(value: &DeValue<'_>) -> Result<Probe, String> {
    match value::text(value)? {
        "tcp" => Ok(Probe::Tcp),
        "http" => Ok(Probe::Http(HttpProbe::default())),
        other => Err(format!("expected \"tcp\" or \"http\", found \"{other}\"")),
    }
}

/// A path, with a query if need be (RFC 9112 §3.2.1).
fn target(value: &DeValue<'_>) -> Result<String, String> {
    let path = value::text(value)?;
    if !path.starts_with('/') {
        return Err(format!("a path starts with `/`: write \"/{path}\""));
    }
    if path.bytes().any(|b| b <= b' ' || b >= 0x7f || b == b'#') {
        return Err("a path has no spaces, `#` or letters beyond ASCII: write them as %20".into());
    }
    Ok(path.to_owned())
}

/// Their answers end behind the head (RFC 9112 §6.3).
const BODILESS: [u16; 2] = [204, 304];

/// `200`, `"2xx"`, `"200-399"`, or an array of these.
fn statuses(value: &DeValue<'_>) -> Result<Vec<RangeInclusive<u16>>, String> {
    match value.as_array() {
        Some(all) if !all.is_empty() => all.iter().map(|one| status(one.get_ref())).collect(),
        Some(_) => Err("no status would do: write one, such as 200".into()),
        None => Ok(vec![status(value)?]),
    }
}

fn status(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    let expected = "expected a status such as 200, \"2xx\" or \"200-399\"";
    let valid = |from: u16, to: u16| {
        let is_valid = from <= to && (200..=599).contains(&from) && to <= 599;
        match is_valid {
            true => Ok(from..=to),
            false if from > to => Err(format!("{expected}, the lower one first")),
            false => Err(format!("{expected}, from 200 to 599")),
        }
    };
    let Some(text) = value.as_str() else {
        let one = value::integer(value, 100..=999).map_err(|_| expected.to_owned())? as u16;
        return valid(one, one);
    };
    let number = |text: &str| text.parse::<u16>().map_err(|_| expected.to_owned());
    match (text.strip_suffix("xx"), text.split_once('-')) {
        (Some(class), _) => {
            let from = number(class)?.saturating_mul(100);
            valid(from, from.saturating_add(99))
        }
        (None, Some((from, to))) => valid(number(from.trim())?, number(to.trim())?),
        (None, None) => {
            let one = number(text)?;
            valid(one, one)
        }
    }
}
