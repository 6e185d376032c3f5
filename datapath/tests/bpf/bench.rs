//! A dispatcher's program on the bench: one service address with two ports, two
//! backends, keys; the same for tc and XDP.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;

use trapeze_core::config::ClusterKey;
use trapeze_core::flow::{FlowKey as CoreKey, Handshake, WindowScales, addr_bytes};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::again::Kept;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Care, Keys, Kind, Meta, Raw};
use trapeze_datapath::abi::{
    self, Backend, BackendLoad, COOKIE_ROTATION_SHIFT, COOKIE_ROTATIONS, Finished, Flow, FlowKey,
    FlowState, MARK_TUNNEL, Node, Pod, Proof, Service, ServiceKey, SiphashKey, Trust,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{
    Claimer, DispatcherMaps, FlowChanger, Parter, Sieve, finished_requests,
};
use trapeze_datapath::map::{Map, Update, fill_tag_keys};
use trapeze_datapath::object;
use trapeze_datapath::ring::Ring;
use trapeze_datapath::sent::SharedSent;

use crate::cookie::{self, key_of};
use crate::kernel::{self, Pins};
use crate::outcome::{Outcome, Verdict};
use crate::packet::{self, ACK, OUR_MAC, PSH, THEIR_MAC, Tcp, ethernet, udp};

pub const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 33), 40123);
pub const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 80);
/// A service that agrees to little: no ECN, no scale of its own, a small MSS.
pub const PLAIN_VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 81);
pub const SERVICE: Service = Service {
    id: 1,
    mss: 1388,
    window_scale: 7,
    ecn: 1,
};
pub const PLAIN_SERVICE: Service = Service {
    id: 2,
    mss: 536,
    window_scale: 0,
    ecn: 0,
};

pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const BACKEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);
pub const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x33];
pub const EGRESS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x44];
/// The slot of the backend at [`BACKEND`]; its neighbour is empty.
pub const SLOT: u32 = 2;
pub const EMPTY_SLOT: u32 = 3;
/// No interface of the bench has this number.
pub const ELSEWHERE: u32 = 77;

/// Which ids have keys, the signing one first.
pub const KEY_IDS: [u8; 2] = [3, 4];

static DISPATCH_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_tc.o"));
static DISPATCH_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch_xdp.o"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Tc,
    Xdp,
}

pub struct Bench {
    pub hook: Hook,
    pub program: OwnedFd,
    pub maps: DispatcherMaps,
    pub proofs: Map<FlowKey, Proof>,
    pub finished: Ring<Finished>,
    pub changer: FlowChanger,
    pub claimer: Claimer,
    pub sieve: Sieve,
    /// What was entrusted, and whether it is a record by now.
    pub trusts: Map<u32, Trust>,
    pub parter: Parter,
    _loaded: object::Loaded,
    _pins: Pins,
}

/// All that packets may change.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub flows: Vec<(FlowKey, Flow)>,
    pub proofs: Vec<(FlowKey, Proof)>,
    pub load: BackendLoad,
}

impl Bench {
    /// The same bench at both hooks.
    pub fn both() -> [Self; 2] {
        [Self::new(Hook::Tc), Self::new(Hook::Xdp)]
    }

    pub fn new(hook: Hook) -> Self {
        let (name, bytes) = match hook {
            Hook::Tc => ("dispatch_tc", DISPATCH_TC),
            Hook::Xdp => ("dispatch_xdp", DISPATCH_XDP),
        };
        let pins = Pins::new();
        let loaded = kernel::load(name, bytes, &pins, &[("flows", 4096), ("proofs", 4096)]);
        let bench = Self {
            hook,
            program: loaded.program("dispatch"),
            maps: DispatcherMaps::open(pins.path()).unwrap(),
            finished: finished_requests(pins.path()).unwrap(),
            proofs: Map::from_pin(&loaded.pin("proofs")).unwrap(),
            changer: FlowChanger::of(&loaded),
            claimer: Claimer::of(&loaded),
            sieve: Sieve::of(&loaded).unwrap(),
            trusts: Map::from_pin(&loaded.pin("trusts")).unwrap(),
            parter: Parter::of(&loaded),
            _loaded: loaded,
            _pins: pins,
        };
        bench.fill();
        bench
    }

    fn fill(&self) {
        let any_port = SocketAddrV4::new(*VIP.ip(), 0);
        for (addr, service) in [
            (VIP, SERVICE),
            (PLAIN_VIP, PLAIN_SERVICE),
            (any_port, SERVICE),
        ] {
            let key = ServiceKey::new((*addr.ip()).into(), addr.port());
            self.maps.services.put(&key, &service, Update::Any).unwrap();
        }
        self.put_node(OUR_MAC, clock::cluster_offset_ns());
        fill_tag_keys(&self.maps.tag_keys, &cluster_keys()).unwrap();
        self.publish_cookie_keys(key_of);
        self.reset();
    }

