//! The thread that is busy with the other dispatchers: heartbeats go out, answers come in,
//! and from who is there follows who keeps which flows; news come in and are applied; who
//! begins catches up. The rules are core's (core/src/membership, core/src/replica); here
//! are the socket, the clock and the maps.

mod catching_up;
mod cut;
mod keepers;

pub(super) use keepers::{holder, is_fit, is_keeper};

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trapeze_core::config::Dispatcher;
use trapeze_core::membership::lots::{Holder, Lots};
use trapeze_core::membership::watch::{State, Watch, Watched};
use trapeze_core::membership::{Presence, Workload};
use trapeze_core::replica::part::Step;
use trapeze_core::replica::stream::Heard;
use trapeze_core::replica::{self, Entry, Head, Message, What};
use trapeze_core::wire::meta::{Keys, Kind};
use trapeze_core::wire::{geneve, ipv4};
use trapeze_datapath::abi::PEERS_PORT;
use trapeze_datapath::clock;
use trapeze_datapath::dispatcher::Claimer;
use trapeze_datapath::sent::SentToTheDead;
use trapeze_datapath::udp::{BATCH, LONGEST_WAIT, Outbox, UdpSocket};

use super::again::Again;
use super::caught_up::{Lesson, Pupil};
use super::gates::Gates;
use super::herald::{NO_PROTOCOL, enclose, option};
use super::joining::{Stage, View, Views};
use super::proofs::{self, Silent};
use super::{PATIENCE, Peer};
use crate::{Shared, v4};
use catching_up::asking_name;

const PADDING: [u8; 20] = [0; 20];
/// The end of the news is told at least this often.
const TAIL_INTERVAL: Duration = Duration::from_secs(1);
/// What is lacking is not asked for again so soon.
const LACKING_INTERVAL: Duration = Duration::from_millis(20);
/// What other threads have to tell waits no longer.
const LONGEST_SILENCE: Duration = Duration::from_millis(50);
/// A worker ends what it is at.
const GIVE_WAY_INTERVAL: Duration = Duration::from_micros(500);
/// What commands are told is no older than this and a heartbeat.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

/// How another dispatcher is, as this one sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its own address.
    pub address: String,
    /// 0 is the front end.
    #[serde(default)]
    pub sub_cluster: u8,
    /// `unknown`, `alive` or `silent`.
    pub state: String,
    /// It has caught up, and does not leave.
    pub fit: bool,
    /// Of 65,536: it keeps the flows of so many lots, or is passed them if it is elsewhere.
    pub lots: usize,
    /// Messages of its that did not come, and are asked for.
    pub lacking: usize,
}

pub struct Vigil {
    shared: Arc<Shared>,
    socket: UdpSocket,
    peers: Arc<Vec<Peer>>,
    watch: Watch,
    gates: Gates,
    lots: Lots,
    /// As they would be dealt without this dispatcher.
    heirs: Lots,
    /// By sub-cluster.
    holders: Vec<Vec<Holder>>,
    views: Views,
    /// The latest beat when this dispatcher said that it joins.
    joins_after: u32,
    /// Nothing that others have said was unheard then.
    heard_all_at: Duration,
    /// When any of them last answered.
    answered_at: Duration,
    /// All changes of turns until this one had been told then.
    told_until: u32,
    /// Since when nobody at all answers.
    cut_at: Option<Duration>,
    /// A worker still decides by older lots.
    is_giving_way: bool,
    /// By peer.
    heard: HashMap<Ipv4Addr, Heard>,
    lacking_asked: HashMap<Ipv4Addr, Duration>,
    lessons: HashMap<Ipv4Addr, Lesson>,
    pupil: Option<Pupil>,
    /// When it caught up nobody was there, and nobody that keeps flows since.
    is_alone: bool,
    /// They did not answer an asking.
    useless: Vec<Ipv4Addr>,
    /// All of them, and that has been said.
    is_unknown: bool,
    tail_told: (u32, Duration),
    silent: Silent,
    /// Their data paths are there, and their daemons are not.
    bereft: Vec<Ipv4Addr>,
    sent_to_the_dead: SentToTheDead,
    again: Again,
    claimer: Claimer,
    /// Until then somebody may entrust something to us who has not heard of the latest deal.
    claims_until: Duration,
    outbox: Outbox,
    lease_at: Duration,
    show_at: Duration,
    generation: u64,
}

