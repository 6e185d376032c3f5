//! Who answers heartbeats: numbers out, answers in, and after three missed in a row a
//! member is silent [SPLICE06 §7.3]. Says when to beat and when to judge; sends nothing
//! and reads no clock.
//!
//! ```text
//!   beat        n              n+1             n+2             n+3
//!   ------------|---------------|---------------|---------------|------------
//!               | <- slack ->   |               |               |
//!               judged here: has n been answered?  Not n, n-1 and n-2: silent.
//!                  . . .  else asked again, by the same number: a lost packet is no sign of death.
//! ```
//! A member that dies is found silent two to three intervals and a slack later. Beats are
//! counted, not time: a judge that sleeps too long has sent fewer beats, and blames nobody
//! for that. A silent member is back after three answers in a row. The first beats come
//! quicker, so that a new watch soon knows who is there.

use std::time::Duration;

use super::Presence;

/// Beats unanswered in a row that are a failure, and answered ones that end it.
pub const IN_A_ROW: u32 = 3;
/// Between the first beats, where the interval is longer.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
/// An answer is late after this and a tenth of the interval.
const LEAST_SLACK: Duration = Duration::from_millis(5);
/// A beat that is not answered in time is repeated as soon as that is known, and so often in an interval.
const REPEATS: u32 = 4;

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not heard of yet.
    Unknown,
    /// It answers.
    Alive,
    /// It does not.
    Silent,
}

impl State {
    /// As shown to people.
    pub fn name(self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Alive => "alive",
            State::Silent => "silent",
        }
    }
}

/// A member that is asked.
#[derive(Clone, Debug)]
pub struct Watched {
    /// How it is.
    pub state: State,
    /// What it said last.
    pub said: Option<Presence>,
    /// When that was.
    pub heard_at: Option<Duration>,
    /// The latest beat that it has answered, or the last one before it was asked.
    answered: u32,
    /// When the first beat was sent that it has not answered, or a later one.
    unanswered_since: Option<Duration>,
    /// Answers in a row.
    streak: u32,
}

impl Watched {
    /// Whether it has answered a beat after that one (RFC 1982).
    pub fn has_answered_after(&self, number: u32) -> bool {
        (self.answered.wrapping_sub(number) as i32) > 0
    }
}

/// A change of somebody's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place among the members.
    pub member: usize,
    /// How it is now.
    pub state: State,
}

/// The members, by place, and what is due.
#[derive(Clone, Debug)]
pub struct Watch {
    interval: Duration,
    members: Vec<Watched>,
    /// Of the latest beat; the first one is the number after that given to `new`.
    number: u32,
    first: u32,
    next_beat: Duration,
    /// When the latest beat was sent, and those before it.
    sent: [Option<Duration>; IN_A_ROW as usize],
    /// When the latest beat is judged, if it has not been.
    judge_at: Option<Duration>,
    /// When it is repeated to who has not answered it.
    repeat_at: Option<Duration>,
    rounds: u32,
}

impl Watch {
    /// Beats from `now` on, with numbers from after `number`, which must be past all that
    /// an earlier watch of this host has used.
    pub fn new(interval: Duration, now: Duration, number: u32) -> Self {
        Watch {
            interval,
            members: Vec::new(),
            number,
            first: number.wrapping_add(1),
            next_beat: now,
            sent: [None; IN_A_ROW as usize],
            judge_at: None,
            repeat_at: None,
            rounds: 0,
        }
    }

    /// One more member, in the next place.
    pub fn add(&mut self, state: State) {
        self.members.push(Watched {
            state,
            said: None,
            heard_at: None,
            answered: self.number,
            unanswered_since: None,
            streak: 0,
        });
    }

    /// These are the members from now on: each as one of now, or new.
    pub fn rearrange(&mut self, from: &[Option<usize>]) {
        let old = std::mem::take(&mut self.members);
        for place in from {
            match place.and_then(|place| old.get(place)) {
                Some(member) => self.members.push(member.clone()),
                None => self.add(State::Unknown),
            }
        }
    }

    /// Another interval, from the next beat on.
    pub fn set_interval(&mut self, now: Duration, interval: Duration) {
        self.interval = interval;
        self.next_beat = self.next_beat.min(now + interval);
    }

    /// The members, by place.
    pub fn members(&self) -> &[Watched] {
        &self.members
    }

    /// Whether a silent member would have been found by now.
    pub fn has_judged(&self) -> bool {
        self.rounds >= IN_A_ROW
    }

    /// The number of the latest beat.
    pub fn latest(&self) -> u32 {
        self.number
    }

    /// Somebody has to know soon: the next beat does not wait for its time. Nobody is found dead the sooner: answers take
    /// their time.
    pub fn hasten(&mut self, now: Duration) {
        self.next_beat = self.next_beat.min(now);
    }

