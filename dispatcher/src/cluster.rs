//! The cluster as configured, ready for decisions: rules lead to a pool, the
//! pool's policy to a backend that is alive.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use trapeze_core::config::{
    Config, Dispatcher, Handoff, Member, Pool, PoolNumber, Rescue, Retry, Transfer,
};
use trapeze_core::head::{self, BadHead, HttpHead, Inspection};
use trapeze_core::health::targets::number_of;
use trapeze_core::health::{Target, ramp, targets};
use trapeze_core::intake::{Answer, Body, Looked};
use trapeze_core::policy::{self, BackendId, Backends, Candidate, Class, Request, Settled, Stands};
use trapeze_core::route::{Asked, route};
use trapeze_core::takeover::{AnswerHead, SoftState};
use trapeze_core::wire::meta::{Care, Keys};

use trapeze_datapath::abi::{self, Turn};
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::{Loads, SharedTurns};

use crate::health::{Health, State};
use crate::memory::{Memory, Placed};
use crate::registry::{Registry, Wanted};

/// A configuration in use.
pub struct Cluster {
    pub config: Config,
    pub own: Dispatcher,
    pub keys: Keys,
    /// Slot of each of the configuration's backends.
    pub slots: Vec<u32>,
    /// Slots of backends that are configured no more, and may have connections, and where those are.
    pub removed: Vec<(u32, IpAddr)>,
    /// By the configuration's backends: what is checked of them.
    pub targets: Vec<Vec<Target>>,
    pools: Vec<Memory>,
    /// Where pools are in the configuration, ordered by number.
    places: Vec<(PoolNumber, usize)>,
    turns: Arc<SharedTurns>,
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
    /// How connections get there.
    pub transfer: Transfer,
    /// The pool that it was chosen from.
    pub pool: PoolNumber,
    /// Whether the request is given to another one when this one dies.
    pub retry: Retry,
    /// What the pool's policy knows of the request.
    pub placed: Placed,
}

impl Cluster {
    pub fn new(
        config: Config,
        own: &Dispatcher,
        registry: &mut Registry,
        loads: &Loads,
        turns: Arc<SharedTurns>,
        previous: Option<&Self>,
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
        let removed = registry.all().filter(|(slot, _)| !slots.contains(slot));
        let removed = removed.collect();
        let pools = config
            .pools
            .iter()
            .map(|pool| {
                let kept = previous.and_then(|previous| previous.memory_of(pool));
                kept.unwrap_or_else(|| Memory::new(pool, policy::hash_name(&own.name)))
            })
            .collect();
        let keys = Keys::new(&config.keys).expect("a checked configuration has a key");
        let targets = (0..config.backends.len()).map(|index| targets(&config, index));
        let mut places: Vec<_> = (config.pools.iter().enumerate())
            .map(|(place, pool)| (pool.number, place))
            .collect();
        places.sort_unstable();
        Ok(Self {
            own: own.clone(),
            keys,
            slots,
            removed,
            targets: targets.collect(),
            pools,
            places,
            turns,
            config,
        })
    }

    /// What an equal pool remembers.
    fn memory_of(&self, wanted: &Pool) -> Option<Memory> {
        let like = |p: &Pool| {
            p.name == wanted.name && p.policy == wanted.policy && p.costs == wanted.costs
        };
        Some(self.pools[self.config.pools.iter().position(like)?].clone())
    }

    /// Where the pool is in the configuration; none if it is configured no more.
    pub fn place_of(&self, number: PoolNumber) -> Option<usize> {
        let at = (self.places).binary_search_by_key(&number, |&(number, _)| number);
        at.ok().map(|at| self.places[at].1)
    }

    /// Looks at a request's first bytes, and decides once they suffice. `owner` has its
    /// connection now.
    pub fn look(
        &self,
        health: &Health,
        vip: SocketAddr,
        client: SocketAddr,
        owner: Option<u32>,
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
        let routed = route(service, &asked);
        let Some(pool) = routed.pool() else {
            return Looked::Done(Decision::Refuse(refusal.nowhere, refusal.body));
        };
        let request = Request {
            current: owner.map(|slot| BackendId(slot as u16)),
            ..self.request(pool, &asked, client, routed.class(service))
        };
        let of_rule = routed.rule(service).map(|rule| rule.rescue.retry);
        Looked::Done(match self.choose(health, pool, vip.port(), request) {
            Some(choice) => Decision::To(Choice {
                retry: of_rule.unwrap_or(choice.retry),
                ..choice
            }),
            None => Decision::Refuse(refusal.nobody, refusal.body),
        })
    }

