//! Clients that do not know about us: command-line tools, a browser, the HTTP
//! libraries of several languages. Each sees through Trapeze just what it sees
//! from the server alone.

use trapeze_lab::ServerKind;
use trapeze_tests::{Cluster, ONE_BACKEND};

const PYTHON: &str = r#"
import http.client, sys, urllib.request, hashlib
host = sys.argv[1]
connection = http.client.HTTPConnection(host, timeout=20)
def show(answer):
    body = answer.read()
    print(answer.status, answer.reason, len(body), hashlib.sha256(body).hexdigest())
    for name, value in answer.getheaders():
        print(name, value)
for path in ("/1k", "/100k", "/1m", "/none", "/", "/1k?a=b#c"):
    connection.request("GET", path)
    show(connection.getresponse())
connection.request("HEAD", "/1m")
show(connection.getresponse())
connection.request("GET", "/1m", headers={"Range": "bytes=1000-1999"})
show(connection.getresponse())
connection.request("PUT", "/upload/python", body=b"x" * 300000)
connection.getresponse().read()
def chunks():
    for number in range(50):
        yield b"y" * number * 100
connection.request("PUT", "/upload/python", body=chunks(), encode_chunked=True,
                   headers={"Transfer-Encoding": "chunked"})
print(connection.getresponse().status // 100)
for _ in range(3):
    with urllib.request.urlopen(f"http://{host}/10k", timeout=20) as answer:
        print(answer.status, hashlib.sha256(answer.read()).hexdigest())
"#;

const NODE: &str = r#"
const http = require("http"), crypto = require("crypto");
const host = process.argv[1];
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
function get(path, method = "GET", body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host, path, method, agent, timeout: 20000 }, answer => {
      const hash = crypto.createHash("sha256");
      answer.on("data", piece => hash.update(piece));
      answer.on("end", () => resolve(`${path} ${answer.statusCode} ${hash.digest("hex")}`));
    });
    request.on("error", reject);
    request.end(body);
  });
}
(async () => {
  const paths = ["/1k", "/10k", "/100k", "/1m", "/none"];
  const all = [];
  for (let round = 0; round < 10; round++) all.push(...paths.map(path => get(path)));
  console.log((await Promise.all(all)).sort().join("\n"));
  console.log((await get("/upload/node", "PUT", "z".repeat(100000))).includes(" 20"));
  agent.destroy();
})().catch(error => { console.error(error); process.exit(1); });
"#;

const PERL: &str = r#"
use HTTP::Tiny; use Digest::SHA "sha256_hex";
my $http = HTTP::Tiny->new(timeout => 20, keep_alive => 1);
for my $path ("/1k", "/10k", "/1m", "/none") {
  my $answer = $http->get("http://$ARGV[0]$path");
  print "$path $answer->{status} $answer->{reason} ", sha256_hex($answer->{content}), "\n";
}
"#;

const GO: &str = r#"
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

var client = http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
	MaxConnsPerHost: 4, ExpectContinueTimeout: 5 * time.Second}}

