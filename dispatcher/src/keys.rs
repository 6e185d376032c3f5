//! Keys of cookies: derived from the cluster's keys, they change with time and
//! are the same on every dispatcher without a word between them.

use trapeze_core::config::ClusterKey;
use trapeze_core::siphash::siphash24;
use trapeze_datapath::abi::{COOKIE_PERIOD_S, COOKIE_ROTATION_SHIFT, SiphashKey};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::Update;

/// The keys of the rotation before, the present one and the next two: a daemon
/// may be away for two hours.
pub fn publish_cookie_keys(maps: &DispatcherMaps, keys: &[ClusterKey]) -> std::io::Result<()> {
    // The lowest id, not the first: which key signs may change, and cookies
    // that are out must stay good meanwhile.
    let Some(key) = keys.iter().min_by_key(|k| k.id) else {
        return Ok(());
    };
    let now = (clock::cluster().as_secs() / COOKIE_PERIOD_S) >> COOKIE_ROTATION_SHIFT;
    for rotation in now.saturating_sub(1)..=now + 2 {
        let value = derive(&key.secret, rotation);
        maps.cookie_keys
            .put(&((rotation & 3) as u32), &value, Update::Any)?;
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
