//! iproute2, in batches: one process for many changes.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::program;

/// Makes the changes that `lines` say, in order, in the namespace `namespace`
/// or in this one; stops at the first that fails.
///
/// # Errors
/// What `ip` said, and the line it said it of.
pub fn batch(namespace: Option<&str>, lines: &[String]) -> Result<()> {
    let mut command = Command::new(program::find("ip")?);
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip")?;
    let mut stdin = child.stdin.take().expect("it is piped");
    // When ip ends early, its exit status tells more than the broken pipe.
    let _ = stdin.write_all((lines.join("\n") + "\n").as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said
        .rsplit_once("-:")
        .and_then(|(_, number)| number.trim().parse::<usize>().ok())
        .and_then(|number| lines.get(number - 1));
    let reason = said.lines().next().unwrap_or("no reason given");
    match line {
        Some(line) => bail!("`ip {line}` failed: {reason}"),
        None => bail!("ip failed: {reason}"),
    }
}
