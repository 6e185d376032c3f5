//! The latest packets to each dispatcher, which a data path keeps (bpf/lib/sent.bpf.h), and what of them is to be sent
//! again when one has died (core/src/membership/replay.rs).
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use trapeze_core::config::Spraying;
use trapeze_core::membership::Presence;
use trapeze_core::membership::replay::Replay;
use trapeze_core::wire::again::{self, Kept};

use crate::abi::{DISPATCHERS_MAX, ENCAP_LEN, Pod, SENT_ENTRIES, Sent, SentRing};
use crate::host;
use crate::map::{Map, Update, share};

/// What was sent to dispatchers that have died, to be sent once more to others.
#[derive(Debug)]
pub struct SentToTheDead {
    replay: Replay,
    sent: SharedSent,
    /// The longest packet that fits into the encapsulation.
    inner_max: usize,
}

impl SentToTheDead {
    /// By the data path whose map that is, with packets as `interface` can carry them encapsulated.
    ///
    /// # Errors
    /// The map cannot be mapped, or there is no such interface.
    pub fn open(sent: &Map<u32, Sent>, interface: &str) -> io::Result<Self> {
        Ok(Self {
            replay: Replay::default(),
            sent: SharedSent::map(sent)?,
            inner_max: (host::mtu(interface)? as usize).saturating_sub(ENCAP_LEN),
        })
    }

    /// The dispatcher in that slot is found dead, with heartbeats of that interval; it was heard last at `heard`. One
    /// that was never heard has had nothing.
    pub fn begin(&mut self, slot: u16, heard: Option<Duration>, now: Duration, interval: Duration) {
        if let Some(heard) = heard {
            self.replay.begin(slot, heard, now, interval);
        }
    }

    /// The dispatcher in that slot says something of itself, and has said something before. If its daemon is away, or has
    /// just begun anew, what waited for it is lost; its data path is there, and gets what it passes on.
    pub fn hear(
        &mut self,
        slot: u16,
        before: Option<Presence>,
        said: Presence,
        now: Duration,
        spraying: &Spraying,
    ) {
        if !before.is_some_and(|before| before.has_lost_daemon(said)) {
            return;
        }
        let told_late = spraying.lease() + spraying.heartbeat;
        let heard = now.saturating_sub(told_late);
        self.replay.begin(slot, heard, now, spraying.heartbeat);
    }

    /// It is there, or another one has its slot.
    pub fn end(&mut self, slot: u16) {
        self.replay.end(slot);
    }

    /// When there is something to send.
    pub fn due(&self) -> Option<Duration> {
        self.replay.due()
    }

    /// What is to be sent now, in order: whose it was, by slot, and the packet.
    pub fn take(&mut self, now: Duration) -> Vec<(u16, Vec<u8>)> {
        let mut packets = Vec::new();
        for (slot, since) in self.replay.take(now) {
            for kept in again::unanswered(self.sent.since(since, slot), slot) {
                let segments = again::segments(&kept, self.inner_max);
                packets.extend(segments.into_iter().map(|segment| (slot, segment)));
            }
        }
        packets
    }
}

/// Divides the room among the dispatchers in those slots. Where it is as before, rings stay as they are.
pub fn divide(rings: &Map<u32, SentRing>, slots: &[u16]) -> io::Result<()> {
    let entries = match slots.len() {
        0 => 0,
        number => 1 << (SENT_ENTRIES / number).ilog2(),
    };
    for slot in 0..DISPATCHERS_MAX as u32 {
        let place = slots.iter().position(|&it| u32::from(it) == slot);
        let (first, entries) = place.map_or((0, 0), |place| (place as u32 * entries, entries));
        let ring = rings.get(&slot)?.unwrap_or_else(Pod::zeroed);
        if (ring.first, ring.entries) != (first, entries) {
            let ring = SentRing {
                first,
                entries,
                ..ring
            };
            rings.put(&slot, &ring, Update::Any)?;
        }
    }
    Ok(())
}

/// Of IPv4 without options and TCP with all, in bytes, and one byte that tells whether anything is behind them.
const HEADERS_MAX: usize = 20 + 60 + 1;

struct Found {
    at: u64,
    turn: u32,
    slot: u16,
    kept: Kept,
}

/// The latest packets to dispatchers in this process's memory, where the data path writes them.
#[derive(Debug)]
pub struct SharedSent {
    entries: *const Sent,
}

// SAFETY: shared memory that is only read, and whose every value is a valid one.
unsafe impl Send for SharedSent {}

impl SharedSent {
    /// Maps it; stays mapped for the life of the process.
    pub fn map(sent: &Map<u32, Sent>) -> io::Result<Self> {
        Ok(Self {
            entries: share(sent, SENT_ENTRIES)?.cast(),
        })
    }

    /// What was sent since then (CLOCK_MONOTONIC), and to whom, by slot: in its order, as far as that is known; of what
    /// did not go to `whole` the headers alone. What is being overwritten meanwhile is left out.
    pub fn since(&self, since: Duration, whole: u16) -> Vec<(u16, Kept)> {
        let since = since.as_nanos() as u64;
        let mut found: Vec<Found> = (0..SENT_ENTRIES)
            .filter_map(|place| self.read(place, since, whole))
            .collect();
        // Its clock is a coarse one, and each slot's turns go round.
        found.sort_by(|a, b| {
            let by_turn = (a.turn.wrapping_sub(b.turn) as i32).cmp(&0);
            (a.at.cmp(&b.at)).then(a.slot.cmp(&b.slot)).then(by_turn)
        });
        found.into_iter().map(|it| (it.slot, it.kept)).collect()
    }

    fn read(&self, place: usize, since: u64, whole: u16) -> Option<Found> {
        // SAFETY: `place` is within the mapping, which is never unmapped.
        let entry = unsafe { self.entries.add(place) };
        // SAFETY: as above; aligned, and the program writes it whole.
        let written = unsafe { AtomicU64::from_ptr((&raw const (*entry).at_ns).cast_mut()) };
        let at = written.load(Ordering::Acquire);
        // SAFETY: as above, of integers: any value that is read is one.
        let (turn, slot) = unsafe {
            (
                (&raw const (*entry).turn).read_volatile(),
                (&raw const (*entry).slot).read_volatile(),
            )
        };
        if at == 0 || at < since {
            return None;
        }
        // SAFETY: as above.
        let read = unsafe { entry.read_volatile() };
        fence(Ordering::Acquire);
        let is_whole = written.load(Ordering::Relaxed) == at;
        let (start, end) = match slot == whole {
            true => (read.start_length.into(), read.end_length.into()),
            false => (usize::from(read.start_length).min(HEADERS_MAX), 0),
        };
        let kept = Kept {
            start: read.start.get(..start)?.to_vec(),
            end: read.end.get(..end)?.to_vec(),
        };
        is_whole.then_some(Found {
            at,
            turn,
            slot,
            kept,
        })
    }
}
