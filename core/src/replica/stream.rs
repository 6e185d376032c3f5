//! News as a numbered stream: what the sender can say again, and what the receiver lacks.
//! Nothing waits for an acknowledgement; who notices a gap asks.

use std::collections::{BTreeSet, VecDeque};

/// Messages that are kept, to be sent again.
pub const KEPT: usize = 1024;
/// Numbers in one LACKING.
pub const ASKED_AT_ONCE: usize = 64;

/// What was sent last.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    last: u32,
    kept: VecDeque<Vec<u8>>,
}

impl Sent {
    /// The number of the latest message; 0: there was none.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// The next one's number.
    pub fn next(&self) -> u32 {
        self.last.wrapping_add(1)
    }

    /// The next message is this.
    pub fn push(&mut self, message: Vec<u8>) {
        self.last = self.next();
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(message);
    }

    /// A message once more, if it is kept.
    pub fn again(&self, number: u32) -> Option<&[u8]> {
        let back = self.last.wrapping_sub(number) as usize;
        let at = self.kept.len().checked_sub(back + 1)?;
        self.kept.get(at).map(Vec::as_slice)
    }
}

/// What has come from a peer.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    stream: Option<u32>,
    /// The number that comes next.
    next: u32,
    lacking: BTreeSet<u32>,
    /// What there was of the stream before it was first heard is too much to be asked for.
    is_behind: bool,
}

impl Heard {
    /// News of that number, or a tail's word that there were so many. True: it is a message
    /// of a stream that began later than what was heard before, or the same.
    pub fn news(&mut self, stream: u32, number: u32) -> bool {
        if !self.follow(stream, number) {
            return false;
        }
        self.extend(number.wrapping_add(1));
        self.lacking.remove(&number);
        true
    }

    /// So many there were.
    pub fn tail(&mut self, stream: u32, last: u32) {
        if self.follow(stream, last.wrapping_add(1)) {
            self.extend(last.wrapping_add(1));
        }
    }

    /// These cannot be had.
    pub fn gone(&mut self, number: u32) -> bool {
        self.lacking.remove(&number)
    }

    /// Does what a stream said before it was first heard have to be had by a catch-up? Says so once.
    pub fn falls_behind(&mut self) -> bool {
        std::mem::take(&mut self.is_behind)
    }

    /// What to ask for, at most [`ASKED_AT_ONCE`] of it, and of which stream.
    pub fn lacking(&self) -> Option<(u32, Vec<u32>)> {
        let numbers: Vec<u32> = self.lacking.iter().take(ASKED_AT_ONCE).copied().collect();
        (!numbers.is_empty()).then_some((self.stream?, numbers))
    }

    /// Is it that stream, or becomes it?
    fn follow(&mut self, stream: u32, number: u32) -> bool {
        match self.stream {
            Some(known) if known == stream => true,
            Some(known) if stream.wrapping_sub(known).cast_signed() < 0 => false,
            _ => {
                self.stream = Some(stream);
                self.lacking.clear();
                // All of a short one; of a long one, a catch-up has the rest.
                self.is_behind = number as usize > KEPT;
                self.next = if self.is_behind { number } else { 1 };
                true
            }
        }
    }

    fn extend(&mut self, next: u32) {
        let ahead = next.wrapping_sub(self.next).cast_signed();
        if ahead <= 0 {
            return;
        }
        // What is not kept need not be asked for.
        let skipped = ahead.saturating_sub(KEPT as i32).max(0).cast_unsigned();
        let mut number = self.next.wrapping_add(skipped);
        while number != next {
            self.lacking.insert(number);
            number = number.wrapping_add(1);
        }
        self.next = next;
        while self.lacking.len() > KEPT {
            self.lacking.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_can_be_sent_again_for_a_while() {
        let mut sent = Sent::default();
        assert_eq!((sent.next(), sent.again(0)), (1, None));
        for number in 1..=KEPT as u32 + 10 {
            assert_eq!(sent.next(), number);
            sent.push(number.to_be_bytes().into());
        }
        for (number, kept) in [
            (0, false),
            (10, false),
            (11, true),
            (1034, true),
            (1035, false),
        ] {
            let wanted = u32::to_be_bytes(number);
            assert_eq!(sent.again(number), kept.then_some(&wanted[..]), "{number}");
        }
    }

    #[test]
    fn gaps_are_noticed_and_filled() {
        let mut heard = Heard::default();
        assert_eq!(heard.lacking(), None);
        heard.news(5, 1);
        heard.news(5, 2);
        assert_eq!(heard.lacking(), None);
        heard.news(5, 5);
        assert_eq!(heard.lacking(), Some((5, vec![3, 4])));
        heard.news(5, 4);
        heard.tail(5, 7);
        assert_eq!(heard.lacking(), Some((5, vec![3, 6, 7])));
        assert!(heard.gone(3) && !heard.gone(3));
        heard.news(5, 7);
        heard.news(5, 6);
        assert_eq!(heard.lacking(), None);
        // Late and twice.
        assert!(heard.news(5, 2));
        assert_eq!(heard.lacking(), None);
    }

    #[test]
    fn of_a_new_stream_all_is_wanted_if_that_is_not_much() {
        let mut heard = Heard::default();
        heard.news(5, 3);
        assert_eq!(heard.lacking(), Some((5, vec![1, 2])));
        // The sender has begun anew.
        heard.tail(9, 0);
        assert_eq!(heard.lacking(), None);
        assert!(!heard.news(5, 4), "an older stream's are late");
        heard.news(9, 1);
        assert_eq!(heard.lacking(), None);
        let mut heard = Heard::default();
        assert!(!heard.falls_behind());
        heard.news(5, 5000);
        assert_eq!(heard.lacking(), None);
        assert!(heard.falls_behind() && !heard.falls_behind());
        heard.news(5, 5002);
        assert_eq!(heard.lacking(), Some((5, vec![5001])));
        // A long pause: no more is asked for than can be had.
        heard.news(5, 50_000);
        let (_, numbers) = heard.lacking().expect("a gap");
        assert_eq!(numbers.len(), ASKED_AT_ONCE);
        assert!(numbers[0] > 50_000 - KEPT as u32 - 1, "{}", numbers[0]);
    }
}
