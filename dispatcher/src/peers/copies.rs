//! Heads that other dispatchers are reading, as far as they have told their clients that
//! they have them: whoever keeps such a flow next reads on from here.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Kept;
use trapeze_datapath::clock;

/// A head has been read by then, and a backend has its bytes.
const LIFETIME: Duration = Duration::from_secs(30);

/// All of them; bounded.
#[derive(Debug, Default)]
pub struct Copies {
    count: AtomicUsize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    copies: HashMap<FlowKey, Copy>,
    bytes: usize,
}

#[derive(Debug)]
struct Copy {
    kept: Kept,
    maker: Ipv4Addr,
    until: Duration,
}

impl Copies {
    /// A dispatcher has told a client `age` ago that it has these bytes. At most `limit` bytes are
    /// held in all.
    pub fn add(&self, age: Duration, maker: Ipv4Addr, kept: Kept, limit: usize) {
        let said = clock::monotonic().saturating_sub(age);
        self.add_said(said, maker, kept, limit);
    }

    fn add_said(&self, said: Duration, maker: Ipv4Addr, kept: Kept, limit: usize) {
        let mut held = self.held.lock().expect("no thread panics with it");
        if held.bytes + kept.bytes.len() > limit {
            held.copies.retain(|_, copy| copy.until > said);
            held.bytes = held.copies.values().map(|copy| copy.kept.bytes.len()).sum();
        }
        if held.bytes + kept.bytes.len() <= limit {
            held.add(said, maker, kept);
        }
        self.count.store(held.copies.len(), Ordering::Release);
    }

    /// What there is of a flow that others have read, and since when; it is the taker's from then on. What
    /// `own` has read it knows.
    pub fn take(&self, now: Duration, key: &FlowKey, own: Ipv4Addr) -> Option<(Kept, Duration)> {
        self.take_if(now, key, |copy| copy.maker != own)
    }

    /// The same, whoever has read it.
    pub fn take_any(&self, now: Duration, key: &FlowKey) -> Option<(Kept, Duration)> {
        self.take_if(now, key, |_| true)
    }

    fn take_if(
        &self,
        now: Duration,
        key: &FlowKey,
        is_meant: impl FnOnce(&Copy) -> bool,
    ) -> Option<(Kept, Duration)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut held = self.held.lock().expect("no thread panics with it");
        if !is_meant(held.copies.get(key)?) {
            return None;
        }
        let copy = held.copies.remove(key)?;
        held.bytes -= copy.kept.bytes.len();
        self.count.store(held.copies.len(), Ordering::Release);
        // Of a connection that is over, perhaps, whose client uses its port again.
        (copy.until > now).then(|| (copy.kept, copy.until.saturating_sub(LIFETIME)))
    }

    /// What `own` has read it has forgotten: whoever comes to keep those flows, this dispatcher too, reads on from here.
    pub fn disown(&self, own: Ipv4Addr) {
        let mut held = self.held.lock().expect("no thread panics with it");
        let its = held.copies.values_mut().filter(|copy| copy.maker == own);
        its.for_each(|copy| copy.maker = Ipv4Addr::UNSPECIFIED);
    }

    /// The same of one.
    pub fn disown_one(&self, key: &FlowKey, own: Ipv4Addr) {
        let mut held = self.held.lock().expect("no thread panics with it");
        if let Some(copy) = held.copies.get_mut(key).filter(|copy| copy.maker == own) {
            copy.maker = Ipv4Addr::UNSPECIFIED;
        }
    }

    /// All that may still be needed, for somebody who was not there, and how old it is: whoever is told it again does
    /// not keep it the longer.
    pub fn all(&self, now: Duration) -> Vec<(Kept, Duration)> {
        let held = self.held.lock().expect("no thread panics with it");
        let fresh = held.copies.values().filter(|copy| copy.until > now);
        let aged = |copy: &Copy| (copy.kept.clone(), LIFETIME.saturating_sub(copy.until - now));
        fresh.map(aged).collect()
    }

    /// The flows that a dispatcher was reading.
    pub fn of(&self, now: Duration, maker: Ipv4Addr) -> Vec<FlowKey> {
        let held = self.held.lock().expect("no thread panics with it");
        let its = (held.copies.iter()).filter(|(_, copy)| copy.maker == maker && copy.until > now);
        its.map(|(key, _)| *key).collect()
    }
}

