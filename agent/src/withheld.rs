//! Acknowledgements that the data path keeps back as long as a server has not begun to read its request
//! (docs/protocol/handoff.md 7.5): more has come than could be given again, were it to close unread. Linux does not say
//! them again when it reads, and a client that has sent all that it may would wait for its timer. So the socket is
//! asked: by a byte that it has had already it is made to acknowledge (RFC 9293 3.10.7.4). Without this
//! process the client says it again, a fifth of a second later.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};
use trapeze_datapath::abi::{UNREAD_REACH, Withheld};
use trapeze_datapath::agent::{AgentMaps, withheld};
use trapeze_datapath::clock;
use trapeze_datapath::raw::RawSocket;
use trapeze_datapath::ring::Ring;
use trapeze_datapath::udp::Outbox;

/// Asked first after so long, then after twice that, and so on,
const FIRST: Duration = Duration::from_micros(250);
/// up to this.
const LAST: Duration = Duration::from_millis(50);
/// By then the client has said it again, if it is there.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is withheld meanwhile waits no longer to be looked at.
const LOOK: Duration = Duration::from_millis(1);
/// When nothing is, the end of this process waits for it.
const INTERVAL: Duration = Duration::from_millis(50);

/// The thread that asks.
#[derive(Debug)]
pub struct Asking {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Asking {
    /// Of the agent pinned in that directory.
    pub fn start(pins: &Path) -> io::Result<Self> {
        let (ring, maps) = (withheld(pins)?, AgentMaps::open(pins)?);
        let socket = RawSocket::to_own_sockets()?;
        let stop = Arc::<AtomicBool>::default();
        let until = stop.clone();
        let thread = std::thread::Builder::new()
            .name("withheld".into())
            .spawn(move || run(&ring, &maps, &socket, &until))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that is asked.
struct Asked {
    said: Withheld,
    due: Duration,
    pause: Duration,
    until: Duration,
}

fn run(ring: &Ring<Withheld>, maps: &AgentMaps, socket: &RawSocket, stop: &AtomicBool) {
    let mut asked: HashMap<FlowKey, Asked> = HashMap::new();
    let mut questions = Outbox::default();
    while !stop.load(Ordering::Relaxed) {
        let next = asked.values().map(|asked| asked.due).min();
        let told = match next {
            None => ring.gather(INTERVAL),
            Some(due) => {
                std::thread::sleep(due.saturating_sub(clock::monotonic()).min(LOOK));
                ring.take()
            }
        };
        let now = clock::monotonic();
        match told {
            Ok(told) => asked.extend(
                told.into_iter()
                    .map(|said| (said.key.into(), begin(said, now))),
            ),
            Err(error) => return eprintln!("withheld: {error}"),
        }
        asked.retain(|_, asked| {
            if now < asked.due {
                return true;
            }
            let is_withheld =
                matches!(maps.setups.get(&asked.said.key), Ok(Some(now)) if now.withheld != 0);
            if !is_withheld || now >= asked.until {
                return false;
            }
            asked.due = now + asked.pause;
            asked.pause = (asked.pause * 2).min(LAST);
            if let Some((to, question)) = question(&asked.said) {
                questions.push(to, |out| out.extend(question));
            }
            true
        });
        if !questions.is_empty() {
            socket.send(&questions);
            questions.clear();
        }
    }
}

fn begin(said: Withheld, now: Duration) -> Asked {
    Asked {
        said,
        due: now + FIRST,
        pause: FIRST,
        until: now + PATIENCE,
    }
}

/// As if its socket said it, for the data path to turn round: of a byte from before the socket's window, so
/// that nothing else that it says counts: as much has come, where an acknowledgement is withheld.
fn question(said: &Withheld) -> Option<(SocketAddrV4, Vec<u8>)> {
    let flow = FlowKey::from(said.key);
    let SocketAddr::V4(client) = flow.client else {
        return None;
    };
    let header = Header {
        seq: said.seq,
        ack: said.ack.wrapping_sub(UNREAD_REACH),
        flags: Flags::ACK,
        ..Header::default()
    };
    let segment = Segment {
        source: flow.vip,
        destination: flow.client,
        header,
        payload: vec![0],
    };
    Some((SocketAddrV4::new(*client.ip(), 0), segment.to_packet()))
}
