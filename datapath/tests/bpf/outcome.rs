//! What a program did with a packet, and what it should have done.

use std::fmt;

/// What becomes of a packet, at either hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// None of our business: whoever is next at the hook decides. XDP cannot tell
    /// it from [`Self::Pass`].
    Next,
    /// Up to this host's stack, whoever else is at the hook.
    Pass,
    Drop,
    /// Out again where it came in: a redirect at tc, XDP_TX at XDP.
    SendBack,
    /// Out of another interface.
    Redirect,
}

/// All that a program shows of a run: verdict, packet and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The whole frame; of a dropped one nothing is asked.
    pub packet: Option<Vec<u8>>,
    /// Names of the reasons and events that were counted, once for each count.
    pub counted: Vec<&'static str>,
}

impl Outcome {
    /// It goes on as it came, and nothing is counted.
    pub fn untouched(packet: &[u8]) -> Self {
        Self::new(Verdict::Next, packet.to_vec(), &[])
    }

    /// Dropped for one reason.
    pub fn drop(reason: &'static str) -> Self {
        Self::drop_counting(&[reason])
    }

    /// Dropped for a reason, with events on the way.
    pub fn drop_counting(counted: &[&'static str]) -> Self {
        Self {
            verdict: Verdict::Drop,
            packet: None,
            counted: counted.into(),
        }
    }

    pub fn new(verdict: Verdict, packet: Vec<u8>, counted: &[&'static str]) -> Self {
        Self {
            verdict,
            packet: Some(packet),
            counted: counted.into(),
        }
    }

    /// In what it differs from what was expected, for people.
    pub fn difference(&self, expected: &Self) -> Option<String> {
        if self.verdict != expected.verdict {
            return Some(format!(
                "{:?}, counting {:?}; expected {:?}, counting {:?}",
                self.verdict, self.counted, expected.verdict, expected.counted
            ));
        }
        if self.counted != expected.counted {
            return Some(format!(
                "counted {:?}, expected {:?}",
                self.counted, expected.counted
            ));
        }
        match (&self.packet, &expected.packet) {
            (Some(got), Some(wanted)) if got != wanted => {
                let same = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
                Some(format!(
                    "the packets differ from byte {same} on:\n got      {}\n expected {}",
                    Hex(got, same),
                    Hex(wanted, same)
                ))
            }
            (None, Some(_)) => Some("no packet".into()),
            _ => None,
        }
    }
}

struct Hex<'a>(&'a [u8], usize);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes) ", self.0.len())?;
        for (at, byte) in self.0.iter().enumerate() {
            let mark = if at == self.1 { " >" } else { "" };
            write!(f, "{mark}{byte:02x}")?;
        }
        Ok(())
    }
}

/// An assert that cannot fail proves nothing: each part of an outcome counts.
#[test]
fn every_difference_is_seen() {
    let outcome = Outcome::new(Verdict::SendBack, vec![1, 2, 3], &["to-daemon"]);
    assert_eq!(outcome.difference(&outcome.clone()), None);
    type Change = fn(&mut Outcome);
    let table: [(&str, Change); 8] = [
        ("verdict", |o| o.verdict = Verdict::Redirect),
        ("first byte", |o| o.packet.as_mut().unwrap()[0] = 0),
        ("last byte", |o| o.packet.as_mut().unwrap()[2] = 0),
        ("longer", |o| o.packet.as_mut().unwrap().push(0)),
        ("shorter", |o| o.packet.as_mut().unwrap().truncate(2)),
        ("no count", |o| o.counted.clear()),
        ("one more count", |o| o.counted.push("to-daemon")),
        ("another count", |o| o.counted[0] = "syn-answered"),
    ];
    for (what, change) in table {
        let mut expected = outcome.clone();
        change(&mut expected);
        assert!(outcome.difference(&expected).is_some(), "{what}");
    }
}
