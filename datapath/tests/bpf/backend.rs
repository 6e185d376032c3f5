//! A backend's programs on the bench, in a network namespace of their own, so
//! that only sockets of the test are met.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Care, Kind, Meta, Raw, begins};
use trapeze_datapath::abi::{Done, Pod, Setup};
use trapeze_datapath::agent::{AgentMaps, attach_agent, dones};
use trapeze_datapath::map::{Update, fill_tag_keys};
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::ring::Ring;
use trapeze_datapath::udp::Outbox;
use trapeze_datapath::{netns, object};

use crate::bench::*;
use crate::kernel::{self, Pins};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

pub const DISPATCHER: Ipv4Addr = NODE;
/// The outer source port of what the dispatcher sends, and of answers to it.
pub const ASKER_PORT: u16 = 0xdcbb;

/// This backend.
pub const HERE: Ipv4Addr = BACKEND;

/// Another one.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 13);

/// `enum setup_state`.
pub const TRIED: u32 = 1;
pub const CONFIRMED: u32 = 2;
pub const REFUSED: u32 = 3;

static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.o"));

pub struct Agent {
    pub ingress: OwnedFd,
    pub egress: OwnedFd,
    pub maps: AgentMaps,
    pub dones: Ring<Done>,
    loaded: object::Loaded,
    pub pins: Pins,
}

impl Agent {
    /// On the calling thread's way into a new network namespace.
    pub fn new() -> Self {
        netns::enter_new().expect("these tests need root");
        run_ip("link set lo up");
        run_ip(&format!("address add {}/32 dev lo", VIP.ip()));
        let pins = Pins::new();
        let loaded = kernel::load("agent", AGENT, &pins, &[("setups", 4096)]);
        let agent = Self {
            ingress: loaded.program("agent_ingress"),
            egress: loaded.program("agent_egress"),
            maps: AgentMaps::open(pins.path()).unwrap(),
            dones: dones(pins.path()).unwrap(),
            loaded,
            pins,
        };
        let node = node(HERE, OUR_MAC, 0);
        agent.maps.node.put(&0, &node, Update::Any).unwrap();
        fill_tag_keys(&agent.maps.tag_keys, &cluster_keys()).unwrap();
        agent
    }

    /// As [`Self::new`], and attached to the loopback device, over which packets
    /// to this backend and from it to clients travel.
    pub fn on_the_wire() -> Self {
        let agent = Self::new();
        run_ip(&format!("address add {HERE}/32 dev lo"));
        for there in [*CLIENT.ip(), DISPATCHER, NEIGHBOUR] {
            run_ip(&format!("route add {there}/32 dev lo"));
        }
        // Its clients are on the same host, which real ones are not.
        std::fs::write("/proc/sys/net/ipv4/conf/all/accept_local", "1").unwrap();
        attach_agent(&agent.loaded, "lo").unwrap();
        agent
    }

    /// What its daemon is to tell dispatchers: DONE (14) or ANSWERED (29), as META_* have it.
    pub fn to_tell(&self, kind: u8) -> Vec<Done> {
        let told = self.dones.gather(Duration::from_millis(50)).unwrap();
        told.into_iter()
            .filter(|done| done.meta[1] == kind)
            .collect()
    }

