//! The bench runs from end to end and leaves what it promises. What its figures
//! are depends on the machine and is not asserted. Needs root, nginx and wrk, and
//! the binary: cargo build -p trapeze-cli.

mod support;

use std::process::Command;

use serde_json::Value;

use support::*;

#[test]
fn a_bench_writes_its_results_and_takes_its_lab_down() {
    let name = format!("bench-test-{}", std::process::id());
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(trapeze())
        .args(["lab", "--name", &name, "bench", "--json", "--out"])
        .arg(out.path())
        .args(["--rounds", "1", "--seconds", "1", "--sizes", "1k"])
        .args(["--targets", "direct,trapeze", "--connections", "4"])
        .output()
        .unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["failures"], Value::Array(vec![]));
    assert!(results["environment"]["haproxy"].is_null());
    let cases = results["cases"].as_array().unwrap();
    let modes: Vec<&Value> = cases.iter().map(|case| &case["mode"]).collect();
    assert_eq!(
        modes,
        ["connection-per-request", "keep-alive", "one-connection"]
    );
    for case in cases {
        let targets = case["targets"].as_array().unwrap();
        let names: Vec<&Value> = targets.iter().map(|target| &target["target"]).collect();
        assert_eq!(names, ["direct", "trapeze"]);
        for target in targets {
            let run = &target["rounds"][0];
            assert_eq!(run["round"], 1);
            assert!(run["requests"].as_u64().unwrap() > 0, "{target}");
            assert!(run["machine_cpu_us"].as_u64().unwrap() > 0, "{target}");
            let bytes = target["median"]["megabytes_per_s"].as_f64().unwrap();
            assert!(bytes > 0.0, "{target}");
        }
        for by in ["by_rate", "by_cpu"] {
            let comparison = &case["ratios"][by];
            assert!(comparison["of_direct"]["median"].is_f64(), "{case}");
            assert!(comparison["of_best_proxy"].is_null(), "{case}");
            assert!(comparison["of_splicing"].is_null(), "{case}");
        }
    }
    let read = |file: &str| std::fs::read_to_string(out.path().join(file)).unwrap();
    let written: Value = serde_json::from_str(&read("bench.json")).unwrap();
    assert_eq!(written, results);
    assert!(read("bench.txt").contains("Trapeze"));
    assert!(read("bench.svg").ends_with("</svg>\n"));
    assert_eq!(progress.matches("] round 1 ").count(), 6, "{progress}");
    assert_gone(&name);
}