impl Vigil {
    pub fn open(shared: Arc<Shared>, own: &Dispatcher, claimer: Claimer) -> anyhow::Result<Self> {
        let address = SocketAddrV4::new(v4(own.address)?, PEERS_PORT);
        let socket = UdpSocket::bind(address, 0, 1)
            .map_err(|e| anyhow::anyhow!("cannot bind UDP {address}: {e}"))?;
        let now = clock::monotonic();
        // Numbers go on where the daemon before stopped: it used fewer than one in 10 ms.
        let number = clock::cluster().as_millis() as u32;
        let interval = shared.cluster().config.spraying.heartbeat;
        let peers = shared.peers.all();
        let mut watch = Watch::new(interval, now, number);
        peers.iter().for_each(|_| watch.add(State::Unknown));
        let gates = Gates::new(shared.peers.elsewhere(), interval, now, number);
        let mut vigil = Self {
            generation: 0,
            gates,
            lots: Lots::default(),
            heirs: Lots::default(),
            holders: Vec::new(),
            views: Views::default(),
            joins_after: number,
            heard_all_at: now,
            answered_at: Duration::ZERO,
            told_until: 0,
            cut_at: None,
            is_giving_way: false,
            heard: HashMap::new(),
            lacking_asked: HashMap::new(),
            lessons: HashMap::new(),
            pupil: None,
            is_alone: true,
            useless: Vec::new(),
            is_unknown: false,
            tail_told: (0, Duration::ZERO),
            silent: Silent::default(),
            bereft: Vec::new(),
            sent_to_the_dead: SentToTheDead::open(&shared.maps.sent, &own.interface)?,
            again: Again::none(),
            claimer,
            claims_until: Duration::ZERO,
            outbox: Outbox::default(),
            lease_at: Duration::ZERO,
            show_at: Duration::ZERO,
            watch,
            socket,
            peers,
            shared,
        };
        match vigil.peers.is_empty() {
            true => vigil.enter(Stage::Keeping)?,
            false => vigil.deal(Stage::CatchingUp, true)?,
        }
        Ok(vigil)
    }

    /// There is a way into the data path by the loopback device, to the one at that interface.
    pub fn open_inlet(&mut self, interface: &str) -> anyhow::Result<()> {
        self.again = Again::open(interface)?;
        Ok(())
    }

