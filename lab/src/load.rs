//! Load from a client, made by wrk, and what wrk says of it. A small script has
//! wrk say it in JSON.
//!
//! wrk corrects its latencies for coordinated omission by the mean interval
//! between a connection's requests. That raises the tail of targets that stall,
//! for all targets alike.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use trapeze_datapath::netns;

use crate::lab::HostHandle;
use crate::program;

/// What wrk is to do.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where to.
    pub url: String,
    /// Requests at a time.
    pub connections: u16,
    /// Its threads: fewer than cores leave the servers some.
    pub threads: usize,
    /// Ask the server to close after each answer.
    pub close: bool,
    /// For how long, in wrk's unit.
    pub seconds: u32,
    /// What the script's `init` is given.
    pub arguments: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Answers that arrived whole.
    pub requests: u64,
    /// Bytes that arrived, heads included.
    pub bytes: u64,
    /// How long it took.
    pub duration_us: u64,
    /// Half of the answers came within this.
    pub p50_us: u64,
    /// Nine in ten came within this.
    pub p90_us: u64,
    /// 99 in a hundred came within this.
    pub p99_us: u64,
    /// The longest wait.
    pub max_us: u64,
    /// What went wrong.
    pub errors: Errors,
    /// Connections that the client began meanwhile.
    #[serde(default)]
    pub connections_begun: u64,
}

/// Errors by kind, as wrk counts them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Connections that were refused, or could not be made.
    pub connect: u64,
    /// Connections that broke while an answer arrived.
    pub read: u64,
    /// Connections that broke while a request was sent.
    pub write: u64,
    /// Answers other than 2xx and 3xx.
    pub status: u64,
    /// Answers that took longer than two seconds.
    pub timeout: u64,
}

/// Lets a host use a port again that it has just used, for loads with a connection
/// for each request. Each end of theirs that comes from the client blocks a port for
/// a minute else: beyond 470 a second the kernel soon looks for ports most of the
/// time. A second is enough where there are timestamps (RFC 6191).
///
/// # Errors
/// The kernel does not let us.
pub fn reuse_ports(host: &HostHandle) -> Result<()> {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    netns::inside(host.namespace(), || {
        set("tcp_tw_reuse", "1")?;
        set("ip_local_port_range", "1024 65535")
    })
    .with_context(|| format!("cannot set how {} uses its ports", host.name()))
}

/// wrk on a host.
pub struct Client {
    host: HostHandle,
    program: PathBuf,
    script: PathBuf,
}

impl Client {
    /// Prepares `host`, with a script in `directory`. `requests` is the part of it that
    /// makes requests, in Lua; without it they are all for the load's URL.
    ///
    /// # Errors
    /// wrk is not installed, or the script cannot be written.
    pub fn new(host: HostHandle, directory: &Path, requests: &str) -> Result<Self> {
        let script = directory.join("wrk.lua");
        std::fs::write(&script, format!("{requests}{SCRIPT}"))
            .with_context(|| format!("cannot write {}", script.display()))?;
        Ok(Client {
            host,
            program: program::find("wrk")?,
            script,
        })
    }

    /// Makes the load, to its end.
    ///
    /// # Errors
    /// wrk does not run, or says nothing.
    pub fn run(&self, load: &Load) -> Result<Outcome> {
        let mut command = self.host.command(&self.program);
        command
            .arg(format!("--threads={}", load.threads))
            .arg(format!("--connections={}", load.connections))
            .arg(format!("--duration={}s", load.seconds))
            .arg("--script")
            .arg(&self.script);
        if load.close {
            command.args(["--header", "Connection: close"]);
        }
        let begun_before = self.connections_begun()?;
        command.arg(&load.url);
        if !load.arguments.is_empty() {
            command.arg("--").args(&load.arguments);
        }
        let output = command.output().context("cannot run wrk")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "wrk failed on {}: {} {}",
            load.url,
            said.trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut outcome = parse(&said).with_context(|| format!("on {}", load.url))?;
        outcome.connections_begun = self.connections_begun()? - begun_before;
        Ok(outcome)
    }

