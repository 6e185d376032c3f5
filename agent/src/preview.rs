//! Answers that are to be moved to this host while their owner is well: a dispatcher asks first
//! whether the server here has the very object, and nothing happens to those of which it does
//! not (docs/protocol/takeover.md §8).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::takeover::{Assembly, Message, Take, WEDGE_PORT};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::Kind;

use crate::support::Support;
use crate::wedge::find_rest;

/// Questions that are looked into at once; of what is more a dispatcher asks again.
const MOST: usize = 256;
/// More than a frame holds.
const DATAGRAM_MAX: usize = 2048;
/// Characters of a word for people: it is to fit one frame.
const WHY_MAX: usize = 200;

/// Listens for questions, as long as the process lives.
pub fn start(support: Arc<Support>, own: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((own, WEDGE_PORT))?;
    let busy = Arc::<AtomicUsize>::default();
    std::thread::Builder::new()
        .name("preview".into())
        .spawn(move || {
            let mut datagram = [0; DATAGRAM_MAX];
            let mut begun = Assembly::default();
            loop {
                let Ok((length, from)) = socket.recv_from(&mut datagram) else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                let asked = open(&datagram[..length], (from, own), &mut begun, &support);
                let Some((flow, question, take, dispatcher)) = asked else {
                    continue;
                };
                let count = busy.fetch_add(1, Ordering::Relaxed);
                let (support, ends) = (support.clone(), busy.clone());
                let work = move || {
                    let found = find_rest(&take, &flow, &support);
                    let why_not = found.err();
                    let why_not =
                        why_not.map(|not_found| not_found.why.chars().take(WHY_MAX).collect());
                    let reply = Message::Reply { question, why_not };
                    support.reply(&flow, dispatcher, &reply);
                    ends.fetch_sub(1, Ordering::Relaxed);
                };
                let builder = std::thread::Builder::new().name("preview".into());
                if count >= MOST || builder.spawn(work).is_err() {
                    busy.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
    Ok(())
}

/// A question of a dispatcher's, if it is whole, and who asks.
fn open(
    datagram: &[u8],
    (from, own): (SocketAddr, Ipv4Addr),
    begun: &mut Assembly,
    support: &Support,
) -> Option<(FlowKey, u32, Take, Ipv4Addr)> {
    let keys = support.keys();
    let packet = geneve::open(datagram, own.into(), &keys).ok()?;
    if packet.meta.kind != Kind::Support {
        return None;
    }
    let arrived = Arrived::parse(&packet.meta, packet.inner).ok()?;
    let said = begun.open(arrived.payload, &keys, &arrived.key).ok()?;
    let Some((Message::Ask { question, take }, _)) = said else {
        return None;
    };
    let IpAddr::V4(dispatcher) = from.ip() else {
        return None;
    };
    Some((arrived.key, question, take, dispatcher))
}
