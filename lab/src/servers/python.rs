//! The lab's own server, in Python: for what the others hide. It answers an
//! upload with the body's length and SHA-256.

use anyhow::Result;

use super::{Invocation, Site};
use crate::program;

const PROGRAM: &str = "python3";
const SCRIPT: &str = include_str!("server.py");

pub fn check() -> Result<()> {
    program::find(PROGRAM).map(drop)
}

pub fn prepare(site: &Site) -> Result<Invocation> {
    let script = site.write("server.py", SCRIPT)?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut arguments = vec![
        "-u".to_owned(),
        text(&script),
        format!("--name={}", site.host),
        format!("--root={}", text(&site.documents)),
        format!("--uploads={}", text(&site.uploads())),
        format!("--certificate={}", text(&site.certificate)),
        format!("--key={}", text(&site.key)),
    ];
    arguments.extend(site.plain_ports.iter().map(|port| format!("--port={port}")));
    arguments.extend(
        site.tls_ports
            .iter()
            .map(|port| format!("--tls-port={port}")),
    );
    arguments.extend(
        site.access_log
            .iter()
            .map(|path| format!("--log={}", text(path))),
    );
    Ok(Invocation {
        program: program::find(PROGRAM)?,
        arguments,
    })
}
