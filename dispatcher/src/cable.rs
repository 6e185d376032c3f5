//! A dispatcher without others whose cable is out: backends are not silent because it hears nobody, so it answers no
//! client so when it hears them again. With others it is peers/vigil/cut.rs that finds out, by who answers: a network can
//! be out behind the cable, too. Alone that is no different from a backend's death.

use std::time::Duration;

use trapeze_datapath::{clock, host, raw};

use crate::Shared;

/// Backends have so many heartbeats to answer once the cable is in again.
const BEATS: u32 = 3;

/// The cable, at every heartbeat.
#[derive(Default)]
pub struct Cable {
    /// When it was last seen to be out, if no backend has been heard since.
    out_at: Option<Duration>,
}

impl Cable {
    /// Before anybody is found silent.
    pub fn look(&mut self, shared: &Shared, interval: Duration) {
        // Without an answer it is as if it were in: then silence counts.
        let is_out = !raw::has_carrier(&shared.interface).unwrap_or(true);
        let (health, now) = (&shared.health, clock::monotonic());
        match self.out_at {
            None if is_out && !shared.peers.are_there() => {
                println!("the cable is out");
                health.be_deaf();
                self.out_at = Some(now);
            }
            None => {}
            Some(_) if is_out => self.out_at = Some(now),
            Some(at) if health.last_heard() > at || now > at + interval * BEATS => {
                println!("the cable is in again");
                health.hear_again();
                self.out_at = None;
            }
            // What is asked now is not to wait until neighbours that were asked for meanwhile are asked for again.
            Some(_) => {
                let _ = host::drop_unresolved(&shared.interface);
            }
        }
    }
}
