//! The daemon's one busy thread: heartbeats go out, answers come in, and from who is there
//! follow the lots and who has the service addresses. The rules are core's
//! (core/src/membership); here are the socket, the clock and the maps.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trapeze_core::config::SprayMode;
use trapeze_core::flow::Handshake;
use trapeze_core::membership::lead::{self, Lead, Other, Own};
use trapeze_core::membership::lots::{self, Holder, Lots};
use trapeze_core::membership::watch::{Change, State, Watch};
use trapeze_core::membership::{Presence, SprayState, Workload};
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::meta::{Binding, Care, Kind, Meta};
use trapeze_core::wire::{again, geneve, ipv4};
use trapeze_datapath::abi::{self, GENEVE_PORT};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;
use trapeze_datapath::sent::{self, SentToTheDead};
use trapeze_datapath::spray::SharedLots;
use trapeze_datapath::udp::{LONGEST_WAIT, Outbox, UdpSocket};

use crate::control::{MemberStatus, Status};
use crate::plan::{Member, MemberRole, Plan};
use crate::seat::Seat;
use crate::{Shared, place, v4};

/// RFC 3692: for experiments; the inner packet is there only to be signed.
const NO_PROTOCOL: u8 = 253;
const PADDING: [u8; 20] = [0; 20];
/// Workload factors that differ by less deal no lots anew, in thousandths.
const NOTABLE: u16 = 20;
/// What this spray says of itself counts for as many intervals, and this long at least.
const LEASE_INTERVALS: u32 = 4;
const LEAST_LEASE: Duration = Duration::from_millis(500);
/// What commands are told is no older than this and a heartbeat.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

pub struct Vigil {
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    generation: u64,
    socket: UdpSocket,
    watch: Watch,
    lots: Lots,
    shared_lots: SharedLots,
    /// For whom the lots were dealt last.
    holders: Vec<Holder>,
    seat: Seat,
    say: SprayState,
    sent_to_the_dead: SentToTheDead,
    /// Packets that were sent again, so far.
    sent_again: u64,
    show_at: Duration,
}

impl Vigil {
    pub fn open(shared: Arc<Shared>, seat: Seat) -> anyhow::Result<Self> {
        let plan = shared.plan();
        let address = SocketAddrV4::new(v4(plan.own.address)?, GENEVE_PORT);
        let socket = UdpSocket::bind(address, 0, 1)
            .map_err(|e| anyhow::anyhow!("cannot bind UDP {address}: {e}"))?;
        // Numbers go on where the daemon before stopped: it used fewer than one in 10 ms.
        let number = clock::cluster().as_millis() as u32;
        let interval = plan.config.spraying.heartbeat;
        let mut watch = Watch::new(interval, clock::monotonic(), number);
        for member in &plan.members {
            watch.add(known_state(&shared, member)?);
        }
        let say = match seat.is_held() {
            true => SprayState::Active,
            false => SprayState::Standby,
        };
        sent::divide(&shared.maps.sent_rings, &plan.slots())?;
        let vigil = Self {
            generation: 0,
            shared_lots: SharedLots::map(&shared.maps.lots)?,
            lots: Lots::default(),
            holders: Vec::new(),
            socket,
            watch,
            seat,
            say,
            sent_to_the_dead: SentToTheDead::open(&shared.maps.sent, &plan.own.interface)?,
            sent_again: 0,
            show_at: Duration::ZERO,
            plan,
            shared,
        };
        vigil.publish_presence(clock::monotonic())?;
        Ok(vigil)
    }

