//! Labs for tests: named after the test and this process, gone when dropped.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use trapeze_lab::{Lab, LabGuard, Options};

/// Options for a lab of servers only.
pub fn servers_only(test: &str) -> Options {
    Options {
        daemons: false,
        ..Options::named(&format!("{test}-{}", std::process::id()))
    }
}

/// A lab of servers only.
pub fn lab(test: &str) -> LabGuard {
    LabGuard::up(&servers_only(test)).expect("the lab comes up")
}

/// A `trapeze` whose daemons do as `script` says, and whose relay is the real one.
pub fn with_daemons(test: &str, script: &str) -> (Options, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trapeze");
    let text = format!(
        "#!/bin/sh\ncase $1 in lab) exec {} \"$@\" ;; esac\n{script}\n",
        trapeze().display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let options = Options {
        daemons: true,
        program: Some(path),
        ..servers_only(test)
    };
    (options, directory)
}

/// The binary that cargo built.
pub fn trapeze() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("trapeze");
    assert!(path.is_file(), "cargo build -p trapeze-cli");
    path
}

/// Runs `trapeze lab` with `arguments` on the lab `name`.
pub fn trapeze_lab(name: &str, arguments: &[&str]) -> Output {
    Command::new(trapeze())
        .args(["lab", "--name", name])
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs a command on a host and returns what it wrote; it must succeed.
pub fn on(lab: &Lab, host: &str, command: &[&str]) -> String {
    let output = output_on(lab, host, command);
    assert!(
        output.status.success(),
        "{command:?} on {host}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command on a host.
pub fn output_on(lab: &Lab, host: &str, command: &[&str]) -> Output {
    let host = lab.host(host).unwrap();
    host.command(command[0])
        .args(&command[1..])
        .output()
        .unwrap()
}

/// What exists of a lab, anywhere on the machine.
pub fn remains(name: &str) -> Vec<String> {
    let named = |directory: &str| {
        std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path().display().to_string())
            .filter(|path| path.contains(name))
            .collect::<Vec<_>>()
    };
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(name));
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path().join("cmdline");
        let text = std::fs::read_to_string(path).ok()?.replace('\0', " ");
        let is_of_lab = text.contains(&format!("lab/{name}/"));
        is_of_lab.then_some(text)
    });
    named("/run/netns")
        .into_iter()
        .chain(named("/run/trapeze/lab"))
        .chain(named("/var/tmp/trapeze/lab"))
        .chain(named("/sys/fs/bpf/trapeze"))
        .chain(mounts.map(str::to_owned))
        .chain(processes)
        .collect()
}

/// Asserts that nothing of a lab is left.
pub fn assert_gone(name: &str) {
    let remains = remains(name);
    assert!(remains.is_empty(), "{remains:#?}");
}
