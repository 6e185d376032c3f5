//! Later packets of a request that its backend gives back: they go where the first one goes, whose
//! word may come after theirs (docs/protocol/handoff.md 7.4).

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::wire::meta::{Kind, Meta};

use super::State;
use crate::records::Record;

/// The first one's word comes by then, or never: then they are its backend's.
const PATIENCE: Duration = Duration::from_millis(50);
/// Packets of a request (bpf/lib/unread.bpf.h), and requests.
const PACKETS: usize = 64;
const REQUESTS: usize = 1024;

/// Those that have come before.
#[derive(Debug, Default)]
pub(super) struct Behind {
    all: HashMap<FlowKey, Early>,
}

#[derive(Debug)]
struct Early {
    due: Duration,
    packets: Vec<(Meta, Vec<u8>)>,
}

impl Behind {
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.all.values().map(|early| early.due).min()
    }

    /// False: there is no room.
    fn keep(&mut self, now: Duration, key: FlowKey, meta: &Meta, inner: &[u8]) -> bool {
        if self.all.len() >= REQUESTS && !self.all.contains_key(&key) {
            return false;
        }
        let early = self.all.entry(key).or_insert_with(|| Early {
            due: now + PATIENCE,
            packets: Vec::new(),
        });
        let has_room = early.packets.len() < PACKETS;
        if has_room {
            early.packets.push((*meta, inner.to_vec()));
        }
        has_room
    }
}

impl State {
    /// A backend gives back a later packet of a request.
    pub(super) fn on_behind(
        &mut self,
        now: Duration,
        key: &FlowKey,
        meta: &Meta,
        record: &Record,
        inner: &[u8],
    ) {
        self.count("refusals-behind");
        // It is not known yet what becomes of the first one.
        let is_early = record.epoch == meta.epoch && record.has_backend();
        if !is_early || !self.behind.keep(now, *key, meta, inner) {
            self.send_behind(now, meta, record, inner);
        }
    }

    /// It is as if the client sent it now, which it does not, for it has been told that it has
    /// arrived.
    fn send_behind(&mut self, now: Duration, meta: &Meta, record: &Record, inner: &[u8]) {
        let request = Meta {
            kind: Kind::Request {
                server_isn: record.isns.server,
            },
            epoch: record.epoch,
            start: record.isns.client + 1,
            ..*meta
        };
        self.on_request(now, &request, inner);
    }

    /// The first one has gone somewhere.
    pub(super) fn send_all_behind(&mut self, now: Duration, key: &FlowKey) {
        let packets = self.behind.all.remove(key).map(|early| early.packets);
        for (meta, inner) in packets.into_iter().flatten() {
            if let Ok(Some(record)) = self.shared.records.get(key) {
                self.send_behind(now, &meta, &record, &inner);
            }
        }
    }

    pub(super) fn on_behind_due(&mut self, now: Duration) {
        let due = (self.behind.all.iter())
            .filter(|(_, early)| early.due <= now)
            .map(|(key, _)| *key);
        for key in due.collect::<Vec<_>>() {
            self.send_all_behind(now, &key);
        }
    }
}