    /// Watches until the daemon stops.
    pub fn run(mut self) -> anyhow::Result<()> {
        let listening = self.shared.clone();
        let listening = &listening.peers.listening;
        listening.open(0, self.socket.ear()?);
        while !self.shared.stopping.load(Ordering::Relaxed) {
            self.socket.wait(self.wait(clock::monotonic()))?;
            let now = clock::monotonic();
            listening.begin(0);
            let count = self.socket.receive_ready()?;
            let has_heard_all = count < BATCH;
            if has_heard_all {
                self.heard_all_at = now;
            }
            let cluster = self.shared.cluster();
            for index in 0..count {
                self.hear(now, index, &cluster.keys)?;
            }
            let reloaded = self.follow_reload(now)?;
            self.look_whether_cut_off(now, has_heard_all)?;
            // Nobody is taken for dead whose answer, or whose last word, lies in the queue.
            let may_judge = now.saturating_sub(self.heard_all_at) >= PATIENCE || has_heard_all;
            let may_judge = may_judge && self.cut_at.is_none();
            let changes = match may_judge {
                true => self.watch.judge(now),
                false => Vec::new(),
            };
            if may_judge && self.gates.judge(now) {
                let living = &self.shared.peers.living_elsewhere;
                *(living.write()).expect("no thread panics with it") = self.gates.living();
            }
            for change in &changes {
                let peer = &self.peers[change.member];
                println!("{} is {}", peer.name, change.state.name());
                let heard = self.watch.members()[change.member].heard_at;
                match change.state {
                    State::Silent => {
                        let interval = cluster.config.spraying.heartbeat;
                        (self.sent_to_the_dead).begin(peer.slot, heard, now, interval);
                    }
                    _ => self.sent_to_the_dead.end(peer.slot),
                }
            }
            self.catch_up(now, &cluster.keys)?;
            let kept = self.keeps();
            self.settle(now)?;
            if reloaded || !changes.is_empty() {
                self.note_silent();
            }
            self.deal(self.shared.peers.stage(), reloaded)?;
            for change in changes
                .iter()
                .filter(|change| change.state == State::Silent)
            {
                self.views.forget(self.peers[change.member].address);
                self.shared.peers.inherit(self.peers[change.member].address);
            }
            if !kept && self.keeps() {
                self.shared.peers.inherit_all(now);
            }
            for peer in std::mem::take(&mut self.bereft) {
                self.shared.peers.inherit(peer);
            }
            self.give_way();
            let sent = self.sent_to_the_dead.take(now);
            if !sent.is_empty() {
                let living = self.living();
                (self.again).come_in(&sent, &living, &cluster.keys, &mut self.outbox);
            }
            if self.cut_at.is_none() {
                self.tell_views(&cluster.keys);
            }
            if let Some(number) = self.watch.beat(now) {
                self.claim_the_late(now)?;
                let peers = self.peers.clone();
                self.ask(number, peers.iter().map(|peer| peer.address), &cluster.keys);
                if self.cut_at.is_none() {
                    self.tell_the_tail(now, &cluster.keys);
                }
                if now >= self.show_at {
                    self.show_at = now + SHOW_INTERVAL;
                    self.show();
                }
            }
            if let Some((number, late)) = self.watch.repeat(now) {
                let late = late.into_iter().map(|place| self.peers[place].address);
                let late: Vec<Ipv4Addr> = late.collect();
                self.ask(number, late, &cluster.keys);
            }
            for (number, gates) in [self.gates.beat(now), self.gates.repeat(now)]
                .into_iter()
                .flatten()
            {
                self.ask(number, gates, &cluster.keys);
            }
            self.ask_for_what_is_lacking(now, &cluster.keys);
            self.renew_lease(now)?;
            self.silent.tell(now, &self.shared.peers)?;
            // Who is told that it is known has had what it needs before.
            if (self.shared.records).tell_peers(&self.socket, &cluster.keys)? {
                self.socket.send(&self.outbox);
            }
            self.outbox.clear();
            listening.end(0, has_heard_all.then_some(now.as_millis() as u64));
        }
        // Nobody hears anything any more: no worker is to wait for it.
        listening.end(0, Some(u64::MAX));
        Ok(())
    }

    fn wait(&self, now: Duration) -> Duration {
        let gates = self.gates.due();
        if self.peers.is_empty() && gates.is_none() {
            return LONGEST_WAIT;
        }
        let pupil = self.pupil.as_ref().map(Pupil::due);
        let sent = self.sent_to_the_dead.due();
        let due = [Some(self.watch.due()), sent, pupil, gates];
        let due = due.into_iter().flatten().min().unwrap_or(now);
        let longest = match self.is_giving_way {
            true => GIVE_WAY_INTERVAL,
            false => LONGEST_SILENCE,
        };
        due.saturating_sub(now).min(longest)
    }

