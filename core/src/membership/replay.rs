//! When what a dispatcher had before it was found dead is sent again, to others: it may have died with it. So clients
//! need not wait for their own timers, which TCP doubles each time (RFC 6298 5.5). To a TCP it is a duplicate
//! (RFC 9293 3.10.7.4): what had gone on before does no harm. Keeps no packet, and reads no clock.
//!
//! Each node finds a death at its own beats, and passes what is the dead one's to it until then, and keeps that itself.
//! Still all is sent again some times: who has it needs a moment to take over, and a burst may be too much for it.

use std::time::Duration;

/// In tenths of a heartbeat behind the moment at which it was found dead.
const ROUNDS: [u32; 3] = [0, 5, 12];
/// And this much later each, but for the first.
const GRACE: Duration = Duration::from_millis(5);
/// What has come to a daemon may lie in its queue for so long.
const IN_ITS_QUEUE: Duration = Duration::from_millis(20);

/// Dispatchers that were found dead lately, by slot.
#[derive(Debug, Default)]
pub struct Replay {
    due: Vec<Due>,
}

#[derive(Debug)]
struct Due {
    slot: u16,
    since: Duration,
    found: Duration,
    interval: Duration,
    round: usize,
}

impl Replay {
    /// The dispatcher in that slot is found dead, with heartbeats of that interval; it was heard last at `heard`.
    pub fn begin(&mut self, slot: u16, heard: Duration, now: Duration, interval: Duration) {
        self.end(slot);
        self.due.push(Due {
            slot,
            since: heard.saturating_sub(interval.min(IN_ITS_QUEUE)),
            found: now,
            interval,
            round: 0,
        });
    }

    /// It is there, or another one has its slot.
    pub fn end(&mut self, slot: u16) {
        self.due.retain(|due| due.slot != slot);
    }

    /// When there is something to send again.
    pub fn due(&self) -> Option<Duration> {
        self.due.iter().map(Due::at).min()
    }

    /// Whose packets are to be sent again now, by slot: all that it may not have seen, those from that time on.
    pub fn take(&mut self, now: Duration) -> Vec<(u16, Duration)> {
        let mut taken = Vec::new();
        for due in self.due.iter_mut().filter(|due| due.at() <= now) {
            taken.push((due.slot, due.since));
            due.round += 1;
        }
        self.due.retain(|due| due.round < ROUNDS.len());
        taken
    }
}

impl Due {
    fn at(&self) -> Duration {
        match ROUNDS[self.round] {
            0 => self.found,
            tenths => self.found + self.interval * tenths / 10 + GRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn all_since_it_was_heard_is_sent_again_three_times() {
        let mut replay = Replay::default();
        replay.begin(3, 100 * MS, 700 * MS, 200 * MS);
        replay.begin(4, 680 * MS, 700 * MS, 10 * MS);
        let mut seen = Vec::new();
        while let Some(at) = replay.due() {
            assert!(replay.take(at - MS).is_empty());
            seen.extend(
                replay
                    .take(at)
                    .into_iter()
                    .map(|(slot, since)| (slot, since, at)),
            );
        }
        let of = |slot, since, at: [u32; 3]| at.map(|at| (slot, since, at * MS));
        let mut expected = [
            of(3, 80 * MS, [700, 805, 945]),
            of(4, 670 * MS, [700, 710, 717]),
        ]
        .concat();
        expected.sort_by_key(|&(slot, _, at)| (at, slot));
        assert_eq!(seen, expected);
    }

    #[test]
    fn nothing_goes_again_once_it_is_back() {
        let mut replay = Replay::default();
        replay.begin(3, 100 * MS, 700 * MS, 200 * MS);
        assert_eq!(replay.take(700 * MS).len(), 1);
        replay.end(3);
        assert_eq!(replay.due(), None);
        assert!(replay.take(2000 * MS).is_empty());
    }
}
