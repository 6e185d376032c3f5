//! What this host's daemon says to a dispatcher's: a packet of a flow, in the encapsulation.

use std::net::{IpAddr, SocketAddr};

use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Binding, Keys, Meta};

/// The datagram, and where it goes. None if `inner` is no packet.
pub fn enclose(
    meta: &Meta,
    inner: &[u8],
    to: IpAddr,
    keys: &Keys,
) -> Option<(Vec<u8>, SocketAddr)> {
    let binding = Binding::of_packet(to, inner)?;
    let mut out = Vec::new();
    geneve::write(&meta.seal(keys, &binding), inner, &mut out);
    Some((out, SocketAddr::new(to, geneve::PORT)))
}
