//! A spray's program: which packets go to a dispatcher, to which, and how; what is left
//! to the host; heartbeats.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use trapeze_core::config::SprayMode;
use trapeze_core::flow::{FlowKey as CoreKey, addr_bytes};
use trapeze_core::membership::{Presence, SprayState, Workload, lots};
use trapeze_core::wire::again::Kept;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Kind, Meta};
use trapeze_datapath::abi::{
    self, Backend, DISPATCHERS_MAX, Dispatcher, Pod, Service, ServiceKey, Spraying,
};
use trapeze_datapath::clock;
use trapeze_datapath::map::{Update, fill_tag_keys};
use trapeze_datapath::object;
use trapeze_datapath::sent::{self, SharedSent};
use trapeze_datapath::spray::{SharedLots, SprayMaps};

use crate::backend::{ASKER_PORT, sealed_for};
use crate::bench::*;
use crate::kernel::{self, Pins};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

static SPRAY_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spray_tc.o"));
static SPRAY_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spray_xdp.o"));

const CLUSTER: &str = "bench";
/// Who asks for heartbeats.
const ASKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
/// Where the dispatcher with the slot is.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 0);

/// A spray on the bench: every slot has a dispatcher, and lot n is that of slot n modulo
/// their number.
pub struct Spray {
    hook: Hook,
    pub program: OwnedFd,
    maps: SprayMaps,
    lots: SharedLots,
    _loaded: object::Loaded,
    _pins: Pins,
}

impl Spray {
    pub fn new(hook: Hook) -> Self {
        let (name, bytes) = match hook {
            Hook::Tc => ("spray_tc", SPRAY_TC),
            Hook::Xdp => ("spray_xdp", SPRAY_XDP),
        };
        let pins = Pins::new();
        let loaded = kernel::load(name, bytes, &pins, &[]);
        let maps = SprayMaps::open(pins.path()).unwrap();
        let spray = Self {
            hook,
            program: loaded.program("spray"),
            lots: SharedLots::map(&maps.lots).unwrap(),
            maps,
            _loaded: loaded,
            _pins: pins,
        };
        for port in [0, VIP.port(), PLAIN_VIP.port()] {
            let key = ServiceKey::new((*VIP.ip()).into(), port);
            spray
                .maps
                .services
                .put(&key, &SERVICE, Update::Any)
                .unwrap();
        }
        let node = node(NODE, OUR_MAC, 0);
        spray.maps.node.put(&0, &node, Update::Any).unwrap();
        fill_tag_keys(&spray.maps.tag_keys, &cluster_keys()).unwrap();
        spray.set_mode(SprayMode::FlowHash);
        for slot in 0..DISPATCHERS_MAX as u32 {
            spray.put_dispatcher(slot, |_| {});
        }
        let slots: Vec<u16> = (0..abi::LOTS)
            .map(|lot| (lot % DISPATCHERS_MAX) as u16)
            .collect();
        spray.lots.set(&slots);
        spray
    }

    fn both() -> [Self; 2] {
        [Self::new(Hook::Tc), Self::new(Hook::Xdp)]
    }

    fn set_mode(&self, mode: SprayMode) {
        let spraying = Spraying::new(mode, CLUSTER);
        self.maps.spraying.put(&0, &spraying, Update::Any).unwrap();
    }

    fn put_dispatcher(&self, slot: u32, change: impl FnOnce(&mut Dispatcher)) {
        let mut entry = Dispatcher {
            addr: addr_bytes(address(slot).into()),
            name: Backend::name_bytes(&format!("d{slot}")),
            source: NODE.octets(),
            live: 1,
            ifindex: ELSEWHERE,
            destination_mac: BACKEND_MAC,
            source_mac: EGRESS_MAC,
            ..Dispatcher::zeroed()
        };
        // The coarse clock may be behind by a tick: no time at all is too short.
        entry.resolved_ns = clock::monotonic().as_nanos() as u64 - 20_000_000;
        change(&mut entry);
        self.maps
            .dispatchers
            .put(&slot, &entry, Update::Any)
            .unwrap();
    }

