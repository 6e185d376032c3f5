//! CAP, client-aware policy (E. Casalicchio, M. Colajanni, "A client-aware dispatching
//! algorithm for web clusters providing multiple services", WWW 2001, as
//! [LVSCAD07 §2.3] tells it): round robin within each class, so that each backend gets
//! its share of what computes and of what reads from disk.

use std::time::Duration;

use super::round_robin::RoundRobin;
use super::{BackendId, Backends, Class, Policy, Request};
use crate::config::PolicyKind;

#[derive(Debug, Default)]
pub(super) struct Cap {
    normal: RoundRobin,
    cpu_bound: RoundRobin,
    disk_bound: RoundRobin,
    cpu_and_disk_bound: RoundRobin,
}

impl Cap {
    fn turns(&mut self, class: Class) -> &mut RoundRobin {
        match class {
            Class::Static | Class::Dynamic => &mut self.normal,
            Class::CpuBound => &mut self.cpu_bound,
            Class::DiskBound => &mut self.disk_bound,
            Class::CpuAndDiskBound => &mut self.cpu_and_disk_bound,
        }
    }
}

impl Policy for Cap {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Cap
    }

    fn choose(
        &mut self,
        now: Duration,
        request: &Request,
        backends: &Backends,
    ) -> Option<BackendId> {
        self.turns(request.class).choose(now, request, backends)
    }

    fn placed(&mut self, now: Duration, request: &Request, backends: &Backends, chosen: BackendId) {
        self.turns(request.class)
            .placed(now, request, backends, chosen);
    }
}