    /// What a client asked for, as the pool's policy sees it.
    pub fn request(
        &self,
        pool: usize,
        asked: &Asked<'_>,
        client: SocketAddr,
        class: Option<Class>,
    ) -> Request {
        let config = &self.config;
        let id = |backend: usize| BackendId(self.slots[backend] as u16);
        config.request(pool, asked, client, class, id)
    }

    /// The policy's choice among the pool's backends that are alive, for a request to
    /// that port of the VIP.
    pub fn choose(
        &self,
        health: &Health,
        pool: usize,
        port: u16,
        request: Request,
    ) -> Option<Choice> {
        let backends = self.backends(health, pool, port)?;
        if let Some(choice) = self.turn(pool, &request, &backends, SharedTurns::take) {
            return Some(choice);
        }
        let (chosen, placed) = self.pools[pool].place(clock::monotonic(), request, &backends)?;
        self.choice(self.config.pools[pool].number, chosen, placed)
    }

    /// As [`Self::choose`], without a trace in the policy's state.
    pub fn preview(
        &self,
        health: &Health,
        pool: usize,
        port: u16,
        request: Request,
    ) -> Option<Choice> {
        let backends = self.backends(health, pool, port)?;
        if let Some(choice) = self.turn(pool, &request, &backends, SharedTurns::peek) {
            return Some(choice);
        }
        let chosen = self.pools[pool].preview(clock::monotonic(), request, &backends)?;
        self.choice(
            self.config.pools[pool].number,
            chosen,
            Placed::unnoticed(request),
        )
    }

    /// A flow's first request has ended.
    pub fn finished(&self, health: &Health, told: &abi::Finished) {
        if let Some(place) = self.place_of(PoolNumber(told.pool as u16)) {
            self.pools[place].finished(clock::monotonic(), told, health.active(told.slot));
        }
    }

    /// A request does not go where it was placed after all.
    pub fn not_taken(&self, choice: &Choice) {
        if choice.placed.report {
            self.lost(choice.pool, &choice.placed.request, choice.slot);
        }
    }

    /// A request will not be answered where it was placed.
    pub fn lost(&self, pool: PoolNumber, request: &Request, slot: u32) {
        if let Some(place) = self.place_of(pool) {
            self.pools[place].lost(clock::monotonic(), request, BackendId(slot as u16));
        }
    }

    /// What of the pool's policy can stand. Where [`Self::connects`], a turn that the data path
    /// takes and cannot use would be lost, so turns stand only where all are the same one's.
    pub fn stands(&self, pool: usize) -> Stands {
        let of_pool = &self.config.pools[pool];
        let stands = self.pools[pool].stands();
        match &of_pool.stickiness {
            Some(_) => Stands::Not,
            None if stands == Stands::ByTurns
                && self.connects(pool)
                && of_pool.members.len() > 1 =>
            {
                Stands::Not
            }
            None => stands,
        }
    }

    /// Some of the pool's connections are opened by a daemon: a data path only says which of
    /// them stay.
    pub fn connects(&self, pool: usize) -> bool {
        let members = &self.config.pools[pool].members;
        let mut backends = members.iter().map(|m| &self.config.backends[m.backend]);
        backends.any(|backend| backend.transfer.connects())
    }

    /// Where requests like the one that this choice was made for may go without asking,
    /// for a policy whose decisions stand so.
    pub fn settled(&self, health: &Health, port: u16, choice: &Choice) -> Option<Settled> {
        let pool = self.place_of(choice.pool)?;
        let backends = self.backends(health, pool, port)?;
        let chosen = BackendId(u16::try_from(choice.slot).ok()?);
        let request = &choice.placed.request;
        self.pools[pool].settled(clock::monotonic(), request, &backends, chosen)
    }

    /// So many were placed so in the time before the one that this choice was made for.
    pub fn settled_took(&self, choice: &Choice, count: u32, time: Duration) {
        if let Some(pool) = self.place_of(choice.pool) {
            self.pools[pool].settled_took(&choice.placed.request, count, time);
        }
    }

    /// The backend whose turn it is, in a pool that takes turns with the data path:
    /// none if the row is older than what is known of its backends.
    fn turn(
        &self,
        pool: usize,
        request: &Request,
        backends: &Backends,
        next: fn(&SharedTurns, usize) -> Option<Turn>,
    ) -> Option<Choice> {
        if self.stands(pool) != Stands::ByTurns {
            return None;
        }
        let chosen = BackendId(u16::try_from(next(&self.turns, pool)?.slot).ok()?);
        backends.get_open(chosen)?;
        self.choice(
            self.config.pools[pool].number,
            chosen,
            Placed::unnoticed(*request),
        )
    }