    /// When there is something to do next.
    pub fn due(&self) -> Duration {
        let due = [self.judge_at, self.repeat_at];
        let due = due.into_iter().flatten().min();
        due.map_or(self.next_beat, |at| at.min(self.next_beat))
    }

    /// The number to send to all members, if it is time. Not before the last one has been
    /// judged.
    pub fn beat(&mut self, now: Duration) -> Option<u32> {
        if now < self.next_beat || self.judge_at.is_some() {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        self.sent = [Some(now), self.sent[0], self.sent[1]];
        for member in &mut self.members {
            member.unanswered_since.get_or_insert(now);
        }
        self.judge_at = Some(now + self.slack());
        self.repeat_at = None;
        // No burst after a pause.
        self.next_beat = (self.next_beat + self.pace()).max(now);
        Some(self.number)
    }

    /// The latest beat once more, if it is time, and for whom: the places of all that were not silent, and have not
    /// answered it.
    pub fn repeat(&mut self, now: Duration) -> Option<(u32, Vec<usize>)> {
        if now < self.repeat_at? {
            return None;
        }
        let members = self.members.iter().enumerate();
        let late =
            members.filter(|(_, it)| it.state != State::Silent && it.answered != self.number);
        let late: Vec<usize> = late.map(|(place, _)| place).collect();
        self.repeat_at = None;
        if late.is_empty() {
            return None;
        }
        let again = now + self.pace() / REPEATS;
        self.repeat_at = (again < self.next_beat).then_some(again);
        Some((self.number, late))
    }

    /// An answer. False: to no beat of this watch, or older than what was heard before.
    pub fn hear(&mut self, now: Duration, member: usize, number: u32, said: Presence) -> bool {
        let (first, last) = (self.first, self.number);
        let Some(member) = self.members.get_mut(member) else {
            return false;
        };
        // Serial numbers (RFC 1982): past the last one answered, and one that was sent.
        let is_new = (number.wrapping_sub(member.answered) as i32) > 0;
        let was_sent =
            (number.wrapping_sub(first) as i32) >= 0 && (last.wrapping_sub(number) as i32) >= 0;
        if !is_new || !was_sent {
            return false;
        }
        let follows = number.wrapping_sub(member.answered) == 1;
        member.streak = if follows { member.streak + 1 } else { 1 };
        member.answered = number;
        member.unanswered_since = (number != last).then_some(now);
        member.said = Some(said);
        member.heard_at = Some(now);
        true
    }

    /// When the first of the latest two beats was sent, if an answer to the second is late by now.
    /// Whoever has heard nobody since has missed what no single member's death explains; a member
    /// that waits for three has not yet found the other side dead.
    pub fn late_since(&self, now: Duration) -> Option<Duration> {
        let latest = self.sent[0]?;
        let spaced = |before: &Duration| latest.saturating_sub(*before) >= self.spacing() * 3 / 4;
        let before = self.sent[1..].iter().flatten().copied().find(spaced)?;
        (self.has_judged() && now >= latest + self.slack()).then_some(before)
    }

    /// Nobody can be heard: of those that were alive nothing is known from now on, and nobody
    /// is judged until [`Self::go_on`].
    pub fn stand_still(&mut self) {
        for member in &mut self.members {
            member.streak = 0;
            if member.state == State::Alive {
                member.state = State::Unknown;
            }
        }
        self.rounds = 0;
        self.judge_at = None;
        self.repeat_at = None;
    }

    /// The beat that is due can be sent, and is not judged.
    pub fn skip(&mut self) {
        self.judge_at = None;
    }

    /// What has not been answered since [`Self::stand_still`] counts against nobody.
    pub fn go_on(&mut self) {
        let unheard = self.members.iter_mut().filter(|member| member.streak == 0);
        unheard.for_each(|member| {
            member.answered = self.number;
            member.unanswered_since = None;
        });
        self.skip();
    }

    /// Who has changed, once all answers that are there have been heard.
    pub fn judge(&mut self, now: Duration) -> Vec<Change> {
        let is_due = self.judge_at.is_some_and(|at| now >= at);
        if is_due {
            self.judge_at = None;
            self.repeat_at = Some(now);
            self.rounds = self.rounds.saturating_add(1);
        }
        let number = self.number;
        // Of beats that were hastened three are soon missed, by who only answers late.
        let longest = self.spacing() * 3 / 2;
        let is_long = |since: Option<Duration>| since.is_some_and(|at| now >= at + longest);
        let mut changes = Vec::new();
        for (place, member) in self.members.iter_mut().enumerate() {
            let state = match member.state {
                State::Unknown if member.streak > 0 => State::Alive,
                State::Silent if member.streak >= IN_A_ROW => State::Alive,
                State::Alive | State::Unknown
                    if is_due
                        && number.wrapping_sub(member.answered) >= IN_A_ROW
                        && is_long(member.unanswered_since) =>
                {
                    member.streak = 0;
                    State::Silent
                }
                same => same,
            };
            if state != member.state {
                member.state = state;
                changes.push(Change {
                    member: place,
                    state,
                });
            }
        }
        changes
    }

    fn pace(&self) -> Duration {
        self.interval_after(IN_A_ROW - 1)
    }

    /// As the latest beats that were judged have been sent, if none was hastened.
    fn spacing(&self) -> Duration {
        self.interval_after(IN_A_ROW)
    }

    fn interval_after(&self, rounds: u32) -> Duration {
        match self.rounds > rounds {
            true => self.interval,
            false => self.interval.min(FIRST_INTERVAL),
        }
    }

    fn slack(&self) -> Duration {
        // Less than an interval, so that a beat is judged before the next one.
        (self.pace() / 10 + LEAST_SLACK).min(self.pace() * 9 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::SprayState;

    const SAID: Presence = Presence::Spray(SprayState::Standby);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Two members, of which the first answers until it dies and after it is back, the
    /// second always; looked at each millisecond. When the first changed.
    fn run(interval: u64, dies: u64, back: u64, end: u64) -> Vec<(u64, State)> {
        let mut watch = Watch::new(ms(interval), ms(0), u32::MAX - 3);
        watch.add(State::Unknown);
        watch.add(State::Unknown);
        let mut changes = Vec::new();
        for now in 0..end {
            if let Some(number) = watch.beat(ms(now)) {
                if now <= dies || now >= back {
                    assert!(watch.hear(ms(now), 0, number, SAID));
                }
                assert!(watch.hear(ms(now), 1, number, SAID));
            }
            for change in watch.judge(ms(now)) {
                match change.member {
                    0 => changes.push((now, change.state)),
                    _ => assert_eq!((now, change.state), (0, State::Alive)),
                }
            }
        }
        changes
    }

    #[test]
    fn a_death_is_found_in_two_to_three_intervals_and_a_slack() {
        for interval in [10, 50, 200, 1000, 5000] {
            let slack = (interval / 10 + 5).min(interval * 9 / 10);
            // The fourth beat is the first at the full pace.
            let fourth = 3 * interval.min(100);
            for dies in [fourth + interval, fourth + 2 * interval - 1] {
                let changes = run(interval, dies, u64::MAX, interval * 12);
                let [(0, State::Alive), (found, State::Silent)] = changes[..] else {
                    panic!("{interval} {dies}: {changes:?}");
                };
                let took = found - dies;
                assert!(
                    took > interval * 2 && took <= interval * 3 + slack,
                    "{took}"
                );
            }
        }
    }

    #[test]
    fn a_member_is_back_after_three_answers_in_a_row() {
        let changes = run(100, 450, 1250, 3000);
        assert_eq!(changes[1].1, State::Silent);
        assert_eq!(changes[2], (1500, State::Alive));
        assert_eq!(changes.len(), 3);
    }

    #[test]
    fn who_sleeps_too_long_blames_nobody() {
        let mut watch = Watch::new(ms(10), ms(0), 0);
        watch.add(State::Alive);
        let mut now = 0;
        for _ in 0..20 {
            // Ten intervals at once; the answer comes 4 ms after the beat, which is in time.
            now += 100;
            let number = watch.beat(ms(now)).expect("it is due");
            assert_eq!(watch.beat(ms(now)), None, "no burst");
            assert!(watch.judge(ms(now + 3)).is_empty());
            assert!(watch.hear(ms(now + 4), 0, number, SAID));
            assert!(watch.judge(ms(now + 90)).is_empty());
        }
    }

    #[test]
    fn who_heard_nobody_blames_nobody() {
        let mut watch = Watch::new(ms(100), ms(0), 0);
        for state in [State::Alive, State::Alive, State::Silent] {
            watch.add(state);
        }
        let mut late = None;
        for now in 0..1000 {
            if let Some(number) = watch.beat(ms(now)).filter(|_| now <= 450) {
                assert!(watch.hear(ms(now), 0, number, SAID));
                assert!(watch.hear(ms(now), 1, number, SAID));
            }
            late = late.or(watch
                .late_since(ms(now))
                .filter(|&at| at > ms(450))
                .map(|at| (now, at)));
            match late {
                None => assert!(watch.judge(ms(now)).is_empty(), "{now}"),
                Some((found, _)) if found == now => watch.stand_still(),
                Some(_) => watch.skip(),
            }
        }
        // Before anybody who answers so can be found silent.
        assert_eq!(late, Some((615, ms(500))));
        let states =
            |watch: &Watch| -> Vec<State> { watch.members.iter().map(|m| m.state).collect() };
        let (unknown, alive, silent) = (State::Unknown, State::Alive, State::Silent);
        assert_eq!(states(&watch), [unknown, unknown, silent]);
        // The first is heard again, the second has died meanwhile.
        for now in 1000..1400 {
            let number = watch.beat(ms(now));
            if let Some(number) = number {
                assert!(watch.hear(ms(now), 0, number, SAID));
            }
            if now == 1000 {
                watch.go_on();
            }
            watch.judge(ms(now));
            let other = if now < 1315 { unknown } else { silent };
            if now > 1000 {
                assert_eq!(states(&watch), [alive, other, silent], "{now}");
            }
        }
    }

    #[test]
    fn answers_to_nothing_do_not_count() {
        let mut watch = Watch::new(ms(10), ms(0), 100);
        watch.add(State::Unknown);
        assert!(!watch.hear(ms(0), 0, 101, SAID), "not sent yet");
        assert_eq!(watch.beat(ms(0)), Some(101));
        for (number, what) in [
            (100, "before us"),
            (102, "ahead"),
            (101 + (1 << 31), "far off"),
        ] {
            assert!(!watch.hear(ms(1), 0, number, SAID), "{what}");
        }
        assert!(!watch.hear(ms(1), 1, 101, SAID), "no such member");
        assert!(watch.hear(ms(1), 0, 101, SAID));
        assert!(!watch.hear(ms(1), 0, 101, SAID), "repeated");
    }

    /// Two of three packets are lost, and it is as if none were.
    #[test]
    fn what_is_lost_is_asked_for_again() {
        for interval in [10, 50, 200, 5000] {
            let mut watch = Watch::new(ms(interval), ms(0), 0);
            (0..2).for_each(|_| watch.add(State::Alive));
            let (mut asked, mut repeated) = (0, 0);
            for now in 0..interval * 30 {
                if let Some(number) = watch.beat(ms(now)) {
                    asked = 1;
                    assert!(watch.hear(ms(now), 1, number, SAID));
                }
                assert_eq!(watch.judge(ms(now)), [], "{interval} {now}");
                if let Some((number, late)) = watch.repeat(ms(now)) {
                    assert_eq!(late, [0], "the other one has answered");
                    (asked, repeated) = (asked + 1, repeated + 1);
                    if asked == 3 {
                        assert!(watch.hear(ms(now), 0, number, SAID));
                    }
                }
            }
            assert!(repeated > 30, "{interval}: {repeated}");
        }
    }

    /// Somebody joins, and answers are on their way for longer than hastened beats are apart.
    #[test]
    fn who_hastens_finds_nobody_dead_the_sooner() {
        const LATE: u64 = 60;
        for interval in [200, 1000, 5000] {
            let mut watch = Watch::new(ms(interval), ms(0), 0);
            watch.add(State::Alive);
            let mut on_the_way = Vec::new();
            for now in 0..interval * 10 {
                if now % 7 == 0 {
                    watch.hasten(ms(now));
                }
                on_the_way.extend(watch.beat(ms(now)).map(|number| (now + LATE, number)));
                on_the_way
                    .retain(|&(at, number)| at != now || !watch.hear(ms(now), 0, number, SAID));
                assert_eq!(watch.judge(ms(now)), [], "{interval} {now}");
                let late = watch.late_since(ms(now));
                assert!(
                    late.is_none_or(|since| since + ms(LATE) <= ms(now)),
                    "{late:?} {now}"
                );
            }
            // It is found dead all the same.
            let dies = interval * 10;
            let found = (dies..dies + interval * 5).find(|&now| {
                watch.hasten(ms(now));
                watch.beat(ms(now));
                !watch.judge(ms(now)).is_empty()
            });
            let took = found.expect("it is dead") - dies;
            assert!(took > interval, "{took}");
        }
    }

    #[test]
    fn nobody_asks_the_silent_more_often() {
        let mut watch = Watch::new(ms(200), ms(0), 0);
        watch.add(State::Silent);
        for now in 0..3000 {
            watch.beat(ms(now));
            watch.judge(ms(now));
            assert_eq!(watch.repeat(ms(now)), None);
        }
    }

    #[test]
    fn members_keep_their_state_when_others_come_and_go() {
        let mut watch = Watch::new(ms(10), ms(0), 0);
        for state in [State::Alive, State::Silent] {
            watch.add(state);
        }
        watch.rearrange(&[None, Some(1), Some(0), Some(9)]);
        let states: Vec<State> = watch.members().iter().map(|m| m.state).collect();
        assert_eq!(
            states,
            [State::Unknown, State::Silent, State::Alive, State::Unknown]
        );
    }
}
