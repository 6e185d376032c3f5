//! Apache, with its event MPM.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};

use super::{Invocation, Site, quoted};
use crate::program;

const PROGRAM: &str = "apache2";

pub fn check() -> Result<()> {
    program::find(PROGRAM)?;
    program::find("setpriv").map(drop)
}

pub fn prepare(site: &Site) -> Result<Invocation> {
    let configuration = site.write("apache2.conf", &configuration(site))?;
    let script = site.write("upload.cgi", UPLOAD)?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))
        .context("cannot make the upload script executable")?;
    // It does not serve as root, and www-data may not read every `--root`: let
    // it keep root's capabilities when it changes its user.
    Ok(Invocation {
        program: program::find("setpriv")?,
        arguments: vec![
            "--securebits=+no_setuid_fixup".into(),
            program::find(PROGRAM)?.to_string_lossy().into_owned(),
            "-f".into(),
            configuration.to_string_lossy().into_owned(),
            "-DFOREGROUND".into(),
        ],
    })
}

fn configuration(site: &Site) -> String {
    let mut listen = String::new();
    for port in site.plain_ports.iter().chain(&site.tls_ports) {
        listen += &format!("Listen 0.0.0.0:{port}\n");
    }
    let mut hosts = String::new();
    for port in &site.tls_ports {
        hosts += &format!(
            "<VirtualHost *:{port}>\n  SSLEngine on\n  SSLCertificateFile {}\n  \
             SSLCertificateKeyFile {}\n</VirtualHost>\n",
            quoted(&site.certificate),
            quoted(&site.key)
        );
    }
    let ssl = match site.tls_ports.is_empty() {
        true => "",
        false => "LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so",
    };
    let access_log = match &site.access_log {
        Some(path) => format!("CustomLog {} \"%m %U%q %>s %B\"", quoted(path)),
        None => String::new(),
    };
    TEMPLATE
        .replace("@host@", &site.host)
        .replace("@listen@", listen.trim())
        .replace("@ssl@", ssl)
        .replace("@hosts@", hosts.trim())
        .replace("@access_log@", &access_log)
        .replace("@documents@", &quoted(&site.documents))
        .replace("@uploads@", &quoted(&site.uploads()))
        .replace("@directory@", &site.directory.to_string_lossy())
}

/// The times between requests and the numbers are nginx's in the same lab.
const TEMPLATE: &str = r#"ServerRoot "@directory@"
ServerName @host@.lab
DefaultRuntimeDir "@directory@"
PidFile "@directory@/apache2.pid"
User www-data
Group www-data
ErrorLog /dev/stderr
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule alias_module /usr/lib/apache2/modules/mod_alias.so
LoadModule cgid_module /usr/lib/apache2/modules/mod_cgid.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule env_module /usr/lib/apache2/modules/mod_env.so
LoadModule headers_module /usr/lib/apache2/modules/mod_headers.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
@ssl@
TypesConfig /dev/null
AddType text/html .html
StartServers 1
ServerLimit 4
ThreadLimit 256
ThreadsPerChild 256
MaxRequestWorkers 1024
AsyncRequestWorkerFactor 16
ListenBackLog 4096
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 75
LimitRequestBody 0
EnableSendfile On
ScriptSock "@directory@/cgid.socket"
SetEnv UPLOADS @uploads@
Header always set X-Backend @host@
@access_log@
@listen@
DocumentRoot @documents@
DirectoryIndex index.html
<Directory />
  Require all granted
</Directory>
ScriptAlias /upload "@directory@/upload.cgi"
@hosts@
"#;

/// Stores a body of any size. A name with a slash would leave the directory.
const UPLOAD: &str = r#"#!/bin/sh
name=${PATH_INFO#/}
case $name in
  *[!A-Za-z0-9._-]*|.*) printf 'Status: 400\r\n\r\nname a plain file\n'; exit ;;
  '') name=body ;;
esac
case $REQUEST_METHOD in
  PUT|POST) ;;
  *) printf 'Status: 405\r\nAllow: PUT, POST\r\n\r\n'; exit ;;
esac
new=$UPLOADS/.$name.$$
if cat > "$new" && mv "$new" "$UPLOADS/$name"; then
  printf 'Status: 201\r\nContent-Length: 0\r\n\r\n'
else
  rm -f "$new"
  printf 'Status: 500\r\n\r\n'
fi
"#;
