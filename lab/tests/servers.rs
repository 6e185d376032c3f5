//! The servers on backends: documents, uploads, TLS. Needs root, the packages
//! nginx-light, apache2, python3, openssl and curl, and cargo build -p trapeze-cli.

mod support;

use std::time::Duration;

use support::*;
use trapeze_lab::{
    Lab, LabGuard, Options, OriginSettings, ServerKind, documents::DOCUMENTS, objects,
};

#[test]
fn nginx_serves_and_stores() {
    serves_and_stores(ServerKind::Nginx, "nginx");
}

#[test]
fn apache_serves_and_stores() {
    serves_and_stores(ServerKind::Apache, "apache");
}

#[test]
fn python_serves_and_stores() {
    serves_and_stores(ServerKind::Python, "python");
}

fn serves_and_stores(server: ServerKind, test: &str) {
    let options = Options {
        server,
        tls: true,
        backends: Some(1),
        ..servers_only(test)
    };
    let lab = LabGuard::up(&options).unwrap();
    let status = lab.status().unwrap();
    let body = std::fs::read(status.root.join("10m")).unwrap();

    for (name, length) in DOCUMENTS {
        let url = format!("http://10.77.0.21/{name}");
        let format = "%{http_code} %{size_download}";
        let got = on(
            &lab,
            "c1",
            &["curl", "-sS", "-o", "/dev/null", "-w", format, &url],
        );
        assert_eq!(got, format!("200 {length}"));
    }
    // Two requests on one connection, one of them for a part.
    let url = "http://10.77.0.21/1m";
    let format = "%{http_code} %{num_connects} %{size_download}\n";
    let reuse = ["curl", "-sS", "-w", format, "-o", "/dev/null", url];
    let part = [
        "--next",
        "-sS",
        "-r",
        "9-18",
        "-w",
        format,
        "-o",
        "/dev/null",
        url,
    ];
    let got = on(&lab, "c1", &[&reuse[..], &part].concat());
    assert_eq!(got, "200 1 1048576\n206 0 10\n");

    let uploads = status.host("b1").unwrap().uploads.clone().unwrap();
    let document = format!("@{}", status.root.join("10m").display());
    for method in ["PUT", "POST"] {
        for (framing, name) in [
            ("X-None: 1", "plain"),
            ("Transfer-Encoding: chunked", "chunked"),
        ] {
            let name = format!("{method}-{name}");
            let url = format!("http://10.77.0.21/upload/{name}");
            let command = [
                "curl",
                "-sSf",
                "-X",
                method,
                "-H",
                framing,
                "--data-binary",
                &document,
                &url,
            ];
            on(&lab, "c1", &command);
            assert_eq!(std::fs::read(uploads.join(&name)).unwrap(), body, "{name}");
        }
    }
    on(
        &lab,
        "c1",
        &["curl", "-sSf", "-d", "a=1", "http://10.77.0.21/upload"],
    );
    assert_eq!(std::fs::read(uploads.join("body")).unwrap(), b"a=1");

    let trusted = status.config.with_file_name("tls").join("all.pem");
    let command = [
        "curl",
        "-sSf",
        "--cacert",
        trusted.to_str().unwrap(),
        "--connect-to",
        "www.lab:443:10.77.0.21:443",
        "-w",
        "%{http_code} %{size_download}",
        "-o",
        "/dev/null",
        "https://www.lab/10m",
    ];
    assert_eq!(on(&lab, "c1", &command), "200 10485760");
}

