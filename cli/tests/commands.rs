//! What an operator asks, asked in a lab with traffic: the commands, by their
//! JSON and exit status. Needs root and nginx.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use trapeze_lab::{LabGuard, LinkSettings, Options, Process};

/// The binary under test.
const TRAPEZE: &str = env!("CARGO_BIN_EXE_trapeze");
const URL: &str = "http://10.77.0.100/1k";
/// Long enough for a heartbeat to be missed, a worker to show its figures.
const PATIENCE: Duration = Duration::from_secs(10);

fn lab(test: &str) -> LabGuard {
    let options = Options {
        program: Some(PathBuf::from(TRAPEZE)),
        backends: Some(2),
        ..Options::named(&format!("cli-{test}-{}", std::process::id()))
    };
    LabGuard::up(&options).expect("the lab comes up")
}

/// Runs `trapeze` on a host as an operator of the lab would.
fn trapeze(lab: &LabGuard, host: &str, arguments: &str) -> Output {
    Command::new(TRAPEZE)
        .args(["lab", "--name", lab.name(), "exec", host, "--", TRAPEZE])
        .args(arguments.split(' '))
        .output()
        .unwrap()
}

/// As above, with `--json`; must succeed.
fn json(lab: &LabGuard, host: &str, arguments: &str) -> Value {
    let output = trapeze(lab, host, &format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asks until the answer is as wanted.
fn until(lab: &LabGuard, host: &str, arguments: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let answer = json(lab, host, arguments);
        if is_wanted(&answer) {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{arguments}: {answer:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn get(lab: &LabGuard, count: usize) {
    for _ in 0..count {
        let mut curl = lab.host("c1").unwrap().command("curl");
        let output = curl.args(["-sS", "-m5", "-o/dev/null", URL]).output();
        assert!(output.unwrap().status.success());
    }
}

fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let mut items = list.as_array().unwrap().iter();
    items.find(|item| item["name"] == name).unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn connections_are_shown_where_they_pass() {
    let lab = lab("shown");
    get(&lab, 4);

    let is_heard = |answer: &Value| answer[0]["backends"]["up"] == 2;
    let status = &until(&lab, "d1", "status", is_heard)[0];
    assert_eq!(
        (&status["node"], &status["role"]),
        (&"d1".into(), &"dispatcher".into())
    );
    assert_eq!(status["running"], true);
    assert_eq!(status["services"], serde_json::json!(["10.77.0.100:80"]));
    assert_eq!(status["flows"]["closing"], 4);
    assert_eq!(named(&status["events"], "syn-answered")["count"], 4);
    assert_eq!(status["drops"]["unexpected"], 0);

    let flows = &json(&lab, "d1", "flows --limit 3")[0];
    assert_eq!(
        (&flows["total"], &flows["matching"]),
        (&4.into(), &4.into())
    );
    let listed = flows["flows"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    let idle: Vec<f64> = listed
        .iter()
        .map(|f| f["idle_s"].as_f64().unwrap())
        .collect();
    assert!(idle.is_sorted(), "{idle:?}");
    assert_eq!(listed[0]["vip"], "10.77.0.100:80");
    let matching = |options: &str| json(&lab, "d1", options)[0]["matching"].clone();
    assert_eq!(matching("flows --backend b1"), 2);
    let unknown = error(&trapeze(&lab, "d1", "flows --backend b9"));
    assert!(unknown.contains("choose one of b1, b2"), "{unknown}");
    assert_eq!(matching("flows --state reading"), 0);
    assert_eq!(matching("flows --client 10.77.0.1"), 4);
    let port = listed[0]["client"].as_str().unwrap();
    assert_eq!(matching(&format!("flows --client {port}")), 1);

    let backends = &json(&lab, "d1", "backends")[0]["backends"];
    let backend = named(backends, "b2");
    assert_eq!(
        (&backend["state"], &backend["total"]),
        (&"up".into(), &2.into())
    );
    assert_eq!(backend["pools"], serde_json::json!([["web", 1]]));

    let drops = &json(&lab, "d1", "drops")[0]["drops"];
    assert_eq!(drops[0]["reason"], "handshake-ack");
    assert_eq!(
        (&drops[0]["count"], &drops[0]["expected"]),
        (&4.into(), &true.into())
    );

    let agent = &json(&lab, "b1", "status")[0];
    assert_eq!(agent["role"], "agent");
    assert_eq!(named(&agent["events"], "rebuilt")["count"], 2);
    assert_eq!(named(&agent["events"], "confirmed")["count"], 2);
    assert_eq!(
        (&agent["expected"], &agent["listening"]),
        (&[80].into(), &[80].into())
    );
    let refusal = error(&trapeze(&lab, "b1", "flows"));
    assert!(refusal.contains("run it on a dispatcher"), "{refusal}");
    let nobody = error(&trapeze(&lab, "c1", "status"));
    assert!(nobody.contains("no node runs here"), "{nobody}");
}

#[test]
fn explain_foretells_where_requests_go() {
    let lab = lab("explain");
    let explained = json(&lab, "d1", "explain -X HEAD /1k");
    let backend = explained["backend"].as_str().unwrap();
    assert_eq!(
        (&explained["service"], &explained["pool"]),
        (&"web".into(), &"web".into())
    );
    // Asking leaves no trace, so that the next request goes there.
    assert_eq!(json(&lab, "d1", "explain /1k")["backend"], backend);
    get(&lab, 1);
    assert_eq!(json(&lab, "d1", "flows")[0]["flows"][0]["backend"], backend);
    let wrong = error(&trapeze(&lab, "d1", "explain http://10.77.0.99/"));
    assert!(wrong.contains("no service at 10.77.0.99:80"), "{wrong}");
}

#[test]
fn what_is_dead_is_said_and_the_rest_shown() {
    let lab = lab("dead");
    get(&lab, 2);
    // The data path goes on without its daemon, and says so.
    lab.kill("b2", Some(Process::Agent)).unwrap();
    let agent = &json(&lab, "b2", "status")[0];
    assert_eq!(
        (&agent["running"], &agent["uptime_s"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(named(&agent["events"], "rebuilt")["count"], 1);
    let output = trapeze(&lab, "b2", "reload");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        named(&json(&lab, "d1", "backends")[0]["backends"], "b2")["state"],
        "up"
    );
    lab.kill("b2", None).unwrap();
    let backends = until(&lab, "d1", "backends", |answer| {
        named(&answer[0]["backends"], "b2")["state"] == "silent"
    });
    assert_eq!(named(&backends[0]["backends"], "b1")["state"], "up");

    lab.kill("d1", Some(Process::Dispatch)).unwrap();
    assert_eq!(json(&lab, "d1", "flows")[0]["total"], 2);
    let backends = &json(&lab, "d1", "backends")[0];
    assert!(
        backends["daemon_error"]
            .as_str()
            .unwrap()
            .contains("running?")
    );
    assert_eq!(named(&backends["backends"], "b1")["total"], 1);
    let status = &json(&lab, "d1", "status")[0];
    assert_eq!(
        (&status["running"], &status["daemon"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(status["flows"]["closing"], 2);
    assert_eq!(json(&lab, "d1", "drops")[0]["drops"][0]["count"], 2);
    for (host, command) in [("d1", "explain /"), ("d1", "reload")] {
        let output = trapeze(&lab, host, command);
        assert_eq!(output.status.code(), Some(1), "{host} {command}");
    }
}

#[test]
fn a_wrong_file_is_refused_with_its_place() {
    let lab = lab("reload");
    let config = lab.status().unwrap().config;
    let right = std::fs::read_to_string(&config).unwrap();
    assert_eq!(json(&lab, "d1", "reload")[0]["reloaded"], true);
    assert_eq!(json(&lab, "b1", "reload")[0]["reloaded"], true);
    let log = lab.status().unwrap().logs.join("b1.agent.log");
    let start = Instant::now();
    while !std::fs::read_to_string(&log)
        .unwrap()
        .contains("\nreloaded ")
    {
        assert!(start.elapsed() < PATIENCE, "{}", log.display());
        std::thread::sleep(Duration::from_millis(20));
    }

    std::fs::write(&config, right.replace("round-robin", "round-robbin")).unwrap();
    for host in ["d1", "b1"] {
        let output = trapeze(&lab, host, "reload --json");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let message = answer[0]["error"].as_str().unwrap().to_owned();
        assert!(has_place(&message, &config), "{message}");
    }
    let output = trapeze(&lab, "d1", &format!("check -c {}", config.display()));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&lab, "d1", "status")[0]["daemon"]["reloads"], 1);

    std::fs::write(&config, right.replace("round-robin", "least-connections")).unwrap();
    assert_eq!(json(&lab, "d1", "reload")[0]["reloaded"], true);
    let explained = json(&lab, "d1", "explain /");
    assert_eq!(explained["policy"], "least-connections");
    let offline = json(&lab, "c1", &format!("explain -c {} /", config.display()));
    assert_eq!(offline["policy"], "least-connections");
}

fn has_place(message: &str, config: &Path) -> bool {
    let rest = message.strip_prefix(&format!("{}:", config.display()));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn doctor_finds_what_is_missing() {
    let lab = lab("doctor");
    for host in ["d1", "b1"] {
        let report = json(&lab, host, "doctor");
        assert_eq!(report["ok"], true, "{report:#}");
        assert_eq!(report["sections"][0]["about"], "host");
    }
    let on = |host: &str, command: &[&str]| {
        let mut built = lab.host(host).unwrap().command(command[0]);
        assert!(built.args(&command[1..]).status().unwrap().success());
    };
    let missing = |host: &str| -> Vec<Value> {
        let output = trapeze(&lab, host, "doctor --json");
        assert_eq!(output.status.code(), Some(1));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["sections"][1]["checks"].as_array().unwrap();
        let missing = checks.iter().filter(|check| check["level"] == "missing");
        missing.cloned().collect()
    };
    lab.kill("b1", Some(Process::Server)).unwrap();
    let found = missing("b1");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["name"], "server");
    // The agent would set its own again at once.
    on("d1", &["sysctl", "-qw", "net.ipv4.conf.eth0.forwarding=0"]);
    on("b1", &["ip", "link", "set", "eth0", "mtu", "1300"]);
    // On the lab's short way no cable's end looks at lengths.
    let slow = LinkSettings {
        delay: Duration::from_millis(1),
        ..LinkSettings::default()
    };
    lab.link("b1", &slow).unwrap();
    let found = missing("d1");
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        found[0]["mend"],
        "sysctl -w net.ipv4.conf.eth0.forwarding=1"
    );
    let detail = found[1]["detail"].as_str().unwrap();
    assert!(detail.contains("do not get to b1"), "{detail}");
    let nowhere = trapeze(&lab, "d1", "doctor -c /nonexistent --json");
    let report: Value = serde_json::from_slice(&nowhere.stdout).unwrap();
    let mend = report["sections"][1]["checks"][0]["mend"].as_str().unwrap();
    assert!(mend.starts_with("ls -l /nonexistent"), "{mend}");
    assert_eq!(
        json(&lab, "b1", "status")[0]["listening"],
        serde_json::json!([])
    );

    let status = lab.status().unwrap();
    let foreign = trapeze(
        &lab,
        "c1",
        &format!("doctor --node d1 -c {}", status.config.display()),
    );
    assert_eq!(foreign.status.code(), Some(1));
    let text = String::from_utf8(foreign.stdout).unwrap();
    assert!(text.contains("10.77.0.11 is not on eth0"), "{text}");
}

#[test]
fn options_that_do_not_exist_are_another_status() {
    for arguments in [
        &["flows", "--state", "open"][..],
        &["explain", "--sni", "a"],
        &["ask"],
    ] {
        let output = Command::new(TRAPEZE).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Programs that read JSON need not read anything else.
#[test]
fn with_json_errors_are_json_too() {
    let nowhere = "/nonexistent/trapeze.toml";
    for (arguments, status, message) in [
        (&["check", "-c", nowhere][..], 1, nowhere),
        (&["check", nowhere], 1, nowhere),
        (&["check", "-c", nowhere, nowhere], 2, "cannot be used with"),
        (&["explain", "-c", nowhere, "/"], 1, nowhere),
        (&["status", "--node", "nobody"], 1, "node"),
        (&["flows"], 1, "node"),
        (&["backends"], 1, "node"),
        (&["drops"], 1, "node"),
        (&["reload"], 1, "node"),
        (&["lab", "--name", "nowhere", "status"], 1, "nowhere"),
        (&["flows", "--state", "open"], 2, "--state"),
        (&["explain", "--sni", "a"], 2, "--sni"),
        (&["drain", "b1", "--deadline", "-1s"], 2, "expected a time"),
    ] {
        let mut command = Command::new(TRAPEZE);
        let output = command.args(arguments).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = said["error"].as_str().unwrap();
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert!(!error.starts_with("error:"), "{arguments:?}: {error}");
        let text = command.get_args().filter(|word| *word != "--json");
        let output = Command::new(TRAPEZE).args(text).output().unwrap();
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}
