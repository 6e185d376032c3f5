//! The client of etcd against a real one: keys under leases, watches, TLS with certificates on
//! both sides, users and what they may.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use trapeze_core::config::Etcd;
use trapeze_membership::{Event, Gateway, GatewayError};
use trapeze_tests::{Cluster, until};

/// Of the lab's e1.
const ADDRESS: &str = "10.77.0.121";
const KEY: &str = "/trapeze/c/dispatcher/d1";

/// A lab of hosts only, and etcd on e1.
fn hosts(test: &str) -> Cluster {
    Cluster::with(test, |options| {
        options.etcd = true;
        options.sprays = Some(1);
        options.daemons = false;
        options.backends = Some(1);
    })
}

fn etcd(endpoint: &str) -> Etcd {
    Etcd {
        endpoints: vec![endpoint.to_owned()],
        prefix: "/trapeze".into(),
        lease: Duration::from_secs(3),
        ca: None,
        identity: None,
        user: None,
    }
}

fn list(gateway: &mut Gateway) -> Vec<(String, String)> {
    gateway.list("/trapeze/c/").unwrap().1
}

#[test]
fn keys_live_as_long_as_their_leases_and_watches_hear_of_it() {
    let cluster = hosts("etcdkeys");
    cluster.on("d1", || {
        let url = format!("http://{ADDRESS}:2379");
        // The first endpoint is nobody.
        let mut both = etcd("http://10.77.0.121:1");
        both.endpoints.push(url.clone());
        let mut gateway = Gateway::open(&both).unwrap();
        let lease = gateway.grant(Duration::from_secs(3)).unwrap();
        assert_eq!(gateway.endpoint(), url);
        gateway.claim(KEY, "one", lease).unwrap();
        let pair = (KEY.to_owned(), "one".to_owned());
        assert_eq!(list(&mut gateway), std::slice::from_ref(&pair));
        // The same again, by a daemon that has begun anew; another host's not.
        let newer = gateway.grant(Duration::from_secs(3)).unwrap();
        gateway.claim(KEY, "one", newer).unwrap();
        let error = gateway.claim(KEY, "two", newer).unwrap_err();
        assert!(
            matches!(&error, GatewayError::Taken { theirs, .. } if theirs == "one"),
            "{error}"
        );
        // The key is the newer lease's now.
        gateway.revoke(lease).unwrap();
        assert_eq!(list(&mut gateway).len(), 1);
        assert!(matches!(
            gateway.keep_alive(lease),
            Err(GatewayError::Gone(_))
        ));
        gateway.keep_alive(newer).unwrap();

        let (from, _) = gateway.list("/trapeze/c/").unwrap();
        // Not renewed: it runs out while somebody watches.
        let mut heard = Vec::new();
        let patience = Duration::from_secs(12);
        let next = gateway.watch("/trapeze/c/", from + 1, patience, |events| {
            heard.extend(events);
            ControlFlow::Break(())
        });
        assert_eq!(heard, [Event::Deleted(KEY.to_owned())]);
        // A watch that nothing happens to ends in time, and goes on from where it was.
        let next = next.unwrap();
        let quiet = Duration::from_millis(300);
        let again = gateway.watch("/trapeze/c/", next, quiet, |_| panic!("nothing happens"));
        assert_eq!(again.unwrap(), next);
        let lease = gateway.grant(Duration::from_secs(30)).unwrap();
        gateway.claim(KEY, "three", lease).unwrap();
        let mut heard = Vec::new();
        let put = gateway.watch("/trapeze/c/", next, patience, |events| {
            heard.extend(events);
            ControlFlow::Break(())
        });
        assert_eq!(heard, [Event::Put(KEY.to_owned(), "three".to_owned())]);
        // What is asked for from too long ago is told, not left out.
        let put = put.unwrap();
        cluster.run("e1", &["etcdctl", "compact", &(put - 1).to_string()]);
        let error = gateway.watch("/trapeze/c/", 1, patience, |_| panic!("it is gone"));
        assert!(matches!(error, Err(GatewayError::Gone(_))), "{error:?}");
    });
}

/// A key and a certificate, in PEM.
struct Identity {
    key: PathBuf,
    cert: PathBuf,
}

