//! The proxies to compare with, on the dispatcher's host and at its own
//! address: HAProxy and nginx, each with one setting for all sizes.
//!
//! The settings start from what each project documents for throughput. Where
//! that leaves a choice, the values were chosen by measuring all sizes side by
//! side in this lab, keeping the one that was best over all of them; the
//! comments in the templates say what it was chosen from.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};

use super::case::Target;
use crate::lab::{HostHandle, Lab};
use crate::process::Launch;
use crate::program;
use crate::role::Role;
use crate::state::RunDir;
use crate::topology::run;

/// Starts the proxy `target` on `host`, in front of `backends`, and waits until
/// it serves. It goes with the lab.
///
/// # Errors
/// It is not installed, or does not start.
pub fn start(
    target: Target,
    lab: &Lab,
    host: &HostHandle,
    backends: &[Ipv4Addr],
    threads: usize,
) -> Result<()> {
    if target == Target::Nat {
        return nat(host, backends);
    }
    let port = port(target);
    let dir = RunDir::of(lab.name());
    let directory = dir.host(host.name()).join(target.word());
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let configuration = directory.join("configuration");
    let text = configuration_of(target, &directory, backends, threads);
    std::fs::write(&configuration, text)
        .with_context(|| format!("cannot write {}", configuration.display()))?;
    let word = if target.is_haproxy() {
        "haproxy"
    } else {
        "nginx"
    };
    let mut command = host.command(program::find(word)?);
    match target {
        // -e: before the configuration is read, it would open its default log.
        Target::Nginx => command.arg("-p").arg(&directory).args(["-e", "stderr"]),
        // In the foreground, and quiet.
        _ => command.args(["-db", "-q"]),
    };
    command
        .arg(match target {
            Target::Nginx => "-c",
            _ => "-f",
        })
        .arg(&configuration);
    Launch::start(command, &dir.log(host.name(), target.word()))
        .and_then(|launch| launch.wait_for_ports(host.namespace(), &[port]))
        .with_context(|| format!("{} does not start as a proxy", target.title()))?;
    Ok(())
}

/// Destination NAT to each backend in turn, and masquerading, so that answers come back:
/// as much of splicing as the kernel does itself. It goes with the lab.
fn nat(host: &HostHandle, backends: &[Ipv4Addr]) -> Result<()> {
    let port = port(Target::Nat);
    let targets: Vec<String> = (backends.iter().enumerate())
        .map(|(number, address)| format!("{number} : {address} . 80"))
        .collect();
    let rules = format!(
        "table ip bench {{\n\
         chain to_server {{ type nat hook prerouting priority dstnat;\n\
         tcp dport {port} dnat ip addr . port to numgen inc mod {} map {{ {} }}\n}}\n\
         chain from_us {{ type nat hook postrouting priority srcnat;\n\
         ct status dnat masquerade\n}}\n}}\n",
        backends.len(),
        targets.join(", ")
    );
    let mut nft = host.command(program::find("nft")?);
    run(nft.arg(rules)).context("the kernel does no NAT")?;
    let mut sysctl = host.command(program::find("sysctl")?);
    run(sysctl.args(["-q", "-w", "net.ipv4.ip_forward=1"]))
}

/// Where a proxy listens.
pub fn port(proxy: Target) -> u16 {
    match proxy {
        Target::Nginx => 8002,
        Target::HaproxySplice => 8003,
        Target::Nat => 8004,
        _ => 8001,
    }
}

fn configuration_of(
    target: Target,
    directory: &Path,
    backends: &[Ipv4Addr],
    threads: usize,
) -> String {
    let (template, backend) = match target {
        Target::Nginx => (NGINX, NGINX_BACKEND),
        _ => (HAPROXY, HAPROXY_BACKEND),
    };
    let (buffer, splice) = match target {
        Target::HaproxySplice => ("16384", "\n  option splice-response"),
        _ => ("65536", ""),
    };
    let backends: String = (1..)
        .zip(backends)
        .map(|(number, address)| {
            backend
                .replace("@name@", &Role::Backend.host(number))
                .replace("@address@", &address.to_string())
        })
        .collect();
    template
        .replace("@backends@", backends.trim_end())
        .replace("@directory@", &directory.to_string_lossy())
        .replace("@port@", &port(target).to_string())
        .replace("@buffer@", buffer)
        .replace("@splice@", splice)
        .replace("@threads@", &threads.to_string())
}