#[test]
fn an_origin_has_the_same_objects_on_every_backend_and_counts_what_it_remembers() {
    let options = Options {
        server: ServerKind::Origin,
        origin: OriginSettings {
            cache_bytes: 100_000,
            ..OriginSettings::default()
        },
        backends: Some(2),
        access_log: true,
        ..servers_only("origin")
    };
    let lab = LabGuard::up(&options).unwrap();
    let format = "%{http_code} %header{x-backend} %header{x-cache}\n";
    let get = |backend: &str, number: u64| {
        let url = format!("http://10.77.0.2{backend}{}", objects::path(number));
        let file = lab.status().unwrap().logs.join("object");
        let file = file.to_str().unwrap();
        let said = on(
            &lab,
            "c1",
            &["curl", "-sSf", "-o", file, "-w", format, &url],
        );
        assert_eq!(std::fs::read(file).unwrap(), objects::body(number));
        said
    };
    assert_eq!(get("1", 7), "200 b1 miss\n");
    assert_eq!(get("1", 7), "200 b1 hit\n");
    assert_eq!(get("2", 7), "200 b2 miss\n");
    let counts = |host: &str| lab.status().unwrap().host(host).unwrap().origin.unwrap();
    let b1 = counts("b1");
    assert_eq!((b1.requests, b1.hits, b1.reads), (2, 1, 1));
    assert_eq!(
        (b1.cache_bytes, b1.cache_limit),
        (objects::size(7), 100_000)
    );
    assert!(b1.disk_us >= 5_000, "{b1:?}");
    let shown = lab.status().unwrap().to_string();
    assert!(
        shown.contains("objects: 0.1 MiB of cache, a miss takes 5ms"),
        "{shown}"
    );
    assert!(shown.contains("2 requests, 1 hits, 1 reads"), "{shown}");

    lab.flush_caches().unwrap();
    assert_eq!(counts("b1").requests, 0);
    assert_eq!(get("1", 7), "200 b1 miss\n");
    let line = format!("GET /object/7 200 {}\n", objects::size(7));
    let of_objects = |log: &str| -> String {
        let lines = log.split_inclusive('\n');
        lines.filter(|line| line.contains("/object/")).collect()
    };
    let log = log_of(&lab, "b1", |log| of_objects(log).len() >= 3 * line.len());
    assert_eq!(of_objects(&log), line.repeat(3));
}

#[test]
fn what_an_origin_has_not_is_refused() {
    let refusal = |change: fn(&mut Options)| {
        let mut options = servers_only("no-origin");
        change(&mut options);
        LabGuard::up(&options)
            .err()
            .map(|error| format!("{error:#}"))
    };
    let refused = refusal(|options| options.origin.cache_bytes = 1);
    assert!(refused.unwrap().contains("--server origin"));
    let refused = refusal(|options| {
        options.server = ServerKind::Origin;
        options.tls = true;
    });
    assert!(refused.unwrap().contains("speaks no TLS"));
    let refused = refusal(|options| {
        options.server = ServerKind::Origin;
        options.root = Some("/tmp".into());
    });
    assert!(refused.unwrap().contains("leave --root out"));
}

#[test]
fn a_directory_that_only_root_may_read_is_served() {
    for (server, test) in [
        (ServerKind::Nginx, "own-nginx"),
        (ServerKind::Apache, "own-apache"),
        (ServerKind::Python, "own-python"),
    ] {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("own.txt"), "mine").unwrap();
        let options = Options {
            server,
            backends: Some(1),
            root: Some(root.path().to_owned()),
            access_log: true,
            ..servers_only(test)
        };
        let lab = LabGuard::up(&options).unwrap();
        let url = "http://10.77.0.21/own.txt?x=1";
        assert_eq!(on(&lab, "c1", &["curl", "-sSf", url]), "mine");
        assert_eq!(
            log_of(&lab, "b1", |log| !log.is_empty()),
            "GET /own.txt?x=1 200 4\n"
        );
    }
}

/// A backend's access log when it is `complete`; after 10 s as it is. Servers write it
/// after their answers.
fn log_of(lab: &Lab, backend: &str, complete: impl Fn(&str) -> bool) -> String {
    let path = (lab.status().unwrap().logs).join(format!("{backend}.access.log"));
    for _ in 0..1000 {
        match std::fs::read_to_string(&path) {
            Ok(log) if complete(&log) => return log,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    std::fs::read_to_string(path).unwrap_or_default()
}
