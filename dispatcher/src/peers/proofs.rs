//! Connections that are open and silent. For as long as a cookie lives any dispatcher can
//! tell them by that; then only by the proof that their keeper has. So it tells the others
//! of those that have been silent for some seconds (docs/protocol/replication.md 5.5).

use std::io;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Isns;
use trapeze_core::replica::{Entry, Proved};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta;
use trapeze_datapath::abi::{self, Pod, Proof};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use super::Peers;

/// Looked for so often; cookies live at least three times as long.
const ROUND: Duration = Duration::from_secs(10);

/// When to look for them.
#[derive(Debug, Default)]
pub struct Silent {
    looked_at: Duration,
}

impl Silent {
    /// Has the others told of those that have become silent since the last time.
    pub fn tell(&mut self, now: Duration, peers: &Peers) -> io::Result<()> {
        if now < self.looked_at + ROUND || !peers.are_there() {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.looked_at, now);
        // Those of this age had another one at the last look, or did not exist.
        let ages = ROUND..ROUND + (now - before).min(ROUND * 3);
        peers.maps.proofs.for_each(|key, proof| {
            let age = now.saturating_sub(Duration::from_nanos(proof.created_ns));
            let name = FlowKey::from(key);
            if proof.mss != 0 && ages.contains(&age) && peers.keeps(&name) {
                peers.herald.tell(&Entry::Proved(Proved {
                    key: name,
                    isns: Isns {
                        client: ClientSeq::new(proof.client_isn),
                        server: ServerSeq::new(proof.server_isn),
                    },
                    handshake: handshake_of(&proof),
                    age_ms: age.as_millis() as u32,
                }));
            }
        })
    }
}

fn handshake_of(proof: &Proof) -> trapeze_core::flow::Handshake {
    let [a, b] = proof.mss.to_be_bytes();
    meta::handshake_of([a, b, proof.window_scales, proof.tcp_options])
        .expect("the data path writes shifts that can be")
}

/// Another dispatcher has told of one.
pub fn learn(peers: &Peers, proved: &Proved) -> io::Result<()> {
    let [a, b, window_scales, tcp_options] = meta::handshake_bytes(&proved.handshake);
    let now = clock::monotonic().as_nanos() as u64;
    let proof = Proof {
        client_isn: proved.isns.client.raw(),
        server_isn: proved.isns.server.raw(),
        mss: u16::from_be_bytes([a, b]),
        window_scales,
        tcp_options,
        created_ns: now.saturating_sub(u64::from(proved.age_ms) * 1_000_000),
        ..Proof::zeroed()
    };
    let key = abi::FlowKey::from(proved.key);
    match peers.maps.proofs.put(&key, &proof, Update::Create) {
        // A later connection's, or the same.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}