    /// The pool of that number; none if it is configured no more.
    pub fn configured(&self, number: PoolNumber) -> Option<&Pool> {
        Some(&self.config.pools[self.place_of(number)?])
    }

    /// What a pool wants of its backends' answers; one that is configured no more wants nothing.
    pub fn care(&self, pool: PoolNumber) -> Care {
        let Some(pool) = self.configured(pool) else {
            return Care::default();
        };
        let follow = pool.handoff != Handoff::None;
        Care {
            follow,
            head: false,
            outlive: follow && pool.survive_close,
            park: follow && pool.park,
            kept: false,
        }
    }

    /// The same for a request behind which the next has come already, if `ahead`: where its
    /// server closes nobody can tell which of them it has read.
    pub fn care_ahead(&self, pool: PoolNumber, ahead: bool) -> Care {
        let care = self.care(pool);
        Care {
            outlive: care.outlive && !ahead,
            ..care
        }
    }

    /// What outlives its backend of a request that was placed in that pool; nothing is kept for one
    /// that is configured no more. Rules that lead elsewhere by now say nothing of it.
    pub fn rescue(&self, vip: SocketAddr, pool: PoolNumber, head: &HttpHead<'_>) -> Rescue {
        let Some(place) = self.place_of(pool) else {
            return Rescue::default();
        };
        match self.config.rescue(vip, &Asked::Http(head)) {
            Some((routed, rescue)) if routed == place => rescue,
            _ => self.config.pools[place].rescue,
        }
    }

    /// Does that answer outlive its backend, by its rule or its pool?
    pub fn outlives(&self, vip: SocketAddr, pool: PoolNumber, state: &SoftState) -> bool {
        let request = head::inspect(&state.request, self.config.limits.head_bytes);
        let answer = AnswerHead::parse(&state.head);
        let (Inspection::Http(head), Some(answer)) = (request, answer) else {
            return false;
        };
        let protection = self.rescue(vip, pool, &head).protection;
        protection.delay(answer.length).is_some()
    }

    /// May an answer of that pool outlive its backend?
    pub fn protects(&self, pool: PoolNumber) -> bool {
        let place = self.place_of(pool);
        let mut rescues = place.into_iter().flat_map(|pool| self.config.rescues(pool));
        rescues.any(|rescue| rescue.protection.is_any())
    }

    /// The least that is said of requests of that pool, where it is not known which rule was theirs.
    pub fn least_retry(&self, pool: PoolNumber) -> Retry {
        let place = self.place_of(pool);
        let rescues = place.into_iter().flat_map(|pool| self.config.rescues(pool));
        rescues.map(|rescue| rescue.retry).min().unwrap_or_default()
    }

    /// How connections leave a pool; one that is configured no more is left in any way.
    pub fn handoff(&self, pool: PoolNumber) -> Handoff {
        let pool = self.configured(pool);
        pool.map_or(Handoff::HalfPipe, |pool| pool.handoff)
    }

    /// The pool's member with that slot, as a choice; none if it is configured no more.
    pub fn choice(&self, pool: PoolNumber, chosen: BackendId, placed: Placed) -> Option<Choice> {
        let members = &self.configured(pool)?.members;
        let member = (members.iter()).find(|m| self.slots[m.backend] == u32::from(chosen.0))?;
        Some(Choice {
            slot: self.slots[member.backend],
            address: self.config.backends[member.backend].address,
            server_port: self.server_port(member).unwrap_or(0),
            transfer: self.config.backends[member.backend].transfer,
            pool,
            retry: self.configured(pool)?.rescue.retry,
            placed,
        })
    }

    /// Where a member's server listens, if not at the VIP's own port.
    fn server_port(&self, member: &Member) -> Option<u16> {
        let backend = &self.config.backends[member.backend];
        Some(member.server.or(backend.server)?.port())
    }

    /// How a member's server does that answers at that port of the VIP.
    pub fn state(&self, health: &Health, pool: usize, member: &Member, port: u16) -> State {
        let port = self.server_port(member).unwrap_or(port);
        let number = || number_of(&self.config.pools[pool].name, port);
        health.state_at(self.slots[member.backend], port, number)
    }

    /// By what number checks know a flow's server; none if it is not checked, or not
    /// configured any more.
    pub fn number(&self, pool: PoolNumber, slot: u32, port: u16) -> Option<u64> {
        let of_pool = self.configured(pool)?;
        let mut members = of_pool.members.iter();
        let member = members.find(|m| self.slots[m.backend] == slot)?;
        member.check.as_ref()?;
        let port = self.server_port(member).unwrap_or(port);
        Some(number_of(&of_pool.name, port))
    }

