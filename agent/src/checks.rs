//! The servers of this host are checked from here, once however many dispatchers there are, and
//! as clients' connections meet them; dispatchers hear of it with the data path's answers to
//! their heartbeats (docs/decisions/0024).

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trapeze_core::health::{Entry, Target, Word};
use trapeze_core::wire::meta::Keys;
use trapeze_datapath::abi::HealthWord;
use trapeze_datapath::agent::AgentMaps;
use trapeze_datapath::checker::Checker;
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

/// What has not changed is said again so often, or it would not count any more.
const SAY_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that checks.
#[derive(Debug)]
pub struct Checking {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    maps: AgentMaps,
    own: Ipv4Addr,
    wanted: Mutex<(Keys, Option<Vec<Target>>)>,
    stopping: AtomicBool,
}

impl Checking {
    /// Of the agent pinned in that directory, which has that address.
    pub fn start(pins: &Path, own: Ipv4Addr, keys: Keys, targets: Vec<Target>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            maps: AgentMaps::open(pins)?,
            own,
            wanted: Mutex::new((keys, Some(targets))),
            stopping: AtomicBool::new(false),
        });
        let works = shared.clone();
        let thread = std::thread::Builder::new()
            .name("checks".into())
            .spawn(move || works.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// From now on these, by these keys.
    pub fn configure(&self, keys: Keys, targets: Vec<Target>) {
        let mut wanted = self.shared.wanted.lock().expect("nobody panics with it");
        *wanted = (keys, Some(targets));
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut checker = Checker::new(Ipv4Addr::UNSPECIFIED);
        // Numbers go on where the daemon before stopped, and never step back.
        let (first, started) = (clock::cluster(), Instant::now());
        let mut said: Option<Instant> = None;
        while !self.stopping.load(Ordering::Relaxed) {
            let now = clock::monotonic();
            let (keys, targets) = {
                let mut wanted = self.wanted.lock().expect("nobody panics with it");
                (wanted.0.clone(), wanted.1.take())
            };
            if let Some(targets) = targets {
                checker.configure(now, targets);
                said = None;
            }
            let news = checker.work(now);
            let is_due = said.is_none_or(|said| said.elapsed() >= SAY_INTERVAL);
            if (news || is_due) && !checker.jobs().is_empty() {
                said = Some(Instant::now());
                let at_ms = (first + started.elapsed()).as_millis() as u64;
                if let Err(error) = self.say(&checker, at_ms, &keys) {
                    eprintln!("dispatchers do not hear of the servers' checks: {error}");
                }
            }
            std::thread::sleep(checker.rest(now).min(SAY_INTERVAL));
        }
    }

    fn say(&self, checker: &Checker, at_ms: u64, keys: &Keys) -> io::Result<()> {
        let entry = |job: &trapeze_datapath::checker::Job| Entry {
            number: job.target.key.number(),
            standing: job.monitor.standing(),
            last: job.monitor.last(),
        };
        let entries = checker.jobs().iter().map(entry).collect();
        let word = HealthWord {
            said_ns: clock::monotonic().as_nanos() as u64,
            bytes: Word { at_ms, entries }.seal(keys, self.own),
        };
        self.maps.health_word.put(&0, &word, Update::Any)
    }
}