    /// Watches until the daemon stops; gives back what it held of the host.
    pub fn run(mut self) -> anyhow::Result<Seat> {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let due = self.watch.due();
            let due = (self.sent_to_the_dead.due()).map_or(due, |at| at.min(due));
            let wait = due.saturating_sub(clock::monotonic());
            let count = self.socket.receive(wait.min(LONGEST_WAIT / 2))?;
            let now = clock::monotonic();
            for index in 0..count {
                self.hear(now, index);
            }
            let reloaded = self.follow_reload(now)?;
            let changes = self.watch.judge(now);
            for change in &changes {
                let member = &self.plan.members[change.member];
                println!("{} is {}", member.name, change.state.name());
            }
            self.deal(reloaded || !changes.is_empty())?;
            changes
                .iter()
                .for_each(|change| self.plan_replay(now, change));
            if let Some(number) = self.watch.beat(now) {
                self.lead(now)?;
                self.publish_presence(now)?;
                let all = 0..self.plan.members.len();
                self.ask(number, all);
                if now >= self.show_at {
                    self.show_at = now + SHOW_INTERVAL;
                    self.show(now)?;
                }
            } else if !changes.is_empty() {
                self.lead(now)?;
                self.publish_presence(now)?;
            }
            if let Some((number, late)) = self.watch.repeat(now) {
                self.ask(number, late);
            }
            self.send_again(now);
            self.seat.remind(now);
            if self.watch.has_judged() && (self.seat.is_held() || self.hears_a_leader()) {
                self.shared.settled.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.seat)
    }

    fn hears_a_leader(&self) -> bool {
        let active = Some(Presence::Spray(SprayState::Active));
        let mut members = self.watch.members().iter();
        members.any(|member| member.state == State::Alive && member.said == active)
    }

    fn hear(&mut self, now: Duration, index: usize) {
        let own = self.plan.own.address;
        let (datagram, _) = self.socket.datagram(index);
        // The data path has checked the tag, if it was there.
        let Ok(packet) = geneve::open(datagram, own, &self.plan.keys) else {
            return;
        };
        let (Kind::BeatReply(said), Ok(inner)) =
            (packet.meta.kind, ipv4::Packet::parse(packet.inner))
        else {
            return;
        };
        // Whom we have asked stands in the packet that they give back.
        let asked = inner.destination();
        let place = self.plan.members.iter().position(|m| m.address == asked);
        if let Some(place) = place
            && self.plan.members[place].role.fits(said)
        {
            let before = self.watch.members()[place].said;
            let is_new = self.watch.hear(now, place, packet.meta.epoch, said);
            if is_new && let MemberRole::Dispatcher(slot) = self.plan.members[place].role {
                let spraying = &self.plan.config.spraying;
                (self.sent_to_the_dead).hear(slot, before, said, now, spraying);
            }
        }
    }