    /// Connections that the host has ever begun.
    fn connections_begun(&self) -> Result<u64> {
        let text = netns::inside(self.host.namespace(), || {
            std::fs::read_to_string("/proc/thread-self/net/snmp")
        })
        .with_context(|| format!("cannot read the counters of {}", self.host.name()))?;
        active_opens(&text).context("/proc/net/snmp does not look as expected")
    }
}

impl Outcome {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 * 1e6 / self.duration_us as f64
    }

    /// Bytes a microsecond, which is megabytes (10^6) a second.
    pub fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.duration_us as f64
    }
}

impl Errors {
    /// Those that there were, in words; none if all went well.
    pub fn summary(&self) -> Option<String> {
        let kinds = [
            (self.connect, "connections failed"),
            (self.read, "answers broke off"),
            (self.write, "requests could not be sent"),
            (self.status, "answers were errors"),
            (self.timeout, "answers took over 2 s"),
        ];
        let words: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// The script's line, among what wrk prints for people.
fn parse(said: &str) -> Result<Outcome> {
    let line = said.lines().rev().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("wrk gave no figures: {}", said.trim()))?;
    let outcome: Outcome = serde_json::from_str(line).context("wrk's figures are no JSON")?;
    ensure!(outcome.duration_us > 0, "wrk ended before it began");
    Ok(outcome)
}

fn active_opens(snmp: &str) -> Option<u64> {
    let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let names = tcp.next()?.split(' ');
    let values = tcp.next()?.split(' ');
    let (_, value) = names.zip(values).find(|(name, _)| *name == "ActiveOpens")?;
    value.parse().ok()
}

const SCRIPT: &str = r#"-- Prints wrk's figures as one line of JSON. Times are in microseconds.
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"bytes":%d,"duration_us":%d,' ..
    '"p50_us":%d,"p90_us":%d,"p99_us":%d,"max_us":%d,' ..
    '"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\n',
    summary.requests, summary.bytes, summary.duration,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"Running 2s test @ http://10.77.0.21/1k
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   660.17us  834.36us  12.52ms   93.31%
  118191 requests in 2.00s, 144.95MB read
Requests/sec:  59086.84
{"requests":118191,"bytes":151991114,"duration_us":2000000,"p50_us":513,"p90_us":774,"p99_us":4270,"max_us":12520,"errors":{"connect":0,"read":3,"write":0,"status":1,"timeout":0}}
"#;

    #[test]
    fn figures_are_found_among_what_is_meant_for_people() {
        let outcome = parse(SAID).unwrap();
        assert_eq!(outcome.requests, 118_191);
        assert_eq!((outcome.p50_us, outcome.p99_us), (513, 4270));
        assert_eq!(outcome.rate(), 59_095.5);
        assert!((outcome.megabytes_per_s() - 75.996).abs() < 0.001);
        let errors = outcome.errors.summary().unwrap();
        assert_eq!(errors, "3 answers broke off, 1 answers were errors");
        assert_eq!(Errors::default().summary(), None);
    }

    #[test]
    fn silence_is_an_error_that_quotes_what_was_said() {
        let error = parse("unable to connect to 10.77.0.9:80\n").unwrap_err();
        assert!(error.to_string().contains("unable to connect"), "{error}");
        assert!(parse(&SAID.replace("\"bytes\"", "\"octets\"")).is_err());
        assert!(parse(&SAID.replace(":2000000", ":0")).is_err());
    }

    #[test]
    fn begun_connections_are_found_by_name() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn ActiveOpens PassiveOpens\n\
                    Tcp: 200 -1 42 7\nUdp: In\nUdp: 1\n";
        assert_eq!(active_opens(snmp), Some(42));
        assert_eq!(active_opens("Tcp: RtoMin\nTcp: 200\n"), None);
    }
}