/// A certificate for e1's address, signed by `by`, or by itself.
fn identity(directory: &Path, name: &str, by: Option<&Identity>) -> Identity {
    let file = |end: &str| directory.join(format!("{name}.{end}"));
    let (key, cert, request) = (file("key"), file("pem"), file("csr"));
    let openssl = |words: &[&str], files: &[(&str, &Path)]| {
        let mut command = Command::new("openssl");
        command.args(words);
        for (word, path) in files {
            command.arg(word).arg(path);
        }
        let output = command.output().expect("openssl is installed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    // etcd's gateway takes none with a common name where it asks for users.
    let field = if name == "client" { "O" } else { "CN" };
    let subject = format!("/{field}={name}");
    let curve = "ec_paramgen_curve:P-256";
    let mut words = vec![
        "req", "-newkey", "ec", "-pkeyopt", curve, "-nodes", "-subj", &subject,
    ];
    let Some(authority) = by else {
        words.extend(["-x509", "-days", "2"]);
        openssl(&words, &[("-keyout", &key), ("-out", &cert)]);
        return Identity { key, cert };
    };
    openssl(&words, &[("-keyout", &key), ("-out", &request)]);
    let extensions = file("ext");
    std::fs::write(&extensions, format!("subjectAltName = IP:{ADDRESS}\n")).unwrap();
    openssl(
        &["x509", "-req", "-days", "2", "-CAcreateserial"],
        &[
            ("-in", &request),
            ("-CA", &authority.cert),
            ("-CAkey", &authority.key),
            ("-extfile", &extensions),
            ("-out", &cert),
        ],
    );
    Identity { key, cert }
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn certificates_and_users_are_asked_for_and_what_is_missing_is_said() {
    let cluster = hosts("etcdtls");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let ca = identity(path, "ca", None);
    let server = identity(path, "server", Some(&ca));
    let client = identity(path, "client", Some(&ca));
    let named = identity(path, "named", Some(&ca));
    let url = format!("https://{ADDRESS}:2479");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let data = text(&path.join("data"));
    let mut command = cluster.command("e1", &["etcd", "--name", "tls", "--data-dir", &data]);
    command
        .args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
        ])
        .args(["--listen-peer-urls", "http://127.0.0.1:2480"])
        .args(["--initial-advertise-peer-urls", "http://127.0.0.1:2480"])
        .args(["--initial-cluster", "tls=http://127.0.0.1:2480"])
        .args([
            "--cert-file",
            &text(&server.cert),
            "--key-file",
            &text(&server.key),
        ])
        .args(["--trusted-ca-file", &text(&ca.cert), "--client-cert-auth"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let _etcd = Running(command.spawn().unwrap());

    let ask = |etcd: &Etcd| cluster.on("d1", || Gateway::open(etcd).unwrap().list("/trapeze/c/"));
    let known = Etcd {
        ca: Some(ca.cert.clone()),
        identity: Some((client.cert.clone(), client.key.clone())),
        ..etcd(&url)
    };
    until("it answers", || ask(&known).ok());
    let strange = ask(&etcd(&url)).unwrap_err().to_string();
    assert!(strange.contains("certificate"), "{strange}");
    let nobody = Etcd {
        identity: None,
        ..known.clone()
    };
    assert!(matches!(ask(&nobody), Err(GatewayError::Away { .. })));
    let missing = Etcd {
        ca: Some("/no/such/file".into()),
        ..known.clone()
    };
    let error = Gateway::open(&missing).err().unwrap().to_string();
    assert!(error.contains("/no/such/file"), "{error}");

    let etcdctl = |words: &[&str]| {
        let files = [text(&ca.cert), text(&client.cert), text(&client.key)];
        let options = [
            "--cacert", &files[0], "--cert", &files[1], "--key", &files[2],
        ];
        let start = ["etcdctl", "--endpoints", &url];
        cluster.run("e1", &[&start[..], &options, words].concat())
    };
    etcdctl(&["user", "add", "root:r"]);
    etcdctl(&["user", "grant-role", "root", "root"]);
    etcdctl(&["user", "add", "d1:secret"]);
    etcdctl(&["auth", "enable"]);
    let anonymous = ask(&known).unwrap_err().to_string();
    assert!(anonymous.contains("password_file"), "{anonymous}");
    let password = path.join("password");
    let by_name = Etcd {
        identity: Some((named.cert, named.key)),
        ..known.clone()
    };
    let refused = ask(&by_name).unwrap_err().to_string();
    assert!(refused.contains("make one without"), "{refused}");
    let user = Etcd {
        user: Some(("d1".into(), password.clone())),
        ..known
    };
    std::fs::write(&password, "wrong\n").unwrap();
    let wrong = ask(&user).unwrap_err().to_string();
    assert!(wrong.contains("what is in `password_file`"), "{wrong}");
    std::fs::write(&password, "secret\n").unwrap();
    let denied = ask(&user).unwrap_err().to_string();
    assert!(denied.contains("grant-permission"), "{denied}");

    let root = |words: &[&str]| etcdctl(&[&["--user", "root:r"], words].concat());
    root(&["role", "add", "node"]);
    root(&[
        "role",
        "grant-permission",
        "node",
        "--prefix=true",
        "readwrite",
        "/trapeze",
    ]);
    root(&["user", "grant-role", "d1", "node"]);
    cluster.on("d1", || {
        let mut gateway = Gateway::open(&user).unwrap();
        let lease = gateway.grant(Duration::from_secs(30)).unwrap();
        gateway.claim(KEY, "one", lease).unwrap();
        gateway.keep_alive(lease).unwrap();
        let (from, found) = gateway.list("/trapeze/c/").unwrap();
        assert_eq!(found.len(), 1);
        // Its token is not valid any more: it gets another one.
        root(&["auth", "disable"]);
        etcdctl(&["auth", "enable"]);
        assert_eq!(list(&mut gateway).len(), 1);
        gateway.revoke(lease).unwrap();
        let mut heard = Vec::new();
        let patience = Duration::from_secs(5);
        let watched = gateway.watch("/trapeze/c/", from + 1, patience, |events| {
            heard.extend(events);
            ControlFlow::Break(())
        });
        watched.unwrap();
        assert_eq!(heard, [Event::Deleted(KEY.to_owned())]);
    });
}
