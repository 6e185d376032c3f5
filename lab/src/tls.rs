//! Certificates for backends: self-signed, one each, over one key.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::program;
use crate::role::VIP;
use crate::topology::run;

/// The key that all backends of a lab share.
pub fn key(directory: &Path) -> PathBuf {
    directory.join("key.pem")
}

/// The certificate of a backend.
pub fn certificate(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("{host}.pem"))
}

/// Makes the key and a certificate for each of `hosts`, and `all.pem`, which a
/// client can trust (`curl --cacert`).
///
/// # Errors
/// openssl is missing or fails.
pub fn make(directory: &Path, hosts: &[&str]) -> Result<()> {
    let openssl = program::find("openssl")?;
    std::fs::create_dir(directory).context("cannot make the directory of certificates")?;
    let key = key(directory);
    run(Command::new(&openssl)
        .args([
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
        ])
        .arg(&key))?;
    let mut all = Vec::new();
    for host in hosts {
        let certificate = certificate(directory, host);
        run(Command::new(&openssl)
            .args(["req", "-x509", "-days", "365", "-key"])
            .arg(&key)
            .args(["-subj", &format!("/CN={host}.lab"), "-addext"])
            .arg(format!(
                // OpenSSL's clients take no wildcard right below a top-level name.
                "subjectAltName=DNS:{host}.lab,DNS:*.lab,DNS:www.lab,DNS:*.www.lab,\
                 DNS:localhost,IP:{VIP}"
            ))
            .arg("-out")
            .arg(&certificate))?;
        all.extend(std::fs::read(&certificate)?);
    }
    std::fs::write(directory.join("all.pem"), all)?;
    Ok(())
}
