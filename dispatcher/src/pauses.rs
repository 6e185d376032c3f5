//! Requests that backends have no seat for, because the flow's older answers still have all
//! of them there (docs/protocol/handoff.md 6.8a). Two such backends would give them back to
//! each other as fast as they can.

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ClientSeq;

/// After the second refusal, and twice as long after each one more.
pub const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(100);
/// A request that has not been refused for so long has been taken, or given up.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// The flows whose latest request was refused so.
#[derive(Debug, Default)]
pub struct Pauses {
    all: HashMap<FlowKey, Refused>,
    swept: Duration,
}

#[derive(Debug)]
struct Refused {
    start: ClientSeq,
    pause: Option<Duration>,
    last: Duration,
}

impl Pauses {
    /// The request at `start` has been refused: after how long may it be sent again? None:
    /// at once, elsewhere.
    pub fn after_refusal(
        &mut self,
        now: Duration,
        key: &FlowKey,
        start: ClientSeq,
    ) -> Option<Duration> {
        if now > self.swept + FORGOTTEN {
            self.swept = now;
            self.all.retain(|_, refused| now < refused.last + FORGOTTEN);
        }
        let same = self.all.get(key).filter(|before| before.start == start);
        let pause = same.map(|before| match before.pause {
            None => FIRST,
            Some(pause) => (pause * 2).min(LONGEST),
        });
        let last = now;
        self.all.insert(*key, Refused { start, pause, last });
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_round_more_and_more_slowly() {
        let mut pauses = Pauses::default();
        let key = FlowKey {
            client: "192.0.2.1:40000".parse().unwrap(),
            vip: "10.77.0.100:80".parse().unwrap(),
        };
        let ms = Duration::from_millis;
        let mut refused = |at: u64, start: u32| {
            let pause = pauses.after_refusal(ms(at), &key, ClientSeq::new(start));
            pause.map(|pause| pause.as_millis())
        };
        let waits: Vec<_> = (0..8).map(|round| refused(10_000 + round, 7)).collect();
        let after = [5, 10, 20, 40, 80, 100, 100].map(Some);
        assert_eq!((waits[0], &waits[1..]), (None, &after[..]));
        assert_eq!(refused(10_010, 8), None, "another request");
        assert_eq!(refused(10_011, 8), Some(5));
        assert_eq!(refused(12_000, 8), None, "long ago");
    }
}
