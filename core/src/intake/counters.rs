//! What the intake counts: every packet ends up under exactly one outcome.

use super::events::{End, Ignored};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Totals since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Packets given to the intake.
    packets,
    /// Heads that came whole in one packet.
    complete,
    /// Heads put together from several.
    decided,
    /// Packets held.
    held,
    /// Packets of flows that have been decided.
    assigned,
    /// Packets of flows that we answer.
    answering,
    /// Connections closed by the client without a byte.
    closed_silent,
    /// Heads that did not come in time.
    head_timeouts,
    /// Heads larger than configured.
    heads_too_large,
    /// Acknowledgements sent while reading.
    acks,
    /// Answers begun.
    answers,
    /// Answers sent again.
    answers_resent,
    /// Resets sent.
    resets,
    /// Flows whose acknowledged bytes a backend confirmed.
    confirmed,
    /// Times that acknowledged bytes were sent to a backend again.
    resent,
    /// Ended: answered and closed by both sides.
    ended_closed,
    /// Ended: the client did not close in time.
    ended_lingered,
    /// Ended: reset by the client.
    ended_client_reset,
    /// Ended: the daemon ends.
    ended_abandoned,
    /// Ended: a new connection of the same 4-tuple.
    ended_replaced,
    /// Ended: made way for a new one. More room: `reading_bytes`, `reading_flows`.
    ended_evicted,
    /// Ended: no head in time, or no decision.
    ended_timed_out,
    /// Ended: no backend confirmed what we had acknowledged.
    ended_unconfirmed,
    /// Ignored: damaged.
    ignored_bad_checksum,
    /// Ignored: flags that do not belong after a handshake.
    ignored_bad_flags,
    /// Ignored: acknowledges what we have not sent.
    ignored_bad_ack,
    /// Ignored: outside of what we take.
    ignored_outside_window,
    /// Ignored: no payload.
    ignored_empty,
    /// Ignored: no new byte.
    ignored_duplicate,
    /// Ignored: no room. More room: `reading_bytes`, `reading_flows`.
    ignored_full,
    /// Ignored: too many gaps.
    ignored_scattered,
    /// Ignored: a reset.
    ignored_reset,
    /// Ignored: a reset that lies not where the client's must be.
    ignored_inexact_reset,
}

impl Counters {
    pub(super) fn ended(&mut self, why: End) {
        *match why {
            End::Closed => &mut self.ended_closed,
            End::Lingered => &mut self.ended_lingered,
            End::ClientReset => &mut self.ended_client_reset,
            End::Abandoned => &mut self.ended_abandoned,
            End::Replaced => &mut self.ended_replaced,
            End::Evicted => &mut self.ended_evicted,
            End::TimedOut => &mut self.ended_timed_out,
            End::Unconfirmed => &mut self.ended_unconfirmed,
        } += 1;
    }

    pub(super) fn ignored(&mut self, why: Ignored) {
        *match why {
            Ignored::BadChecksum => &mut self.ignored_bad_checksum,
            Ignored::BadFlags => &mut self.ignored_bad_flags,
            Ignored::BadAck => &mut self.ignored_bad_ack,
            Ignored::OutsideWindow => &mut self.ignored_outside_window,
            Ignored::Empty => &mut self.ignored_empty,
            Ignored::Duplicate => &mut self.ignored_duplicate,
            Ignored::Full => &mut self.ignored_full,
            Ignored::Scattered => &mut self.ignored_scattered,
            Ignored::Reset => &mut self.ignored_reset,
            Ignored::InexactReset => &mut self.ignored_inexact_reset,
        } += 1;
    }
}
