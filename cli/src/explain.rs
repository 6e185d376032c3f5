//! `trapeze explain`: where would this request go, and why?

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{anyhow, bail, ensure};
use serde::Serialize;
use trapeze_dispatcher::{Explained, Question, Request, Status, ask, explain_offline};

use crate::file;
use crate::members;
use crate::nodes::Select;
use crate::output::Output;

/// Tell where a request would go, and why, without making it
///
/// Asks this host's dispatcher, or with -c the configuration alone, taking all
/// backends to be up. On a spray's host it tells which dispatcher has the connection of
/// --client to --vip.
///
/// Examples:
///   trapeze explain /index.html
///   trapeze explain http://www.example.org/img/a.png -H 'X-Canary: yes'
///   trapeze explain https://www.example.org/
///   trapeze explain -c trapeze.toml --vip 192.0.2.10:80 /
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A URL, whose host becomes the Host header or server name and whose port
    /// helps to find the service; or only a path
    #[arg(value_name = "URL-or-path", default_value = "/")]
    url: String,
    /// The service address; not needed where there is one, or where the URL tells
    #[arg(long, value_name = "ADDR:PORT")]
    vip: Option<SocketAddr>,
    /// Who asks, for policies that look at it
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_client, default_value = "192.0.2.1")]
    client: SocketAddr,
    /// The method
    #[arg(short = 'X', long, default_value = "GET")]
    method: String,
    /// A header; 'Name:' removes one that is sent by default, 'Name;' has no value
    #[arg(short = 'H', long = "header", value_name = "Name: value")]
    headers: Vec<String>,
    /// A TLS connection, as https:// says, too: only its ClientHello is seen
    #[arg(long)]
    tls: bool,
    /// The server name of the ClientHello [default: the URL's host]
    #[arg(long, value_name = "NAME", requires = "tls")]
    sni: Option<String>,
    /// A protocol that the ClientHello offers [default: h2 and http/1.1]
    #[arg(long, value_name = "PROTOCOL", requires = "tls")]
    alpn: Vec<String>,
    /// By this configuration instead of a running dispatcher
    #[arg(short, long, value_name = "FILE", conflicts_with = "node")]
    config: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    output: Output,
}

/// The answer, for showing.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Report(Explained);

/// A URL's parts, as far as they matter here.
#[derive(Debug, PartialEq)]
struct Target<'u> {
    tls: bool,
    host: Option<&'u str>,
    port: Option<u16>,
    path: String,
}

/// Tells it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let explained = match &args.config {
        Some(path) => {
            let config = file::read(path)?;
            let services: Vec<SocketAddr> = config.services.iter().map(|s| s.address).collect();
            explain_offline(&config, &args.question(&services)?)?
        }
        None => {
            if let Some(spray) = args.select.spray()? {
                return args.output.one(&members::explain(&spray, args)?);
            }
            let socket = args.select.dispatcher()?.control_socket();
            let status: Status = ask(&socket, &Request::Status)
                .map_err(|e| anyhow!("{e:#}; by a file alone: trapeze explain -c FILE"))?;
            let services: Vec<SocketAddr> =
                (status.services.iter().filter_map(|s| s.parse().ok())).collect();
            ask(&socket, &Request::Explain(args.question(&services)?))?
        }
    };
    args.output.one(&Report(explained))
}

impl Args {
    /// Who asks.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Which of the services is asked, if that is clear.
    pub fn vip(&self, services: &[SocketAddr]) -> anyhow::Result<Option<SocketAddr>> {
        let mut target = Target::parse(&self.url)?;
        target.tls |= self.tls;
        Ok(self.vip.or_else(|| target.service(services)))
    }

