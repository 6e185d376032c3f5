//! nginx. One worker: a backend is one of several on the machine's few cores.

use anyhow::Result;

use super::{Invocation, Site, quoted};
use crate::program;

const PROGRAM: &str = "nginx";

pub fn check() -> Result<()> {
    program::find(PROGRAM).map(drop)
}

pub fn prepare(site: &Site) -> Result<Invocation> {
    let configuration = site.write("nginx.conf", &configuration(site))?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    Ok(Invocation {
        program: program::find(PROGRAM)?,
        arguments: vec![
            "-p".into(),
            text(&site.directory),
            "-c".into(),
            text(&configuration),
            // Before the configuration is read, it would open its default log.
            "-e".into(),
            "stderr".into(),
        ],
    })
}

fn configuration(site: &Site) -> String {
    let mut listen = String::new();
    for port in &site.plain_ports {
        listen += &format!("    listen 0.0.0.0:{port} backlog=4096;\n");
    }
    for port in &site.tls_ports {
        listen += &format!("    listen 0.0.0.0:{port} ssl backlog=4096;\n");
    }
    if !site.tls_ports.is_empty() {
        listen += &format!(
            "    ssl_certificate {};\n    ssl_certificate_key {};\n",
            quoted(&site.certificate),
            quoted(&site.key)
        );
    }
    let access_log = match &site.access_log {
        Some(path) => format!("{} request", quoted(path)),
        None => "off".to_owned(),
    };
    let buffers: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| {
            format!(
                "  {kind}_temp_path {};\n",
                quoted(&site.buffers().join(kind))
            )
        })
        .collect();
    TEMPLATE
        .replace("@host@", &site.host)
        .replace("@listen@", listen.trim())
        .replace("@access_log@", &access_log)
        .replace("@buffers@", buffers.trim())
        .replace("@documents@", &quoted(&site.documents))
        .replace("@uploads@", &site.uploads().to_string_lossy())
        .replace("@directory@", &site.directory.to_string_lossy())
}

/// `user root`, so that it can read any `--root`. POST is turned into the PUT
/// that the dav module knows, by way of a socket that only this nginx serves.
const TEMPLATE: &str = r#"daemon off;
user root;
worker_processes 1;
pid "@directory@/nginx.pid";
error_log stderr;
events { worker_connections 16384; }
http {
  types { text/html html; }
  default_type application/octet-stream;
  server_tokens off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  keepalive_timeout 75;
  send_timeout 600;
  client_max_body_size 0;
  log_format request "$request_method $request_uri $status $body_bytes_sent";
  access_log @access_log@;
  @buffers@
  add_header X-Backend @host@ always;
  server {
    @listen@
    root @documents@;
    error_page 419 = @post;
    location /untagged/ {
      etag off;
      rewrite ^/untagged(/.*)$ $1 break;
    }
    location = /upload {
      if ($request_method = POST) { return 419; }
      dav_methods PUT;
      alias "@uploads@/body";
    }
    location /upload/ {
      if ($request_method = POST) { return 419; }
      dav_methods PUT;
      create_full_put_path on;
      alias "@uploads@/";
    }
    location @post {
      proxy_method PUT;
      proxy_http_version 1.1;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
      proxy_hide_header X-Backend;
      proxy_pass http://unix:@directory@/post.socket;
    }
  }
  server {
    listen "unix:@directory@/post.socket";
    access_log off;
    location = /upload { dav_methods PUT; alias "@uploads@/body"; }
    location /upload/ { dav_methods PUT; create_full_put_path on; alias "@uploads@/"; }
  }
}
"#;
