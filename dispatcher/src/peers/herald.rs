//! What the other dispatchers are to know: collected by whoever changes a record, sent by
//! whoever sends next, and kept for a while in case that it is lost.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use trapeze_core::flow::Handshake;
use trapeze_core::replica::stream::Sent;
use trapeze_core::replica::{Entry, Head, What, message};
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Binding, Care, Keys, Kind, Meta};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::{ENCAP_LEN, PEERS_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::udp::{Outbox, UdpSocket};

use super::Peer;

/// RFC 3692: for experiments; the inner packet is there to carry a message.
pub const NO_PROTOCOL: u8 = 253;
const IPV4_HEADER: usize = 20;
/// Bytes of entries in a message, so that a frame of 1500 bytes has room.
pub const BODY_MAX: usize = 1500 - ENCAP_LEN - IPV4_HEADER - message::HEAD_LEN;

/// What has been said, and what is to be said.
pub struct Herald {
    own: Ipv4Addr,
    /// Something is to be said.
    is_pending: AtomicBool,
    /// What is changed now is told at the end of this turn.
    turn: AtomicU32,
    state: Mutex<State>,
}

/// How much has been said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Records and whatever else is told.
    pub entries: u64,
    /// Messages with news, to each peer.
    pub messages: u64,
    /// Their bytes with all headers from IPv4 on, to each peer.
    pub bytes: u64,
}

struct State {
    told: Told,
    /// The latest turn of which all have been told.
    noted: u32,
    /// When it began.
    stream: u32,
    sent: Sent,
    /// Nobody is told anything.
    is_mute: bool,
    bodies: Vec<Vec<u8>>,
    to: Vec<Ipv4Addr>,
    outbox: Outbox,
}

impl Herald {
    pub fn new(own: Ipv4Addr) -> Self {
        Self {
            own,
            is_pending: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            state: Mutex::new(State {
                told: Told::default(),
                noted: 0,
                stream: clock::cluster().as_millis() as u32,
                sent: Sent::default(),
                is_mute: false,
                bodies: Vec::new(),
                to: Vec::new(),
                outbox: Outbox::default(),
            }),
        }
    }

    /// What is to be said from now on is not, and never will be.
    pub fn fall_silent(&self) {
        self.state().is_mute = true;
    }

    /// What was said last has been heard by nobody, and may not hold: who asks for what it lacks is not to have it.
    /// Another stream begins.
    pub fn begin_anew(&self) {
        let mut state = self.state();
        state.is_mute = false;
        let now = clock::cluster().as_millis() as u32;
        let next = state.stream.wrapping_add(1);
        state.stream = match now.wrapping_sub(next).cast_signed() >= 0 {
            true => now,
            false => next,
        };
        state.sent = Sent::default();
        state.bodies.clear();
    }

    /// From now on to these.
    pub fn address(&self, peers: &[Peer]) {
        self.state().to = peers.iter().map(|peer| peer.address).collect();
    }

    /// Our stream, and the number of the latest message in it.
    pub fn tail(&self) -> (u32, u32) {
        let state = self.state();
        (state.stream, state.sent.last())
    }

    /// How much has been said so far.
    pub fn told(&self) -> Told {
        self.state().told
    }

    /// The turn at whose end others are told of what is changed now; never 0.
    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire)
    }

    /// The first turn is that one.
    pub fn begin_at(&self, turn: u32) {
        self.turn.store(turn.max(1), Ordering::Release);
    }

    /// The next turn begins: which one ends. What was changed in that has been given to
    /// [`Self::tell`], for nothing is being changed.
    pub fn end_turn(&self) -> u32 {
        let ended = self.turn();
        self.begin_at(ended.wrapping_add(1));
        ended
    }

    /// Is there anything to say?
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Nothing is to be said of what has been changed; its turn ends all the same.
    pub fn tell_nothing(&self) {
        self.is_pending.store(true, Ordering::Release);
    }

    /// To be told to all.
    pub fn tell(&self, entry: &Entry) {
        let mut state = self.state();
        let room = |body: &Vec<u8>| body.len() + entry.length() <= BODY_MAX;
        if !state.bodies.last().is_some_and(room) {
            state.bodies.push(Vec::with_capacity(BODY_MAX));
        }
        let body = state.bodies.last_mut().expect("there is one");
        entry.write(body);
        state.told.entries += 1;
        self.is_pending.store(true, Ordering::Release);
    }

    /// Tells it, and then notes that all are told of that turn.
    pub fn send(
        &self,
        socket: &UdpSocket,
        keys: &Keys,
        turn: u32,
        note: impl FnOnce(u32) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state();
        let is_later = turn.wrapping_sub(state.noted).cast_signed() > 0;
        self.is_pending.store(false, Ordering::Release);
        if state.is_mute {
            state.bodies.clear();
        }
        let State {
            told,
            stream,
            sent,
            bodies,
            to,
            outbox,
            ..
        } = &mut *state;
        for body in bodies.drain(..) {
            let head = Head {
                stream: *stream,
                number: sent.next(),
                what: What::News,
            };
            let message = head.seal(self.own, keys, &body);
            told.messages += 1;
            told.bytes += (ENCAP_LEN + IPV4_HEADER + message.len()) as u64;
            for &peer in to.iter() {
                enclose(outbox, self.own, peer, keys, head.number, &message);
            }
            sent.push(message);
        }
        // What is lost on the way is asked for.
        socket.send(outbox);
        outbox.clear();
        if is_later {
            state.noted = turn;
            note(turn)?;
        }
        Ok(())
    }

    /// A message once more, for one. False: it is not kept.
    pub fn again(&self, number: u32, peer: Ipv4Addr, keys: &Keys, outbox: &mut Outbox) -> bool {
        let state = self.state();
        match state.sent.again(number) {
            Some(message) => {
                enclose(outbox, self.own, peer, keys, number, message);
                true
            }
            None => false,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}

/// A message for a peer's daemon, in the encapsulation.
pub fn enclose(
    outbox: &mut Outbox,
    own: Ipv4Addr,
    peer: Ipv4Addr,
    keys: &Keys,
    number: u32,
    message: &[u8],
) {
    let mut inner = Vec::with_capacity(IPV4_HEADER + message.len());
    ipv4::write_header(own, peer, NO_PROTOCOL, message.len(), &mut inner);
    inner.extend_from_slice(message);
    let option = option(Kind::Records, number, peer, &inner, keys);
    outbox.push(SocketAddrV4::new(peer, PEERS_PORT), |out| {
        geneve::write(&option, &inner, out);
    });
}

/// The option of what daemons tell each other.
pub fn option(
    kind: Kind,
    number: u32,
    peer: Ipv4Addr,
    inner: &[u8],
    keys: &Keys,
) -> trapeze_core::wire::meta::Raw {
    let meta = Meta {
        kind,
        epoch: number,
        start: ClientSeq::new(0),
        handshake: Handshake::default(),
        server_port: 0,
        requests: 0,
        care: Care::default(),
    };
    let binding = Binding::of_packet(peer.into(), inner).expect("an IPv4 packet");
    meta.seal(keys, &binding)
}
