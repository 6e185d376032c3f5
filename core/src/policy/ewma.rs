//! Peak EWMA, as Finagle has it (`PeakEwma.scala`): the backend
//! where a request would wait least, by a mean of measured latencies that forgets with
//! time and believes the worse at once, times the requests that are there already.

use std::cell::OnceCell;
use std::time::Duration;

use super::felt::{self, Felt};
use super::{BackendId, Backends, Candidate, Finished, Policy, Request, hrw};
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

    /// The mean of what is known, for one that is new.
    fn usual(&self, backends: &Backends) -> f32 {
        let (mut known, mut sum) = (0.0f32, 0.0f32);
        for c in backends.open() {
            let us = self.latency(c.id).us;
            known += if us > 0.0 { 1.0 } else { 0.0 };
            sum += us;
        }
        if known > 0.0 { sum / known } else { 1000.0 }
    }

    fn cost(&self, now: Duration, c: &Candidate, usual: impl FnOnce() -> f32) -> f32 {
        let latency = self.latency(c.id);
        let us = if latency.us == 0.0 {
            usual()
        } else if c.outstanding == 0 {
            // One that was slow and gets nothing is tried again in time.
            latency.us * self.decay(now, latency.at)
        } else {
            latency.us
        };
        us * (felt::requests(c) as f32 + 1.0) / f32::from(c.weight)
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
        let usual = OnceCell::new();
        let felt = Felt::by(backends);
        let cost = |c: &Candidate| {
            let cost = self.cost(now, c, || *usual.get_or_init(|| self.usual(backends)));
            cost * felt.factor(c)
        };
        let (mut least, mut holder, mut equals) = (f32::INFINITY, None, 0);
        for c in backends.open() {
            let own = cost(c);
            if own < least {
                (least, holder, equals) = (own, Some(c.id), 1);
            } else if own == least {
                equals += 1;
            }
        }
        if equals == 1 {
            return holder;
        }
        let equal = |c: &&Candidate| cost(c) == least;
        hrw::winner(request.object, backends.open().iter().filter(equal)).map(|c| c.id)
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
