//! The owner's part in a support group [MIGRATE01 §4.1]: of each answer that is worth it, the
//! dispatcher is told what another backend needs to go on with it (UPDATE): when it begins,
//! and again every so often for as long as it is in progress (docs/protocol/takeover.md §2).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trapeze_core::config::Config;
use trapeze_core::flow::FlowKey;
use trapeze_core::head::{self, Followed, Inspection};
use trapeze_core::route::Asked;
use trapeze_core::seq::ServerSeq;
use trapeze_core::takeover::parts::cut;
use trapeze_core::takeover::{AnswerHead, Message, Rest, SoftState, VAST, VAST_IS_SLOW, VAST_STEP};
use trapeze_core::wire::meta::{Keys, Kind, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp;
use trapeze_datapath::abi::{self, ANSWER_BODY, ANSWER_ENDLESS};
use trapeze_datapath::agent::{Adopter, AgentMaps, begun};
use trapeze_datapath::clock;
use trapeze_datapath::diag;
use trapeze_datapath::node::Node;
use trapeze_datapath::ring::{Begun, Ring};

use crate::kept::{self, Kept};
use crate::message::enclose;
use crate::request::{first_of, request_of};

/// Answers that are over before the second look are not told of: by far the most, where they are
/// short. Each that is costs its dispatcher as much as a new connection does.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// How often it is looked what is to be said again;
const SAY_INTERVAL: Duration = Duration::from_millis(50);
/// of those that are to be protected later, for the first time;
const WAITS_INTERVAL: Duration = Duration::from_millis(200);
/// and where the longest answers are by now, if they are slow.
const VAST_INTERVAL: Duration = Duration::from_millis(400);
/// How often what is known is written down, if there is something new,
const KEEP_INTERVAL: Duration = Duration::from_millis(500);
/// and no oftener than takes so little of a processor.
const KEEP_SHARE: u32 = 100;
/// Answers that are announced at once; what is more is not protected.
const MOST: usize = 16_384;

/// The number of a setup's first answer.
const FIRST: u16 = 1;

/// Who tells dispatchers of answers.
#[derive(Debug)]
pub struct Support {
    maps: AgentMaps,
    adopter: Arc<Adopter>,
    socket: UdpSocket,
    keys: Mutex<Keys>,
    rules: Mutex<Arc<Config>>,
    answers: Mutex<HashMap<FlowKey, Announced>>,
    /// What the daemon after this one finds of them,
    kept: PathBuf,
    /// and whether that is not all any more.
    is_news: AtomicBool,
    stopping: AtomicBool,
}

/// An answer that is in progress, as far as is known.
#[derive(Debug)]
struct Announced {
    state: SoftState,
    /// Its bytes, head included.
    length: u64,
    clock_offset: u32,
    /// When it is said again,
    due: Instant,
    /// looked at again,
    look_at: Instant,
    /// and where it was when it was said last.
    said_at: u64,
    /// Nobody has been told yet: it is to be in progress for so long, from then on.
    waits: Option<(Instant, Duration)>,
}

/// The thread that tells.
#[derive(Debug)]
pub struct Supporting {
    pub support: Arc<Support>,
    thread: Option<JoinHandle<()>>,
}

impl Supporting {
    /// Of that agent, speaking from this address. What the daemon before knew it knows.
    pub fn start(
        node: &Node,
        adopter: Arc<Adopter>,
        own: Ipv4Addr,
        config: &Config,
    ) -> io::Result<Self> {
        let pins = node.pins();
        let ring = begun(&pins)?;
        let keys = Keys::new(&config.keys).expect("a checked configuration has a key");
        let support = Arc::new(Support {
            maps: AgentMaps::open(&pins)?,
            adopter,
            socket: UdpSocket::bind((own, 0))?,
            keys: Mutex::new(keys),
            rules: Mutex::new(Arc::new(config.clone())),
            answers: Mutex::default(),
            kept: node.run_dir().join("answers"),
            is_news: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        support.recall();
        let works = support.clone();
        let thread = std::thread::Builder::new()
            .name("support".into())
            .spawn(move || works.run(&ring))?;
        Ok(Self {
            support,
            thread: Some(thread),
        })
    }
}

impl Drop for Supporting {
    fn drop(&mut self) {
        self.support.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Support {
    /// From now on by these keys.
    pub fn set_keys(&self, keys: Keys) {
        *self.keys.lock().expect("nobody panics with it") = keys;
    }

    /// From now on what begins is protected as this one's rules say.
    pub fn set_rules(&self, config: &Config) {
        *self.rules.lock().expect("nobody panics with it") = Arc::new(config.clone());
    }

    pub fn keys(&self) -> Keys {
        self.keys.lock().expect("nobody panics with it").clone()
    }

    pub fn maps(&self) -> &AgentMaps {
        &self.maps
    }

    /// An answer is in progress, on a connection that a wedge has taken over.
    pub fn hold(&self, flow: &FlowKey, state: SoftState, clock_offset: u32) {
        if let Some(answer) = AnswerHead::parse(&state.head) {
            let length = answer.len as u64 + answer.length;
            self.announce(flow, state, length, clock_offset);
        }
    }

    /// How often an answer in progress is told of.
    fn update_interval(&self) -> Duration {
        let rules = self.rules.lock().expect("nobody panics with it");
        rules.limits.update_interval
    }

    /// How long an answer of so many bytes to that request is in progress before it is protected; none:
    /// it never is.
    fn delay(&self, vip: SocketAddr, request: &[u8], bytes: u64) -> Option<Duration> {
        let rules = self.rules.lock().expect("nobody panics with it").clone();
        // Whose rule it is its dispatcher sees.
        if request.is_empty() {
            let all = (0..rules.pools.len()).flat_map(|pool| rules.rescues(pool));
            return all.filter_map(|one| one.protection.delay(bytes)).min();
        }
        let inspected = head::inspect(request, rules.limits.head_bytes);
        let Inspection::Http(head) = inspected else {
            return None;
        };
        let (_, rescue) = rules.rescue(vip, &Asked::Http(&head))?;
        rescue.protection.delay(bytes)
    }

    /// Tells the dispatcher from which the flow is heard.
    pub fn tell(&self, flow: &FlowKey, message: &Message) {
        let Ok(Some(setup)) = self.maps.setups.get(&(*flow).into()) else {
            return;
        };
        let keys = self.keys();
        let dispatcher = Ipv4Addr::from(setup.dispatcher);
        self.send(flow, dispatcher, message.seal(&keys, flow), &keys);
    }

    /// What was asked of this host is answered.
    pub fn reply(&self, flow: &FlowKey, dispatcher: Ipv4Addr, reply: &Message) {
        let keys = self.keys();
        self.send(flow, dispatcher, reply.seal(&keys, flow), &keys);
    }

    /// What cannot be sent is said again, or asked again.
    fn send(&self, flow: &FlowKey, dispatcher: Ipv4Addr, message: Vec<u8>, keys: &Keys) {
        for message in cut(message, keys, flow) {
            if let Some((datagram, to)) = datagram(flow, dispatcher, message, keys) {
                let _ = self.socket.send_to(&datagram, to);
            }
        }
    }

    fn run(&self, ring: &Ring<Begun>) {
        let mut say_again_at = Instant::now();
        let mut keep_at = say_again_at;
        let mut young = Young::default();
        while !self.stopping.load(Ordering::Relaxed) {
            // Sooner, if the data path says that there is little room left.
            let looked = Instant::now();
            let protects = self.maps.protecting.get(&0).ok().flatten();
            let told = ring.gather(match protects {
                Some(protects) if protects.from > 0 => LOOK_INTERVAL,
                _ => SAY_INTERVAL,
            });
            match told {
                Ok(told) => {
                    let begun = told.into_iter();
                    let due = young.look(looked, begun.map(|told| (told.answer.key.into(), told)));
                    due.iter().for_each(|told| self.on_begun(told));
                }
                Err(error) => {
                    eprintln!("answers are not protected: {error}");
                    return;
                }
            }
            if looked >= say_again_at {
                say_again_at = looked + SAY_INTERVAL;
                self.say_again();
            }
            if looked >= keep_at {
                let began = Instant::now();
                self.keep();
                keep_at = looked + KEEP_INTERVAL.max(began.elapsed() * KEEP_SHARE);
            }
        }
        self.keep();
    }

    /// Writes down what is known, for the daemon after this one.
    fn keep(&self) {
        if !self.is_news.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let answers = self.answers();
        let all = answers.iter().map(|(flow, announced)| Kept {
            flow: *flow,
            state: announced.state.clone(),
            clock_offset: announced.clock_offset,
            delay: announced.waits.map_or(Duration::ZERO, |(since, delay)| {
                (since + delay).saturating_duration_since(now)
            }),
        });
        if let Err(error) = kept::write(&self.kept, &self.keys(), all) {
            let path = self.kept.display();
            eprintln!("{path}: answers will not be protected after a restart: {error}");
        }
    }

    /// What the daemon before has written down; what of it is over by now goes with the next look.
    fn recall(&self) {
        let now = Instant::now();
        for kept in kept::read(&self.kept, &self.keys()) {
            let Some(length) = kept.state.whole() else {
                continue;
            };
            let announced = Announced {
                said_at: kept.state.offset,
                state: kept.state,
                length,
                clock_offset: kept.clock_offset,
                due: now,
                look_at: now,
                waits: (!kept.delay.is_zero()).then_some((now, kept.delay)),
            };
            self.note(&kept.flow, announced);
        }
    }

    fn on_begun(&self, told: &Begun) {
        let begun = &told.answer;
        // Most are over by now.
        let setup = self.maps.setups.get(&begun.key).ok().flatten();
        if setup.is_none_or(|setup| !is_in_progress(&setup, begun.epoch, begun.answer)) {
            return;
        }
        let head = told.head();
        // Of what comes ahead there are no copies. A setup's first request is the first that came.
        let request = match begun.answer {
            FIRST => request_of(told, |key| self.maps.unreads.get(key)).or_else(|| first_of(told)),
            _ => request_of(told, |key| self.maps.unreads.get(key)),
        };
        let (Some(answer), Some(request)) = (AnswerHead::parse(head), own(request, begun.answer))
        else {
            return;
        };
        let head = &head[..answer.len];
        let length = answer.len as u64 + answer.length;
        // Another head, as the data path has followed it.
        if length != begun.length {
            return;
        }
        let flow = FlowKey::from(begun.key);
        let Some(delay) = self.delay(flow.vip, &request, answer.length) else {
            return;
        };
        // Only what could be gone on with.
        let can_be_asked = |rest: Rest| request.is_empty() || rest.request(&request).is_some();
        if !Rest::of(head, 0).is_some_and(can_be_asked) {
            return;
        }
        let state = SoftState {
            epoch: begun.epoch,
            answer: begun.answer,
            offset: 0,
            at: ServerSeq::new(begun.at),
            clock: 0,
            request,
            head: head.to_vec(),
        };
        if delay.is_zero() {
            self.let_no_end_be_an_end(&flow, &state);
            return self.announce(&flow, state, length, begun.clock_offset);
        }
        let now = Instant::now();
        let announced = Announced {
            state,
            length,
            clock_offset: begun.clock_offset,
            due: now + WAITS_INTERVAL.min(delay),
            look_at: now,
            said_at: 0,
            waits: Some((now, delay)),
        };
        self.note(&flow, announced);
    }

    /// Of a stream that never ends: its server's close is to be a death, as with a length that is not reached.
    fn let_no_end_be_an_end(&self, flow: &FlowKey, state: &SoftState) {
        let resume = AnswerHead::parse(&state.head).and_then(|answer| answer.resume);
        if resume.is_some_and(|resume| resume.is_endless)
            && let Err(error) = self.adopter.never_ends((*flow).into(), state.epoch)
        {
            eprintln!("a stream is taken for one that ends: {error}");
        }
    }

    fn announce(&self, flow: &FlowKey, state: SoftState, length: u64, clock_offset: u32) {
        let state = SoftState {
            clock: clock_now(clock_offset),
            ..state
        };
        let now = Instant::now();
        let mut announced = Announced {
            said_at: state.offset,
            state: state.clone(),
            length,
            clock_offset,
            due: now + self.update_interval(),
            look_at: now,
            waits: None,
        };
        announced.rest(now, VAST_IS_SLOW);
        if self.note(flow, announced) {
            self.tell(flow, &Message::Update(state));
        }
    }

    /// False: there is no room.
    fn note(&self, flow: &FlowKey, announced: Announced) -> bool {
        let mut answers = self.answers();
        let has_room = answers.len() < MOST || answers.contains_key(flow);
        if has_room {
            answers.insert(*flow, announced);
            self.is_news.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Says again what is due, and forgets what is over.
    fn say_again(&self) {
        let now = Instant::now();
        let update_interval = self.update_interval();
        let mut said = Vec::new();
        self.answers().retain(|flow, announced| {
            if announced.look_at > now {
                return true;
            }
            let Ok(Some(setup)) = self.maps.setups.get(&(*flow).into()) else {
                return false;
            };
            let before = announced.state.offset;
            let is_in_progress = announced.goes_on(&setup)
                // What moves has a socket.
                && (announced.state.offset != before || has_socket(flow));
            if is_in_progress && announced.is_news(now) && !announced.waits_longer(now) {
                let is_first = announced.waits.take().is_some();
                announced.due = now + update_interval;
                announced.said_at = announced.state.offset;
                announced.state.clock = clock_now(announced.clock_offset);
                said.push((*flow, is_first, announced.state.clone()));
            }
            announced.rest(now, announced.state.offset.abs_diff(before));
            is_in_progress
        });
        for (flow, is_first, state) in said {
            if is_first {
                self.let_no_end_be_an_end(&flow, &state);
            }
            self.tell(&flow, &Message::Update(state));
        }
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<FlowKey, Announced>> {
        self.answers.lock().expect("nobody panics with it")
    }
}

/// The request of the answer of that number, of what the server had had since the one before. Empty: it is one of several,
/// or came while another one was answered, and the dispatcher, which knows how many it has given, is to say which. None:
/// another one is never to go on with it.
fn own(had: Option<Vec<u8>>, answer: u16) -> Option<Vec<u8>> {
    let mut had = had.unwrap_or_default();
    let inspected = head::inspect(&had, had.len() + 1);
    let length = match (&inspected, head::follow_head(&inspected, &had)) {
        (Inspection::Http(head), _) if head.method != "GET" => return None,
        (Inspection::Http(head), Followed::To { at, .. })
            if at == head.len && (at == had.len() || answer == FIRST) =>
        {
            at
        }
        _ => 0,
    };
    had.truncate(length);
    Some(had)
}

/// Answers that have begun since the last look, but for the last, by their flows.
#[derive(Debug)]
struct Young<T> {
    all: HashMap<FlowKey, T>,
    due: Option<Instant>,
}

impl<T> Default for Young<T> {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            due: None,
        }
    }
}

impl<T> Young<T> {
    /// These have begun: what has not been followed by another one of its flow since the look before.
    fn look(&mut self, now: Instant, begun: impl Iterator<Item = (FlowKey, T)>) -> Vec<T> {
        // It is looked before its time where there is little room left.
        let is_due = self.due.is_none_or(|due| due <= now);
        let mut before = match is_due {
            true => std::mem::take(&mut self.all),
            false => HashMap::new(),
        };
        if is_due {
            self.due = Some(now + LOOK_INTERVAL / 2);
        }
        for (flow, told) in begun {
            before.remove(&flow);
            self.all.insert(flow, told);
        }
        before.into_values().collect()
    }
}

impl Announced {
    /// Is it time to say it again, or has it come so far?
    fn is_news(&self, now: Instant) -> bool {
        self.due <= now || self.state.offset.abs_diff(self.said_at) >= VAST_STEP
    }

    /// It is left alone until something may have to be said of it. `step`: so far it has come since the
    /// last look.
    fn rest(&mut self, now: Instant, step: u64) {
        self.look_at = match self.length >= VAST {
            true if step >= VAST_IS_SLOW => now,
            true => self.due.min(now + VAST_INTERVAL),
            false => self.due,
        };
    }

    /// Has it not been in progress for long enough? Most are over long before: it is looked at when it is
    /// twice as old.
    fn waits_longer(&mut self, now: Instant) -> bool {
        let Some((since, delay)) = self.waits.filter(|(since, delay)| now < *since + *delay) else {
            return false;
        };
        self.due = (since + delay).min(now + (now - since));
        true
    }

    /// Is it in progress still? Where it is noted, then.
    fn goes_on(&mut self, setup: &abi::Setup) -> bool {
        if !is_in_progress(setup, self.state.epoch, self.state.answer) {
            return false;
        }
        let answers = &setup.answers;
        // `next` is one word. What remains is of another moment perhaps, by some packets; it
        // tells how often numbers have come round.
        let step = answers.next.wrapping_sub(self.state.at.raw());
        let near = self.length.saturating_sub(answers.remaining);
        let round = near.wrapping_sub(self.state.offset + u64::from(step)) as i64;
        let rounds = (round + (1 << 31)).div_euclid(1 << 32);
        let offset = self.state.offset as i64 + i64::from(step) + (rounds << 32);
        self.state.offset = offset as u64;
        self.state.at = ServerSeq::new(answers.next);
        true
    }
}

/// Is that answer, of the setup in that epoch, in progress?
fn is_in_progress(setup: &abi::Setup, epoch: u32, answer: u16) -> bool {
    setup.epoch == epoch
        && setup.state <= abi::SETUP_CONFIRMED
        && setup.answers.finished.wrapping_add(1) == answer
        && [ANSWER_BODY, ANSWER_ENDLESS].contains(&setup.answers.phase)
}

/// A client that resets, or closes and hears more, leaves its answer in the midst, and no word of that leaves here.
fn has_socket(flow: &FlowKey) -> bool {
    // Who cannot be asked may be there.
    diag::find(flow).map_or(true, |socket| socket.is_some())
}

/// The clock of a socket that is so far ahead of the host's milliseconds (RFC 7323).
fn clock_now(offset: u32) -> u32 {
    (clock::monotonic().as_millis() as u32).wrapping_add(offset)
}

/// The message in the encapsulation, and where it goes.
fn datagram(
    flow: &FlowKey,
    dispatcher: Ipv4Addr,
    message: Vec<u8>,
    keys: &Keys,
) -> Option<(Vec<u8>, SocketAddr)> {
    let to = IpAddr::from(dispatcher);
    let inner = Segment {
        payload: message,
        ..Segment::of_client(flow, tcp::Header::default())
    };
    enclose(&Meta::of(Kind::Support), &inner.to_packet(), to, keys)
}

#[cfg(test)]
mod tests {
    use trapeze_datapath::abi::{Pod, Setup};

    use super::*;

    #[test]
    fn an_answers_request_is_told_where_it_can_be_no_other() {
        const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let two = GET.repeat(2);
        let cut = &GET[..20];
        let with_body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
        let post = "POST / HTTP/1.1\r\nHost: a\r\n\r\n";
        for (had, answer, wanted) in [
            (GET, 1, Some(GET)),
            (GET, 7, Some(GET)),
            // The first of a setup is the first that came.
            (&two, 1, Some(GET)),
            (&two, 2, Some("")),
            (cut, 1, Some("")),
            (with_body, 1, Some("")),
            (post, 1, None),
        ] {
            let found = own(Some(had.as_bytes().to_vec()), answer);
            assert_eq!(
                found.as_deref(),
                wanted.map(str::as_bytes),
                "{had} {answer}"
            );
        }
        assert_eq!(own(None, 1), Some(Vec::new()), "nobody has copies of it");
    }

    fn announced(length: u64, offset: u64, at: u32) -> Announced {
        Announced {
            state: SoftState {
                epoch: 9,
                answer: 1,
                offset,
                at: ServerSeq::new(at),
                clock: 0,
                request: Vec::new(),
                head: Vec::new(),
            },
            length,
            clock_offset: 0,
            due: Instant::now(),
            look_at: Instant::now(),
            said_at: offset,
            waits: None,
        }
    }

    fn setup(next: u32, remaining: u64) -> Setup {
        let mut setup = Setup {
            epoch: 9,
            state: abi::SETUP_CONFIRMED,
            ..Setup::zeroed()
        };
        setup.answers.phase = ANSWER_BODY;
        setup.answers.next = next;
        setup.answers.remaining = remaining;
        setup
    }

    #[test]
    fn what_another_answer_has_followed_is_not_looked_at() {
        let key = |port: u16| FlowKey {
            client: ([192, 0, 2, 1], port).into(),
            vip: ([10, 77, 0, 100], 80).into(),
        };
        let mut young = Young::default();
        let mut now = Instant::now();
        let none = || std::iter::empty();
        let begun = [(key(1), 'a'), (key(2), 'b'), (key(1), 'c')];
        assert!(young.look(now, begun.into_iter()).is_empty());
        assert!(young.look(now, none()).is_empty(), "too early");
        now += LOOK_INTERVAL;
        assert_eq!(young.look(now, [(key(2), 'd')].into_iter()), ['c']);
        now += LOOK_INTERVAL;
        assert_eq!(young.look(now, none()), ['d']);
        now += LOOK_INTERVAL;
        assert!(young.look(now, none()).is_empty());
    }

    #[test]
    fn what_waits_is_looked_at_at_twice_its_age_and_told_of_at_its_time() {
        let (since, second) = (Instant::now(), Duration::from_secs(1));
        let mut answer = announced(1000, 0, 0);
        assert!(!answer.waits_longer(since), "it is to be told of at once");
        answer.waits = Some((since, 10 * second));
        let mut looks = Vec::new();
        let mut now = since + WAITS_INTERVAL;
        while answer.waits_longer(now) {
            looks.push(now - since);
            now = answer.due;
        }
        assert_eq!(now, since + 10 * second);
        let doubling = [200, 400, 800, 1600, 3200, 6400].map(Duration::from_millis);
        assert_eq!(looks, doubling);
    }

    /// What remains may be of another moment than where it is: never a byte's difference.
    #[test]
    fn the_place_in_an_answer_is_exact_however_often_numbers_come_round() {
        let length = 20u64 << 30;
        for torn in [-100_000i64, 0, 100_000] {
            let mut announced = announced(length, 0, u32::MAX - 10);
            let mut at = 0u64;
            for step in [1u64, 1000, 3 << 30, 5 << 30, 9 << 30, 1 << 20] {
                at += step;
                let next = (u32::MAX - 10).wrapping_add(at as u32);
                let remaining = (length - at) as i64 + torn;
                assert!(announced.goes_on(&setup(next, remaining as u64)));
                assert_eq!(
                    (announced.state.offset, announced.state.at.raw()),
                    (at, next)
                );
            }
        }
    }

    /// At 8 GB/s, too, of which numbers come round twice a second.
    #[test]
    fn the_longest_answers_are_said_again_when_they_have_come_far() {
        let mut now = Instant::now();
        let mut announced = announced(64 << 30, 0, 7);
        announced.due = now + Duration::from_secs(3);
        announced.rest(now, VAST_IS_SLOW);
        let (mut at, mut said) = (0u64, Vec::new());
        for _ in 0..40 {
            now += SAY_INTERVAL;
            at += 400 << 20;
            assert!(announced.look_at <= now);
            let before = announced.state.offset;
            assert!(announced.goes_on(&setup(7u32.wrapping_add(at as u32), (64 << 30) - at)));
            if announced.is_news(now) {
                announced.said_at = announced.state.offset;
                said.push(announced.state.offset);
            }
            announced.rest(now, announced.state.offset - before);
        }
        assert_eq!(said, (1..=40).map(|n| n * (400 << 20)).collect::<Vec<_>>());
        // A slow one is left alone, and a short one until it is due.
        announced.due = now + Duration::from_secs(3);
        announced.rest(now, 1000);
        assert_eq!(announced.look_at, now + VAST_INTERVAL);
        announced.length = VAST - 1;
        announced.rest(now, 1 << 30);
        assert_eq!(announced.look_at, announced.due);
    }

    #[test]
    fn an_answer_is_over_when_another_one_has_begun() {
        let over = |change: fn(&mut Setup)| {
            let mut setup = setup(1000, 500);
            change(&mut setup);
            !announced(1000, 0, 500).goes_on(&setup)
        };
        assert!(!over(|_| {}));
        assert!(!over(|setup| setup.answers.phase = ANSWER_ENDLESS));
        assert!(over(|setup| setup.epoch += 1));
        assert!(over(|setup| setup.state = abi::SETUP_MOVED));
        assert!(over(|setup| setup.answers.finished += 1));
        assert!(over(|setup| setup.answers.phase = 0));
    }
}
