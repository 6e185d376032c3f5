//! Peak EWMA, as Finagle has it (M. Kalmar and others, `PeakEwma.scala`): the backend
//! where a request would wait least, by a mean of measured latencies that forgets with
//! time and believes the worse at once, times the requests that are there already.

use std::time::Duration;

use super::{BackendId, Backends, Finished, Policy, Request, hrw};
use crate::config::PolicyKind;

/// Parameters of peak EWMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EwmaParameters {
    /// τ: after so long a measurement counts 1/e (1 ms..=1 h; default 10 s).
    pub tau: Duration,
}

impl Default for EwmaParameters {
    fn default() -> Self {
        EwmaParameters {
            tau: Duration::from_secs(10),
        }
    }
}

#[derive(Debug)]
pub(super) struct Ewma {
    parameters: EwmaParameters,
    /// By id.
    latencies: Vec<Latency>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Latency {
    /// Microseconds; 0 if there is no measurement.
    us: f32,
    at: Duration,
}

impl Ewma {
    pub(super) fn new(parameters: EwmaParameters) -> Self {
        Ewma {
            parameters,
            latencies: Vec::new(),
        }
    }

    fn latency(&self, id: BackendId) -> Latency {
        self.latencies.get(id.index()).copied().unwrap_or_default()
    }

    /// What is left of a measurement: e^-x, by a series that is the same on every
    /// machine.
    fn decay(&self, now: Duration, then: Duration) -> f32 {
        let x = now.saturating_sub(then).as_secs_f32() / self.parameters.tau.as_secs_f32();
        1.0 / (1.0 + x + x * x / 2.0 + x * x * x / 6.0)
    }
}

impl Policy for Ewma {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Ewma
    }

    fn choose(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        let (mut known, mut sum) = (0.0f32, 0.0f32);
        for c in backends.open() {
            let us = self.latency(c.id).us;
            known += f32::from(u8::from(us > 0.0));
            sum += us;
        }
        // One that is new is taken to be as the others.
        let usual = if known > 0.0 { sum / known } else { 1000.0 };
        let cost = |c: &super::Candidate| {
            let latency = self.latency(c.id);
            let us = match latency.us {
                0.0 => usual,
                // One that was slow and gets nothing is tried again in time.
                us if c.outstanding == 0 => us * self.decay(now, latency.at),
                us => us,
            };
            us * (c.outstanding as f32 + 1.0) / f32::from(c.weight)
        };
        let least = backends.open().iter().map(cost).reduce(f32::min)?;
        let equals = backends.open().iter().filter(|c| cost(c) <= least);
        hrw::winner(request.object, equals).map(|c| c.id)
    }

    fn finished(&mut self, now: Duration, finished: &Finished) {
        let index = finished.backend.index();
        if self.latencies.len() <= index {
            self.latencies.resize(index + 1, Latency::default());
        }
        let Latency { us: mean, at } = self.latencies[index];
        let measured = finished.elapsed.as_secs_f32() * 1e6;
        let kept = self.decay(now, at);
        self.latencies[index] = Latency {
            // 0 would mean: never measured.
            us: measured.max(mean * kept + measured * (1.0 - kept)).max(1.0),
            at: now,
        };
    }
}
