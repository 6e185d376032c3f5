//! The cluster as configured, ready for decisions: rules lead to a pool, the
//! pool's policy to a backend that is alive.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use trapeze_core::config::{Config, Dispatcher};
use trapeze_core::head::{BadHead, HttpHead, Inspection};
use trapeze_core::intake::{Answer, Body, Looked};
use trapeze_core::policy::{self, BackendId, Backends, Candidate, Policy, Request, Subject};
use trapeze_core::route::{Asked, route};
use trapeze_core::wire::meta::Keys;

use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::Loads;

use crate::health::{Health, State};
use crate::registry::{Registry, Wanted};

/// A configuration in use.
pub struct Cluster {
    pub config: Config,
    pub own: Dispatcher,
    pub keys: Keys,
    /// Slot of each of the configuration's backends.
    pub slots: Vec<u32>,
    pools: Vec<Mutex<Box<dyn Policy>>>,
}

/// What a first request leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This backend has it.
    To(Choice),
    /// Nobody has: answer so.
    Refuse(Answer, Body),
}

/// A backend for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its slot.
    pub slot: u32,
    /// Its address.
    pub address: IpAddr,
    /// Where its server listens; 0: on the VIP's own port.
    pub server_port: u16,
    /// The pool that it was chosen from.
    pub pool: usize,
}

impl Cluster {
    pub fn new(
        config: Config,
        own: &Dispatcher,
        registry: &mut Registry,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        let wanted: Vec<Wanted> = config
            .backends
            .iter()
            .map(|b| Wanted {
                name: &b.name,
                address: b.address,
            })
            .collect();
        let slots = registry.assign(&wanted, |slot| loads.active(slot) > 0)?;
        let pools = config
            .pools
            .iter()
            .map(|p| Mutex::new(policy::build(&p.policy, 0)))
            .collect();
        let keys = Keys::new(&config.keys).expect("a checked configuration has a key");
        Ok(Self {
            own: own.clone(),
            keys,
            slots,
            pools,
            config,
        })
    }

    pub fn vips(&self) -> Vec<IpAddr> {
        let mut vips: Vec<IpAddr> = self
            .config
            .services
            .iter()
            .map(|s| s.address.ip())
            .collect();
        vips.sort();
        vips.dedup();
        vips
    }

    /// Looks at a connection's first bytes, and decides once they suffice.
    pub fn look(
        &self,
        health: &Health,
        vip: SocketAddr,
        client: SocketAddr,
        inspection: &Inspection,
    ) -> Looked<Decision> {
        let Some(service) = self.config.service_at(vip) else {
            return Looked::Bad(Answer::ServiceUnavailable);
        };
        let (asked, refusal) = match inspection {
            Inspection::Incomplete => return Looked::More,
            Inspection::Bad(bad) => return Looked::Bad(answer_to(bad)),
            Inspection::Http(head) => (Asked::Http(head), Refusals::http(head)),
            Inspection::Tls(hello) => (Asked::Tls(hello), Refusals::TLS),
            Inspection::H2Preface => (Asked::H2Preface, Refusals::H2),
        };
        let Some(pool) = route(service, &asked).pool() else {
            return Looked::Done(Decision::Refuse(refusal.nowhere, refusal.body));
        };
        Looked::Done(
            match self.choose(health, pool, &Subject::of(&asked, client)) {
                Some(choice) => Decision::To(choice),
                None => Decision::Refuse(refusal.nobody, refusal.body),
            },
        )
    }

    /// The policy's choice among the pool's backends that are alive.
    pub fn choose(&self, health: &Health, pool: usize, subject: &Subject<'_>) -> Option<Choice> {
        let backends = self.backends(health, pool)?;
        let mut policy = self.pools[pool].lock().expect("no policy panics");
        let request = Request::of(subject, None);
        let chosen = policy::place(&mut **policy, clock::monotonic(), &request, &backends)?;
        self.choice(pool, chosen)
    }

    /// As [`Self::choose`], without a trace in the policy's state.
    pub fn preview(&self, health: &Health, pool: usize, subject: &Subject<'_>) -> Option<Choice> {
        let backends = self.backends(health, pool)?;
        let mut policy = self.pools[pool].lock().expect("no policy panics");
        let request = Request::of(subject, None);
        let chosen = policy::preview(&mut **policy, clock::monotonic(), &request, &backends)?;
        self.choice(pool, chosen)
    }

    fn choice(&self, pool: usize, chosen: BackendId) -> Option<Choice> {
        let members = &self.config.pools[pool].members;
        let member = (members.iter()).find(|m| self.slots[m.backend] == u32::from(chosen.0))?;
        let backend = &self.config.backends[member.backend];
        Some(Choice {
            slot: self.slots[member.backend],
            address: backend.address,
            server_port: member.server.or(backend.server).map_or(0, |s| s.port()),
            pool,
        })
    }

    /// The pool's live backends; those that are only busy when there is no other.
    fn backends(&self, health: &Health, pool: usize) -> Option<Backends> {
        let members = &self.config.pools.get(pool)?.members;
        let that = |takes: fn(State) -> bool| {
            let alive = (members.iter())
                .map(|member| (member, self.slots[member.backend]))
                .filter(|(_, slot)| takes(health.state(*slot)));
            Backends::new(alive.map(|(member, slot)| Candidate {
                outstanding: u32::try_from(health.active(slot)).unwrap_or(u32::MAX),
                ..Candidate::new(
                    // There are at most BACKENDS_MAX slots.
                    BackendId(slot as u16),
                    &self.config.backends[member.backend].name,
                    member.weight,
                )
            }))
        };
        let free = that(State::is_free);
        if free.open().is_empty() {
            return Some(that(|state| state == State::Busy));
        }
        Some(free)
    }
}

/// How a client is told, in its own protocol, that nobody has its request.
struct Refusals {
    nowhere: Answer,
    nobody: Answer,
    body: Body,
}

impl Refusals {
    const TLS: Self = Self {
        nowhere: Answer::UNRECOGNIZED_NAME,
        nobody: INTERNAL_ERROR,
        body: Body::Full,
    };
    const H2: Self = Self {
        nowhere: Answer::Close,
        nobody: Answer::Close,
        body: Body::Full,
    };

    fn http(head: &HttpHead<'_>) -> Self {
        Self {
            nowhere: Answer::NotFound,
            nobody: Answer::ServiceUnavailable,
            body: if head.method == "HEAD" {
                Body::Omitted
            } else {
                Body::Full
            },
        }
    }
}

/// TLS `internal_error` (RFC 8446 §6.2): there is no alert for "no server now".
const INTERNAL_ERROR: Answer = Answer::TlsAlert(80);
/// TLS `record_overflow`.
const RECORD_OVERFLOW: Answer = Answer::TlsAlert(22);

fn answer_to(bad: &BadHead) -> Answer {
    match bad {
        BadHead::Malformed(_) => Answer::BadRequest,
        BadHead::TooLarge => Answer::HeadTooLarge,
        BadHead::TlsMalformed(_) => Answer::DECODE_ERROR,
        BadHead::TlsTooLarge => RECORD_OVERFLOW,
    }
}
