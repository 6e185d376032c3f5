//! Compiles the BPF programs, and makes Rust tables of the names in abi/counters.h.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const PROGRAMS: [&str; 7] = [
    "spray_tc",
    "spray_xdp",
    "dispatch_tc",
    "dispatch_xdp",
    "agent",
    "lab_switch",
    "softirq",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bpf =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../bpf");
    for program in PROGRAMS {
        libbpf_cargo::SkeletonBuilder::new()
            .source(bpf.join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{program}.o")))
            .clang(clang())
            .clang_args(clang_args(&bpf))
            .build()
            .unwrap_or_else(|e| panic!("{program}.bpf.c: {e:?}"));
    }
    let counters = bpf.join("include/abi/counters.h");
    let counters = fs::read_to_string(counters).expect("bpf/include/abi/counters.h is readable");
    fs::write(out.join("names.rs"), names(&counters)).expect("OUT_DIR is writable");
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=CLANG");
}

/// `$CLANG`, or the newest clang that is installed; all from 14 on will do.
fn clang() -> OsString {
    env::var_os("CLANG").unwrap_or_else(|| {
        ["clang", "clang-19", "clang-16", "clang-15", "clang-14"]
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok())
            .unwrap_or_else(|| panic!("no clang found: apt-get install clang-16, or set CLANG"))
            .into()
    })
}

fn clang_args(bpf: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = ["-mcpu=v3", "-Wall", "-Werror"].map(Into::into).into();
    // <asm/types.h> is in the multiarch directory, which clang omits for the bpf target.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let mut dirs = vec![bpf.to_owned(), bpf.join("include")];
    dirs.push(format!("/usr/include/{arch}-linux-gnu").into());
    for dir in dirs {
        args.push("-I".into());
        args.push(dir.into());
    }
    args
}

/// `X(NAME, "name", "text")` lines of the two tables in abi/counters.h.
fn names(counters: &str) -> String {
    let mut rust = String::new();
    for (table, constant) in [("DROP_REASONS", "DROP_REASONS"), ("EVENTS", "EVENTS")] {
        let body = counters
            .split_once(&format!("#define {table}(X)"))
            .and_then(|(_, rest)| rest.split_once("enum "))
            .unwrap_or_else(|| panic!("counters.h has no table {table}"))
            .0;
        rust += &format!(
            "/// Name and meaning of each, in the order of abi/counters.h.\npub const {constant}: &[(&str, &str)] = &[\n"
        );
        for line in body.lines().filter(|l| l.trim_start().starts_with("X(")) {
            let strings: Vec<&str> = line.split('"').collect();
            rust += &format!("    ({:?}, {:?}),\n", strings[1], strings[3]);
        }
        rust += "];\n";
    }
    rust
}
