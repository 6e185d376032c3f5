//! The values that a key can hold, each read from TOML and checked on its own:
//! names, addresses, durations, patterns. What depends on other parts of the
//! file is checked in `parse.rs`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::nearest::suggestion;
use super::{
    Attach, CookieValue, Costs, Handoff, PolicyKind, Retry, SprayMode, Stickiness, Transfer,
};
use crate::policy::Class;

/// The longest name: it is a C string of 32 bytes in the data path.
const NAME_BYTES: usize = 31;
/// IFNAMSIZ less its terminating zero (linux/if.h).
const INTERFACE_BYTES: usize = 15;
/// The longest protocol name that TLS can carry (RFC 7301 §3.1).
const ALPN_BYTES: usize = 255;

pub(super) fn text<'v>(value: &'v DeValue<'v>) -> Result<&'v str, String> {
    value
        .as_str()
        .ok_or_else(|| unexpected("a string in quotes", value))
}

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| unexpected("true or false", value))
}

pub(super) fn integer(value: &DeValue<'_>, range: RangeInclusive<u64>) -> Result<u64, String> {
    let expected = format!("a number from {} to {}", range.start(), range.end());
    let number = value
        .as_integer()
        .ok_or_else(|| unexpected(&expected, value))?;
    u64::from_str_radix(number.as_str(), number.radix())
        .ok()
        .filter(|n| range.contains(n))
        .ok_or_else(|| format!("expected {expected}, found {number}"))
}

/// A sub-cluster's number.
pub(super) fn sub_cluster(value: &DeValue<'_>) -> Result<u8, String> {
    integer(value, 0..=u8::MAX.into()).map(|number| number as u8)
}

/// None for false: what would hold otherwise does not.
pub(super) fn unless_false<'v, T>(
    value: &'v DeValue<'v>,
    read: impl FnOnce(&'v DeValue<'v>) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match value.as_bool() {
        Some(false) => Ok(None),
        _ => (read(value).map(Some)).map_err(|why| format!("{why}; or write false, for none")),
    }
}

/// A number that may have a fraction.
pub(super) fn decimal(value: &DeValue<'_>, range: RangeInclusive<f64>) -> Result<f64, String> {
    let expected = format!("a number from {} to {}", range.start(), range.end());
    let number: f64 = match value {
        DeValue::Float(written) => written.as_str().parse().ok(),
        DeValue::Integer(written) => (u64::from_str_radix(written.as_str(), written.radix()).ok())
            .map(|number| number as f64),
        _ => return Err(unexpected(&expected, value)),
    }
    .unwrap_or(f64::NAN);
    match range.contains(&number) {
        true => Ok(number),
        false => Err(format!("expected {expected}")),
    }
}

/// A name of a node, pool, service or cluster.
pub(super) fn name(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    node_name(name)?;
    Ok(name.to_owned())
}

/// Whether that can be one.
pub(super) fn node_name(name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err(format!(
            "a name has 1 to {NAME_BYTES} bytes, this one has {}",
            name.len()
        ));
    }
    if !name.bytes().all(allowed) {
        return Err("a name consists of a-z, 0-9, `.` and `-`".into());
    }
    // It becomes a directory where state is pinned.
    if name.bytes().all(|b| b == b'.') {
        return Err("a name needs a letter or digit".into());
    }
    Ok(())
}

pub(super) fn interface(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let fits = (1..=INTERFACE_BYTES).contains(&name.len()) && name != "." && name != "..";
    if fits
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':')
    {
        return Ok(name.to_owned());
    }
    Err(format!(
        "expected an interface's name of 1 to {INTERFACE_BYTES} bytes, as `ip link` shows it"
    ))
}

/// The address of one host.
pub(super) fn address(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let written = text(value)?;
    let address: IpAddr = written
        .parse()
        .map_err(|_| match written.parse::<SocketAddr>() {
            Ok(with_port) => format!("a node has no port here: write \"{}\"", with_port.ip()),
            Err(_) => "expected an IP address such as \"10.0.0.11\" or \"2001:db8::11\"".into(),
        })?;
    host_address(address)
}

/// A service's address and port.
pub(super) fn service_address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let address = address_and_port(value)?;
    host_address(address.ip())?;
    Ok(address)
}

/// Where a server listens; an unspecified address means any.
pub(super) fn server_address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    address_and_port(value)
}

fn address_and_port(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let written = text(value)?;
    let address: SocketAddr = written
        .parse()
        .map_err(|_| match written.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => format!("the port is missing: write \"{ip}:80\""),
            Ok(IpAddr::V6(ip)) => format!("the port is missing: write \"[{ip}]:80\""),
            Err(_) => {
                "expected address and port such as \"10.0.0.1:80\" or \"[2001:db8::1]:80\"".into()
            }
        })?;
    if address.port() == 0 {
        return Err("port 0 cannot be served: write a port from 1 to 65535".into());
    }
    if let SocketAddr::V6(v6) = address
        && v6.scope_id() != 0
    {
        return Err("an address with a scope (`%`) is not the same on every host".into());
    }
    plain(address.ip())?;
    Ok(address)
}