    fn question(&self, services: &[SocketAddr]) -> anyhow::Result<Question> {
        let mut target = Target::parse(&self.url)?;
        target.tls |= self.tls;
        let vip = self.vip.or_else(|| target.service(services));
        let mut question = Question {
            vip,
            client: self.client,
            head: None,
            sni: None,
            alpn: Vec::new(),
        };
        if target.tls {
            ensure!(
                self.headers.is_empty() && self.method == "GET",
                "in a TLS connection neither method nor headers are seen: leave -X and -H out"
            );
            let host = target.host.filter(|h| address_of(h).is_none());
            question.sni = self.sni.clone().or(host.map(str::to_owned));
            question.alpn = match self.alpn.is_empty() {
                true => ["h2", "http/1.1"].map(str::to_owned).into(),
                false => self.alpn.clone(),
            };
        } else {
            question.head = Some(self.head(&target, vip)?);
        }
        Ok(question)
    }

    /// The head that curl would send.
    fn head(&self, target: &Target<'_>, vip: Option<SocketAddr>) -> anyhow::Result<String> {
        let host = match (target.host, vip) {
            (Some(host), _) => with_port(host, target.port),
            (None, Some(vip)) if vip.port() == 80 => with_port(&bracketed(vip.ip()), None),
            (None, Some(vip)) => vip.to_string(),
            (None, None) => "localhost".to_owned(),
        };
        let mut fields = vec![
            ("Host".to_owned(), host),
            ("User-Agent".to_owned(), "trapeze".to_owned()),
            ("Accept".to_owned(), "*/*".to_owned()),
        ];
        for header in &self.headers {
            // As curl has it.
            let empty = header.strip_suffix(';').filter(|name| !name.contains(':'));
            let (name, value) = (empty.map(|name| (name, "")))
                .or_else(|| header.split_once(':'))
                .ok_or_else(|| anyhow!("-H {header:?} has no colon: write -H 'Name: value'"))?;
            ensure!(
                !header.contains(['\r', '\n']),
                "-H {header:?} has more than one line"
            );
            let (name, value) = (name.trim(), value.trim());
            let is_default = |(n, _): &(String, String)| n.eq_ignore_ascii_case(name);
            let at = fields.iter().take(3).position(is_default);
            if let Some(at) = at {
                fields.remove(at);
            }
            if !value.is_empty() || empty.is_some() {
                fields.insert(
                    at.unwrap_or(fields.len()),
                    (name.to_owned(), value.to_owned()),
                );
            }
        }
        let fields: String = (fields.iter())
            .map(|(name, value)| format!("{name}: {value}").trim_end().to_owned() + "\r\n")
            .collect();
        Ok(format!(
            "{} {} HTTP/1.1\r\n{fields}\r\n",
            self.method, target.path
        ))
    }
}

impl<'u> Target<'u> {
    fn parse(url: &'u str) -> anyhow::Result<Self> {
        let url = url.split('#').next().unwrap_or_default();
        if url.starts_with('/') {
            return Ok(Self {
                tls: false,
                host: None,
                port: None,
                path: url.to_owned(),
            });
        }
        let (tls, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => bail!("{scheme}:// is neither http:// nor https://"),
            None => (false, url),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let port = port.parse().map_err(|_| anyhow!("{port} is no port"))?;
                (host, Some(port))
            }
            _ => (authority, None),
        };
        ensure!(
            !host.is_empty(),
            "{url:?} names no host: give a path or a URL"
        );
        Ok(Self {
            tls,
            host: Some(host),
            port,
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
        })
    }

    /// The service at the URL's address, or the only one on its port, or the only one.
    fn service(&self, services: &[SocketAddr]) -> Option<SocketAddr> {
        let default = if self.tls { 443 } else { 80 };
        let port = self.port.unwrap_or(default);
        if let Some(address) = self.host.and_then(address_of) {
            return Some(SocketAddr::new(address, port));
        }
        let mut there = services.iter().filter(|service| service.port() == port);
        match (there.next(), there.next(), services) {
            (Some(service), None, _) => Some(*service),
            (_, _, [service]) => Some(*service),
            _ => None,
        }
    }
}