    /// Lets the packet of a frame arrive, and expects this to be counted.
    pub fn receive(&self, what: &str, frame: &[u8], counted: &[&'static str]) {
        self.expect_count(what, || self.send(what, frame), counted);
    }

    /// Lets the packet of a frame arrive.
    pub fn send(&self, what: &str, frame: &[u8]) {
        let mut packets = Outbox::default();
        let to = SocketAddrV4::new(HERE, 0);
        packets.push(to, |bytes| bytes.extend(&frame[ETHERNET..]));
        assert_eq!(RawSocket::open().unwrap().send(&packets), 0, "{what}: lost");
    }

    /// Does something, and expects this to be counted soon, and no more.
    pub fn expect_count(&self, what: &str, work: impl FnOnce(), counted: &[&'static str]) {
        let before = self.counters();
        let deadline = Instant::now() + Duration::from_secs(2);
        work();
        while difference(&before, &self.counters()) != counted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(difference(&before, &self.counters()), counted, "{what}");
    }

    pub fn run(&self, program: &OwnedFd, frame: &[u8]) -> Outcome {
        let before = self.counters();
        let (value, packet) = kernel::test_run(program, frame)
            .unwrap_or_else(|e| panic!("the kernel runs no frame of {} bytes: {e}", frame.len()));
        let verdict = match value {
            u32::MAX => Verdict::Next,
            0 => Verdict::Pass,
            2 => Verdict::Drop,
            7 => Verdict::SendBack,
            other => panic!("{other} is no verdict"),
        };
        Outcome {
            verdict,
            packet: (verdict != Verdict::Drop).then_some(packet),
            counted: difference(&before, &self.counters()),
        }
    }

    pub fn expect(&self, what: &str, frame: &[u8], expected: &Outcome) {
        if let Some(difference) = self.run(&self.ingress, frame).difference(expected) {
            panic!("{what}: {difference}");
        }
    }

    pub fn setup(&self, of: &Tcp) -> Option<Setup> {
        self.maps.setups.get(&flow_key(of.source, of.dest)).unwrap()
    }

    /// As if this flow had been set up here before, under another option.
    pub fn put_setup(&self, of: &Tcp, epoch: u32, start: u32, state: u32) {
        let setup = Setup {
            epoch,
            start,
            state,
            ..Setup::zeroed()
        };
        let key = flow_key(of.source, of.dest);
        self.maps.setups.put(&key, &setup, Update::Any).unwrap();
    }

    pub fn forget(&self) {
        for (key, _) in self.maps.setups.all().unwrap() {
            self.maps.setups.delete(&key).unwrap();
        }
    }

    pub fn counters(&self) -> [Vec<u64>; 2] {
        [&self.maps.drops, &self.maps.events].map(|counters| counters.sums().unwrap())
    }
}

fn run_ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(
        status.expect("iproute2 is installed").success(),
        "ip {arguments}"
    );
}

/// What a dispatcher says with a packet of the flow whose first byte is `start`.
pub fn meta(kind: Kind, epoch: u32, start: u32) -> Meta {
    Meta {
        kind,
        epoch,
        start: ClientSeq::new(start),
        handshake: HANDSHAKE,
        server_port: 0,
        requests: 0,
        care: Care::default(),
    }
}

/// A frame from the dispatcher with an inner IP packet.
pub fn sealed(meta: &Meta, inner: &[u8]) -> Vec<u8> {
    sealed_for(HERE, meta, inner)
}

/// The same of a FORWARD with whose payload a request begins.
pub fn beginning(meta: &Meta, inner: &[u8]) -> Vec<u8> {
    const OPTION_AT: usize = ETHERNET + 28 + 12;
    let mut frame = sealed(meta, inner);
    let (_, option) = frame.split_at_mut(OPTION_AT);
    let option: &mut Raw = option.first_chunk_mut().expect("it is longer");
    *option = begins(*option);
    frame
}

pub fn sealed_for(node: Ipv4Addr, meta: &Meta, inner: &[u8]) -> Vec<u8> {
    let binding = Binding::of_packet(node.into(), inner).expect("a whole packet");
    let mut payload = Vec::new();
    geneve::write(&meta.seal(&keys(), &binding), inner, &mut payload);
    let from = SocketAddrV4::new(DISPATCHER, ASKER_PORT);
    let outer = udp(from, SocketAddrV4::new(node, geneve::PORT), &payload);
    ethernet(THEIR_MAC, OUR_MAC, 0x0800, &outer)
}

/// The answer to such a frame: the same packet, with the agent's word about it.
pub fn reply(meta: &Meta, of: &Tcp) -> Vec<u8> {
    reply_to(meta, &of.packet())
}

pub fn reply_to(meta: &Meta, inner: &[u8]) -> Vec<u8> {
    let binding = Binding::of_packet(DISPATCHER.into(), inner).unwrap();
    let mut payload = Vec::new();
    geneve::write(&meta.seal(&keys(), &binding), inner, &mut payload);
    let from = SocketAddrV4::new(HERE, ASKER_PORT);
    let outer = udp(from, SocketAddrV4::new(DISPATCHER, geneve::PORT), &payload);
    ethernet(OUR_MAC, THEIR_MAC, 0x0800, &outer)
}

/// Up to this host's TCP, unpacked.
pub fn delivered(inner: &[u8], counted: &[&'static str]) -> Outcome {
    let frame = ethernet(THEIR_MAC, OUR_MAC, 0x0800, inner);
    Outcome::new(Verdict::Pass, frame, counted)
}
