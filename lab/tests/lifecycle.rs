//! Labs come, hosts die and return, labs go and leave nothing. Needs root and
//! nginx, and the binary: cargo build -p trapeze-cli.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::*;
use trapeze_datapath::netns;
use trapeze_lab::{Lab, LabGuard, Options, Process, Role};

const READY: &str = "echo ready $*; exec sleep 3600";

#[test]
fn up_serves_and_down_leaves_nothing() {
    let lab = lab("serves");
    let name = lab.name().to_owned();
    for (host, address) in [("b1", "10.77.0.21"), ("b3", "10.77.0.23")] {
        let head = on(
            &lab,
            "c1",
            &["curl", "-sSI", &format!("http://{address}/1k")],
        );
        assert!(head.contains(&format!("X-Backend: {host}\r\n")), "{head}");
        assert!(head.contains("Content-Length: 1024\r\n"), "{head}");
    }
    assert!(!remains(&name).is_empty());
    lab.clone().down().unwrap();
    assert_gone(&name);
}

#[test]
fn a_whole_cluster_answers_at_the_service_address_and_survives_its_hosts() {
    let options = Options {
        daemons: true,
        ..servers_only("whole")
    };
    let lab = LabGuard::up(&options).unwrap();
    let fetch = [
        "curl",
        "-sSf",
        "-m5",
        "-D-",
        "-o",
        "/dev/null",
        "http://10.77.0.100/10k",
    ];
    assert!(on(&lab, "c1", &fetch).contains("X-Backend: b"));
    for host in ["b1", "d1"] {
        lab.kill(host, None).unwrap();
        lab.start(host, None).unwrap();
    }
    assert!(on(&lab, "c1", &fetch).contains("X-Backend: b"));
}

#[test]
fn status_describes_every_host() {
    let options = Options {
        clients: 2,
        backends: Some(2),
        ..servers_only("status")
    };
    let lab = LabGuard::up(&options).unwrap();
    let output = trapeze_lab(lab.name(), &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["name"], lab.name());
    assert_eq!(status["vip"], "10.77.0.100");
    assert_eq!(status["port"], 80);
    let hosts = status["hosts"].as_array().unwrap();
    let names: Vec<&str> = hosts.iter().map(|h| h["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c1", "c2", "d1", "b1", "b2"]);
    let backend = &hosts[4];
    assert_eq!(backend["role"], "backend");
    assert_eq!(backend["namespace"], format!("tz-{}-b2", lab.name()));
    assert_eq!(backend["address"], "10.77.0.22");
    assert_eq!(backend["interface"], "eth0");
    assert_eq!(backend["up"], true);
    assert_eq!(backend["processes"]["server"]["running"], true);
    assert!(backend["link"].is_null());
}

#[test]
fn labs_side_by_side_do_not_meet() {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ["one", "one-c1", "two"]
            .map(|test| scope.spawn(move || lab(test)))
            .into_iter()
            .collect();
        let mut labs: Vec<LabGuard> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        drop(labs.remove(0));
        for lab in &labs {
            let codes = ["-sS", "-o", "/dev/null", "-w", "%{http_code}"];
            let command = [&["curl"], &codes[..], &["http://10.77.0.21/10k"]].concat();
            assert_eq!(on(lab, "c1", &command), "200");
        }
    });
}

#[test]
fn a_second_lab_of_the_name_is_refused_and_the_first_lives_on() {
    let lab = lab("twice");
    let error = Lab::up(&servers_only("twice")).unwrap_err().to_string();
    let advice = format!("trapeze lab down --name {}", lab.name());
    assert!(error.contains(&advice), "{error}");
    on(
        &lab,
        "c1",
        &["curl", "-sSf", "-o", "/dev/null", "http://10.77.0.21/1k"],
    );
}

#[test]
fn exec_passes_status_output_and_arguments_through() {
    let lab = lab("exec");
    let script = "echo out; echo \"$1\" >&2; exit 7";
    let output = trapeze_lab(
        lab.name(),
        &["exec", "c1", "--", "sh", "-c", script, "sh", "--name", "-x"],
    );
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"--name\n");
    let missing = trapeze_lab(lab.name(), &["exec", "c1", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    let nobody = trapeze_lab(lab.name(), &["exec", "b9", "--", "true"]);
    assert_eq!(nobody.status.code(), Some(1));
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("it has c1 d1 b1 b2 b3"), "{said}");
}

#[test]
fn a_host_that_is_powered_off_is_silent_and_comes_back() {
    let lab = lab("power");
    on(&lab, "c1", &["ping", "-c1", "-W1", "10.77.0.21"]);
    lab.kill("b1", None).unwrap();
    let ping = output_on(&lab, "c1", &["ping", "-c1", "-W1", "10.77.0.21"]);
    assert!(!ping.status.success());
    let status = lab.status().unwrap();
    let host = status.host("b1").unwrap();
    assert!(!host.up && !host.processes[&Process::Server].running);
    assert!(lab.kill("b1", None).is_err(), "it is off already");
    assert!(lab.host("b1").is_err());
    lab.start("b1", None).unwrap();
    let head = on(&lab, "c1", &["curl", "-sSI", "http://10.77.0.21/1k"]);
    assert!(head.contains("X-Backend: b1"), "{head}");
    lab.kill("b2", None).unwrap();
    let name = lab.name().to_owned();
    drop(lab);
    assert_gone(&name);
}