    fn follow_reload(&mut self, now: Duration) -> anyhow::Result<bool> {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return Ok(false);
        }
        self.generation = generation;
        let old = std::mem::replace(&mut self.plan, self.shared.plan());
        let from: Vec<Option<usize>> = (self.plan.members.iter())
            .map(|member| old.members.iter().position(|was| was == member))
            .collect();
        self.watch.rearrange(&from);
        for member in &self.plan.members {
            if let MemberRole::Dispatcher(slot) = member.role
                && !old.members.contains(member)
            {
                self.sent_to_the_dead.end(slot);
            }
        }
        sent::divide(&self.shared.maps.sent_rings, &self.plan.slots())?;
        self.watch
            .set_interval(now, self.plan.config.spraying.heartbeat);
        if self.seat.is_held() {
            self.seat.take(now, &self.plan.front_addresses())?;
        }
        Ok(true)
    }

    /// Deals the lots, to those that are there, if that comes out otherwise than before.
    fn deal(&mut self, changed: bool) -> anyhow::Result<()> {
        let mode = self.plan.config.spraying.mode;
        let holders = self.live_dispatchers();
        let is_same = |a: &Holder, b: &Holder| {
            let shift = a.workload.permille().abs_diff(b.workload.permille());
            a.slot == b.slot && (mode != SprayMode::Workload || shift < NOTABLE)
        };
        let as_before = holders.len() == self.holders.len()
            && holders
                .iter()
                .zip(&self.holders)
                .all(|(a, b)| is_same(a, b));
        if as_before && !changed {
            return Ok(());
        }
        // Those who come are in their slots before lots name them, and those who go stay
        // there until none does.
        self.plan.publish_dispatchers(&self.shared.maps)?;
        self.lots.fill(mode, &holders);
        self.shared_lots.set(self.lots.slots());
        self.holders = holders;
        self.plan.retire_dispatchers(&self.shared.maps)?;
        self.publish_live()
    }

    /// Those that answer and do not leave; all, if none does: better a dispatcher that may be
    /// there than none.
    fn live_dispatchers(&self) -> Vec<Holder> {
        let dispatchers = || {
            let members = self.plan.members.iter().zip(self.watch.members());
            members.filter_map(|(member, watched)| match member.role {
                MemberRole::Dispatcher(slot) => Some((member, watched, slot)),
                MemberRole::Spray(_) => None,
            })
        };
        let known: Vec<u16> = dispatchers()
            .filter_map(|(_, watched, _)| workload(watched.said))
            .map(Workload::permille)
            .collect();
        // Who does not say counts as the others do on average.
        let mean = match known.len() {
            0 => Workload::IDLE,
            count => {
                let sum: u32 = known.iter().map(|&w| u32::from(w)).sum();
                Workload::new(sum / count as u32).unwrap_or(Workload::IDLE)
            }
        };
        let holders = |all: bool| -> Vec<Holder> {
            dispatchers()
                .filter(|(_, watched, _)| {
                    let leaves = watched.said == Some(Presence::Leaving);
                    all || watched.state == State::Alive && !leaves
                })
                .map(|(member, watched, slot)| {
                    Holder::new(slot, &member.name, workload(watched.said).unwrap_or(mean))
                })
                .collect()
        };
        match holders(false) {
            none if none.is_empty() => holders(true),
            some => some,
        }
    }

    /// Who has the service addresses now.
    fn lead(&mut self, now: Duration) -> anyhow::Result<()> {
        let members = || self.plan.members.iter().zip(self.watch.members());
        let others: Vec<Other> = members()
            .filter(|(_, watched)| watched.state == State::Alive)
            .filter_map(|(member, watched)| match (member.role, watched.said) {
                (MemberRole::Spray(place), Some(Presence::Spray(state))) => {
                    Some(Other { place, state })
                }
                _ => None,
            })
            .collect();
        let sprays = &self.plan.config.sprays;
        let leaving = self.shared.leaving.load(Ordering::Relaxed);
        let own = Own {
            place: place(sprays, &self.plan.own.name),
            holds: self.seat.is_held(),
            fit: members().any(|(member, watched)| {
                matches!(member.role, MemberRole::Dispatcher(_)) && watched.state == State::Alive
            }),
            leaving,
            // Alone there is nobody to listen to.
            has_listened: self.watch.has_judged() || sprays.len() == 1,
        };
        let Lead { hold, say } = lead::decide(own, &others);
        match (hold, self.seat.is_held()) {
            (true, false) => {
                self.say = say;
                self.publish_presence(now)?;
                self.seat.take(now, &self.plan.front_addresses())?;
                println!("has the service addresses");
            }
            (false, true) => {
                self.seat.give_up()?;
                println!("has given the service addresses up");
            }
            _ => {}
        }
        self.say = say;
        let rival = others.iter().any(|other| other.state == SprayState::Active);
        if hold && rival {
            self.seat.insist(now);
        }
        let heir = others
            .iter()
            .any(|other| other.state == SprayState::Standby);
        if leaving && (rival || !heir) {
            self.shared.left.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the data path says when it is asked; without this daemon, that another one may
    /// have the addresses, unless they are here.
    fn publish_presence(&self, now: Duration) -> anyhow::Result<()> {
        let afterwards = match self.say {
            SprayState::Active => SprayState::Active,
            _ => SprayState::Yielding,
        };
        let lease = (self.plan.config.spraying.heartbeat * LEASE_INTERVALS).max(LEAST_LEASE);
        let presence = abi::Presence::new(
            Presence::Spray(self.say),
            Presence::Spray(afterwards),
            now,
            lease,
        );
        Ok(self.shared.maps.presence.put(&0, &presence, Update::Any)?)
    }

    /// Beats, to those places.
    fn ask(&self, number: u32, places: impl IntoIterator<Item = usize>) {
        let mut beats = Outbox::default();
        for member in places.into_iter().map(|place| &self.plan.members[place]) {
            beats.push(SocketAddrV4::new(member.address, GENEVE_PORT), |out| {
                self.write_beat(number, member, out);
            });
        }
        self.socket.send(&beats);
    }

    fn write_beat(&self, number: u32, member: &Member, out: &mut Vec<u8>) {
        let own = v4(self.plan.own.address).expect("it was bound");
        let mut inner = Vec::new();
        ipv4::write_header(own, member.address, NO_PROTOCOL, PADDING.len(), &mut inner);
        inner.extend_from_slice(&PADDING);
        let kind = Kind::Beat(Presence::Spray(self.say));
        self.write(kind, number, member, &inner, out);
    }

    /// A packet in the encapsulation.
    fn write(&self, kind: Kind, epoch: u32, to: &Member, inner: &[u8], out: &mut Vec<u8>) {
        let meta = Meta {
            kind,
            epoch,
            start: ClientSeq::new(0),
            handshake: Handshake::default(),
            server_port: 0,
            requests: 0,
            care: Care::default(),
        };
        let binding = Binding::of_packet(to.address.into(), inner).expect("an IPv4 packet");
        geneve::write(&meta.seal(&self.plan.keys, &binding), inner, out);
    }

    /// Of a dispatcher that is found dead others get what it had since it was heard.
    fn plan_replay(&mut self, now: Duration, change: &Change) {
        let MemberRole::Dispatcher(slot) = self.plan.members[change.member].role else {
            return;
        };
        match change.state {
            State::Silent => {
                let heard = self.watch.members()[change.member].heard_at;
                let interval = self.plan.config.spraying.heartbeat;
                self.sent_to_the_dead.begin(slot, heard, now, interval);
            }
            _ => self.sent_to_the_dead.end(slot),
        }
    }

    /// What is due goes to those that have the lots now.
    fn send_again(&mut self, now: Duration) {
        let by_lot = self.plan.config.spraying.mode == SprayMode::FlowHash;
        let mut others = self.holders.iter().map(|it| it.slot).cycle();
        let mut datagrams = Outbox::default();
        for (was, packet) in self.sent_to_the_dead.take(now) {
            let to = match by_lot {
                true => self.holder_of(&packet),
                false => others.next(),
            };
            let to = to.map(MemberRole::Dispatcher);
            let place = (self.plan.members.iter()).position(|it| Some(it.role) == to);
            let Some(place) = place else {
                continue;
            };
            let member = &self.plan.members[place];
            // Where nobody is left, its lots are its own still; and where only its daemon is away.
            let is_its_own = to == Some(MemberRole::Dispatcher(was));
            if is_its_own && self.watch.members()[place].state != State::Alive {
                continue;
            }
            datagrams.push(SocketAddrV4::new(member.address, GENEVE_PORT), |out| {
                self.write(Kind::Sprayed { again: true }, 0, member, &packet, out);
            });
            self.sent_again += 1;
        }
        self.socket.send(&datagrams);
    }

    fn holder_of(&self, packet: &[u8]) -> Option<u16> {
        let flow = again::flow_of(packet)?;
        self.shared_lots
            .get(lots::lot_of(&self.plan.lots_key, &flow)?)
    }

    /// For commands, which see it without the daemon, too.
    fn publish_live(&self) -> anyhow::Result<()> {
        for (member, watched) in self.plan.members.iter().zip(self.watch.members()) {
            let MemberRole::Dispatcher(slot) = member.role else {
                continue;
            };
            let slot = u32::from(slot);
            let live = u32::from(watched.state == State::Alive);
            let dispatchers = &self.shared.maps.dispatchers;
            if let Some(entry) = dispatchers.get(&slot)?
                && entry.live != live
            {
                let entry = abi::Dispatcher { live, ..entry };
                dispatchers.put(&slot, &entry, Update::Any)?;
            }
        }
        Ok(())
    }

    fn show(&self, now: Duration) -> anyhow::Result<()> {
        let spraying = &self.plan.config.spraying;
        let sent = self.shared.maps.sprayed.sums()?;
        let status = |member: &Member, watched: &trapeze_core::membership::watch::Watched| {
            let slot = match member.role {
                MemberRole::Dispatcher(slot) => Some(slot),
                MemberRole::Spray(_) => None,
            };
            let holds_lots = self.holders.iter().any(|h| Some(h.slot) == slot);
            MemberStatus {
                name: member.name.clone(),
                address: member.address.to_string(),
                state: watched.state.name().into(),
                says: watched.said.and_then(|said| match said {
                    Presence::Spray(state) => Some(state.name().to_owned()),
                    Presence::Dispatcher { .. } => None,
                    Presence::Joining => Some("joining".to_owned()),
                    Presence::Leaving => Some("leaving".to_owned()),
                }),
                workload_permille: workload(watched.said).map(Workload::permille),
                heard_ms_ago: (watched.heard_at).map(|at| (now - at).as_millis() as u64),
                lots: slot
                    .filter(|_| holds_lots)
                    .map(|slot| self.lots.share(slot)),
                packets: slot.map(|slot| sent[usize::from(slot)]),
            }
        };
        let all: Vec<(&Member, MemberStatus)> = (self.plan.members.iter())
            .zip(self.watch.members())
            .map(|(member, watched)| (member, status(member, watched)))
            .collect();
        let of = |dispatchers: bool| {
            let which = all.iter().filter(move |(member, _)| {
                matches!(member.role, MemberRole::Dispatcher(_)) == dispatchers
            });
            which.map(|(_, status)| status.clone()).collect()
        };
        *self.shared.status.lock().expect("no thread panics with it") = Status {
            state: self.say.name().into(),
            has_addresses: self.seat.is_held(),
            mode: spraying.mode.name().into(),
            heartbeat_ms: spraying.heartbeat.as_millis() as u64,
            reloads: self.generation,
            sent_again: self.sent_again,
            dispatchers: of(true),
            sprays: of(false),
            left: self.plan.left.clone(),
            membership: None,
        };
        Ok(())
    }
}

impl MemberRole {
    fn fits(self, said: Presence) -> bool {
        matches!(
            (self, said),
            (
                Self::Dispatcher(_),
                Presence::Dispatcher { .. } | Presence::Joining | Presence::Leaving
            ) | (Self::Spray(_), Presence::Spray(_))
        )
    }
}

fn workload(said: Option<Presence>) -> Option<Workload> {
    match said {
        Some(Presence::Dispatcher { workload }) => workload,
        _ => None,
    }
}

/// A dispatcher that the daemon before found alive is so until it is found silent: its lots
/// stay where they are.
fn known_state(shared: &Shared, member: &Member) -> anyhow::Result<State> {
    let MemberRole::Dispatcher(slot) = member.role else {
        return Ok(State::Unknown);
    };
    let entry = shared.maps.dispatchers.get(&slot.into())?;
    let was_alive = entry.is_some_and(|entry| entry.name() == member.name && entry.live == 1);
    Ok(if was_alive {
        State::Alive
    } else {
        State::Unknown
    })
}
