//! `trapeze sim` as its user sees it. Needs nothing.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trapeze"))
        .arg("sim")
        .args(arguments.split(' '))
        .output()
        .unwrap()
}

fn json(arguments: &str) -> Value {
    let output = sim(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn compare_runs_every_policy_on_every_cluster_and_draws() {
    let svg = std::env::temp_dir().join(format!("trapeze-sim-{}.svg", std::process::id()));
    let arguments = "compare -w zipf -p rr,hrw,wlc@blindly -b 2,4 -n 2000 --cache 1.5M";
    let report = json(&format!("{arguments} --svg {}", svg.display()));
    let outcomes = report["outcomes"].as_array().unwrap();
    let runs: Vec<_> = (outcomes.iter())
        .map(|o| {
            (
                o["policy"].as_str().unwrap(),
                o["backends"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        runs,
        [
            ("rr", 2),
            ("hrw", 2),
            ("wlc@blindly", 2),
            ("rr", 4),
            ("hrw", 4),
            ("wlc@blindly", 4)
        ]
    );
    assert!(outcomes.iter().all(|o| o["requests"] == 1600));
    let drawn = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("polyline"));
}

#[test]
fn policies_take_parameters_and_backends_die() {
    let report =
        json("compare -w zipf -p lard-r:t_high=30:t_low=10,wlc -b 3 -n 20000 --fail b2@5s");
    let outcomes = report["outcomes"].as_array().unwrap();
    assert_eq!(outcomes[0]["policy"], "lard-r:t_high=30:t_low=10");
    for outcome in outcomes {
        let of = outcome["requests_by_backend"].as_array().unwrap();
        assert!(of[1].as_u64() < of[0].as_u64(), "{outcome}");
    }
}

#[test]
fn traces_are_read_and_what_is_wrong_with_them_is_said() {
    let log = std::env::temp_dir().join(format!("trapeze-sim-{}.csv", std::process::id()));
    std::fs::write(
        &log,
        "t,url,bytes,status,method\n0,/a,10,200,GET\nbad\n1,/b,10,200,GET\n",
    )
    .unwrap();
    let profile = json(&format!("trace {}", log.display()));
    assert_eq!(profile[0]["reading"]["malformed"], 1);
    assert_eq!(profile[0]["profile"]["requests"], 2);
    let compared = sim(&format!("compare -t {} -p rr -b 1", log.display()));
    std::fs::remove_file(&log).unwrap();
    assert!(compared.status.success());
    let remarks = String::from_utf8(compared.stderr).unwrap();
    assert!(
        remarks.contains("1 of 3 lines left out: no column for the URL, first line 3"),
        "{remarks}"
    );
}

#[test]
fn what_does_not_exist_is_answered_by_what_does() {
    for (arguments, known) in [
        ("compare -w nothing", "webbench"),
        ("compare -p nothing", "least-connections"),
        ("compare -p rr@nothing", "blindly"),
        ("compare -p lard:t_hgih=5", "did you mean `t_high`"),
        ("compare -p lard:t_low=99", "above `t_high`"),
        ("compare -p lard:t_high=", "`t_high=` has no value"),
        ("compare -p lard:t_high", "`t_high` has no value"),
        ("compare -p rr@foo", "write rr@connections"),
        ("compare --fail b9@1s", "there is no b9 of 8"),
        ("compare --fail b1", "b3@20s..40s"),
        ("compare --hardware nothing", "lvscad07"),
        ("paper nothing", "lacp03"),
        ("trace /nonexistent", "cannot read it"),
    ] {
        let output = sim(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains(known),
            "{arguments}: {said}"
        );
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (arguments, said) in [
        ("compare -n 0", "0 is not in 1..="),
        ("compare -b 0", "0 is not in 1..=1024"),
        ("compare -b 4,5000", "5000 is not in 1..=1024"),
        ("tournament -b 0", "0 is not in 1..=1024"),
        ("compare --dispatchers 0", "0 is not in 1..="),
        ("compare --threads 0", "0 is not in 1..="),
        ("compare -t x --users 4000000000", "is not in 1..=1000000"),
        ("compare -t x --copies 1000000000", "is not in 1..=1000"),
        ("compare -t x --speed 0", "a factor from 0.001"),
        ("compare -t x --speed inf", "a factor from 0.001"),
        ("compare -t x --speed nan", "a factor from 0.001"),
        ("compare --cache 9999T", "more than 1024T"),
        ("compare -p rr --users 5", "--users is for recorded traces"),
        ("compare -p rr --speed 5", "--speed is for recorded traces"),
        (
            "compare -p rr --copies 5",
            "--copies is for recorded traces",
        ),
        ("compare -p rr -b 1 -n 2000 --drain b1@1s", "24 users wait"),
    ] {
        let output = sim(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.contains(said),
            "{arguments}: {text}"
        );
    }
    assert!(
        sim("compare -p rr -n 2000 --cache 1999999999")
            .status
            .success()
    );
}

#[test]
fn what_is_left_without_a_backend_is_said() {
    let arguments = "compare -p rr -b 1 -n 2000 --fail b1@30s";
    let outcome = &json(arguments)["outcomes"][0];
    assert_eq!(outcome["unanswered"], 24, "{outcome}");
    let text = String::from_utf8(sim(arguments).stdout).unwrap();
    assert!(
        text.contains("never answered, as all backends were gone or drained: rr 24"),
        "{text}"
    );
}

/// A fifth of what there is fills memory, however much was asked for.
#[test]
fn a_trace_is_warmed_up_by_a_fifth_of_itself() {
    let trace = Scratch::of(
        "short.csv",
        &(0..10_000)
            .map(|n| format!("{n},/{},1000,200,GET\n", n % 700))
            .collect::<String>(),
    );
    let run = |n: &str| {
        let output = sim(&format!("compare -t {} -p rr,wlc -b 2 --json{n}", trace.0));
        let said = String::from_utf8(output.stderr).unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (report, said)
    };
    let (whole, said) = run("");
    assert!(said.is_empty(), "{said}");
    let counted = whole["outcomes"][0]["requests"].as_u64().unwrap();
    assert!((7_000..=8_000).contains(&counted), "{counted}");
    let (more, said) = run(" -n 500000");
    assert_eq!(whole, more);
    assert!(
        said.contains("10000 requests, fewer than -n 500000"),
        "{said}"
    );
}

#[test]
fn numbers_of_a_tiny_trace_are_said_to_be_chance() {
    let trace = Scratch::of(
        "tiny.csv",
        &(0..20)
            .map(|n| format!("{n},/{n},0,304,GET\n"))
            .collect::<String>(),
    );
    for command in ["compare", "tournament -w none"] {
        let output = sim(&format!("{command} -p wlc,lard-r,rr -t {}", trace.0));
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("20 requests of 479 users"), "{said}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("NaN") && !text.contains("000000"), "{text}");
    }
    let report = json(&format!("tournament -w none -p wlc,rr -t {}", trace.0));
    for of_best in report["bound_of_best"].as_array().unwrap() {
        assert!(
            of_best.is_null() || of_best.as_f64() >= Some(1.0),
            "{report}"
        );
    }
}

#[test]
fn traces_without_urls_are_refused() {
    let trace = Scratch::of("nourl.csv", "t,bytes,status\n0,10,200\n");
    for command in ["trace", "compare -t", "tournament -w none -t"] {
        let output = sim(&format!("{command} {}", trace.0));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("without a column for the URL"),
            "{said}"
        );
    }
}

/// A file that is gone with the test.
struct Scratch(String);

impl Scratch {
    fn of(name: &str, text: &str) -> Self {
        let name = format!("trapeze-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Scratch(path.display().to_string())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn subclusters_keep_state_and_messages_from_growing() {
    let report = json("subclusters -n 200,2000 -s 50 -c 10 -p 4");
    let outcomes = report["outcomes"].as_array().unwrap();
    let of = |at: usize, key: &str| outcomes[at][key].as_f64().unwrap();
    assert_eq!((of(0, "clusters"), of(1, "clusters")), (4.0, 40.0));
    for at in [0, 1] {
        assert_eq!(outcomes[at]["records"]["mean"], 500.0);
        assert_eq!(outcomes[at]["messages"]["updates"], 98.0);
    }
    assert_eq!(of(1, "records_flat"), 20_000.0);
    let text = sim("subclusters -n 100");
    assert!(String::from_utf8_lossy(&text.stdout).contains("sub-clusters"));
    assert!(!sim("subclusters -n 0").status.success());
}

#[test]
fn a_tournament_tells_how_far_anyone_could_get() {
    let trace = std::env::temp_dir().join(format!("trapeze-many-{}.csv", std::process::id()));
    let lines = (0..3000).map(|n| format!("{n},/{},{},200,GET\r\n", n * n % 701, 1000 + n % 7));
    std::fs::write(&trace, lines.collect::<String>()).unwrap();
    let arguments = format!(
        "tournament -w none -b 2 -p lard-r,wlc -t {}",
        trace.display()
    );
    let report = json(&arguments);
    let output = sim(&arguments);
    std::fs::remove_file(&trace).unwrap();
    assert_eq!(report["rounds"].as_array().unwrap().len(), 2);
    for (bound, of_best) in (report["bounds"].as_array().unwrap().iter())
        .zip(report["bound_of_best"].as_array().unwrap())
    {
        assert!(bound["slack"].as_f64().unwrap() > 0.0, "{report}");
        // None where that blurs it.
        assert!(
            of_best.is_null() || of_best.as_f64() >= Some(1.0),
            "{report}"
        );
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("limited by") && text.contains("over lard-r"),
        "{text}"
    );
    assert!(text.contains("at most"), "{text}");
    // Enough of them for 89 users at once.
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.is_empty(), "{said}");
}

#[test]
fn a_tournament_wants_something_to_run_and_enough_of_it() {
    let refused = |arguments: &str, said: &str| {
        let output = sim(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{text}");
    };
    refused("tournament -w none", "nothing to run");
    refused("tournament -w zipff", "there are: zipf");
    let trace = std::env::temp_dir().join(format!("trapeze-few-{}.csv", std::process::id()));
    std::fs::write(&trace, "0,/a,1,200,GET\n").unwrap();
    let output = sim(&format!("tournament -w none -p wlc -t {}", trace.display()));
    std::fs::remove_file(&trace).unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("1 requests") && said.contains("chance"),
        "{said}"
    );
}