    fn run(&self, frame: &[u8]) -> Outcome {
        let counters = || [&self.maps.drops, &self.maps.events].map(|c| c.sums().unwrap());
        let before = counters();
        let (value, packet) = kernel::test_run(&self.program, frame).unwrap();
        let verdict = verdict(self.hook, value, &packet);
        Outcome {
            verdict,
            packet: (verdict != Verdict::Drop).then_some(packet),
            counted: difference(&before, &counters()),
        }
    }

    fn expect(&self, what: &str, frame: &[u8], expected: &Outcome) {
        // The way there is looked up each second; a test may take longer.
        for slot in [slot_of(CLIENT), slot_of(OTHER)] {
            let entry = self.maps.dispatchers.get(&slot).unwrap().unwrap();
            self.put_dispatcher(slot, |new| (new.far, new.name) = (entry.far, entry.name));
        }
        let mut expected = expected.clone();
        if self.hook == Hook::Xdp && expected.verdict == Verdict::Next {
            expected.verdict = Verdict::Pass;
        }
        if let Some(difference) = self.run(frame).difference(&expected) {
            panic!("{:?}: {what}: {difference}", self.hook);
        }
    }

    fn sent(&self) -> Vec<u64> {
        self.maps.sprayed.sums().unwrap()
    }
}

const OTHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 34), 40123);

fn address(slot: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST.to_bits() + slot)
}

/// Whose the connection from there to [`VIP`] is, by the rule of core.
fn slot_of(client: SocketAddrV4) -> u32 {
    let flow = CoreKey {
        client: client.into(),
        vip: VIP.into(),
    };
    let lot = lots::lot_of(&lots::key(CLUSTER), &flow).unwrap();
    (lot % DISPATCHERS_MAX) as u32
}

/// To the dispatcher, by its link address.
fn addressed(frame: &[u8]) -> Outcome {
    let packet = ethernet(EGRESS_MAC, BACKEND_MAC, 0x0800, &frame[ETHERNET..]);
    Outcome::new(Verdict::Redirect, packet, &["sprayed"])
}

/// To the dispatcher with that slot, in the encapsulation.
fn enclosed(slot: u32, client_port: u16, frame: &[u8]) -> Outcome {
    let inner = &frame[ETHERNET..];
    let binding = Binding::of_packet(address(slot).into(), inner).unwrap();
    let mut payload = Vec::new();
    let raw = Meta::of(Kind::Sprayed { again: false }).seal(&keys(), &binding);
    geneve::write(&raw, inner, &mut payload);
    let source = SocketAddrV4::new(NODE, client_port | 0xc000);
    let outer = udp(
        source,
        SocketAddrV4::new(address(slot), geneve::PORT),
        &payload,
    );
    let packet = ethernet(EGRESS_MAC, BACKEND_MAC, 0x0800, &outer);
    Outcome::new(Verdict::Redirect, packet, &["sprayed", "encapsulated"])
}

#[test]
fn packets_for_services_go_to_the_dispatcher_of_their_lot_as_they_are() {
    let tcp = |flags, payload: &[u8]| segment(flags, 5, 6, payload);
    let table = [
        ("a SYN", tcp(SYN, b"").frame()),
        ("payload", tcp(ACK | PSH, REQUEST).frame()),
        ("a full segment", tcp(ACK, &[7; 1388]).frame()),
        ("FIN", tcp(ACK | FIN, b"").frame()),
        ("RST", tcp(RST, b"").frame()),
        (
            "senseless flags: the dispatcher decides",
            tcp(SYN | RST, b"").frame(),
        ),
        ("a checksum for the card", tcp(ACK, REQUEST).frame_partial()),
        (
            "the other port",
            Tcp {
                dest: PLAIN_VIP,
                ..tcp(SYN, b"")
            }
            .frame(),
        ),
        ("padding", [&tcp(ACK, b"").frame()[..], &[0xee; 6]].concat()),
    ];
    for spray in Spray::both() {
        for (what, frame) in &table {
            spray.expect(what, frame, &addressed(frame));
        }
        let slot = slot_of(CLIENT) as usize;
        assert_eq!(spray.sent()[slot], table.len() as u64 - 1);
    }
}