#[test]
fn a_connection_to_a_host_that_loses_power_gets_no_farewell_and_leaves_nothing() {
    let lab = lab("silent");
    let kept = File::open(lab.host("b1").unwrap().namespace()).unwrap();
    let namespace = PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    // Slow enough to be in the middle of it.
    let mut download = lab
        .host("c1")
        .unwrap()
        .command("curl")
        .args(["-sS", "--limit-rate", "1M", "-m", "4", "-o", "/dev/null"])
        .arg("http://10.77.0.21/100m")
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_ne!(connections(&namespace), 0);
    lab.kill("b1", None).unwrap();
    assert_eq!(connections(&namespace), 0);
    // 28: curl's own time limit. A reset or an end would be 56 or 18.
    assert_eq!(download.wait().unwrap().code(), Some(28));
}

/// TCP's, in this namespace, whether anybody has them open or not.
fn connections(namespace: &Path) -> usize {
    let table = netns::inside(namespace, || {
        fs::read_to_string("/proc/thread-self/net/tcp")
    });
    let table = table.unwrap();
    // The fourth column is the state: 0A listens.
    let states = (table.lines().skip(1)).map(|line| line.split_whitespace().nth(3).unwrap());
    states.filter(|state| *state != "0A").count()
}

#[test]
fn a_server_that_is_killed_is_wholly_gone_until_it_is_started() {
    let lab = lab("server");
    let fetch = ["curl", "-sSf", "-o", "/dev/null", "http://10.77.0.21/1k"];
    lab.kill("b1", Some(Process::Server)).unwrap();
    assert_eq!(
        output_on(&lab, "c1", &fetch).status.code(),
        Some(7),
        "refused"
    );
    on(&lab, "c1", &["ping", "-c1", "-W1", "10.77.0.21"]);
    let again = lab.kill("b1", Some(Process::Server)).unwrap_err();
    assert!(again.to_string().contains("lab start b1"), "{again}");
    lab.start("b1", Some(Process::Server)).unwrap();
    on(&lab, "c1", &fetch);
    assert!(
        lab.start("b1", Some(Process::Server)).is_err(),
        "it runs already"
    );
    let wrong = lab
        .kill("c1", Some(Process::Server))
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("c1 is a client"), "{wrong}");
}

#[test]
fn daemons_are_started_with_the_configuration_and_their_node() {
    let (options, _program) = with_daemons("daemons", READY);
    let lab = LabGuard::up(&options).unwrap();
    let status = lab.status().unwrap();
    for host in &status.hosts {
        let running = host.processes.values().all(|process| process.running);
        assert!(running, "{host:?}");
    }
    let backend = status.hosts.iter().find(|host| host.role == Role::Backend);
    assert_eq!(backend.unwrap().processes.len(), 2);
    let log = std::fs::read_to_string(status.logs.join("d1.dispatch.log")).unwrap();
    let expected = format!("ready dispatch --node d1 -c {}\n", status.config.display());
    assert_eq!(log, expected);
    lab.kill("d1", Some(Process::Dispatch)).unwrap();
    lab.start("d1", None).unwrap();
    let again = lab.status().unwrap();
    assert!(again.host("d1").unwrap().processes[&Process::Dispatch].running);
}

#[test]
fn what_daemons_pin_goes_with_their_host_and_the_lab() {
    let (options, _program) = with_daemons("pins", READY);
    let lab = LabGuard::up(&options).unwrap();
    let name = lab.name().to_owned();
    let directories = ["/sys/fs/bpf/trapeze", "/run/trapeze"]
        .map(|directory| Path::new(directory).join(format!("lab-{name}")));
    for directory in &directories {
        for host in ["d1", "b1"] {
            std::fs::create_dir_all(directory.join(host)).unwrap();
        }
    }
    lab.kill("b1", None).unwrap();
    for directory in &directories {
        assert!(directory.join("d1").exists() && !directory.join("b1").exists());
    }
    drop(lab);
    assert_gone(&name);
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[test]
fn a_daemon_that_does_not_start_is_quoted_and_nothing_is_left() {
    let script = "test $1 = agent && exec sleep 3600 >/dev/null & \
                  echo no such option: frob >&2; exit 3";
    let (options, _program) = with_daemons("fails", script);
    let error = format!("{:#}", Lab::up(&options).unwrap_err());
    assert!(error.contains("the agent on b1 does not start"), "{error}");
    assert!(error.contains("no such option: frob"), "{error}");
    assert_gone(&options.name);
}

#[test]
fn down_removes_what_an_interrupted_up_has_left() {
    let options = servers_only("half");
    let name = &options.name;
    let run = |arguments: &[&str]| {
        let status = std::process::Command::new("ip").args(arguments).status();
        assert!(status.unwrap().success());
    };
    run(&["netns", "add", &format!("tz-{name}-b1")]);
    assert!(Lab::up(&options).is_err(), "its namespaces are taken");
    std::fs::create_dir_all(Path::new("/run/trapeze/lab").join(name)).unwrap();
    assert!(
        Lab::open(name)
            .unwrap_err()
            .to_string()
            .contains("half made")
    );
    Lab::remove(name).unwrap();
    assert_gone(name);
    let absent = Lab::remove(name).unwrap_err().to_string();
    assert!(
        absent.contains("there is no lab") && absent.contains("to remove"),
        "{absent}"
    );
}

#[test]
fn a_configuration_of_ones_own_says_which_hosts_there_are() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/trapeze.toml");
    let options = Options {
        config: Some(example.into()),
        tls: true,
        ..servers_only("config")
    };
    let lab = LabGuard::up(&options).unwrap();
    assert_eq!(lab.status().unwrap().hosts.len(), 5);
    // Where its pools say that servers listen.
    let other = on(&lab, "c1", &["curl", "-sSI", "http://10.77.0.23:8081/1k"]);
    assert!(other.contains("X-Backend: b3"), "{other}");
    let config = std::fs::read_to_string(lab.status().unwrap().config).unwrap();
    assert!(config.contains(&format!("name = \"lab-{}\"", lab.name())));
}
