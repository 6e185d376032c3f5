//! What the papers' units are worth here: a mean request, a packet of an answer.

use super::{Finished, Request};

/// Means over the last thousand requests or so. A packet costs what a request costs,
/// over the packets of its answer; so it is right whether costs are measured or set.
#[derive(Debug, Default)]
pub(super) struct Scale {
    placed: f64,
    request_us: f64,
    finished: f64,
    finished_us: f64,
    packets: f64,
}

/// Packets of an answer, at least one, filled as on Ethernet.
pub(super) fn packets(bytes: u64) -> f64 {
    bytes.div_ceil(1460).max(1) as f64
}

/// What a packet costs the LARD paper's servers: 40 µs for 512 bytes (ASPLOS 1998,
/// §3.1).
pub(super) const PACKET_US: f64 = 114.0;
const REMEMBERED: f64 = 1024.0;

impl Scale {
    pub(super) fn placed(&mut self, request: &Request) {
        self.placed = (self.placed + 1.0).min(REMEMBERED);
        self.request_us += (f64::from(request.cost_us.max(1)) - self.request_us) / self.placed;
    }

    pub(super) fn finished(&mut self, finished: &Finished) {
        self.finished = (self.finished + 1.0).min(REMEMBERED);
        self.packets += (packets(finished.bytes) - self.packets) / self.finished;
        let cost_us = f64::from(finished.request.cost_us.max(1));
        self.finished_us += (cost_us - self.finished_us) / self.finished;
    }

    /// The mean cost of a request, in microseconds of service.
    pub(super) fn request_us(&self) -> f64 {
        if self.placed > 0.0 {
            self.request_us
        } else {
            1.0
        }
    }

    /// The mean cost of a packet, in microseconds of service.
    pub(super) fn packet_us(&self) -> f64 {
        if self.finished > 0.0 {
            self.finished_us / self.packets
        } else {
            PACKET_US
        }
    }
}
