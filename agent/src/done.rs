//! DONE: a dispatcher that wanted a flow, and was answered that it could not leave yet,
//! is told when that has changed (docs/protocol/handoff.md 5.3). A hint: it asks again
//! by itself, so nothing is lost with this process. ANSWERED: where an answer has ended, should
//! this host die before the next one begins (9.1a): unless that is over, too, by the time that
//! these are looked at.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::wire::meta::{Keys, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp;
use trapeze_datapath::abi::{Done, SETUP_MOVED, SETUP_OLDER, Setup};
use trapeze_datapath::agent::{AgentMaps, dones};
use trapeze_datapath::ring::Ring;

use crate::message::enclose;

/// How often ends of answers are looked at. For DONE it is not waited.
const INTERVAL: Duration = Duration::from_millis(5);

/// The thread that tells.
#[derive(Debug)]
pub struct Teller {
    keys: Arc<Mutex<Keys>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// Of the agent pinned in that directory, speaking from this address.
    pub fn start(pins: &Path, address: Ipv4Addr, keys: Keys) -> io::Result<Self> {
        let (ring, maps) = (dones(pins)?, AgentMaps::open(pins)?);
        let socket = UdpSocket::bind((address, 0))?;
        let keys = Arc::new(Mutex::new(keys));
        let stop = Arc::<AtomicBool>::default();
        let (with, until) = (keys.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("done".into())
            .spawn(move || run(&ring, &maps, &socket, &with, &until))?;
        Ok(Self {
            keys,
            stop,
            thread: Some(thread),
        })
    }

    /// From now on by these keys.
    pub fn set_keys(&self, keys: Keys) {
        *self.keys.lock().expect("nobody panics with it") = keys;
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    ring: &Ring<Done>,
    maps: &AgentMaps,
    socket: &UdpSocket,
    keys: &Mutex<Keys>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let told = match ring.gather(INTERVAL) {
            Ok(told) => told,
            Err(error) => {
                // Dispatchers ask again without it.
                eprintln!("done: {error}");
                return;
            }
        };
        if told.is_empty() {
            continue;
        }
        let keys = keys.lock().expect("nobody panics with it").clone();
        for done in told {
            // Of a setup that cannot be read all is said.
            let is_past =
                matches!(maps.setups.get(&done.key), Ok(Some(now)) if is_past(&done, &now));
            if !is_past && let Some((datagram, to)) = datagram(&done, &keys) {
                // What cannot be sent is a hint lost.
                let _ = socket.send_to(&datagram, to);
            }
        }
    }
}

/// Is it of an answer behind which the flow has had another one, or has left? Nobody needs to know
/// where that ended.
fn is_past(done: &Done, now: &Setup) -> bool {
    let Ok(told) = Meta::decode(&done.meta) else {
        return false;
    };
    // A flow on another seat is of a later epoch than what is known under its own port.
    let since = now.epoch.wrapping_sub(told.epoch).cast_signed();
    let has_left = now.state == SETUP_MOVED || now.state == SETUP_OLDER;
    let has_gone_on =
        since > 0 || since == 0 && (has_left || now.answers.finished != told.requests);
    matches!(told.kind, Kind::Answered { .. }) && has_gone_on
}

/// The message, and where it goes. None if the data path's words make no sense.
fn datagram(done: &Done, keys: &Keys) -> Option<(Vec<u8>, SocketAddr)> {
    let flow = FlowKey::from(done.key);
    let to = IpAddr::from(done.dispatcher);
    let said = Meta::decode(&done.meta).ok()?;
    let meta = match said.kind {
        Kind::Answered { .. } => said,
        _ => Meta {
            kind: Kind::Done,
            requests: 0,
            ..said
        },
    };
    let inner = Segment::of_client(
        &flow,
        tcp::Header {
            seq: meta.start.raw(),
            ack: done.end,
            flags: tcp::Flags::ACK,
            ..tcp::Header::default()
        },
    )
    .to_packet();
    enclose(&meta, &inner, to, keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::config::ClusterKey;
    use trapeze_core::flow::Handshake;
    use trapeze_core::seq::{ClientSeq, ServerSeq};
    use trapeze_core::wire::geneve;
    use trapeze_core::wire::meta::Care;
    use trapeze_datapath::abi::{self, Pod, SETUP_CONFIRMED};

    #[test]
    fn a_dispatcher_can_read_it() {
        let keys = Keys::new(&[ClusterKey {
            id: 3,
            secret: [7; 16],
        }])
        .unwrap();
        let flow = FlowKey {
            client: "192.0.2.1:40000".parse().unwrap(),
            vip: "10.77.0.100:80".parse().unwrap(),
        };
        let done = Meta {
            kind: Kind::Done,
            epoch: 9,
            start: ClientSeq::new(1000),
            handshake: Handshake {
                mss: 1400,
                ..Handshake::default()
            },
            server_port: 8080,
            requests: 0,
            care: Care {
                follow: true,
                ..Care::default()
            },
        };
        let end = ServerSeq::new(5000);
        let answered = Meta {
            kind: Kind::Answered { end },
            requests: 7,
            ..done
        };
        for told in [done, answered] {
            let from_data_path = Done {
                key: abi::FlowKey::from(flow),
                dispatcher: [10, 77, 0, 1],
                meta: told.encode(3),
                end: end.raw(),
            };
            let (bytes, to) = datagram(&from_data_path, &keys).unwrap();
            assert_eq!(to, "10.77.0.1:6081".parse().unwrap());
            let packet = geneve::open(&bytes, to.ip(), &keys).unwrap();
            assert_eq!(packet.meta, told);
        }
    }

    #[test]
    fn what_is_past_is_not_told() {
        let answered = |epoch, requests| Done {
            key: abi::FlowKey::from(FlowKey {
                client: "192.0.2.1:40000".parse().unwrap(),
                vip: "10.77.0.100:80".parse().unwrap(),
            }),
            dispatcher: [10, 77, 0, 1],
            meta: Meta {
                kind: Kind::Answered {
                    end: ServerSeq::new(5000),
                },
                epoch,
                start: ClientSeq::new(1000),
                handshake: Handshake::default(),
                server_port: 8080,
                requests,
                care: Care::default(),
            }
            .encode(3),
            end: 5000,
        };
        let known = |epoch, finished, state| Setup {
            epoch,
            state,
            answers: abi::Answers {
                finished,
                ..abi::Answers::zeroed()
            },
            ..Setup::zeroed()
        };
        // The next request may run already: where its answer begins is worth knowing.
        assert!(!is_past(&answered(9, 7), &known(9, 7, SETUP_CONFIRMED)));
        assert!(is_past(&answered(9, 7), &known(9, 8, SETUP_CONFIRMED)));
        assert!(is_past(&answered(9, 7), &known(9, 7, SETUP_MOVED)));
        assert!(is_past(&answered(9, 7), &known(9, 7, SETUP_OLDER)));
        assert!(is_past(&answered(9, 7), &known(11, 7, SETUP_CONFIRMED)));
        // Of a seat, with what the flow's own port was left with.
        assert!(!is_past(&answered(9, 7), &known(7, 3, SETUP_MOVED)));
        // The count begins anew after the last, as epochs do.
        assert!(is_past(
            &answered(u32::MAX, 65535),
            &known(0, 0, SETUP_CONFIRMED)
        ));
        let hint = Done {
            meta: Meta {
                kind: Kind::Done,
                ..Meta::decode(&answered(9, 7).meta).unwrap()
            }
            .encode(3),
            ..answered(9, 7)
        };
        assert!(!is_past(&hint, &known(9, 8, SETUP_CONFIRMED)));
    }
}
