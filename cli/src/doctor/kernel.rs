//! What every node needs of its machine.

use std::io;
use std::path::Path;
use std::process::Command;

use trapeze_datapath::clock::{self, Discipline};
use trapeze_datapath::host::sysctl;
use trapeze_datapath::netns;
use trapeze_datapath::node::Role;
use trapeze_datapath::object::BPFFS;

use super::Check;

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Rebuilds connections (6.9).
const KFUNC: &str = "bpf_sk_assign_tcp_reqsk";
/// tcx links.
const DISPATCHER_KERNEL: (u32, u32) = (6, 6);
/// The function above.
const AGENT_KERNEL: (u32, u32) = (6, 9);
/// Their numbers are in linux/capability.h.
const CAPABILITIES: [(&str, u32); 4] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// Looks at the machine for nodes of these roles.
pub fn checks(roles: &[Role]) -> Vec<Check> {
    let release = sysctl("kernel/osrelease").unwrap_or_default();
    let mut checks = vec![kernel(&release, roles)];
    let btf = std::fs::read(BTF);
    checks.push(match &btf {
        Ok(_) => Check::ok("BTF", BTF),
        Err(error) => Check::missing(
            "BTF",
            format!("{BTF}: {error}"),
            "install a kernel that is built with CONFIG_DEBUG_INFO_BTF=y",
        ),
    });
    if let (Ok(btf), true) = (&btf, roles.contains(&Role::Agent)) {
        checks.push(kfunc(btf));
    }
    checks.push(jit(jit_enabled()));
    checks.push(bpffs(
        &std::fs::read_to_string("/proc/mounts").unwrap_or_default(),
    ));
    checks.push(capabilities(
        &std::fs::read_to_string("/proc/self/status").unwrap_or_default(),
    ));
    checks.push(iproute2());
    if let Ok(discipline) = clock::discipline() {
        checks.push(clock_check(discipline));
    }
    checks
}

fn kernel(release: &str, roles: &[Role]) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let Some(version) = number().zip(number()) else {
        return Check::warning(
            "kernel",
            format!("{release:?} is no version that this program knows"),
            "uname -r",
        );
    };
    let needs = [
        (Role::Spray, DISPATCHER_KERNEL),
        (Role::Dispatcher, DISPATCHER_KERNEL),
        (Role::Agent, AGENT_KERNEL),
    ];
    let needs = || needs.into_iter().filter(|(role, _)| roles.contains(role));
    let needed: Vec<String> = needs()
        .map(|(role, (major, minor))| format!("{}s need {major}.{minor}", role.name()))
        .collect();
    let detail = format!("Linux {release}; {}", needed.join(", "));
    let (major, minor) = AGENT_KERNEL;
    let mend = format!("install a kernel of version {major}.{minor} or later");
    let enough = needs().filter(|(_, need)| version >= *need).count();
    match (enough == needs().count(), enough > 0) {
        (true, _) => Check::ok("kernel", detail),
        // It will do for one of the roles, and which one is meant is not known.
        (false, true) => Check::warning("kernel", detail, mend),
        (false, false) => Check::missing("kernel", detail, mend),
    }
}

/// Functions stand in BTF by their names.
fn kfunc(btf: &[u8]) -> Check {
    let name = [b"\0", KFUNC.as_bytes(), b"\0"].concat();
    match btf.windows(name.len()).any(|window| window == name) {
        true => Check::ok("rebuilding", format!("the kernel has {KFUNC}()")),
        false => Check::missing(
            "rebuilding",
            format!("the kernel has no {KFUNC}(): it came with 6.9"),
            "install a later kernel, built with CONFIG_SYN_COOKIES=y",
        ),
    }
}

/// The sysctl is to be seen in the machine's first network namespace only.
fn jit_enabled() -> io::Result<String> {
    let name = "net/core/bpf_jit_enable";
    sysctl(name).or_else(|_| netns::inside(Path::new("/proc/1/ns/net"), || sysctl(name)))
}