fn host_address(ip: IpAddr) -> Result<IpAddr, String> {
    if !is_one_hosts(ip) {
        return Err(format!("{ip} is not the address of one host"));
    }
    plain(ip)
}

/// Can packets come to it from other hosts? Not to "this network", to the sender itself, to many, nor to what is
/// reserved (RFC 6890 §2.2).
fn is_one_hosts(ip: IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(v4) => matches!(v4.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(_) => ip.is_unspecified() || ip.is_loopback() || ip.is_multicast(),
    };
    !is_special
}

/// Flow keys hold IPv4 addresses as mapped ones: both spellings of an address
/// would be one key, yet differ here.
fn plain(ip: IpAddr) -> Result<IpAddr, String> {
    match ip {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => Err(format!("{ip} is an IPv4 address: write {v4}")),
            None => Ok(ip),
        },
        IpAddr::V4(_) => Ok(ip),
    }
}

/// 16 bytes as 32 hex digits. The message never repeats what was written.
pub(super) fn secret(value: &DeValue<'_>) -> Result<[u8; 16], String> {
    let hex = text(value)?;
    if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("expected 32 hex digits, as `openssl rand -hex 16` prints them".into());
    }
    let number = u128::from_str_radix(hex, 16).map_err(|_| "expected 32 hex digits".to_owned())?;
    Ok(number.to_be_bytes())
}

/// A duration in whole units, largest first: `10s`, `200ms`, `1m30s`.
pub(super) fn duration(
    value: &DeValue<'_>,
    range: RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let expected = || {
        let (start, end) = (in_units(*range.start()), in_units(*range.end()));
        format!("a duration from \"{start}\" to \"{end}\", such as \"10s\", \"200ms\" or \"1m30s\"")
    };
    let written = value
        .as_str()
        .ok_or_else(|| unexpected(&expected(), value))?;
    parse_duration(written)
        .filter(|d| range.contains(d))
        .ok_or_else(|| format!("expected {}, found \"{written}\"", expected()))
}

/// Units of a duration, in milliseconds, largest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// What is written as `10s`, `200ms` or `1m30s`: whole numbers of units, the largest first.
/// None: something else.
pub fn parse_duration(written: &str) -> Option<Duration> {
    let mut rest = written;
    let mut units = &UNITS[..];
    let mut total_ms = 0u64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, after) = after.split_at(
            after
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(after.len()),
        );
        let index = units.iter().position(|&(name, _)| name == unit)?;
        let ms = number.parse::<u64>().ok()?.checked_mul(units[index].1)?;
        total_ms = total_ms.checked_add(ms)?;
        units = &units[index + 1..];
        rest = after;
    }
    Some(Duration::from_millis(total_ms))
}

/// The largest unit that says it exactly.
pub(super) fn in_units(duration: Duration) -> String {
    let ms = duration.as_millis() as u64;
    // None of a unit is as much as none of another: seconds are the plainest.
    if ms == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = (UNITS.iter())
        .find(|(_, size)| ms.is_multiple_of(*size))
        .unwrap_or(&UNITS[4]);
    format!("{}{unit}", ms / size)
}

pub(super) fn attach(value: &DeValue<'_>) -> Result<Attach, String> {
    one_of(
        value,
        &[
            ("xdp", Attach::Xdp),
            ("xdp-generic", Attach::XdpGeneric),
            ("tc", Attach::Tc),
        ],
    )
}

pub(super) fn spray_mode(value: &DeValue<'_>) -> Result<SprayMode, String> {
    let modes = [
        SprayMode::FlowHash,
        SprayMode::Batch(SprayMode::BATCH),
        SprayMode::Workload,
    ];
    one_of(value, &modes.map(|mode| (mode.name(), mode)))
}

pub(super) fn handoff(value: &DeValue<'_>) -> Result<Handoff, String> {
    one_of(
        value,
        &[
            ("half-pipe", Handoff::HalfPipe),
            ("drained", Handoff::Drained),
            ("none", Handoff::None),
        ],
    )
}

pub(super) fn retry(value: &DeValue<'_>) -> Result<Retry, String> {
    let all = [
        Retry::Never,
        Retry::Unheard,
        Retry::Idempotent,
        Retry::Always,
    ];
    one_of(value, &all.map(|retry| (retry.name(), retry)))
}

pub(super) fn transfer(value: &DeValue<'_>) -> Result<Transfer, String> {
    let all = [Transfer::Rebuild, Transfer::Splice, Transfer::SplitSplice];
    one_of(value, &all.map(|transfer| (transfer.name(), transfer)))
}

pub(super) fn policy(value: &DeValue<'_>) -> Result<PolicyKind, String> {
    one_of(value, &PolicyKind::ALL.map(|kind| (kind.name(), kind)))
}

pub(super) fn class(value: &DeValue<'_>) -> Result<Class, String> {
    one_of(value, &Class::ALL.map(|class| (class.name(), class)))
}

