//! `[membership.etcd]`: where members are found beside those that the file names.

use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::parse::value_or;
use super::section::Section;
use super::value;

/// How to reach etcd, and what to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Etcd {
    /// `http://HOST:PORT` or `https://HOST:PORT`, at least one; tried in order.
    pub endpoints: Vec<String>,
    /// What its keys start with: `/` and no `/` at the end (default `/trapeze`).
    pub prefix: String,
    /// How long a node is registered that does not renew it (3 s..=1 h; default 10 s).
    pub lease: Duration,
    /// By whom endpoints' certificates must be signed; without it, by a public authority.
    pub ca: Option<PathBuf>,
    /// This node's certificate and key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// This node's user, and a file with the password.
    pub user: Option<(String, PathBuf)>,
}

impl Etcd {
    /// What the keys of that cluster's members start with, up to the `/` before their role.
    pub fn directory(&self, cluster: &str) -> String {
        format!("{}/{cluster}/", self.prefix)
    }
}

pub(super) fn read_membership(mut section: Section<'_>) -> Option<Etcd> {
    let etcd = section.table("etcd", "[membership.etcd]");
    if etcd.is_none() && !section.has("etcd") {
        section.error("[membership] is empty: write [membership.etcd], or remove it");
    }
    section.finish();
    etcd.map(read_etcd)
}

fn read_etcd(mut section: Section<'_>) -> Etcd {
    let endpoints = section.required("endpoints", "[\"http://10.0.0.5:2379\"]", endpoints);
    let prefix = section.optional("prefix", prefix);
    let (s, hour) = (Duration::from_secs, Duration::from_secs(3600));
    let lease = section.optional("lease", |v| value::duration(v, s(3)..=hour));
    let ca = section.optional("ca", path);
    let cert = section.optional("cert", path);
    let key = section.optional("key", path);
    let user = section.optional("user", value::text);
    let password_file = section.optional("password_file", path);
    let is_plain = |url: &String| url.starts_with("http://");
    if let Some(endpoints) = &endpoints
        && let Some(plain) = endpoints.get_ref().iter().find(|url| is_plain(url))
        && let Some(first) = ca.as_ref().or(cert.as_ref())
    {
        let message = format!("{plain} is reached without TLS: write https://, or remove this");
        section.source.error(first.span(), message);
    }
    let identity = pair(&section, ("cert", cert), ("key", key));
    let user = user.map(|user| Spanned::new(user.span(), user.into_inner().to_owned()));
    let user = pair(&section, ("user", user), ("password_file", password_file));
    section.finish();
    Etcd {
        endpoints: value_or(endpoints, Vec::new()),
        prefix: value_or(prefix, "/trapeze".to_owned()),
        lease: value_or(lease, s(10)),
        ca: ca.map(Spanned::into_inner),
        identity,
        user,
    }
}

/// Two keys of which neither makes sense alone.
fn pair<A, B>(
    section: &Section<'_>,
    (one, a): (&str, Option<Spanned<A>>),
    (other, b): (&str, Option<Spanned<B>>),
) -> Option<(A, B)> {
    let (missing, span) = match (&a, &b) {
        (Some(_), Some(_)) => return Some((a?.into_inner(), b?.into_inner())),
        (Some(a), None) => (other, a.span()),
        (None, Some(b)) => (one, b.span()),
        (None, None) => return None,
    };
    // A wrong value has had its error.
    if !section.has(missing) {
        let message = format!("`{one}` and `{other}` go together: add `{missing}`");
        section.source.error(span, message);
    }
    None
}

fn endpoints(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    const LIKE: &str = "expected an array of URLs such as [\"http://10.0.0.5:2379\"]";
    let array = value.as_array().ok_or(LIKE)?;
    if array.is_empty() {
        return Err(format!("none is given: {LIKE}"));
    }
    (array.iter())
        .map(|item| endpoint(item.get_ref()))
        .collect()
}

fn endpoint(value: &DeValue<'_>) -> Result<String, String> {
    let url = value::text(value)?.trim_end_matches('/');
    let authority = ["http://", "https://"]
        .iter()
        .find_map(|s| url.strip_prefix(s));
    let Some(authority) = authority else {
        return Err(format!(
            "{url:?} does not say how: write \"http://{url}\" or https://"
        ));
    };
    let port = authority
        .rsplit_once(':')
        .map(|(host, port)| (host, port.parse::<u16>()));
    match port {
        Some((host, Ok(1..))) if !host.is_empty() && !host.contains(['/', '@', ' ']) => {
            Ok(url.to_owned())
        }
        Some((_, Err(_))) | None if !authority.contains('/') => {
            Err(format!("the port of {url:?} is missing: etcd's is 2379"))
        }
        _ => Err(format!(
            "{url:?} is not http://HOST:PORT or https://HOST:PORT"
        )),
    }
}