    fn put_node(&self, mac: [u8; 6], clock_offset_ns: u64) {
        let node = node(NODE, mac, clock_offset_ns);
        self.maps.node.put(&0, &node, Update::Any).unwrap();
    }

    /// On an interface with another address.
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.put_node(mac, clock::cluster_offset_ns());
    }

    /// Makes it this late, on the cluster's clock.
    pub fn set_clock(&self, time: Duration) {
        let offset = time.as_nanos() as u64 - clock::monotonic().as_nanos() as u64;
        self.put_node(OUR_MAC, offset);
    }

    /// As the daemon does, from any source.
    pub fn publish_cookie_keys(&self, key_of: impl Fn(u64) -> SiphashKey) {
        self.publish_cookie_keys_at(cookie::period(), key_of);
    }

    pub fn publish_cookie_keys_at(&self, now: u64, key_of: impl Fn(u64) -> SiphashKey) {
        for rotations in -1..=2i64 {
            let period = now.wrapping_add_signed(rotations << COOKIE_ROTATION_SHIFT);
            let slot = cookie_key_slot(period, 0);
            let keys = &self.maps.cookie_keys;
            keys.put(&slot, &key_of(period), Update::Any).unwrap();
        }
    }

    /// Nothing known of any flow.
    pub fn reset(&self) {
        for (key, _) in self.maps.flows.all().unwrap() {
            self.maps.flows.delete(&key).unwrap();
        }
        self.forget_proofs();
        let load = BackendLoad {
            active: 10,
            total: 10,
            cost_us: 7000,
            stood: 0,
        };
        self.maps.loads.put(&SLOT, &load, Update::Any).unwrap();
    }

    pub fn state(&self) -> State {
        State {
            flows: self.maps.flows.all().unwrap(),
            proofs: self.proofs.all().unwrap(),
            load: self.maps.loads.get(&SLOT).unwrap().unwrap(),
        }
    }

    /// The record of the flow from [`CLIENT`] to [`VIP`].
    pub fn flow(&self) -> Flow {
        let key = flow_key(CLIENT, VIP);
        self.maps.flows.get(&key).unwrap().expect("a record")
    }

    pub fn put_flow(&self, flow: &Flow) {
        let key = flow_key(CLIENT, VIP);
        self.maps.flows.put(&key, flow, Update::Any).unwrap();
    }

    /// What the program does with a frame.
    pub fn run(&self, frame: &[u8]) -> Outcome {
        self.resolve_next_hop(ELSEWHERE, 20_000_000);
        self.run_as_resolved(frame)
    }

    /// As [`Self::run`], with the way to the backend as it was set.
    pub fn run_as_resolved(&self, frame: &[u8]) -> Outcome {
        self.outcome(frame, |program| kernel::test_run(program, frame))
    }

    /// As [`Self::run`] at tc, of a packet that bears a mark.
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> Outcome {
        self.resolve_next_hop(ELSEWHERE, 20_000_000);
        self.outcome(frame, |program| {
            kernel::test_run_marked(program, frame, mark)
        })
    }

    fn outcome(
        &self,
        frame: &[u8],
        run: impl FnOnce(&OwnedFd) -> io::Result<(u32, Vec<u8>)>,
    ) -> Outcome {
        let before = self.counters();
        let (value, packet) = run(&self.program)
            .unwrap_or_else(|e| panic!("the kernel runs no frame of {} bytes: {e}", frame.len()));
        let verdict = verdict(self.hook, value, &packet);
        Outcome {
            verdict,
            packet: (verdict != Verdict::Drop).then_some(packet),
            counted: difference(&before, &self.counters()),
        }
    }

    /// The backend is on this host.
    pub fn backend_is_here(&self) {
        let backend = Backend {
            addr: addr_bytes(NODE.into()),
            name: Backend::name_bytes("be2"),
            source: NODE.octets(),
            ..Backend::zeroed()
        };
        let backends = &self.maps.backends;
        backends.put(&SLOT, &backend, Update::Any).unwrap();
    }

    /// The backend does not answer.
    pub fn silence_backend(&self) {
        let backends = &self.maps.backends;
        let backend = backends.get(&SLOT).unwrap().unwrap();
        let silent = Backend {
            silent: 1,
            ..backend
        };
        backends.put(&SLOT, &silent, Update::Any).unwrap();
    }

    /// Runs a frame, and compares all that it does with what is expected.
    pub fn expect(&self, what: &str, frame: &[u8], expected: &Outcome) {
        let mut expected = expected.clone();
        if self.hook == Hook::Xdp && expected.verdict == Verdict::Next {
            expected.verdict = Verdict::Pass;
        }
        if let Some(difference) = self.run(frame).difference(&expected) {
            panic!("{:?}: {what}: {difference}", self.hook);
        }
        // A first payload leaves a proof for what comes right behind it; the next
        // case is to begin without.
        if expected.counted == ["cookie-valid", "to-daemon"] {
            assert_eq!(self.proofs.all().unwrap().len(), 1, "{what}");
            self.forget_proofs();
        }
    }

    fn forget_proofs(&self) {
        for (key, _) in self.proofs.all().unwrap() {
            self.proofs.delete(&key).unwrap();
        }
    }

    /// The way to the backend, looked up so long ago. The coarse clock may be behind
    /// by a tick, so no time at all is too short.
    pub fn resolve_next_hop(&self, ifindex: u32, ago_ns: u64) {
        let backend = Backend {
            addr: addr_bytes(BACKEND.into()),
            name: Backend::name_bytes("be2"),
            source: NODE.octets(),
            resolved_ns: (clock::monotonic().as_nanos() as u64).saturating_sub(ago_ns),
            ifindex,
            destination_mac: BACKEND_MAC,
            source_mac: EGRESS_MAC,
            ..Backend::zeroed()
        };
        self.maps
            .backends
            .put(&SLOT, &backend, Update::Any)
            .unwrap();
    }

    fn counters(&self) -> [Vec<u64>; 2] {
        [&self.maps.drops, &self.maps.events].map(|counters| counters.sums().unwrap())
    }
}