/// <https://docs.haproxy.org/2.6/configuration.html>. `nbthread` and
/// `http-reuse always` are §3.1 and §4.2; no `log` line means no logging.
///
/// Without splicing, buffers of 64 KiB: of 16, 32, 64 and 128 KiB the best over 1,
/// 100 and 1,024 KiB together. They cost nothing that the noise would show at
/// 1 KiB, where 128 KiB cost a quarter.
///
/// With `option splice-response` (§4.2: the kernel moves bodies from socket to
/// socket), `tune.bufsize` at its default of 16384, which §3.2 strongly
/// recommends. Tried with it: 32 to 256 KiB, `splice-auto`, `tune.pipesize` of 256
/// KiB and 1 MiB, `tune.recv_enough`, one thread.
const HAPROXY: &str = "\
global
  nbthread @threads@
  maxconn 4096
  tune.bufsize @buffer@
defaults
  mode http
  option http-keep-alive@splice@
  http-reuse always
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  timeout http-keep-alive 75s
listen web
  bind 0.0.0.0:@port@ backlog 4096
  balance roundrobin
@backends@
";

const HAPROXY_BACKEND: &str = "  server @name@ @address@:80 maxconn 4096\n";

/// <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#keepalive> for
/// keep-alive to servers, with HTTP/1.1 and no `Connection` header;
/// <https://nginx.org/en/docs/ngx_core_module.html#worker_processes> and
/// <https://nginx.org/en/docs/http/ngx_http_core_module.html#listen> (`reuseport`);
/// <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffers>.
///
/// Chosen: buffers of 16 KiB, 16 of them, never a temporary file. Tried:
/// the defaults of 4 KiB, buffers of 8, 32, 64 and 128 KiB, more and fewer of
/// them, `proxy_buffering off` with buffers of 4, 16 and 64 KiB, one worker.
const NGINX: &str = r#"daemon off;
user root;
worker_processes @threads@;
pid "@directory@/nginx.pid";
error_log stderr;
events { worker_connections 4096; }
http {
  access_log off;
  server_tokens off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_requests 1000000;
  keepalive_timeout 75;
  client_body_temp_path "@directory@/client_body";
  proxy_temp_path "@directory@/proxy";
  fastcgi_temp_path "@directory@/fastcgi";
  uwsgi_temp_path "@directory@/uwsgi";
  scgi_temp_path "@directory@/scgi";
  upstream web {
@backends@
    keepalive 128;
    keepalive_requests 1000000;
  }
  server {
    listen 0.0.0.0:@port@ backlog=4096 reuseport;
    location / {
      proxy_pass http://web;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffer_size 16k;
      proxy_buffers 16 16k;
      proxy_busy_buffers_size 64k;
      proxy_max_temp_file_size 0;
    }
  }
}
"#;

const NGINX_BACKEND: &str = "    server @address@:80;\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_name_every_backend_and_leave_no_gap() {
        let backends = [Ipv4Addr::new(10, 77, 0, 21), Ipv4Addr::new(10, 77, 0, 22)];
        for (target, port, backend) in [
            (Target::Haproxy, 8001, "server b2 10.77.0.22:80 "),
            (Target::HaproxySplice, 8003, "server b2 10.77.0.22:80 "),
            (Target::Nginx, 8002, "server 10.77.0.22:80;"),
        ] {
            let text = configuration_of(target, Path::new("/run/x"), &backends, 2);
            assert!(text.contains(backend), "{text}");
            assert!(text.contains(&format!("0.0.0.0:{port}")), "{text}");
            assert!(!text.contains('@'), "{text}");
            let splices = text.contains("\n  option splice-response\n");
            assert_eq!(splices, target == Target::HaproxySplice, "{text}");
        }
    }
}