impl Held {
    fn add(&mut self, said: Duration, maker: Ipv4Addr, kept: Kept) {
        let until = said + LIFETIME;
        let offset = kept.offset as usize;
        if let Some(copy) = self.copies.get_mut(&kept.key) {
            let known = &mut copy.kept;
            // Said again to who joins, and overtaken by what was said since.
            let is_late = kept.cookie == known.cookie && kept.isns.client.before(known.isns.client);
            // Of a connection before this one's that used its port.
            let is_of_before = kept.cookie != known.cookie && until < copy.until;
            if is_late || is_of_before {
                return;
            }
            // An owner has been given what was before.
            let is_further = kept.later && kept.cookie == known.cookie && kept.isns != known.isns;
            if let Some(rest) = known.behind(kept.start()).filter(|_| is_further) {
                self.bytes -= known.bytes.len() - rest.bytes.len();
                *known = rest;
            }
            if (known.isns, known.later) == (kept.isns, kept.later) {
                // Whoever has read less may say so later; and of a piece that lies further on, one is missing before.
                let is_news = known.bytes.len() < offset + kept.bytes.len();
                if is_news && offset <= known.bytes.len() {
                    self.bytes -= known.bytes.len();
                    known.bytes.truncate(offset);
                    known.bytes.extend_from_slice(&kept.bytes);
                    self.bytes += known.bytes.len();
                    (known.heard, known.window) = (kept.heard, kept.window);
                    known.timestamps = kept.timestamps;
                    (copy.maker, copy.until) = (maker, until);
                }
                return;
            }
            self.bytes -= known.bytes.len();
        }
        if offset > 0 {
            self.copies.remove(&kept.key);
            return;
        }
        self.bytes += kept.bytes.len();
        let copy = Copy { kept, maker, until };
        self.copies.insert(copy.kept.key, copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::flow::Handshake;
    use trapeze_core::intake::Isns;
    use trapeze_core::seq::{ClientSeq, ServerSeq};

    const D1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const NOW: Duration = Duration::from_secs(100);

    fn kept(port: u16, isn: u32, offset: u32, bytes: &[u8]) -> Kept {
        Kept {
            key: FlowKey {
                client: ([192, 0, 2, 1], port).into(),
                vip: ([10, 77, 0, 100], 80).into(),
            },
            isns: Isns {
                client: ClientSeq::new(isn),
                server: ServerSeq::new(7),
            },
            cookie: ServerSeq::new(7),
            later: false,
            handshake: Handshake::default(),
            offset,
            heard: ServerSeq::new(8),
            window: 1,
            timestamps: None,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn pieces_come_together() {
        let copies = Copies::default();
        let key = kept(1, 0, 0, b"").key;
        copies.add_said(NOW, D1, kept(1, 5, 0, b"GET "), 100);
        copies.add_said(NOW, D1, kept(1, 5, 4, b"/ HT"), 100);
        assert_eq!(copies.of(NOW, D1), [key]);
        assert_eq!(copies.of(NOW, Ipv4Addr::LOCALHOST), []);
        // Again, and one behind a gap.
        copies.add_said(NOW, D1, kept(1, 5, 4, b"/ HTTP"), 100);
        copies.add_said(NOW, D1, kept(1, 5, 20, b"late"), 100);
        assert_eq!(
            copies.take(NOW, &key, OWN).expect("it is there").0.bytes,
            b"GET / HTTP"
        );
        assert_eq!(copies.take(NOW, &key, OWN), None);
        // Another connection takes the place, and one whose beginning is missing does not stay.
        copies.add_said(NOW, D1, kept(1, 5, 0, b"POST"), 100);
        copies.add_said(NOW, D1, kept(1, 6, 0, b"PUT "), 100);
        assert_eq!(
            copies.take(NOW, &key, OWN).expect("it is there").0.bytes,
            b"PUT "
        );
        copies.add_said(NOW, D1, kept(1, 5, 4, b"POST"), 100);
        assert_eq!(copies.take(NOW, &key, OWN), None);
    }

    /// Several tell one that joins what they have, and some have been told less.
    #[test]
    fn what_is_known_already_takes_nothing_away() {
        let copies = Copies::default();
        let key = kept(1, 0, 0, b"").key;
        copies.add_said(NOW, D1, kept(1, 5, 0, b"GET / HTTP"), 100);
        for (offset, bytes) in [(0, &b"GET "[..]), (4, b"/ H"), (0, b"GET / HTTP")] {
            copies.add_said(NOW, OWN, kept(1, 5, offset, bytes), 100);
            assert_eq!(copies.of(NOW, D1), [key], "{offset}");
        }
        copies.add_said(NOW, OWN, kept(1, 5, 6, b"HTTP/1.1"), 100);
        assert_eq!(copies.of(NOW, OWN), [key]);
        let whole = &copies.all(NOW)[0].0.bytes;
        assert_eq!(whole, b"GET / HTTP/1.1");
        assert_eq!(copies.held.lock().unwrap().bytes, whole.len());
    }

    /// The first of what it has was given to an owner, and the rest is read on as a later request's.
    #[test]
    fn what_lies_behind_a_boundary_goes_on_from_there() {
        let copies = Copies::default();
        let key = kept(1, 0, 0, b"").key;
        let later = |isn, offset, bytes| Kept {
            later: true,
            ..kept(1, isn, offset, bytes)
        };
        copies.add_said(NOW, D1, kept(1, 5, 0, b"GET 1GET 2GE"), 100);
        copies.add_said(NOW, D1, later(10, 7, b"T 3"), 100);
        let (rest, _) = copies.take(NOW, &key, OWN).expect("it is there");
        assert_eq!(rest, later(10, 0, b"GET 2GET 3"));
        // Nothing of it has been read there.
        copies.add_said(NOW, D1, kept(1, 5, 0, b"GET 1"), 100);
        copies.add_said(NOW, D1, later(10, 7, b"T 3"), 100);
        assert_eq!(copies.take(NOW, &key, OWN), None);
        // A boundary that comes round.
        copies.add_said(NOW, D1, later(u32::MAX - 2, 0, b"GET 1GET 2"), 100);
        copies.add_said(NOW, D1, later(2, 5, b"GET 3"), 100);
        let (rest, _) = copies.take(NOW, &key, OWN).expect("it is there");
        assert_eq!(rest, later(2, 0, b"GET 2GET 3"));
    }

    /// Who joins is told all that there is, and that takes a while: what is said now comes first.
    #[test]
    fn a_request_of_before_takes_the_place_of_none() {
        let copies = Copies::default();
        let later = |isn, offset, bytes| Kept {
            later: true,
            ..kept(1, isn, offset, bytes)
        };
        copies.add_said(NOW, D1, later(90, 0, b"GET 3"), 100);
        copies.add_said(NOW, D1, later(10, 0, b"GET 2"), 100);
        copies.add_said(NOW, D1, later(10, 9, b" HTTP"), 100);
        copies.add_said(NOW, D1, later(90, 5, b" HTTP"), 100);
        let (all, _) = (copies.take(NOW, &later(90, 0, b"").key, OWN)).expect("it is there");
        assert_eq!(all, later(90, 0, b"GET 3 HTTP"));
    }

    /// Else heads of connections long gone would go to and fro between those that join, for ever.
    #[test]
    fn who_is_told_again_keeps_it_no_longer() {
        let (first, second) = (Copies::default(), Copies::default());
        first.add_said(NOW, D1, kept(1, 5, 0, b"GET "), 100);
        let (mut from, mut to) = (&first, &second);
        let mut now = NOW;
        for _ in 0..2 {
            now += LIFETIME / 3;
            for (kept, age) in from.all(now) {
                to.add_said(now - age, D1, kept, 100);
            }
            (from, to) = (to, from);
        }
        for copies in [&first, &second] {
            assert_eq!(
                copies.all(NOW + LIFETIME - Duration::from_millis(1)).len(),
                1
            );
            assert_eq!(copies.all(NOW + LIFETIME), []);
        }
        // The port is another connection's since, and somebody who was not there tells of the one before.
        let other = Kept {
            cookie: ServerSeq::new(1 << 30),
            ..kept(1, 3, 0, b"PUT ")
        };
        first.add_said(NOW + LIFETIME, D1, other.clone(), 100);
        first.add_said(NOW, D1, kept(1, 5, 0, b"GET "), 100);
        let all = [(other, Duration::ZERO)];
        assert_eq!(first.all(NOW + LIFETIME), all);
    }

    #[test]
    fn what_is_read_here_is_for_others_alone() {
        let copies = Copies::default();
        let key = kept(1, 0, 0, b"").key;
        copies.add_said(NOW, OWN, kept(1, 5, 0, b"GET "), 100);
        assert_eq!(copies.take(NOW, &key, OWN), None);
        let all = [(kept(1, 5, 0, b"GET "), Duration::ZERO)];
        assert_eq!(copies.all(NOW), all);
        assert_eq!(copies.all(NOW + LIFETIME), []);
        copies.add_said(NOW, D1, kept(1, 5, 4, b"/ "), 100);
        assert_eq!(
            copies.take(NOW, &key, OWN),
            Some((kept(1, 5, 0, b"GET / "), NOW))
        );
        // What has been forgotten here is as if another one had read it.
        copies.add_said(NOW, OWN, kept(1, 5, 0, b"GET "), 100);
        copies.disown(OWN);
        assert_eq!(
            copies.take(NOW, &key, OWN),
            Some((kept(1, 5, 0, b"GET "), NOW))
        );
    }

    #[test]
    fn they_are_bounded_and_forgotten() {
        let copies = Copies::default();
        for port in 0..20 {
            copies.add_said(NOW, D1, kept(port, 5, 0, &[b'x'; 10]), 100);
        }
        assert_eq!(copies.of(NOW, D1).len(), 10);
        let later = NOW + LIFETIME;
        copies.add_said(later, D1, kept(99, 5, 0, &[b'x'; 10]), 100);
        assert_eq!(copies.of(NOW, D1), [kept(99, 5, 0, b"").key]);
    }
}