    /// A backend's servers, each with the number by which it is known.
    pub fn servers(&self, backend: usize) -> impl Iterator<Item = (u64, usize, &Member, u16)> {
        let pools = self.config.pools.iter().enumerate();
        pools.flat_map(move |(index, pool)| {
            let members = pool.members.iter().filter(move |m| m.backend == backend);
            members.flat_map(move |member| {
                let ports = match self.server_port(member) {
                    Some(port) => vec![port],
                    None => self.ports(index),
                };
                let numbered = ports.into_iter();
                numbered.map(move |port| (number_of(&pool.name, port), index, member, port))
            })
        })
    }

    /// The agent's or our own checks know a server of that slot by this number.
    pub fn is_checked(&self, slot: u32, number: u64) -> bool {
        let at = self.slots.iter().position(|&s| s == slot);
        at.is_some_and(|at| (self.targets[at].iter()).any(|t| t.key.number() == number))
    }

    /// The ports of the VIPs at which the pool may be asked.
    pub fn ports(&self, pool: usize) -> Vec<u16> {
        self.config.ports(pool)
    }

    /// The pool's live backends for that port of the VIP; those that are only busy when
    /// there is no other, then those that stand out, and then those whose server may be there again.
    pub fn backends(&self, health: &Health, pool: usize, port: u16) -> Option<Backends> {
        let of_pool = self.config.pools.get(pool)?;
        let that = |takes: fn(State) -> bool| {
            let alive = (of_pool.members.iter())
                .filter(|member| takes(self.state(health, pool, member, port)))
                .map(|member| (member, self.slots[member.backend]));
            let weights = self.slow_weights(health, of_pool, port, alive.clone());
            Backends::new(alive.enumerate().map(|(index, (member, slot))| Candidate {
                outstanding: u32::try_from(health.active(slot)).unwrap_or(u32::MAX),
                cost_us: health.loads().cost_us(slot),
                feedback: health.feedback(slot),
                ..Candidate::new(
                    // There are at most BACKENDS_MAX slots.
                    BackendId(slot as u16),
                    &self.config.backends[member.backend].name,
                    weights.get(index).copied().unwrap_or(member.weight),
                )
            }))
        };
        let by_preference: [fn(State) -> bool; 4] = [
            State::is_free,
            |state| state == State::Busy,
            |state| state == State::Ejected,
            |state| state == State::NoServer { for_sure: false },
        ];
        let mut ever_worse = by_preference.into_iter().map(that);
        let first = ever_worse.next()?;
        match first.open().is_empty() {
            true => ever_worse
                .find(|them| !them.open().is_empty())
                .or(Some(first)),
            false => Some(first),
        }
    }

    /// Is there one besides these slots that could take an answer over, but is not there now?
    pub fn awaits_another(&self, health: &Health, pool: usize, port: u16, but: &[u32]) -> bool {
        self.config.pools.get(pool).is_some_and(|of_pool| {
            of_pool.members.iter().any(|member| {
                let backend = &self.config.backends[member.backend];
                let state = self.state(health, pool, member, port);
                backend.transfer == Transfer::Rebuild
                    && !but.contains(&self.slots[member.backend])
                    && !state.is_free()
                    && state != State::Drained
            })
        })
    }

    /// The weights of a pool whose members start slowly; empty: as configured.
    fn slow_weights<'m>(
        &self,
        health: &Health,
        pool: &Pool,
        port: u16,
        alive: impl Iterator<Item = (&'m Member, u32)>,
    ) -> Vec<u16> {
        let Some(whole) = pool.slow_start else {
            return Vec::new();
        };
        let step = |(member, slot): (&Member, u32)| {
            let port = self.server_port(member).unwrap_or(port);
            let number = number_of(&pool.name, port);
            (member.weight, health.step(slot, number, whole))
        };
        ramp::weights(&alive.map(step).collect::<Vec<_>>())
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

fn answer_to(bad: &BadHead) -> Answer {
    match bad {
        BadHead::Malformed(_) => Answer::BadRequest,
        BadHead::Version(_) => Answer::VersionNotSupported,
        BadHead::TooLarge => Answer::HeadTooLarge,
        BadHead::TlsMalformed(_) => Answer::DECODE_ERROR,
        BadHead::TlsTooLarge => Answer::RECORD_OVERFLOW,
    }
}