#[test]
fn behind_a_router_they_are_encapsulated() {
    let (slot, other) = (slot_of(CLIENT), slot_of(OTHER));
    assert_ne!(slot, other, "two dispatchers");
    for spray in Spray::both() {
        spray.put_dispatcher(slot, |entry| entry.far = 1);
        for payload in [&b""[..], REQUEST, &[9; 1400]] {
            let frame = segment(ACK, 5, 6, payload).frame();
            let expected = enclosed(slot, CLIENT.port(), &frame);
            spray.expect("a segment", &frame, &expected);
            let near = Tcp {
                source: OTHER,
                ..segment(ACK, 5, 6, payload)
            }
            .frame();
            spray.expect("another's", &near, &addressed(&near));
        }
        // Its key is gone.
        let id = KEY_IDS[0].into();
        spray
            .maps
            .tag_keys
            .put(&id, &Pod::zeroed(), Update::Any)
            .unwrap();
        let frame = segment(ACK, 5, 6, b"").frame();
        spray.expect("nobody signs", &frame, &Outcome::drop("bad-tag"));
    }
}

#[test]
fn lots_are_drawn_by_the_rule_of_core() {
    let mut random = SmallRng::seed_from_u64(14);
    for spray in Spray::both() {
        for _ in 0..300 {
            let client = SocketAddrV4::new(Ipv4Addr::from_bits(random.random()), random.random());
            let slot = slot_of(client);
            spray.put_dispatcher(slot, |_| {});
            let before = spray.sent()[slot as usize];
            let frame = Tcp {
                source: client,
                ..segment(SYN, 5, 6, b"")
            }
            .frame();
            spray.run(&frame);
            assert_eq!(spray.sent()[slot as usize], before + 1, "{client}");
        }
        // By turn: rows of seven, wherever they come from.
        spray.set_mode(SprayMode::Batch(7));
        let before = spray.sent();
        for slot in 0..DISPATCHERS_MAX as u32 {
            spray.put_dispatcher(slot, |_| {});
        }
        for round in 0..70u16 {
            let client = SocketAddrV4::new(*CLIENT.ip(), 1000 + round);
            spray.run(
                &Tcp {
                    source: client,
                    ..segment(SYN, 5, 6, b"")
                }
                .frame(),
            );
        }
        let after = spray.sent();
        let rows: Vec<u64> = (before.iter().zip(&after)).map(|(a, b)| b - a).collect();
        assert_eq!(rows.iter().sum::<u64>(), 70);
        // This thread may have been moved to another CPU once.
        let whole = rows.iter().filter(|&&row| row == 7).count();
        assert!(whole >= 7, "{rows:?}");
        // By chance: no two alike, in the long run.
        spray.set_mode(SprayMode::Workload);
        for slot in 0..DISPATCHERS_MAX as u32 {
            spray.put_dispatcher(slot, |_| {});
        }
        let before = spray.sent();
        for _ in 0..1000 {
            spray.run(&segment(SYN, 5, 6, b"").frame());
        }
        let hit = (before.iter().zip(&spray.sent()))
            .filter(|(a, b)| a < b)
            .count();
        // 256 (1 - e^-(1000/256)) = 251.
        assert!(hit > 230, "{hit}");
    }
}

#[test]
fn when_a_splice_address_was_last_used_is_noted() {
    let own = Ipv4Addr::new(198, 51, 100, 9);
    let key = ServiceKey::new(own.into(), 0);
    let from_server = Tcp {
        dest: SocketAddrV4::new(own, 2000),
        ..segment(ACK, 5, 6, REQUEST)
    }
    .frame();
    for spray in Spray::both() {
        let services = &spray.maps.services;
        let used = || services.get(&key).unwrap().unwrap().id;
        services
            .put(&key, &Service::splice_address(7), Update::Any)
            .unwrap();
        let to_service = segment(ACK, 5, 6, REQUEST).frame();
        spray.expect("a client's", &to_service, &addressed(&to_service));
        assert_eq!(used(), 7);
        spray.run(&from_server);
        let now = clock::monotonic().as_secs() as u32;
        assert!(now - used() <= 1, "{} is not {now}", used());
    }
}