/// A node as its programs know it.
pub fn node(address: Ipv4Addr, mac: [u8; 6], clock_offset_ns: u64) -> Node {
    Node {
        address: address.octets(),
        signing_key: KEY_IDS[0].into(),
        mac,
        behind: 0,
        among: 0,
        since_ns: 0,
        incarnation: 0,
        pad: 0,
        clock_offset_ns,
    }
}

/// Names of what was counted between two readings of drops and events.
pub fn difference(before: &[Vec<u64>; 2], after: &[Vec<u64>; 2]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for (table, names_of) in [abi::DROP_REASONS, abi::EVENTS].into_iter().enumerate() {
        for (at, (name, _)) in names_of.iter().enumerate() {
            let times = after[table][at] - before[table][at];
            names.extend(std::iter::repeat_n(*name, times as usize));
        }
    }
    names
}

/// A segment of the flow between client and VIP; the rest is for the case to say.
/// What a program at the hook returned, having made `packet` of its frame.
pub fn verdict(hook: Hook, returned: u32, packet: &[u8]) -> Verdict {
    match (hook, returned) {
        (Hook::Tc, u32::MAX) => Verdict::Next,
        (Hook::Tc, 0) | (Hook::Xdp, 2) => Verdict::Pass,
        (Hook::Tc, 2) | (Hook::Xdp, 1) => Verdict::Drop,
        (Hook::Xdp, 3) => Verdict::SendBack,
        (Hook::Xdp, 4) => Verdict::Redirect,
        // To which interface does not show here.
        (Hook::Tc, 7) if packet[6..12] == EGRESS_MAC => Verdict::Redirect,
        (Hook::Tc, 7) => Verdict::SendBack,
        (hook, other) => panic!("{hook:?}: {other} is no verdict"),
    }
}

