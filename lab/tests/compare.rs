//! The comparison of policies runs from end to end and leaves what it promises. What
//! its figures are depends on the machine; which policy finds more in memory does not.
//! Needs root and wrk, and the binary: cargo build -p trapeze-cli.

mod support;

use std::process::Command;

use serde_json::Value;

use support::*;

#[test]
fn a_comparison_writes_its_results_and_takes_its_lab_down() {
    let name = format!("compare-test-{}", std::process::id());
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(trapeze())
        .args(["lab", "--name", &name, "compare", "--json", "--out"])
        .arg(out.path())
        .args(["--policies", "least-connections,hrw", "--backends", "3"])
        .args(["--rounds", "2", "--warm-up", "2", "--seconds", "1"])
        .args(["--connections", "16", "--catalogue", "4"])
        .args(["--cache", "1mib", "--miss", "1ms", "--miss-rate", "100mb"])
        .output()
        .unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["failures"], Value::Array(vec![]));
    let settings = &results["settings"];
    assert_eq!(settings["origin"]["cache_bytes"], 1 << 20);
    assert!(settings["catalogue_bytes"].as_u64().unwrap() >= 4 << 20);
    let hits: Vec<f64> = ["least-connections", "hrw"]
        .into_iter()
        .zip(results["policies"].as_array().unwrap())
        .map(|(name, policy)| {
            assert_eq!(policy["policy"], name);
            let rounds = policy["rounds"].as_array().unwrap();
            assert_eq!(rounds.len(), 2);
            for run in rounds {
                let backends = run["backends"].as_object().unwrap();
                assert_eq!(backends.len(), 3, "{run}");
                let asked = |counts: &Value| counts["requests"].as_u64().unwrap();
                let asked: u64 = backends.values().map(asked).sum();
                // Those that were on their way at the end are nobody's answers.
                let answered = run["requests"].as_u64().unwrap();
                assert!(answered > 0 && asked.abs_diff(answered) <= 2 * 16, "{run}");
            }
            policy["median"]["hit_ratio"].as_f64().unwrap()
        })
        .collect();
    assert!(hits[1] > hits[0] + 0.1, "{hits:?}");
    let read = |file: &str| std::fs::read_to_string(out.path().join(file)).unwrap();
    let written: Value = serde_json::from_str(&read("compare.json")).unwrap();
    assert_eq!(written, results);
    assert!(read("compare.txt").contains("least-connections"));
    assert!(read("compare.svg").ends_with("</svg>\n"));
    assert_eq!(progress.matches("] round ").count(), 4, "{progress}");
    assert_gone(&name);
}
