//! The backend: rebuilds the connection from the packet at its start and from
//! no other, and refuses timestamps that go back (RFC 7323 §5.3).

use super::*;

#[derive(Debug)]
pub(super) struct Server {
    /// Which bytes have come; none before the connection is rebuilt.
    came: Option<Vec<bool>>,
    /// How many of them in order.
    in_order: usize,
    end: usize,
    fin: bool,
    recent: u32,
    refusals: usize,
}

impl Server {
    pub(super) fn new(end: usize, refusals: usize) -> Self {
        Self {
            came: None,
            in_order: 0,
            end,
            fin: false,
            recent: 0,
            refusals,
        }
    }

    /// Gives a connection back.
    pub(super) fn refuses(&mut self, packet: &Packet) -> bool {
        let refuses = self.came.is_none() && packet.at == 0 && self.refusals > 0;
        self.refusals -= usize::from(refuses);
        refuses
    }

    /// The next byte expected, once there is a socket.
    pub(super) fn received(&self) -> Option<usize> {
        self.came.as_ref()?;
        Some(self.in_order + usize::from(self.fin && self.in_order == self.end))
    }

    pub(super) fn receive(&mut self, stream: &[u8], packet: Packet, now: u32) -> Option<Ack> {
        if self.came.is_none() {
            if packet.at != 0 {
                return None; // early
            }
            self.came = Some(vec![false; self.end]);
            self.recent = packet.clocks.expect("a start has its clock").0;
        }
        let expected = self.received()?;
        // As Linux: what has no timestamps passes.
        let clock = packet.clocks.map_or(self.recent, |(clock, _)| clock);
        if clock.wrapping_sub(self.recent).cast_signed() >= 0 {
            if packet.at <= expected {
                self.recent = clock;
            }
            let range = packet.at..packet.at + packet.payload.len();
            assert_eq!(packet.payload, stream[range.clone()], "the client's bytes");
            let came = self.came.as_mut()?;
            came[range].fill(true);
            self.in_order += came[self.in_order..]
                .iter()
                .take_while(|came| **came)
                .count();
            if packet.fin {
                assert_eq!(
                    packet.at + packet.payload.len(),
                    self.end,
                    "FIN in the middle"
                );
                self.fin = true;
            }
        }
        let at = self.received()?;
        Some(Ack {
            at,
            edge: at + 65535,
            clock: OUR_CLOCK + now % 1000,
        })
    }
}
