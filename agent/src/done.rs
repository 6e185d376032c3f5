//! DONE: a dispatcher that wanted a flow, and was answered that it could not leave yet,
//! is told when that has changed (docs/protocol/handoff.md 5.3). A hint: it asks again
//! by itself, so nothing is lost with this process. ANSWERED: where an answer has ended, should
//! this host die before the next one begins (9.1a).

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
use trapeze_datapath::abi::Done;
use trapeze_datapath::agent::dones;
use trapeze_datapath::ring::Ring;

use crate::message::enclose;

/// How soon the thread sees that it shall end.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

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
        let ring = dones(pins)?;
        let socket = UdpSocket::bind((address, 0))?;
        let keys = Arc::new(Mutex::new(keys));
        let stop = Arc::<AtomicBool>::default();
        let (with, until) = (keys.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("done".into())
            .spawn(move || run(&ring, &socket, &with, &until))?;
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

fn run(ring: &Ring<Done>, socket: &UdpSocket, keys: &Mutex<Keys>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let told = match ring.wait(LONGEST_WAIT) {
            Ok(told) => told,
            Err(error) => {
                // Dispatchers ask again without it.
                eprintln!("done: {error}");
                return;
            }
        };
        let keys = keys.lock().expect("nobody panics with it").clone();
        for done in told {
            if let Some((datagram, to)) = datagram(&done, &keys) {
                // What cannot be sent is a hint lost.
                let _ = socket.send_to(&datagram, to);
            }
        }
    }
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
    use trapeze_datapath::abi;

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
}
