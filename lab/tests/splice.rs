//! The experiments of [SPLICE06 §7] run from end to end and leave what they promise.
//! Needs root and wrk, and the binary: cargo build -p trapeze-cli.

mod support;

use std::process::Command;

use serde_json::Value;

use support::*;

#[test]
fn an_experiment_writes_its_results_and_takes_its_labs_down() {
    let name = format!("splice-test-{}", std::process::id());
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(trapeze())
        .args(["lab", "--name", &name, "splice", "--json", "--out"])
        .arg(out.path())
        .args(["--experiments", "split", "--largest", "10mb"])
        .args(["--rounds", "1", "--transfers", "4", "--rate", "1gbit"])
        .output()
        .unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["failures"], Value::Array(vec![]));
    let cases = results["cases"].as_array().unwrap();
    let setups: Vec<_> = cases.iter().map(|case| &case["setup"]).collect();
    assert_eq!(setups, ["C-S", "C-LB-P-S", "C-LB-P-S*"]);
    for case in cases {
        assert!(case["published"]["total_s"].as_f64().unwrap() > 88.0);
        let run = &case["runs"][0];
        assert_eq!(run["durations_s"].as_array().unwrap().len(), 4, "{run}");
        // No faster than the link.
        let mbps = run["mbps"].as_f64().unwrap();
        assert!(mbps > 0.0 && mbps < 1000.0, "{mbps}");
    }
    let written = std::fs::read_to_string(out.path().join("splice.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), results);
    let table = std::fs::read_to_string(out.path().join("splice.txt")).unwrap();
    assert!(table.contains("GET 10 MB   C-LB-P-S*"), "{table}");
    assert_gone(&name);
}