func ask(method, path string, body io.Reader, header ...string) string {
	request, err := http.NewRequest(method, "http://"+os.Args[1]+path, body)
	if err != nil {
		panic(err)
	}
	for at := 0; at < len(header); at += 2 {
		request.Header.Set(header[at], header[at+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	hash := sha256.New()
	length, err := io.Copy(hash, answer.Body)
	if err != nil {
		panic(err)
	}
	if method == "PUT" {
		return fmt.Sprintln(method, path, answer.StatusCode/100)
	}
	return fmt.Sprintf("%s %s %s %s %d %x\n", method, path, answer.Proto, answer.Status, length, hash.Sum(nil))
}

func main() {
	var said []string
	var guard sync.Mutex
	var all sync.WaitGroup
	for round := 0; round < 20; round++ {
		for _, path := range []string{"/1k", "/10k", "/100k", "/1m", "/none"} {
			all.Add(1)
			go func(path string) {
				defer all.Done()
				line := ask("GET", path, nil)
				guard.Lock()
				said = append(said, line)
				guard.Unlock()
			}(path)
		}
	}
	all.Wait()
	sort.Strings(said)
	said = append(said, ask("HEAD", "/1m", nil))
	said = append(said, ask("GET", "/1m", nil, "Range", "bytes=1000-1999"))
	said = append(said, ask("PUT", "/upload/go", strings.NewReader(strings.Repeat("z", 300000))))
	// Of unknown length: chunked. And after the server's leave.
	said = append(said, ask("PUT", "/upload/go", io.MultiReader(strings.NewReader(strings.Repeat("y", 300000)))))
	said = append(said, ask("PUT", "/upload/go", strings.NewReader("x"), "Expect", "100-continue"))
	fmt.Print(strings.Join(said, ""))
}
"#;

/// What a client says of a server, less what differs between two moments.
fn comparable(said: &[u8], address: &str) -> String {
    let said = String::from_utf8_lossy(said).replace(address, "SERVER");
    let lines = said
        .lines()
        .filter(|l| !l.to_lowercase().trim_start().starts_with("date"));
    lines.collect::<Vec<_>>().join("\n")
}

fn compare(cluster: &Cluster, client: &[&str]) {
    let [direct, ours] = ["10.77.0.21", "10.77.0.100"].map(|address| {
        let command: Vec<String> = client
            .iter()
            .map(|w| w.replace("SERVER", address))
            .collect();
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        comparable(&cluster.run_bytes("c1", &words), address)
    });
    assert!(!direct.is_empty(), "{client:?} says nothing");
    assert_eq!(ours, direct, "{client:?}");
}

fn tools_and_libraries(test: &str, server: ServerKind) {
    let cluster = Cluster::configured(test, 1, ONE_BACKEND, |options| options.server = server);
    let before = cluster.agent("b1").of("rebuilt");
    for path in ["1k", "10m", "none", ""] {
        compare(
            &cluster,
            &[
                "curl",
                "-sS",
                "-m",
                "20",
                "-i",
                &format!("http://SERVER/{path}"),
            ],
        );
    }
    compare(
        &cluster,
        &["curl", "-sS", "-m", "20", "-I", "http://SERVER/1m"],
    );
    let ranges = "100-199";
    compare(
        &cluster,
        &["curl", "-sS", "-m", "20", "-r", ranges, "http://SERVER/10k"],
    );
    compare(
        &cluster,
        &["curl", "-sS", "-m", "20", "--http1.0", "http://SERVER/10k"],
    );
    let several = [
        "http://SERVER/1k",
        "http://SERVER/10k",
        "http://SERVER/100k",
    ];
    compare(
        &cluster,
        &[&["curl", "-sS", "-m", "20"], &several[..]].concat(),
    );
    let parallel = [
        "curl",
        "-sS",
        "-m",
        "20",
        "-Z",
        "--parallel-immediate",
        "-o",
        "/dev/null",
    ];
    cluster.run("c1", &[&parallel[..], &["http://10.77.0.100/1m"]].concat());
    compare(
        &cluster,
        &[
            "wget",
            "-q",
            "-T",
            "20",
            "-t",
            "1",
            "-O",
            "-",
            "http://SERVER/1m",
        ],
    );
    compare(&cluster, &["python3", "-c", PYTHON, "SERVER"]);
    compare(&cluster, &["perl", "-e", PERL, "SERVER"]);
    compare(&cluster, &["node", "-e", NODE, "SERVER"]);
    let agent = cluster.agent("b1");
    assert!(agent.of("rebuilt") - before >= 18, "{agent:?}");
}

#[test]
fn tools_and_libraries_with_nginx() {
    tools_and_libraries("nginx", ServerKind::Nginx);
}

#[test]
fn tools_and_libraries_with_apache() {
    tools_and_libraries("apache", ServerKind::Apache);
}

#[test]
fn tools_and_libraries_with_python() {
    tools_and_libraries("python", ServerKind::Python);
}

#[test]
fn a_program_in_go_sees_what_it_sees_from_the_server_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (
        directory.path().join("client.go"),
        directory.path().join("client"),
    );
    std::fs::write(&source, GO).unwrap();
    let mut go = std::process::Command::new("go");
    go.arg("build").arg("-o").args([&program, &source]);
    let built = go.output().expect("go is not installed: make setup");
    assert!(built.status.success(), "{built:?}");
    for (test, server) in [
        ("gonginx", ServerKind::Nginx),
        ("goapache", ServerKind::Apache),
    ] {
        let cluster = Cluster::configured(test, 1, ONE_BACKEND, |options| options.server = server);
        compare(&cluster, &[program.to_str().unwrap(), "SERVER"]);
        assert!(cluster.agent("b1").of("rebuilt") >= 4);
    }
}

#[test]
fn load_generators_meet_no_error() {
    let cluster = Cluster::up("load");
    let url = "http://10.77.0.100/10k";
    for more in [&["-k"][..], &[]] {
        let command = [
            &["ab", "-q", "-s", "20", "-n", "3000", "-c", "20"],
            more,
            &[url],
        ]
        .concat();
        let said = cluster.run("c1", &command);
        assert!(said.contains("Failed requests:        0"), "{said}");
        assert!(said.contains("Complete requests:      3000"), "{said}");
    }
    let said = cluster.run("c1", &["wrk", "-t1", "-c32", "-d2s", url]);
    assert!(
        !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
    for connection in ["close", "keep-alive"] {
        // Otherwise the user's own settings count.
        let settings = tempfile::NamedTempFile::new().unwrap();
        let text = format!("connection = {connection}\nprotocol = HTTP/1.1\njson_output = true\n");
        std::fs::write(&settings, text).unwrap();
        let rc = format!("--rc={}", settings.path().display());
        let said = cluster.run("c1", &["siege", &rc, "-b", "-q", "-c20", "-r100", url]);
        // The first time that a user has it, it says before that there are settings now.
        let sums = &said[said.find('{').expect("siege sums up")..];
        let sums: serde_json::Value = serde_json::from_str(sums).expect("in JSON");
        assert_eq!(sums["transactions"], 2000, "{said}");
        assert_eq!(sums["failed_transactions"], 0, "{said}");
    }
    let close = ["wrk", "-t1", "-c32", "-d2s", "-H", "Connection: close", url];
    let said = cluster.run("c1", &close);
    assert!(
        !said.contains("connect ") && !said.contains("Non-2xx"),
        "{said}"
    );
}

/// 64 by 64 pixels as a bitmap (BITMAPINFOHEADER, 24 bits).
fn image(seed: u64) -> Vec<u8> {
    let pixels = trapeze_tests::Content::new(seed, 64 * 64 * 3).bytes();
    let mut file = b"BM".to_vec();
    for word in [
        54 + pixels.len() as u32,
        0,
        54,
        40,
        64,
        64,
        1 | 24 << 16,
        0,
        0,
        0,
        0,
        0,
        0,
    ] {
        file.extend(word.to_le_bytes());
    }
    file.extend(pixels);
    file
}

const PAGE: &str = r#"<!doctype html><title>images</title><body><script>
const count = 50, sums = [];
function done(number, sum) {
  sums[number] = sum;
  if (sums.filter(s => s !== undefined).length == count)
    document.body.textContent = "sums: " + sums.join(" ");
}
for (let number = 0; number < count; number++) {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 64;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    done(number, context.getImageData(0, 0, 64, 64).data.reduce((a, b) => (a * 31 + b) >>> 0, 7));
  };
  image.onerror = () => done(number, "failed");
  image.src = `/image-${number}.bmp`;
}
</script>"#;

#[test]
fn a_browser_shows_a_page_with_all_its_images() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("index.html"), PAGE).unwrap();
    for number in 0..50 {
        let path = root.path().join(format!("image-{number}.bmp"));
        std::fs::write(path, image(number)).unwrap();
    }
    let cluster = Cluster::with("browser", |options| options.root = Some(root.path().into()));
    let browse = |address: &str| {
        let profile = tempfile::tempdir().unwrap();
        let directory = format!("--user-data-dir={}", profile.path().display());
        let url = format!("http://{address}/");
        let switches = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--virtual-time-budget=20000",
            &directory,
            "--dump-dom",
            &url,
        ];
        cluster.run("c1", &switches)
    };
    let direct = browse("10.77.0.21");
    assert!(
        direct.contains("sums: ") && !direct.contains("failed"),
        "{direct}"
    );
    assert_eq!(browse("10.77.0.100"), direct);
    // It opens several connections; rounds of them over all backends.
    assert!(cluster.agents().of("rebuilt") >= 2);
}