fn prefix(value: &DeValue<'_>) -> Result<String, String> {
    let written = value::text(value)?;
    let prefix = written.trim_end_matches('/');
    let is_plain = |b: u8| b.is_ascii_graphic();
    match prefix.starts_with('/') && prefix.bytes().all(is_plain) {
        true => Ok(prefix.to_owned()),
        false => Err(format!(
            "expected a prefix such as \"/trapeze\", found {written:?}"
        )),
    }
}

fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = PathBuf::from(value::text(value)?);
    match path.is_absolute() {
        true => Ok(path),
        false => Err("expected a path that begins with /".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const EXAMPLE: &str = include_str!("../../../examples/trapeze.toml");

    fn parse(section: &str) -> Result<Etcd, String> {
        let text = format!("{EXAMPLE}\n[membership.etcd]\n{section}");
        match Config::parse(&text, "test") {
            Ok(config) => Ok(config.membership.expect("it is there")),
            Err(errors) => Err(errors.to_string()),
        }
    }

    #[test]
    fn endpoints_are_enough() {
        let etcd = parse("endpoints = [\"http://10.0.0.5:2379/\"]").unwrap();
        assert_eq!(etcd.endpoints, ["http://10.0.0.5:2379"]);
        assert_eq!(etcd.directory("shop"), "/trapeze/shop/");
        assert_eq!(etcd.lease, Duration::from_secs(10));
        assert_eq!((etcd.ca, etcd.identity, etcd.user), (None, None, None));
    }

    #[test]
    fn all_can_be_said() {
        let etcd = parse(
            "endpoints = [\"https://e1:2379\", \"https://[2001:db8::1]:2379\"]\n\
             prefix = \"/a/b/\"\nlease = \"3s\"\nca = \"/ca\"\ncert = \"/c\"\nkey = \"/k\"\n\
             user = \"u\"\npassword_file = \"/p\"",
        )
        .unwrap();
        assert_eq!(etcd.directory("shop"), "/a/b/shop/");
        assert_eq!(etcd.identity, Some(("/c".into(), "/k".into())));
        assert_eq!(etcd.user, Some(("u".into(), "/p".into())));
    }

    #[test]
    fn each_mistake_says_what_to_do() {
        let url = "endpoints = [\"http://e1:2379\"]\n";
        let cases = [
            ("", "lacks `endpoints`"),
            ("endpoints = []", "none is given"),
            (
                "endpoints = \"http://e1:2379\"",
                "expected an array of URLs",
            ),
            ("endpoints = [\"e1:2379\"]", "write \"http://e1:2379\""),
            (
                "endpoints = [\"http://e1\"]",
                "the port of \"http://e1\" is missing: etcd's is 2379",
            ),
            (
                "endpoints = [\"http://e1:2379/v3\"]",
                "is not http://HOST:PORT",
            ),
            (
                &format!("{url}prefix = \"trapeze\""),
                "expected a prefix such as",
            ),
            (&format!("{url}lease = \"1s\""), "a duration from \"3s\""),
            (&format!("{url}ca = \"/ca\""), "is reached without TLS"),
            (&format!("{url}user = \"u\""), "add `password_file`"),
            (&format!("{url}key = \"/k\""), "add `cert`"),
            (&format!("{url}cert = \"c\"\nkey = \"/k\""), "begins with /"),
            (&format!("{url}password = \"p\""), "has no key `password`"),
        ];
        for (section, wanted) in cases {
            let error = parse(section).unwrap_err();
            assert!(error.contains(wanted), "{section}: {error}");
        }
    }

    #[test]
    fn a_file_may_leave_dispatchers_to_etcd() {
        let start = EXAMPLE.find("[[dispatcher]]").unwrap();
        let end = start + EXAMPLE[start..].find("[[backend]]").unwrap();
        let nobody = EXAMPLE[..start].to_owned() + &EXAMPLE[end..];
        assert!(Config::parse(&nobody, "test").is_err());
        let etcd = "[membership.etcd]\nendpoints = [\"http://e1:2379\"]\n";
        let config = Config::parse(&format!("{nobody}{etcd}"), "test").unwrap();
        assert!(config.dispatchers_are_behind());
        let empty = Config::parse(&format!("{nobody}[membership]\n"), "test").unwrap_err();
        assert!(
            empty.to_string().contains("[membership] is empty"),
            "{empty}"
        );
    }
}
