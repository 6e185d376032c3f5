//! Catching up: all records of a peer, part by part, each in several messages.

/// Messages of a part, at most.
pub const MESSAGES: usize = 64;

/// How far somebody has come who asks for all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The asking's name: answers to another one are late.
    pub name: u32,
    /// The part that is due.
    pub part: u32,
    /// Its messages that have come, by bit.
    come: u64,
}

/// What a message of a part has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is not of the part that is due, or has come before.
    Late,
    /// More of that part is to come.
    More,
    /// The next part is due.
    Next,
    /// That was all.
    Done,
}

impl Asking {
    /// From the first part on.
    pub fn new(name: u32) -> Self {
        Self {
            name,
            part: 0,
            come: 0,
        }
    }

    /// A message has come.
    pub fn take(&mut self, name: u32, part: u32, (index, count): (u8, u8), is_last: bool) -> Step {
        let possible = (1..=MESSAGES as u8).contains(&count) && index < count;
        if name != self.name || part != self.part || !possible {
            return Step::Late;
        }
        if self.come & 1 << index != 0 {
            return Step::Late;
        }
        self.come |= 1 << index;
        if self.come.count_ones() < u32::from(count) {
            return Step::More;
        }
        self.come = 0;
        self.part += 1;
        match is_last {
            true => Step::Done,
            false => Step::Next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_whole_when_each_of_its_messages_has_come() {
        let mut asking = Asking::new(7);
        assert_eq!(asking.take(8, 0, (0, 1), true), Step::Late, "another's");
        assert_eq!(asking.take(7, 1, (0, 1), true), Step::Late, "too early");
        assert_eq!(asking.take(7, 0, (0, 0), true), Step::Late, "cannot be");
        assert_eq!(asking.take(7, 0, (2, 2), true), Step::Late, "cannot be");
        assert_eq!(asking.take(7, 0, (1, 2), false), Step::More);
        assert_eq!(asking.take(7, 0, (1, 2), false), Step::Late, "twice");
        assert_eq!(asking.take(7, 0, (0, 2), false), Step::Next);
        assert_eq!(asking.take(7, 0, (0, 2), false), Step::Late);
        for index in (0..64).rev() {
            let step = asking.take(7, 1, (index, 64), true);
            let wanted = if index == 0 { Step::Done } else { Step::More };
            assert_eq!(step, wanted);
        }
    }
}
