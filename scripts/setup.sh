#!/bin/bash
# Installs what is missing to build, show, test or measure Trapeze on Debian 12
# and 13. Repeat it as you like: where nothing is missing it does nothing, and
# needs neither root nor the network.
#
#   scripts/setup.sh [build] [lab] [test] [bench]      all of them if none is named
set -euo pipefail

# To compile: the C of libbpf, the programs for the kernel (by clang, chosen
# below), and a linker for Rust.
BUILD=(
    gcc             # libbpf's C, and the linker
    libc6-dev       # its headers
    make            # libbpf's build
    pkg-config      # finds the next two
    libelf-dev      # libbpf reads objects with it
    zlib1g-dev      # and their compressed sections
    linux-libc-dev  # <linux/bpf.h> and <asm/types.h>
)
# For `trapeze lab` and the demo: namespaces, servers, a client.
LAB=(
    iproute2        # ip, bridge
    ethtool         # offloads of emulated links
    util-linux      # setpriv
    nginx-light     # a server
    etcd-server     # where members are registered
    etcd-client     # to look at them
    nftables        # the kernel's NAT, to compare with
    apache2         # another one
    python3         # the lab's own server
    openssl         # certificates
    curl            # a client
    ca-certificates
)
# What the tests use beyond the lab.
TEST=(
    iputils-ping    # is that host there?
    iperf3          # how much a link lets through
    tcpdump         # what is on the wire
    chromium        # a real browser
    wget            # clients of several makes
    siege
    wrk             # a load generator
    perl
    nodejs
    golang-go
    python3-websockets
    xxd             # seeds of the fuzzers
)
# Load generators, and a proxy to compare with.
BENCH=(
    wrk
    apache2-utils   # ab
    haproxy
)
# Any of these compiles the programs; the first that apt has is installed.
CLANGS=(clang-16 clang-19 clang)
# As datapath/build.rs looks for them.
CLANG_PROGRAMS=(clang clang-19 clang-16 clang-15 clang-14)
# Packages that start a service when they are installed: labs have their own.
SERVICES=(nginx apache2 haproxy etcd)

RUST_VERSION=1.90   # rust-version in Cargo.toml
KERNEL_VERSION=6.9  # bpf_sk_assign_tcp_reqsk()

main() {
    local sets=("$@") wanted=() missing=()
    [ $# -gt 0 ] || sets=(build lab test bench)
    for set in "${sets[@]}"; do
        case $set in
            build) wanted+=("${BUILD[@]}") ;;
            lab) wanted+=("${LAB[@]}") ;;
            test) wanted+=("${TEST[@]}") ;;
            bench) wanted+=("${BENCH[@]}") ;;
            *) fail "there is no set $set: build, lab, test, bench" ;;
        esac
    done
    for package in "${wanted[@]}"; do
        is_installed "$package" || missing+=("$package")
    done
    local needs_clang=no
    if includes build "${sets[@]}" && ! has_clang; then
        needs_clang=yes
    fi
    if [ ${#missing[@]} -gt 0 ] || [ $needs_clang = yes ]; then
        install_packages $needs_clang "${missing[@]}"
    fi
    if includes build "${sets[@]}"; then
        check_rust
    fi
    if includes lab "${sets[@]}"; then
        check_kernel
    fi
}

# install_packages NEEDS_CLANG PACKAGE...
install_packages() {
    local needs_clang=$1
    shift
    command -v apt-get >/dev/null ||
        fail "this is not Debian. Install the like of: $* ${CLANGS[0]}"
    local root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null ||
            fail "missing: $* $([ "$needs_clang" = no ] || echo clang). Run scripts/setup.sh as root"
        root=(sudo)
    fi
    "${root[@]}" apt-get update -qq
    if [ "$needs_clang" = yes ]; then
        local clang
        clang=$(first_known "${CLANGS[@]}")
        set -- "$@" "$clang"
    fi
    echo "setup: installing $*"
    keep_services_off "${root[@]}"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" </dev/null
    disable_services "$*" "${root[@]}"
}

# Until this script ends, packages start no services (invoke-rc.d(8)).
keep_services_off() {
    local policy=/usr/sbin/policy-rc.d
    [ ! -e $policy ] || return 0
    # shellcheck disable=SC2064  # expanded now: it is gone when the trap runs
    trap "$* rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' | "$@" tee $policy >/dev/null
    "$@" chmod 755 $policy
}

# disable_services INSTALLED ROOT...: nor at the next boot.
disable_services() {
    local installed=$1
    shift
    [ -d /run/systemd/system ] || return 0
    for service in "${SERVICES[@]}"; do
        case " $installed " in
            *" $service "* | *" $service-light "* | *" $service-server "*)
                "$@" systemctl disable --quiet "$service"
                echo "setup: $service is installed and its service disabled: labs run their own"
                ;;
        esac
    done
}

check_rust() {
    # Where rustup puts it, if this shell does not know yet.
    export PATH=$PATH:$HOME/.cargo/bin
    local have
    if ! have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || [ -z "$have" ]; then
        echo "setup: Rust is missing. To get it:" >&2
        echo "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
        if [ -n "${SUDO_USER:-}" ]; then
            echo "If $SUDO_USER has it: run make without sudo; it asks for root where it needs it." >&2
        fi
        exit 1
    fi
    is_at_least "$have" $RUST_VERSION ||
        fail "Rust $have is too old, $RUST_VERSION or later is needed: rustup update stable"
}

# Not an error: one may build here for other hosts.
check_kernel() {
    local have
    have=$(uname -r)
    is_at_least "$have" $KERNEL_VERSION || {
        echo "setup: WARNING: Linux $have. Labs and backends need $KERNEL_VERSION or later." >&2
        echo "    Debian 13 has it; on Debian 12: linux-image-amd64 from bookworm-backports" >&2
    }
    [ -e /sys/kernel/btf/vmlinux ] ||
        echo "setup: WARNING: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF): programs cannot be loaded" >&2
}

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

has_clang() {
    for program in "${CLANG_PROGRAMS[@]}"; do
        ! command -v "$program" >/dev/null || return 0
    done
    return 1
}

# The first package that apt can install.
first_known() {
    for package in "$@"; do
        # "(none)" where it knows the name only from others' dependencies
        if [[ $(apt-cache policy "$package") == *"Candidate: "[!\(]* ]]; then
            echo "$package"
            return
        fi
    done
    fail "apt knows none of: $*"
}

# is_at_least HAVE WANTED, by versions
is_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# includes WORD WORDS...
includes() {
    local word=$1
    shift
    case " $* " in *" $word "*) return 0 ;; *) return 1 ;; esac
}

fail() {
    echo "setup: $*" >&2
    exit 1
}

main "$@"
