//! Stickiness, in front of any policy. It keeps no state, so that all dispatchers
//! agree without talking: a cookie names the backend, or a key is hashed by highest
//! random weight.
//!
//! - The backend is gone, which is all that takes nothing now: the policy chooses for a
//!   named one, and the server there sets its own cookie; of the keys only those of the
//!   backend that is gone move, and they come back with it. A dispatcher has no candidate
//!   for one that an operator drains: it is gone.
//! - It is a candidate that drains, as simulations have them: it keeps both. Nobody can
//!   tell a new key from an old one, so new ones come, too.
//! - Its weight is 0: a named one stays, a key moves.

use std::net::{IpAddr, SocketAddr};

use super::{BackendId, Backends, Bound, Request, hash_bytes, hrw};
use crate::config::{CookieValue, Stickiness};
use crate::flow::addr_bytes;
use crate::route::Asked;

/// Who has the request already, if anybody alive does.
pub fn bound(request: &Request, backends: &Backends) -> Option<BackendId> {
    match request.bound? {
        Bound::To(id) => backends.get(id).map(|c| c.id),
        Bound::Key(key) => {
            hrw::winner(key, backends.all().iter().filter(|c| c.weight > 0)).map(|c| c.id)
        }
    }
}

/// What binds the request. `members` are the names and ids of the pool's backends,
/// alive or not. Of TLS only the client's address is known.
pub fn binding<'m>(
    stickiness: &Stickiness,
    asked: &Asked<'_>,
    client: SocketAddr,
    members: impl IntoIterator<Item = (&'m str, BackendId)>,
) -> Option<Bound> {
    let head = match (stickiness, asked) {
        (Stickiness::Source, _) => return Some(Bound::Key(source(client.ip()))),
        (_, Asked::Http(head)) => head,
        _ => return None,
    };
    match stickiness {
        Stickiness::Cookie { name, value } => {
            let written = head
                .header("cookie")
                .find_map(|cookies| cookie(cookies, name))?;
            match value {
                CookieValue::Hash => Some(Bound::Key(hash_bytes(written))),
                CookieValue::Name => (members.into_iter())
                    .find(|(name, _)| names(written, name))
                    .map(|(_, id)| Bound::To(id)),
            }
        }
        Stickiness::Header(name) => {
            let value = head.header(name).find(|value| !value.is_empty())?;
            Some(Bound::Key(hash_bytes(value)))
        }
        Stickiness::Source => None,
    }
}

/// IPv6 hosts change the lower half of their addresses as they like (RFC 8981).
fn source(address: IpAddr) -> u64 {
    let bytes = addr_bytes(address);
    match address {
        IpAddr::V4(_) => hash_bytes(&bytes),
        IpAddr::V6(_) => hash_bytes(&bytes[..8]),
    }
}

/// The value of the first cookie of that name in a Cookie field (RFC 6265 §4.2.1).
fn cookie<'v>(cookies: &'v [u8], name: &str) -> Option<&'v [u8]> {
    let value = cookies.split(|&b| b == b';').find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        value.strip_prefix(b"=")
    })?;
    let bare = value
        .strip_prefix(b"\"")
        .and_then(|v| v.strip_suffix(b"\""));
    Some(bare.unwrap_or(value)).filter(|v| !v.is_empty())
}

fn names(value: &[u8], backend: &str) -> bool {
    (value.strip_suffix(backend.as_bytes())).is_some_and(|rest| matches!(rest, [] | [.., b'.']))
}
