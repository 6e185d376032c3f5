//! Which dispatcher has which slot in the map `dispatchers`, of a spray or of a dispatcher
//! that knows others. Who has a slot keeps it, across reloads and restarts.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use trapeze_core::flow::{addr_bytes, addr_from_bytes};

use crate::abi::{DISPATCHERS_MAX, Dispatcher, Pod};
use crate::map::{Map, Update};

/// Slots for these, by name and address, in their order. None: there are not so many.
pub fn slots(
    map: &Map<u32, Dispatcher>,
    wanted: &[(String, Ipv4Addr)],
) -> io::Result<Option<Vec<u16>>> {
    let taken = (0..DISPATCHERS_MAX as u32)
        .map(|slot| {
            let entry = map.get(&slot)?.unwrap_or_else(Pod::zeroed);
            let name = entry.name().to_owned();
            Ok((!name.is_empty()).then(|| (name, addr_from_bytes(entry.addr))))
        })
        .collect::<io::Result<Vec<_>>>()?;
    Ok(assign(&taken, wanted))
}

/// Whether its records are this dispatcher's, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// It is of the same sub-cluster, or there are none.
    Records,
    /// It is of another one.
    Nothing,
}

/// Writes a dispatcher to its slot, where it is not there yet; `source` is this host's
/// address towards it. Names are at most 31 bytes.
pub fn publish(
    map: &Map<u32, Dispatcher>,
    slot: u16,
    (name, address): (&str, Ipv4Addr),
    source: Ipv4Addr,
    shares: Shares,
) -> io::Result<()> {
    let key = u32::from(slot);
    let is = map.get(&key)?.unwrap_or_else(Pod::zeroed);
    let mut padded = [0; 32];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    let (addr, source) = (addr_bytes(address.into()), source.octets());
    let elsewhere = (shares == Shares::Nothing).into();
    if (is.name, is.addr, is.source, is.elsewhere) == (padded, addr, source, elsewhere) {
        return Ok(());
    }
    let value = Dispatcher {
        addr,
        name: padded,
        source,
        elsewhere,
        ..Pod::zeroed()
    };
    map.put(&key, &value, Update::Any)
}

/// Empties the slots that are not used: once no lot names them.
pub fn retire(map: &Map<u32, Dispatcher>, is_used: impl Fn(u16) -> bool) -> io::Result<()> {
    for slot in (0..DISPATCHERS_MAX as u16).filter(|&slot| !is_used(slot)) {
        let is = map.get(&slot.into())?;
        if is.is_some_and(|is| !is.name().is_empty()) {
            map.put(&slot.into(), &Pod::zeroed(), Update::Any)?;
        }
    }
    Ok(())
}

/// Slots for these, in their order: the one that somebody has, else a free one, else one
/// of somebody who is not wanted any more.
fn assign(taken: &[Option<(String, IpAddr)>], wanted: &[(String, Ipv4Addr)]) -> Option<Vec<u16>> {
    let is = |entry: &(String, IpAddr), w: &(String, Ipv4Addr)| {
        entry.0 == w.0 && entry.1 == IpAddr::V4(w.1)
    };
    let own = |w| {
        taken
            .iter()
            .position(|t| t.as_ref().is_some_and(|t| is(t, w)))
    };
    let mut used: Vec<usize> = wanted.iter().filter_map(own).collect();
    let mut slots = Vec::new();
    for member in wanted {
        let slot = own(member).or_else(|| {
            let unused = (0..taken.len()).filter(|slot| !used.contains(slot));
            unused
                .clone()
                .find(|&slot| taken[slot].is_none())
                .or(unused.clone().next())
        });
        let slot = slot?;
        used.push(slot);
        slots.push(slot as u16);
    }
    Some(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(hosts: &[u8]) -> Vec<(String, Ipv4Addr)> {
        let host = |&n: &u8| (format!("d{n}"), Ipv4Addr::new(10, 0, 0, n));
        hosts.iter().map(host).collect()
    }

    #[test]
    fn who_has_a_slot_keeps_it() {
        let mut taken: Vec<_> = (wanted(&[1, 2, 3]).into_iter())
            .map(|(name, address)| Some((name, IpAddr::V4(address))))
            .collect();
        assert_eq!(assign(&taken, &wanted(&[3, 1])), Some(vec![2, 0]));
        // A new one: first what nobody has, then what nobody needs.
        taken.push(None);
        assert_eq!(assign(&taken, &wanted(&[4, 3, 5])), Some(vec![3, 2, 0]));
        // The same name elsewhere is another dispatcher.
        let moved = vec![("d1".to_owned(), Ipv4Addr::new(10, 0, 0, 9))];
        assert_eq!(assign(&taken, &moved), Some(vec![3]));
        assert_eq!(assign(&taken, &wanted(&[1, 2, 3, 4, 5])), None);
    }
}