fn address_of(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

fn with_port(host: &str, port: Option<u16>) -> String {
    match port {
        None | Some(80) => host.to_owned(),
        Some(port) => format!("{host}:{port}"),
    }
}

/// A client without a port has some port.
fn parse_client(text: &str) -> Result<SocketAddr, String> {
    let some_port = 50_000;
    (text.parse::<SocketAddr>())
        .or_else(|_| Ok(SocketAddr::new(text.parse::<IpAddr>()?, some_port)))
        .map_err(|_: std::net::AddrParseError| "neither an address nor ADDRESS:PORT".into())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(explained) = self;
        writeln!(f, "service {} ({})", explained.service, explained.vip)?;
        for step in &explained.because {
            writeln!(f, "  {step}")?;
        }
        match &explained.backend {
            Some(backend) => writeln!(f, "backend {backend}"),
            None => writeln!(f, "no backend"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    const SERVICES: [&str; 3] = ["10.0.0.100:80", "10.0.0.100:443", "10.0.0.200:8080"];

    fn question(line: &[&str]) -> anyhow::Result<Question> {
        let services = SERVICES.map(|s| s.parse().unwrap());
        let line = ["explain"].iter().chain(line);
        Line::try_parse_from(line).unwrap().args.question(&services)
    }

    #[test]
    fn a_path_is_asked_of_the_http_service_as_curl_would() {
        let question = question(&["/a?b#c"]).unwrap();
        assert_eq!(question.vip, Some("10.0.0.100:80".parse().unwrap()));
        assert_eq!(
            question.head.unwrap(),
            "GET /a?b HTTP/1.1\r\nHost: 10.0.0.100\r\nUser-Agent: trapeze\r\nAccept: */*\r\n\r\n"
        );
    }

    #[test]
    fn a_url_says_host_port_and_path() {
        let head = |line: &[&str]| question(line).unwrap().head.unwrap();
        assert!(
            head(&["http://u:p@a.example"]).starts_with("GET / HTTP/1.1\r\nHost: a.example\r\n")
        );
        assert!(head(&["a.example?q"]).starts_with("GET /?q HTTP"));
        let other = question(&["http://a.example:8080/"]).unwrap();
        assert_eq!(other.vip, Some("10.0.0.200:8080".parse().unwrap()));
        assert!(other.head.unwrap().contains("Host: a.example:8080\r\n"));
        let by_address = question(&["http://10.9.9.9/"]).unwrap();
        assert_eq!(by_address.vip, Some("10.9.9.9:80".parse().unwrap()));
        assert_eq!(question(&["http://a:99/"]).unwrap().vip, None);
        for wrong in ["ftp://a/", "http://", "http://a:b/", ""] {
            assert!(question(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_replace_add_and_remove() {
        let head = question(&[
            "-H", "host: b", "-H", "X: 1", "-H", "X: 2", "-H", "Accept:", "-H", "Y;", "/",
        ])
        .unwrap()
        .head
        .unwrap();
        assert_eq!(
            head,
            "GET / HTTP/1.1\r\nhost: b\r\nUser-Agent: trapeze\r\nX: 1\r\nX: 2\r\nY:\r\n\r\n"
        );
        assert!(question(&["-H", "nothing", "/"]).is_err());
        assert!(question(&["-H", "A: b\r\nC: d", "/"]).is_err());
    }

    #[test]
    fn tls_shows_a_server_name_and_protocols() {
        let tls = question(&["https://a.example/x"]).unwrap();
        assert_eq!(tls.vip, Some("10.0.0.100:443".parse().unwrap()));
        assert_eq!((tls.head, tls.sni.as_deref()), (None, Some("a.example")));
        assert_eq!(tls.alpn, ["h2", "http/1.1"]);
        let tls = question(&["--tls", "--sni", "b", "--alpn", "x", "https://10.0.0.100/"]);
        let tls = tls.unwrap();
        assert_eq!(
            (tls.sni.as_deref(), &tls.alpn[..]),
            (Some("b"), &["x".to_owned()][..])
        );
        assert!(question(&["https://a/", "-H", "A: b"]).is_err());
    }

    #[test]
    fn ipv6_hosts_stand_in_brackets() {
        let target = Target::parse("http://[2001:db8::1]:81/").unwrap();
        assert_eq!(
            (target.host, target.port),
            (Some("[2001:db8::1]"), Some(81))
        );
        assert_eq!(
            target.service(&[]),
            Some("[2001:db8::1]:81".parse().unwrap())
        );
    }
}