    fn hear(&mut self, now: Duration, index: usize, keys: &Keys) -> anyhow::Result<()> {
        let own = self.shared.peers.own;
        let (datagram, _) = self.socket.datagram(index);
        // The data path has checked the tag, if it was there.
        let Ok(packet) = geneve::open(datagram, own.into(), keys) else {
            return Ok(());
        };
        let Ok(inner) = ipv4::Packet::parse(packet.inner) else {
            return Ok(());
        };
        match packet.meta.kind {
            Kind::BeatReply(said) => {
                self.answered_at = now;
                // Whom we have asked stands in the packet that they give back.
                let asked = inner.destination();
                let place = self.peers.iter().position(|peer| peer.address == asked);
                let is_dispatcher = !matches!(said, Presence::Spray(_));
                if place.is_none() && is_dispatcher {
                    self.gates.hear(now, asked, packet.meta.epoch, said);
                }
                if let Some(place) = place.filter(|_| is_dispatcher) {
                    let Watched {
                        state,
                        said: before,
                        ..
                    } = self.watch.members()[place];
                    let is_new = self.watch.hear(now, place, packet.meta.epoch, said);
                    if is_new && state != State::Alive {
                        self.meet(now, place, said)?;
                    }
                    if is_new && before.map(kind_of) != Some(kind_of(said)) {
                        self.views.repeat(asked);
                        self.follow_daemon(now, asked, said);
                        let spraying = &self.shared.cluster().config.spraying;
                        let slot = self.peers[place].slot;
                        (self.sent_to_the_dead).hear(slot, before, said, now, spraying);
                    }
                }
                Ok(())
            }
            Kind::Records => {
                let sender = inner.source();
                let message = inner.payload().to_vec();
                match replica::open(&message, sender, keys) {
                    Some(message) if self.shared.peers.has(sender) => {
                        self.listen(now, sender, &message, keys)
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// A peer says something else of itself than before.
    fn follow_daemon(&mut self, now: Duration, peer: Ipv4Addr, said: Presence) {
        match said {
            // Before it hears that it is taken for one that keeps flows.
            Presence::Joining => self.shared.peers.tell_heads_again(now),
            // Its daemon is dead, or has just begun: who reads on is in the lots, once dealt.
            Presence::Dispatcher { workload: None } => self.bereft.push(peer),
            _ => {}
        }
    }

    /// A peer has said something.
    fn listen(
        &mut self,
        now: Duration,
        sender: Ipv4Addr,
        message: &Message<'_>,
        keys: &Keys,
    ) -> anyhow::Result<()> {
        let Head {
            stream,
            number,
            what,
        } = message.head;
        let own = self.shared.peers.own;
        match what {
            What::News => {
                let heard = self.heard.entry(sender).or_default();
                let is_news = heard.news(stream, number);
                self.look_whether_behind(sender);
                if is_news {
                    self.learn(sender, message)?;
                }
            }
            What::Tail { takes_you, keeps } => {
                self.heard.entry(sender).or_default().tail(stream, number);
                self.look_whether_behind(sender);
                self.views.hear(sender, View { takes_you, keeps });
                // It may be about to join: its own word for that is in its answers.
                let place = self.peers.iter().position(|peer| peer.address == sender);
                if place.is_some_and(|place| !keeps && !is_fit(&self.watch.members()[place])) {
                    self.watch.hasten(now);
                }
            }
            // What it knows may be of before: it says nothing of it yet.
            What::Lacking | What::Ask if self.cut_at.is_some() => {}
            What::Lacking => {
                let (ours, _) = self.shared.peers.herald.tail();
                let mut gone = Vec::new();
                for entry in message.entries() {
                    let Entry::Number(number) = entry else {
                        continue;
                    };
                    let herald = &self.shared.peers.herald;
                    if stream != ours || !herald.again(number, sender, keys, &mut self.outbox) {
                        entry.write(&mut gone);
                    }
                }
                if !gone.is_empty() {
                    let head = Head {
                        what: What::Gone,
                        ..message.head
                    };
                    let message = head.seal(own, keys, &gone);
                    enclose(&mut self.outbox, own, sender, keys, 0, &message);
                }
            }
            What::Gone => {
                let heard = self.heard.entry(sender).or_default();
                let mut is_gap = false;
                for entry in message.entries() {
                    if let Entry::Number(number) = entry {
                        is_gap |= heard.gone(number);
                    }
                }
                if is_gap && self.pupil.is_none() {
                    self.pupil = Some(Pupil::new(sender, asking_name()));
                }
            }
            What::Ask => {
                let lesson = self.lessons.entry(sender).or_default();
                let asked = (stream, number);
                if lesson.answer(asked, &self.shared.maps, &self.shared.records)? {
                    lesson.say(own, sender, keys, &mut self.outbox);
                    self.socket.send(&self.outbox);
                    self.outbox.clear();
                    lesson.prepare(&self.shared.maps, &self.shared.records)?;
                }
            }
            What::Part { .. } => {
                let Some(pupil) = self.pupil.as_mut().filter(|p| p.teacher == sender) else {
                    return Ok(());
                };
                let step = pupil.take(&message.head);
                if step == Step::Late {
                    return Ok(());
                }
                // The other side need not wait until all of it has been written down.
                if step == Step::Next && pupil.ask(now, own, keys, &mut self.outbox) {
                    self.socket.send(&self.outbox);
                    self.outbox.clear();
                }
                self.learn(sender, message)?;
                if step == Step::Done {
                    self.pupil = None;
                    self.is_alone = false;
                    self.end_catching_up(now)?;
                }
            }
        }
        Ok(())
    }

    fn learn(&self, sender: Ipv4Addr, message: &Message<'_>) -> anyhow::Result<()> {
        let records = &self.shared.records;
        let cluster = self.shared.cluster();
        let limit = cluster.config.limits.reading_bytes;
        for entry in message.entries() {
            match entry {
                Entry::Record(record) => {
                    if let Some(told) = records.apply(&record)? {
                        cluster.finished(&self.shared.health, &told);
                    }
                }
                Entry::Seen(seen) => records.refresh(&seen)?,
                Entry::Bytes { kept, age_ms } => {
                    let (key, peers) = (kept.key, &self.shared.peers);
                    let age = Duration::from_millis(age_ms.into());
                    peers.copies.add(age, sender, kept, limit);
                    // Who has kept its flow just before has told its client that this has come.
                    peers.adopt([key]);
                }
                Entry::Proved(proved) => proofs::learn(&self.shared.peers, &proved)?,
                Entry::Number(_) => {}
            }
        }
        Ok(())
    }

    fn follow_reload(&mut self, now: Duration) -> anyhow::Result<bool> {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return Ok(false);
        }
        self.generation = generation;
        let old = std::mem::replace(&mut self.peers, self.shared.peers.all());
        let from: Vec<Option<usize>> = (self.peers.iter())
            .map(|peer| old.iter().position(|was| was == peer))
            .collect();
        self.watch.rearrange(&from);
        let new = self.peers.iter().filter(|peer| !old.contains(peer));
        new.for_each(|peer| self.sent_to_the_dead.end(peer.slot));
        let interval = self.shared.cluster().config.spraying.heartbeat;
        self.watch.set_interval(now, interval);
        let elsewhere = self.shared.peers.elsewhere();
        self.gates.follow_reload(now, elsewhere, interval);
        let known = |address: &Ipv4Addr| self.peers.iter().any(|peer| peer.address == *address);
        self.heard.retain(|address, _| known(address));
        self.lessons.retain(|address, _| known(address));
        Ok(true)
    }

    /// Beats, to those addresses.
    fn ask(&mut self, number: u32, asked: impl IntoIterator<Item = Ipv4Addr>, keys: &Keys) {
        let own = self.shared.peers.own;
        for address in asked {
            let mut inner = Vec::new();
            ipv4::write_header(own, address, NO_PROTOCOL, PADDING.len(), &mut inner);
            inner.extend_from_slice(&PADDING);
            let kind = Kind::Beat(Presence::Dispatcher { workload: None });
            let option = option(kind, number, address, &inner, keys);
            // To the data path, which answers to the port that this comes from.
            let to = SocketAddrV4::new(address, PEERS_PORT);
            (self.outbox).push(to, |out| geneve::write(&option, &inner, out));
        }
    }

    fn tell_the_tail(&mut self, now: Duration, keys: &Keys) {
        let (_, last) = self.shared.peers.herald.tail();
        let (told, at) = self.tail_told;
        let is_news = told != last || now >= at + TAIL_INTERVAL;
        if is_news {
            self.tail_told = (last, now);
        }
        for place in 0..self.peers.len() {
            let joins = self.watch.members()[place].said == Some(Presence::Joining);
            if is_news || joins {
                self.say_tail(place, keys);
            }
        }
    }

    /// Peers are told that they are fit once no worker decides by older lots.
    fn give_way(&mut self) {
        self.is_giving_way = !self.shared.peers.all_act_by_the_latest();
        for (peer, watched) in self.peers.iter().zip(self.watch.members()) {
            self.views
                .judge(peer.address, is_fit(watched), self.is_giving_way);
        }
    }

    /// Tells those that do not know it how they stand, and how we do.
    fn tell_views(&mut self, keys: &Keys) {
        for place in 0..self.peers.len() {
            if self
                .views
                .say(self.peers[place].address, self.view_of(place))
            {
                self.say_tail(place, keys);
            }
        }
    }

    fn living(&self) -> Vec<Ipv4Addr> {
        let peers = self.peers.iter().zip(self.watch.members());
        let living = peers.filter(|(_, watched)| watched.state == State::Alive);
        living.map(|(peer, _)| peer.address).collect()
    }

    fn view_of(&self, place: usize) -> View {
        View {
            takes_you: self.views.gives_way_to(self.peers[place].address),
            keeps: self.keeps(),
        }
    }

    fn say_tail(&mut self, place: usize, keys: &Keys) {
        let own = self.shared.peers.own;
        let (stream, number) = self.shared.peers.herald.tail();
        let View { takes_you, keeps } = self.view_of(place);
        let head = Head {
            stream,
            number,
            what: What::Tail { takes_you, keeps },
        };
        let message = head.seal(own, keys, &[]);
        let to = self.peers[place].address;
        enclose(&mut self.outbox, own, to, keys, number, &message);
    }

    fn ask_for_what_is_lacking(&mut self, now: Duration, keys: &Keys) {
        let own = self.shared.peers.own;
        for (&peer, heard) in &self.heard {
            let Some((stream, numbers)) = heard.lacking() else {
                continue;
            };
            let asked = self.lacking_asked.entry(peer).or_default();
            if now < *asked + LACKING_INTERVAL {
                continue;
            }
            *asked = now;
            let mut body = Vec::new();
            for number in numbers {
                Entry::Number(number).write(&mut body);
            }
            let head = Head {
                stream,
                number: 0,
                what: What::Lacking,
            };
            let message = head.seal(own, keys, &body);
            enclose(&mut self.outbox, own, peer, keys, 0, &message);
        }
    }

    fn show(&self) {
        let members = self.peers.iter().zip(self.watch.members());
        let status = members.map(|(peer, watched)| PeerStatus {
            name: peer.name.clone(),
            address: peer.address.to_string(),
            sub_cluster: self.shared.peers.elsewhere().own as u8,
            state: watched.state.name().into(),
            fit: is_fit(watched),
            lots: self.lots.share(peer.slot),
            lacking: (self.heard.get(&peer.address))
                .and_then(Heard::lacking)
                .map_or(0, |(_, numbers)| numbers.len()),
        });
        *(self.shared.peers.status.lock()).expect("no thread panics with it") = status.collect();
        let gates = self.gates.status(|slot| self.lots.share(slot));
        *(self.shared.peers.gates_status.lock()).expect("no thread panics with it") = gates;
    }
}

/// Whatever its workload.
fn kind_of(said: Presence) -> Presence {
    match said {
        Presence::Dispatcher { workload } => Presence::Dispatcher {
            workload: workload.map(|_| Workload::IDLE),
        },
        other => other,
    }
}
