//! CAHRD, content-aware hybrid request distribution [LVSCAD07 §5.3, figure 15]: CAWLL
//! for dynamic requests, which would gather where xLARD/R sent the first of them;
//! xLARD/R for static ones. Its CAWLL counts the handoff.

use std::time::Duration;

use super::least::Least;
use super::xlard_r::{XlardR, XlardRParameters};
use super::{BackendId, Backends, Candidate, Finished, Memory, Policy, Request, load};
use crate::config::PolicyKind;

#[derive(Debug)]
pub(super) struct Cahrd {
    dynamic: Least,
    files: XlardR,
}

impl Cahrd {
    pub(super) fn new(parameters: XlardRParameters) -> Self {
        Cahrd {
            dynamic: Least::default(),
            files: XlardR::new(parameters),
        }
    }
}

impl Policy for Cahrd {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Cahrd
    }

    fn choose(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        if request.class.is_dynamic() {
            self.dynamic
                .next(backends, dynamic_load(&self.files, request, backends))
        } else {
            self.files.choose(now, request, backends)
        }
    }

    fn placed(&mut self, now: Duration, request: &Request, backends: &Backends, chosen: BackendId) {
        if request.class.is_dynamic() {
            (self.dynamic).took(
                backends,
                chosen,
                dynamic_load(&self.files, request, backends),
            );
            self.files.dynamic_placed(request);
        } else {
            self.files.placed(now, request, backends, chosen);
        }
    }

    fn finished(&mut self, now: Duration, finished: &Finished) {
        self.files.finished(now, finished);
    }

    fn charge(&self, request: &Request, backends: &Backends, chosen: BackendId) -> u64 {
        self.files.charge(request, backends, chosen)
    }

    fn memory(&self) -> Memory {
        self.files.memory()
    }
}

fn dynamic_load(
    files: &XlardR,
    request: &Request,
    backends: &Backends,
) -> impl Fn(&Candidate) -> u64 {
    |c| load::cost_with(c, files.handoff(request, c), backends)
}