fn jit(enabled: io::Result<String>) -> Check {
    match enabled.as_deref() {
        Ok("0") => Check::warning(
            "BPF JIT",
            "off: the data path is interpreted, many times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Check::ok("BPF JIT", "on"),
        Err(_) => Check::warning(
            "BPF JIT",
            "cannot be seen from here",
            "look outside of this network namespace: sysctl net.core.bpf_jit_enable",
        ),
    }
}

fn bpffs(mounts: &str) -> Check {
    let is_mounted = mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some(BPFFS) && words.next() == Some("bpf")
    });
    match is_mounted {
        true => Check::ok("bpffs", format!("mounted at {BPFFS}")),
        false => Check::warning(
            "bpffs",
            format!("not mounted at {BPFFS}; a daemon that may mount does it"),
            format!("mount -t bpf bpf {BPFFS}"),
        ),
    }
}

fn capabilities(status: &str) -> Check {
    let effective = (status.lines())
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let lacking: Vec<&str> = (CAPABILITIES.iter())
        .filter(|(_, bit)| effective & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    match lacking.is_empty() {
        true => Check::ok("privileges", CAPABILITIES.map(|(name, _)| name).join(", ")),
        false => Check::missing(
            "privileges",
            format!("this process lacks {}", lacking.join(", ")),
            "run it as root: sudo trapeze doctor",
        ),
    }
}

fn iproute2() -> Check {
    match Command::new("ip").arg("-V").output() {
        Ok(out) if out.status.success() => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            Check::ok("iproute2", text.trim().trim_start_matches("ip utility, "))
        }
        _ => Check::missing(
            "iproute2",
            "there is no `ip`, with which daemons add addresses",
            "apt-get install iproute2",
        ),
    }
}

fn clock_check(discipline: Discipline) -> Check {
    match discipline.synchronised {
        true => Check::ok("clock", "synchronised"),
        // A cookie of the next period of 16 s is still taken.
        false => Check::warning(
            "clock",
            "kept by no time daemon: dispatchers may differ by 16 s at most",
            "apt-get install chrony && systemctl enable --now chrony",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn each_role_needs_its_kernel() {
        use Role::{Agent, Dispatcher};
        for (release, roles, level) in [
            ("6.18.5-cloud", &[Dispatcher, Agent][..], Level::Ok),
            ("6.9.0", &[Agent], Level::Ok),
            ("6.8.0-31-generic", &[Agent], Level::Missing),
            ("6.8.0-31-generic", &[Dispatcher], Level::Ok),
            ("6.8.0-31-generic", &[Dispatcher, Agent], Level::Warning),
            ("5.15.0", &[Dispatcher, Agent], Level::Missing),
            ("7.0-rc1", &[Dispatcher, Agent], Level::Ok),
            ("", &[Agent], Level::Warning),
        ] {
            assert_eq!(kernel(release, roles).level, level, "{release} {roles:?}");
        }
    }

    #[test]
    fn the_function_is_looked_for_by_its_whole_name() {
        let level = |btf: &[u8]| kfunc(btf).level;
        assert_eq!(level(b"a\0bpf_sk_assign_tcp_reqsk\0b"), Level::Ok);
        assert_eq!(level(b"a\0bpf_sk_assign_tcp_reqsk_b\0"), Level::Missing);
    }

    #[test]
    fn mounts_and_capabilities_are_read() {
        let mounted = "bpf /sys/fs/bpf bpf rw,nosuid 0 0\n";
        assert_eq!(bpffs(mounted).level, Level::Ok);
        assert_eq!(
            bpffs("bpf /sys/fs/bpf tmpfs rw 0 0\n").level,
            Level::Warning
        );
        assert_eq!(capabilities("CapEff:\t000001ffffffffff\n").level, Level::Ok);
        let some = capabilities("CapEff:\t0000000000003000\n");
        assert_eq!(some.detail, "this process lacks CAP_PERFMON, CAP_BPF");
    }

    #[test]
    fn the_jit_may_be_off_or_out_of_sight() {
        assert_eq!(jit(Ok("1".into())).level, Level::Ok);
        assert_eq!(jit(Ok("0".into())).level, Level::Warning);
        assert_eq!(
            jit(Err(io::ErrorKind::NotFound.into())).level,
            Level::Warning
        );
    }
}
