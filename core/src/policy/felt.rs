//! Load as the agents' feedback makes it felt: for policies that send work where it
//! waits least.
//!
//! - A server's accept queue is unfinished work, whoever sent it: a backend has at
//!   least as many unfinished requests as wait there. The larger of both counts is
//!   taken, since our own wait there too.
//! - On a host whose processors are busier than those of others, or whose memory runs
//!   out, a request takes longer: it counts more there. It counts twice at most, so
//!   that a figure which is a heartbeat old cannot send everything back and forth.
//!
//! Without feedback it is the count of unfinished requests.

use super::{Backends, Candidate, Feedback};

/// Compares hosts with the least busy one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Felt {
    idlest_permille: u16,
}

/// What a request counts on an unencumbered host.
const WHOLE: u64 = 4;
/// So much more processor time in use than on the idlest host makes a request count a
/// quarter more. Smaller differences are chance.
const STEP_PERMILLE: u16 = 250;
/// From here on a host is about to swap.
const MEMORY_FULL_PERMILLE: u16 = 970;

impl Felt {
    /// For these backends.
    pub(super) fn by(backends: &Backends) -> Self {
        let busy = (backends.open().iter()).filter_map(|c| c.feedback.map(|f| f.cpu_permille));
        Felt {
            idlest_permille: busy.min().unwrap_or(0),
        }
    }

    /// The candidate's unfinished requests, in quarters of a request on an unencumbered
    /// host.
    pub(super) fn load(self, c: &Candidate) -> u64 {
        let requests = requests(c);
        // With nothing to do a busy host is still the worse one.
        requests * WHOLE + (requests + 1) * self.more(c)
    }

    /// How much longer a request takes there, as a factor of 1 to 2.
    pub(super) fn factor(self, c: &Candidate) -> f32 {
        1.0 + self.more(c) as f32 / WHOLE as f32
    }

    /// Quarters that a request counts more, up to [`WHOLE`].
    fn more(self, c: &Candidate) -> u64 {
        let Some(Feedback {
            cpu_permille,
            memory_permille,
            ..
        }) = c.feedback
        else {
            return 0;
        };
        if memory_permille >= MEMORY_FULL_PERMILLE {
            return WHOLE;
        }
        let busier = cpu_permille.saturating_sub(self.idlest_permille);
        u64::from(busier / STEP_PERMILLE).min(WHOLE)
    }
}

/// Unfinished requests, as far as anybody knows.
pub(super) fn requests(c: &Candidate) -> u64 {
    let waiting = c.feedback.map_or(0, |f| f.accept_queue);
    c.outstanding.max(waiting.into()).into()
}