#[test]
fn what_nobody_could_place_is_dropped_by_name() {
    let good = segment(ACK, 5, 6, REQUEST).frame();
    let fragment = |at: usize, byte| summed(with(good.clone(), &[(at, byte)]));
    let long = summed(with(good.clone(), &[(ETHERNET + 2, 0x10)]));
    let mut options = good.clone();
    options.splice(TCP_AT..TCP_AT, [1; 4]);
    let options = with(options, &[(ETHERNET, 0x46)]);
    let table = [
        (
            "the first of fragments",
            fragment(ETHERNET + 6, 0x20),
            "fragment",
        ),
        ("a later fragment", fragment(ETHERNET + 7, 9), "fragment"),
        ("IP options", options, "ip-options"),
        ("longer than it is", long, "malformed"),
    ];
    for spray in Spray::both() {
        for (what, frame, reason) in &table {
            spray.expect(what, frame, &Outcome::drop(reason));
        }
        let slot = slot_of(CLIENT);
        spray.put_dispatcher(slot, |entry| entry.name = [0; 32]);
        spray.expect("an empty slot", &good, &Outcome::drop("no-dispatcher"));
        spray.lots.set(&vec![lots::NOBODY; abi::LOTS]);
        spray.expect("no lots", &good, &Outcome::drop("no-dispatcher"));
    }
}

