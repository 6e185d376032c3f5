//! The lab's own origin server: a real, bounded cache and a simulated disk, so that
//! it matters which backend gets a request. It has no files; its documents are
//! [`crate::objects`].

mod cache;
mod server;
pub mod settings;
mod store;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trapeze_datapath::netns;

use super::{Invocation, Site};
use crate::program;

pub use server::run;
pub use settings::OriginSettings;
pub use store::OriginCounts;

/// How long a server that is asked about itself may take.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn check() -> Result<()> {
    program::trapeze().map(drop)
}

pub(super) fn prepare(site: &Site, trapeze: &Path) -> Result<Invocation> {
    ensure!(
        site.tls_ports.is_empty(),
        "the origin server speaks no TLS: take another --server, or no service on port 443"
    );
    let settings = &site.origin;
    let mut arguments = vec![
        "lab".to_owned(),
        "origin".to_owned(),
        format!("--host={}", site.host),
        format!("--cache={}b", settings.cache_bytes),
        format!("--miss={}us", settings.miss.as_micros()),
        format!("--miss-rate={}b", settings.miss_bytes_per_s),
    ];
    arguments.extend(site.plain_ports.iter().map(|port| format!("--port={port}")));
    let log = site.access_log.iter();
    arguments.extend(log.map(|path| format!("--log={}", path.display())));
    Ok(Invocation {
        program: trapeze.to_owned(),
        arguments,
    })
}

/// What the server in a namespace has counted.
///
/// # Errors
/// It does not answer.
pub fn counts(namespace: &Path, port: u16) -> Result<OriginCounts> {
    let body = ask(namespace, port, "GET /origin-status")?;
    serde_json::from_str(&body).context("the origin server's status is no JSON")
}

/// Has the server in a namespace forget all, and count from zero.
///
/// # Errors
/// It does not answer.
pub fn flush(namespace: &Path, port: u16) -> Result<()> {
    ask(namespace, port, "POST /origin-flush").map(drop)
}

/// The body of the answer to a request line's method and target.
fn ask(namespace: &Path, port: u16, what: &str) -> Result<String> {
    let answer = netns::inside(namespace, || {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into();
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("{what} HTTP/1.1\r\nHost: origin\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
    .context("the origin server does not answer")?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("the origin server's answer broke off")?;
    ensure!(head.starts_with("HTTP/1.1 20"), "it says {head}");
    Ok(body.to_owned())
}
