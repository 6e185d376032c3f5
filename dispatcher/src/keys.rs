//! Keys of cookies: derived from the cluster's keys, they change with time and
//! are the same on every dispatcher without a word between them.

use trapeze_core::config::ClusterKey;
use trapeze_core::siphash::siphash24;
use trapeze_datapath::abi::{
    COOKIE_KEY_SETS, COOKIE_PERIOD_S, COOKIE_ROTATION_SHIFT, COOKIE_ROTATIONS, Pod, SiphashKey,
};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::DispatcherMaps;
use trapeze_datapath::map::Update;

/// The keys of the rotation before, the present one and the next two: a daemon may be away
/// for two hours. Cookies are made with those of the cluster's first key; those of the second
/// one are believed, too, while keys are being changed.
pub fn publish_cookie_keys(maps: &DispatcherMaps, keys: &[ClusterKey]) -> std::io::Result<()> {
    let now = (clock::cluster().as_secs() / COOKIE_PERIOD_S) >> COOKIE_ROTATION_SHIFT;
    for rotation in now.saturating_sub(1)..=now + 2 {
        for set in 0..COOKIE_KEY_SETS {
            let value = match keys.get(set as usize) {
                Some(key) => derive(&key.secret, rotation),
                None => SiphashKey::zeroed(),
            };
            let slot = set * COOKIE_ROTATIONS + rotation as u32 % COOKIE_ROTATIONS;
            maps.cookie_keys.put(&slot, &value, Update::Any)?;
        }
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
