//! The request that an answer began to, from the copies that the data path keeps of a request's packets
//! (docs/protocol/handoff.md 7.5).

use std::io;
use std::net::IpAddr;

use trapeze_core::flow::FlowKey;
use trapeze_core::wire::{ipv4, tcp};
use trapeze_datapath::abi::{Unread, UnreadKey};
use trapeze_datapath::ring::Begun;

/// All that the server had had of the client since its latest answer. None: there are no copies of
/// all that; their memory may be another request's by now.
pub fn request_of(
    begun: &Begun,
    copy: impl Fn(&UnreadKey) -> io::Result<Option<Unread>>,
) -> Option<Vec<u8>> {
    let (start, first) = payload(begun.request())?;
    let mut request = first.to_vec();
    let missing = |had: usize| (begun.answer.taken.wrapping_sub(start)).wrapping_sub(had as u32);
    // Its client may have closed behind it. One byte is no request: the dispatcher gives whole ones.
    while missing(request.len()).cast_signed() > 1 {
        let key = key(&FlowKey::from(begun.answer.key), request.len() as u32)?;
        let copy = copy(&key).ok().flatten().filter(|copy| copy.key == key)?;
        let (at, next) = payload(copy.packet.get(..copy.length as usize)?)?;
        if at.wrapping_sub(start) as usize != request.len() {
            return None;
        }
        request.extend_from_slice(next);
    }
    Some(request)
}

/// What the first of those packets brought.
pub fn first_of(begun: &Begun) -> Option<Vec<u8>> {
    payload(begun.request()).map(|(_, first)| first.to_vec())
}

/// Where what the client's packet brings begins, and its bytes.
fn payload(packet: &[u8]) -> Option<(u32, &[u8])> {
    let packet = ipv4::Packet::parse(packet).ok()?;
    let (header, payload) = tcp::Header::parse(packet.payload()).ok()?;
    (!payload.is_empty()).then_some((header.seq, payload))
}

fn key(flow: &FlowKey, behind: u32) -> Option<UnreadKey> {
    let (IpAddr::V4(client), IpAddr::V4(vip)) = (flow.client.ip(), flow.vip.ip()) else {
        return None;
    };
    Some(UnreadKey {
        client: client.octets(),
        vip: vip.octets(),
        client_port: flow.client.port().to_be_bytes(),
        vip_port: flow.vip.port().to_be_bytes(),
        behind,
    })
}