pub fn segment(flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Tcp {
    Tcp {
        source: CLIENT,
        dest: VIP,
        seq,
        ack,
        flags,
        window: 502,
        options: Vec::new(),
        payload: payload.into(),
    }
}

pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
pub const CLIENT_ISN: u32 = 0xffff_fff0; // wraps within the first request
pub const EPOCH: u32 = 0x1234_5678;
pub const SERVER_ISN: u32 = 0x8000_1234;

/// The first payload of the flow in [`established`].
pub fn request() -> Tcp {
    segment(
        ACK | PSH,
        CLIENT_ISN.wrapping_add(1),
        SERVER_ISN + 1,
        REQUEST,
    )
}

pub const HANDSHAKE: Handshake = Handshake {
    mss: 1388,
    window_scales: Some(WindowScales { client: 9, ours: 7 }),
    sack: true,
    timestamps: false,
    ecn: true,
};

/// A record of the flow from [`CLIENT`] to [`VIP`], assigned to [`SLOT`]; without
/// boundaries, as a pool that hands nothing over makes it.
pub fn established() -> Flow {
    record(FlowState::Established)
}

pub fn record(state: FlowState) -> Flow {
    Flow {
        meta: option(Kind::Forward),
        client_isn: CLIENT_ISN,
        server_isn: SERVER_ISN,
        backend: SLOT,
        state: state as u32,
        last_seq: CLIENT_ISN.wrapping_add(1),
        last_ack: SERVER_ISN + 1,
        created_ns: 1,
        packets: 1,
        marks: MARK_TUNNEL,
        next: CLIENT_ISN.wrapping_add(1),
        asked_ack: SERVER_ISN + 1,
        cookie: SERVER_ISN,
        requests: 1,
        ..Flow::zeroed()
    }
}

/// The option of the flow's packets to the backend.
pub fn option(kind: Kind) -> Raw {
    let binding = Binding::of_flow(BACKEND.into(), CLIENT.into(), VIP.into()).unwrap();
    flow_meta(kind).seal(&keys(), &binding)
}

pub fn flow_meta(kind: Kind) -> Meta {
    Meta {
        kind,
        epoch: EPOCH,
        start: ClientSeq::new(CLIENT_ISN) + 1,
        handshake: HANDSHAKE,
        server_port: 8080,
        requests: 0,
        care: Care::default(),
    }
}

/// The frame in which a packet of the flow reaches its backend.
pub fn to_backend(raw: &Raw, source_port: u16, frame: &[u8]) -> Vec<u8> {
    let inner = inner_packet(frame);
    let padding = &frame[packet::ETHERNET + inner.len()..];
    let mut payload = Vec::new();
    geneve::write(raw, inner, &mut payload);
    let source = SocketAddrV4::new(NODE, source_port | 0xc000);
    let outer = udp(source, SocketAddrV4::new(BACKEND, geneve::PORT), &payload);
    [
        ethernet(EGRESS_MAC, BACKEND_MAC, 0x0800, &outer),
        padding.to_vec(),
    ]
    .concat()
}

/// The frame in which a packet reaches the daemon, and what it says.
pub fn to_daemon(handshake: Handshake, client_isn: u32, server_isn: u32, frame: &[u8]) -> Vec<u8> {
    to_daemon_after(0, handshake, client_isn, server_isn, frame)
}

/// As [`to_daemon`], of a connection that ends one of this epoch.
pub fn to_daemon_after(
    older_epoch: u32,
    handshake: Handshake,
    client_isn: u32,
    server_isn: u32,
    frame: &[u8],
) -> Vec<u8> {
    let inner = inner_packet(frame);
    let padding = &frame[packet::ETHERNET + inner.len()..];
    let meta = Meta {
        kind: Kind::Request {
            server_isn: ServerSeq::new(server_isn),
        },
        epoch: older_epoch,
        start: ClientSeq::new(client_isn) + 1,
        handshake,
        server_port: 0,
        requests: 0,
        care: Care::default(),
    };
    let binding = Binding::of_packet(NODE.into(), inner).unwrap();
    let mut payload = Vec::new();
    geneve::write(&meta.seal(&keys(), &binding), inner, &mut payload);
    let client = Ipv4Addr::from(*inner[12..16].first_chunk::<4>().unwrap());
    let port = u16::from_be_bytes([inner[20], inner[21]]);
    let (from, to) = (
        SocketAddrV4::new(client, port),
        SocketAddrV4::new(NODE, geneve::PORT),
    );
    let outer = udp(from, to, &payload);
    [
        ethernet(THEIR_MAC, OUR_MAC, 0x0800, &outer),
        padding.to_vec(),
    ]
    .concat()
}

/// The IP packet of a frame, as long as it says itself.
fn inner_packet(frame: &[u8]) -> &[u8] {
    let packet = &frame[packet::ETHERNET..];
    &packet[..u16::from_be_bytes([packet[2], packet[3]]).into()]
}

/// What has been sent to that slot's dispatcher.
pub fn to(sent: &SharedSent, slot: u16) -> Vec<Kept> {
    let all = sent.since(Duration::ZERO, slot).into_iter();
    all.filter(|(to, _)| *to == slot)
        .map(|(_, kept)| kept)
        .collect()
}

pub fn flow_key(client: SocketAddrV4, vip: SocketAddrV4) -> FlowKey {
    CoreKey {
        client: client.into(),
        vip: vip.into(),
    }
    .into()
}

pub fn cluster_keys() -> [ClusterKey; 2] {
    KEY_IDS.map(|id| ClusterKey {
        id,
        secret: std::array::from_fn(|i| id.wrapping_mul(41).wrapping_add(i as u8 * 7)),
    })
}

pub fn keys() -> Keys {
    Keys::new(&cluster_keys()).unwrap()
}

/// Where the key of a period's rotation stands: those of the cluster's first key are set 0.
pub fn cookie_key_slot(period: u64, set: u32) -> u32 {
    set * COOKIE_ROTATIONS + (period >> COOKIE_ROTATION_SHIFT) as u32 % COOKIE_ROTATIONS
}
