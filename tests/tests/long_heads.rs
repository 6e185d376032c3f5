//! Answers that outlive their backend, whose heads or whose requests are longer than a frame: cookies,
//! policies of what pages may do (docs/protocol/takeover.md 2.3).

use trapeze_lab::Process;
use trapeze_tests::saved::{Download, MIB, Site};
use trapeze_tests::{Connection, same, until};

/// Of cookies, in bytes.
const LONG: [usize; 5] = [900, 1400, 4000, 14_000, 24_000];

/// Files, by range and validator, each answer with a head of so many bytes.
const SERVER: &str = r#"
import os, socket, sys, threading
root, length, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def serve(stream):
    said = b""
    while True:
        while b"\r\n\r\n" not in said:
            more = stream.recv(65536)
            if not more:
                return
            said += more
        head, _, said = said.partition(b"\r\n\r\n")
        path = root + head.split(b" ")[1].decode()
        size = os.path.getsize(path)
        first, last, status = 0, size - 1, "200 OK"
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"range: bytes="):
                first, last = (int(x) for x in line.split(b"=")[1].split(b"-"))
                status = "206 Partial Content"
        fields = f"HTTP/1.1 {status}\r\nX-Backend: {name}\r\nETag: \"{size}\"\r\nContent-Length: {last + 1 - first}\r\n"
        if status[0:3] == "206":
            fields += f"Content-Range: bytes {first}-{last}/{size}\r\n"
        while len(fields) < length - 1000:
            fields += "Content-Security-Policy: " + 900 * "p" + "\r\n"
        fields += "X-Padding: " + max(0, length - len(fields) - 15) * "p" + "\r\n\r\n"
        with open(path, "rb") as file:
            file.seek(first)
            try:
                stream.sendall(fields.encode() + file.read(4096)[: last + 1 - first])
                while file.tell() <= last:
                    stream.sendall(file.read(min(1 << 20, last + 1 - file.tell())))
            except OSError:
                return
listener = socket.create_server(("0.0.0.0", 80), backlog=128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

fn start(site: &Site, cookies: usize) -> Download {
    let connection = site.cluster.on("c1", Connection::open);
    let stream = connection.stream().try_clone().expect("a socket");
    let mut download = Download::with_cookies(cookies, stream);
    download.read(4 * MIB).unwrap();
    download
}

/// One after the other, until only the last is left.
fn cut_the_power_of_all_but_one(site: &Site, downloads: &mut [Download]) {
    for dead in ["b1", "b2"] {
        site.cluster.kill(dead, None).unwrap();
        for download in &mut *downloads {
            download.read(4 * MIB).unwrap();
        }
        until("all of them are taken over", || {
            (site.cluster.backend(dead).active == 0).then_some(())
        });
    }
    for download in downloads {
        download.finish().unwrap();
        same(&download.body, &site.large);
        assert_eq!(download.ask(), "b3");
    }
}

#[test]
fn downloads_that_were_asked_for_with_many_cookies_outlive_their_backends() {
    let site = Site::up("long-asked", 3);
    let mut downloads: Vec<_> = LONG.iter().map(|&bytes| start(&site, bytes)).collect();
    // On a connection that has been used before.
    let mut connection = site.cluster.on("c1", Connection::open);
    connection.ask("/1k").ok();
    let stream = connection.stream().try_clone().unwrap();
    let mut later = Download::with_cookies(6000, stream);
    later.read(4 * MIB).unwrap();
    downloads.push(later);
    site.await_protection(downloads.len());
    cut_the_power_of_all_but_one(&site, &mut downloads);
    assert_eq!(site.count("not-taken-over"), 0);
}

/// The candidate is asked with all of it, too.
#[test]
fn a_download_that_was_asked_for_with_many_cookies_is_migrated() {
    let site = Site::up("long-moved", 2);
    let mut download = start(&site, 14_000);
    site.await_protection(1);
    let owner = download.owner.clone();
    let drained = (site.cluster).trapeze("d1", &["drain", &owner, "--migrate"]);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!((site.count("migrated"), site.count("taken-over")), (1, 1));
    download.finish().unwrap();
    same(&download.body, &site.large);
}

#[test]
fn downloads_whose_heads_are_long_outlive_their_backends() {
    let site = Site::up("long-answered", 3);
    let root = site.root.path().to_str().expect("plain");
    let mut servers = Vec::new();
    for (name, length) in [("b1", "1400"), ("b2", "1700"), ("b3", "6000")] {
        (site.cluster.kill(name, Some(Process::Server))).unwrap();
        let command = ["/usr/bin/python3", "-c", SERVER, root, length, name];
        servers.push(site.cluster.start_command(name, &command));
        until("it listens", || {
            let said = site.cluster.run(name, &["ss", "-Htln"]);
            said.contains(":80 ").then_some(())
        });
    }
    let mut downloads: Vec<_> = (0..6).map(|_| start(&site, 2000)).collect();
    site.await_protection(downloads.len());
    cut_the_power_of_all_but_one(&site, &mut downloads);
    for mut server in servers {
        let _ = server.kill();
        let _ = server.wait();
    }
}
