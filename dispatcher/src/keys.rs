//! Keys of the data path: tags under the cluster's keys, cookies under keys
//! derived from them, which change with time and are the same on every
//! dispatcher without a word between them.

use trapeze_core::config::ClusterKey;
use trapeze_core::siphash::siphash24;
use trapeze_datapath::abi::{COOKIE_PERIOD_S, COOKIE_ROTATION_SHIFT, SiphashKey};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::{Map, Update};

/// All keys are accepted; which one signs stands in the node map.
pub fn publish_tag_keys(maps: &DispatcherMaps, keys: &[ClusterKey]) -> std::io::Result<()> {
    fill_tag_keys(&maps.tag_keys, keys)
}

/// One slot a key id; generation 0 means that there is none.
fn fill_tag_keys(map: &Map<u32, SiphashKey>, keys: &[ClusterKey]) -> std::io::Result<()> {
    for id in 0..=255u8 {
        let key = keys.iter().find(|k| k.id == id);
        let value = key.map_or(SiphashKey { k0: 0, k1: 0, generation: 0 }, |key| {
            let (k0, k1) = halves(&key.secret);
            SiphashKey { k0, k1, generation: 1 }
        });
        map.put(&id.into(), &value, Update::Any)?;
    }
    Ok(())
}

/// The keys of the rotation before, the present one and the next two: a daemon
/// may be away for two hours.
pub fn publish_cookie_keys(maps: &DispatcherMaps, keys: &[ClusterKey]) -> std::io::Result<()> {
    // The lowest id, not the first: which key signs may change, and cookies
    // that are out must stay good meanwhile.
    let Some(key) = keys.iter().min_by_key(|k| k.id) else { return Ok(()) };
    let now = (clock::tai().as_secs() / COOKIE_PERIOD_S) >> COOKIE_ROTATION_SHIFT;
    for rotation in now.saturating_sub(1)..=now + 2 {
        let value = derive(&key.secret, rotation);
        maps.cookie_keys.put(&((rotation & 3) as u32), &value, Update::Any)?;
    }
    Ok(())
}

fn derive(secret: &[u8; 16], rotation: u64) -> SiphashKey {
    let half = |label: &[u8]| siphash24(secret, &[label, &rotation.to_le_bytes()].concat());
    SiphashKey {
        k0: half(b"trapeze cookie 0"),
        k1: half(b"trapeze cookie 1"),
        generation: rotation,
    }
}

fn halves(secret: &[u8; 16]) -> (u64, u64) {
    let (a, b) = secret.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
    (word(a), word(b))
}