#[test]
fn what_is_for_somebody_else_passes() {
    let tcp = |dest| {
        Tcp {
            dest,
            ..segment(SYN, 5, 6, b"")
        }
        .frame()
    };
    let elsewhere = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 8), 80);
    let to = |protocol, payload: &[u8]| {
        ethernet(
            THEIR_MAC,
            OUR_MAC,
            0x0800,
            &ipv4(*CLIENT.ip(), *VIP.ip(), protocol, payload),
        )
    };
    let good = segment(SYN, 5, 6, b"").frame();
    let mut table = vec![
        ("another port", tcp(SocketAddrV4::new(*VIP.ip(), 82))),
        ("port 0", tcp(SocketAddrV4::new(*VIP.ip(), 0))),
        ("another host", tcp(elsewhere)),
        ("UDP: QUIC is not handled", to(UDP, &[0; 20])),
        (
            "an echo request: the host answers",
            to(ICMP, &[8, 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("another protocol", to(59, &[0; 20])),
        ("ARP", ethernet(THEIR_MAC, OUR_MAC, 0x0806, &[0; 28])),
        ("IPv6", with(good.clone(), &[(12, 0x86), (13, 0xdd)])),
        ("not version 4", with(good.clone(), &[(ETHERNET, 0x65)])),
    ];
    for mac in OTHER_MACS {
        table.push((
            "to another link address",
            ethernet(THEIR_MAC, mac, 0x0800, &good[ETHERNET..]),
        ));
    }
    for spray in Spray::both() {
        for (what, frame) in &table {
            spray.expect(what, frame, &Outcome::untouched(frame));
        }
        assert_eq!(spray.sent().iter().sum::<u64>(), 0);
    }
}

#[test]
fn icmp_errors_go_where_their_connection_goes() {
    let quoted = |client| {
        Tcp {
            source: VIP,
            dest: client,
            ..segment(ACK, 6, 5, b"")
        }
        .packet()
    };
    let router = Ipv4Addr::new(203, 0, 113, 1);
    let error = |kind, code, quoted: &[u8]| {
        ethernet(
            THEIR_MAC,
            OUR_MAC,
            0x0800,
            &icmp(router, *VIP.ip(), kind, code, quoted),
        )
    };
    let (slot, other) = (slot_of(CLIENT), slot_of(OTHER));
    for spray in Spray::both() {
        for (kind, code) in [(3, 4), (3, 1), (11, 0), (12, 0)] {
            let frame = error(kind, code, &quoted(CLIENT)[..28]);
            spray.expect("an error", &frame, &addressed(&frame));
        }
        let sent = spray.sent();
        assert_eq!((sent[slot as usize], sent[other as usize]), (4, 0));
        spray.put_dispatcher(other, |entry| entry.far = 1);
        let frame = error(3, 4, &quoted(OTHER)[..28]);
        let expected = enclosed(other, OTHER.port(), &frame);
        spray.expect("encapsulated", &frame, &expected);

        let foreign = Tcp {
            source: CLIENT,
            dest: VIP,
            ..segment(ACK, 6, 5, b"")
        }
        .packet();
        for (what, frame) in [
            ("about what we have not sent", error(3, 4, &foreign[..28])),
            ("a redirect", error(5, 0, &quoted(CLIENT)[..28])),
            ("a short quotation", error(3, 4, &quoted(CLIENT)[..20])),
        ] {
            spray.expect(what, &frame, &Outcome::untouched(&frame));
        }
    }
}

/// What a spray's daemon, or anybody with a key, encloses in a heartbeat.
fn beat_inner(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    ipv4(from, to, 253, &[0; 20])
}

pub fn beat(said: Presence, number: u32) -> Vec<u8> {
    let meta = Meta {
        epoch: number,
        ..Meta::of(Kind::Beat(said))
    };
    sealed_for(NODE, &meta, &beat_inner(ASKER, NODE))
}

/// The answer to such a beat.
pub fn beat_reply(said: Presence, number: u32) -> Outcome {
    let inner = beat_inner(ASKER, NODE);
    let meta = Meta {
        epoch: number,
        ..Meta::of(Kind::BeatReply(said))
    };
    let binding = Binding::of_packet(ASKER.into(), &inner).unwrap();
    let mut payload = Vec::new();
    geneve::write(&meta.seal(&keys(), &binding), &inner, &mut payload);
    let from = SocketAddrV4::new(NODE, ASKER_PORT);
    let outer = udp(from, SocketAddrV4::new(ASKER, geneve::PORT), &payload);
    let packet = ethernet(OUR_MAC, THEIR_MAC, 0x0800, &outer);
    Outcome::new(Verdict::SendBack, packet, &["beat-answered"])
}

pub const STANDBY: Presence = Presence::Spray(SprayState::Standby);
pub const ACTIVE: Presence = Presence::Spray(SprayState::Active);
const YIELDING: Presence = Presence::Spray(SprayState::Yielding);

#[test]
fn heartbeats_are_answered_with_what_the_daemon_says_as_long_as_it_does() {
    for spray in Spray::both() {
        let frame = beat(ACTIVE, 7);
        spray.expect("before the daemon", &frame, &Outcome::untouched(&frame));
        let say = |lease: Duration| {
            let presence = abi::Presence::new(STANDBY, YIELDING, clock::monotonic(), lease);
            spray.maps.presence.put(&0, &presence, Update::Any).unwrap();
        };
        say(Duration::from_secs(60));
        spray.expect("a beat", &frame, &beat_reply(STANDBY, 7));
        spray.expect("the same again", &frame, &beat_reply(STANDBY, 7));
        say(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        spray.expect(
            "its daemon is gone",
            &beat(ACTIVE, 8),
            &beat_reply(YIELDING, 8),
        );

        let peers = spray.maps.peers.all().unwrap();
        let [(asker, peer)] = peers[..] else {
            panic!("{peers:?}");
        };
        assert_eq!(asker.addr, addr_bytes(ASKER.into()));
        assert_eq!((peer.beat, peer.said), (8, ACTIVE.word()));
        // An older one is answered, and changes nothing.
        spray.expect("an old one", &beat(STANDBY, 5), &beat_reply(YIELDING, 5));
        assert_eq!(spray.maps.peers.all().unwrap()[0].1.beat, 8);
    }
}

#[test]
fn only_heartbeats_with_a_key_are_heard() {
    let idle = Presence::Dispatcher {
        workload: Some(Workload::IDLE),
    };
    let inner = beat_inner(NODE, FIRST);
    let reply = sealed_for(NODE, &Meta::of(Kind::BeatReply(idle)), &inner);
    let other_kind = sealed_for(NODE, &Meta::of(Kind::Echo), &inner);
    let tcp = sealed_for(
        NODE,
        &Meta::of(Kind::Sprayed { again: false }),
        &segment(SYN, 5, 6, b"").packet(),
    );
    let for_another = sealed_for(NODE, &Meta::of(Kind::Beat(ACTIVE)), &inner);
    for spray in Spray::both() {
        let presence = abi::Presence::new(STANDBY, STANDBY, clock::monotonic(), Duration::ZERO);
        spray.maps.presence.put(&0, &presence, Update::Any).unwrap();
        let passed = Outcome::new(Verdict::Pass, reply.clone(), &[]);
        spray.expect("an answer is the daemon's", &reply, &passed);
        for (what, frame) in [
            ("a kind that is not for sprays", &other_kind),
            ("a client's packet", &tcp),
            ("somebody else's beat", &for_another),
        ] {
            spray.expect(what, frame, &Outcome::drop("bad-encapsulation"));
        }
        let good = beat(ACTIVE, 9);
        // Kind, key, role, number, word and tag; and who asks whom.
        let meta_at = crate::agent::META_AT;
        let inner_at = crate::agent::INNER_AT;
        for at in (meta_at + 1..meta_at + 32).chain(inner_at + 12..inner_at + 20) {
            let forged = with(good.clone(), &[(at, good[at] ^ 4)]);
            spray.expect(&format!("byte {at}"), &forged, &Outcome::drop("bad-tag"));
        }
        assert_eq!(spray.maps.peers.all().unwrap().len(), 0);
    }
}

/// For those that have them if their dispatcher is found dead.
#[test]
fn the_latest_packets_to_each_dispatcher_are_kept() {
    for spray in Spray::both() {
        let [ours, others] = [CLIENT, OTHER].map(|client| slot_of(client) as u16);
        let kept = SharedSent::map(&spray.maps.sent).unwrap();
        let of = |slot| to(&kept, slot);
        let tcp = |seq, payload: &[u8]| segment(ACK | PSH, seq, 6, payload).frame();
        spray.run(&tcp(1, REQUEST));
        assert!(of(ours).is_empty(), "there is no room for them yet");

        let all: Vec<u16> = (0..DISPATCHERS_MAX as u16).collect();
        sent::divide(&spray.maps.sent_rings, &all).unwrap();
        let long: Vec<u8> = (0..3000).map(|at| at as u8).collect();
        let frames = [
            tcp(2, REQUEST),
            tcp(3, &long[..1440]),
            tcp(4, &long),
            tcp(5, b""),
        ];
        for frame in &frames {
            spray.run(frame);
        }
        let whole = |frame: &Vec<u8>| {
            let packet = &frame[ETHERNET..];
            let (start, rest) = packet.split_at(packet.len().min(abi::SENT_START));
            Kept {
                start: start.to_vec(),
                end: rest[rest.len().saturating_sub(abi::SENT_END)..].to_vec(),
            }
        };
        assert_eq!(of(ours), frames.each_ref().map(whole), "{:?}", spray.hook);
        assert!(of(others).is_empty());
        let later = clock::monotonic() + Duration::from_secs(1);
        assert!(kept.since(later, ours).is_empty());

        let room = abi::SENT_ENTRIES / DISPATCHERS_MAX;
        let frames: Vec<Vec<u8>> = (0..room + 5).map(|seq| tcp(seq as u32, b"")).collect();
        for frame in &frames {
            spray.run(frame);
        }
        let latest: Vec<Kept> = frames[5..].iter().map(whole).collect();
        assert_eq!(of(ours), latest, "{:?}", spray.hook);
    }
}