pub(super) fn stickiness(value: &DeValue<'_>) -> Result<Stickiness, String> {
    one_of(value, &[("source", ())]).map(|()| Stickiness::Source)
}

pub(super) fn cookie_value(value: &DeValue<'_>) -> Result<CookieValue, String> {
    one_of(
        value,
        &[("name", CookieValue::Name), ("hash", CookieValue::Hash)],
    )
}

pub(super) fn costs(value: &DeValue<'_>) -> Result<Costs, String> {
    one_of(
        value,
        &[("learnt", Costs::Learnt), ("packets", Costs::Packets)],
    )
}

fn one_of<T: Copy>(value: &DeValue<'_>, choices: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<String> = choices
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let expected = format!("one of {}", names.join(", "));
    let written = value.as_str().ok_or_else(|| unexpected(&expected, value))?;
    match choices.iter().find(|(name, _)| *name == written) {
        Some(&(_, choice)) => Ok(choice),
        None => {
            let suggestion = suggestion(written, choices.iter().map(|(name, _)| *name));
            Err(format!(
                "expected {expected}, found \"{written}\"{suggestion}"
            ))
        }
    }
}

/// A host without port, or `*.` and a host, in lower case.
pub(super) fn host(value: &DeValue<'_>) -> Result<String, String> {
    let written = text(value)?.to_ascii_lowercase();
    let bare = written.strip_prefix("*.").unwrap_or(&written);
    if let Some(v6) = bare.strip_prefix('[').and_then(|b| b.strip_suffix(']')) {
        if v6.parse::<std::net::Ipv6Addr>().is_err() || bare.len() != written.len() {
            return Err("expected an IPv6 address between the brackets".into());
        }
        return Ok(written);
    }
    if bare.contains('*') {
        return Err("`*` stands only for whole names in front, as in \"*.example.org\"".into());
    }
    if bare.contains(':') {
        return Err("a host is written without port, an IPv6 address in brackets".into());
    }
    // A trailing dot is taken off what clients send, too.
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    if bare.is_empty()
        || bare
            .bytes()
            .any(|b| !b.is_ascii_graphic() || b"/?#@".contains(&b))
    {
        return Err("expected a host such as \"example.org\" or \"*.example.org\"".into());
    }
    Ok(written.strip_suffix('.').unwrap_or(&written).to_owned())
}

/// A server name: as a host, but never an address (RFC 6066 §3).
pub(super) fn server_name(value: &DeValue<'_>) -> Result<String, String> {
    let name = host(value)?;
    if name.parse::<IpAddr>().is_ok() || name.starts_with('[') {
        return Err("clients send no server name for an address (RFC 6066 §3)".into());
    }
    Ok(name)
}

pub(super) fn alpn(value: &DeValue<'_>) -> Result<String, String> {
    let protocol = text(value)?;
    if protocol.is_empty() || protocol.len() > ALPN_BYTES {
        return Err("expected a protocol such as \"h2\" or \"http/1.1\"".into());
    }
    Ok(protocol.to_owned())
}

/// A path as clients send it; `*` is that of `OPTIONS *`.
pub(super) fn path(value: &DeValue<'_>) -> Result<String, String> {
    let path = text(value)?;
    if path == "*" {
        Ok(path.to_owned())
    } else {
        path_prefix(value)
    }
}

pub(super) fn path_prefix(value: &DeValue<'_>) -> Result<String, String> {
    let path = text(value)?;
    if !path.starts_with('/') {
        return Err(format!("a path starts with `/`: write \"/{path}\""));
    }
    if path.contains(['?', '#']) {
        return Err("rules see the path without its query: leave out `?` and `#`".into());
    }
    if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err("a path holds no spaces: clients send them as %20".into());
    }
    Ok(path.to_owned())
}

/// How a path ends, such as `.php`.
pub(super) fn path_suffix(value: &DeValue<'_>) -> Result<String, String> {
    let suffix = text(value)?;
    if suffix.is_empty()
        || suffix
            .bytes()
            .any(|b| b <= b' ' || b == 0x7f || b == b'?' || b == b'#')
    {
        return Err("expected the end of a path such as \".php\", without query".into());
    }
    Ok(suffix.to_owned())
}

/// A method or a header's name (RFC 9110 §5.6.2).
pub(super) fn token(value: &DeValue<'_>) -> Result<String, String> {
    let token = text(value)?;
    if token.is_empty() || !token.bytes().all(crate::head::is_token_byte) {
        return Err("expected a word of letters, digits and !#$%&'*+-.^_`|~".into());
    }
    Ok(token.to_owned())
}

/// A header's value, as compared: without white space around it (RFC 9110 §5.5).
pub(super) fn header_value(value: &DeValue<'_>) -> Result<String, String> {
    let written = text(value)?;
    if written.trim_matches([' ', '\t']) != written || written.contains(['\r', '\n', '\0']) {
        return Err("a header's value has no white space around it and no line breaks".into());
    }
    Ok(written.to_owned())
}

fn unexpected(expected: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    format!("expected {expected}, found {found}")
}
