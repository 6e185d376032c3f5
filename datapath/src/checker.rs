//! Checks of servers: opens the connections that are due, asks what is to be asked, and counts
//! what comes of it. What an answer says, and what so many answers mean, is the core's
//! (core/src/health/).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use trapeze_core::config::{HttpProbe, Probe};
use trapeze_core::health::{Monitor, Outcome, Target, answer};

use crate::knock::{Heard, Knock};

/// All servers that one daemon checks.
#[derive(Debug)]
pub struct Checker {
    /// Our address; unspecified: as the kernel chooses.
    from: Ipv4Addr,
    jobs: Vec<Job>,
}

/// One server.
#[derive(Debug)]
pub struct Job {
    /// What is asked, and where.
    pub target: Target,
    /// What is held of it.
    pub monitor: Monitor,
    /// How long the last check took that passed.
    pub took: Option<Duration>,
    /// Checks so far, and those of them that did not pass.
    pub counts: (u64, u64),
    due: Duration,
    is_first: bool,
    attempt: Option<Attempt>,
}

/// A check in progress.
#[derive(Debug)]
struct Attempt {
    begun: Duration,
    connection: Knock,
    /// Of an HTTP check, once it is connected.
    exchange: Option<Exchange>,
}

/// What was asked, and what has come.
#[derive(Debug)]
struct Exchange {
    stream: TcpStream,
    request: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
}

/// How often those in progress are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

impl Checker {
    /// Nothing to check yet. Connections are opened from that address; an unspecified one
    /// leaves the choice to the kernel.
    pub fn new(from: Ipv4Addr) -> Self {
        let jobs = Vec::new();
        Self { from, jobs }
    }

    /// From now on these. What is held of those that were checked before stays, whatever has
    /// changed of how they are checked; where they are now asked somewhere else, a check in progress does not count.
    pub fn configure(&mut self, now: Duration, targets: impl IntoIterator<Item = Target>) {
        let mut old = std::mem::take(&mut self.jobs);
        for target in targets {
            let known = old.iter().position(|job| job.target.key == target.key);
            let job = match known.map(|at| old.swap_remove(at)) {
                Some(mut job) => {
                    if job.target != target {
                        let (rise, fall) = (target.check.rise, target.check.fall);
                        job.monitor.configure(rise, fall);
                        job.attempt = None;
                        job.due = now;
                        job.target = target;
                    }
                    job
                }
                None => Job::new(now, target),
            };
            self.jobs.push(job);
        }
    }

    /// What is checked.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Begins what is due, and looks what has come of what has begun. True: what is held of a
    /// server has changed.
    pub fn work(&mut self, now: Duration) -> bool {
        let mut changed = false;
        for job in &mut self.jobs {
            changed |= job.work(self.from, now);
        }
        changed
    }

    /// How long there is nothing to do, at most.
    pub fn rest(&self, now: Duration) -> Duration {
        let until = |job: &Job| match job.attempt {
            Some(_) => LOOK_INTERVAL,
            None => job.due.saturating_sub(now).max(LOOK_INTERVAL),
        };
        let least = self.jobs.iter().map(until).min();
        least.unwrap_or(Duration::MAX)
    }
}

impl Job {
    fn new(now: Duration, target: Target) -> Self {
        let check = &target.check;
        Self {
            monitor: Monitor::new(check.rise, check.fall),
            took: None,
            counts: (0, 0),
            due: now,
            is_first: true,
            attempt: None,
            target,
        }
    }

    fn work(&mut self, from: Ipv4Addr, now: Duration) -> bool {
        if self.attempt.is_none() && self.due <= now {
            let interval = self.target.check.interval;
            // Not all at the same moment for ever: the second one is earlier, or later.
            let spread = match std::mem::take(&mut self.is_first) {
                true => interval * (self.target.key.number() % 1024) as u32 / 1024,
                false => interval,
            };
            self.due = now + spread.max(interval / 2);
            match self.begin(from) {
                Ok(connection) => {
                    self.attempt = Some(Attempt {
                        begun: now,
                        connection,
                        exchange: None,
                    });
                }
                Err(_) => return self.hear(Outcome::Unreachable),
            }
        }
        let Some(attempt) = &mut self.attempt else {
            return false;
        };
        let begun = attempt.begun;
        let outcome = attempt.go_on(&self.target).or_else(|| {
            let is_late = now.saturating_sub(begun) >= self.target.check.timeout;
            is_late.then(|| attempt.lateness())
        });
        let Some(outcome) = outcome else {
            return false;
        };
        self.attempt = None;
        if outcome.is_pass() {
            self.took = Some(now.saturating_sub(begun));
        }
        self.hear(outcome)
    }

    fn begin(&self, from: Ipv4Addr) -> io::Result<Knock> {
        match self.target.address {
            SocketAddr::V4(to) => Knock::at(from, to),
            SocketAddr::V6(to) => Err(io::Error::other(format!("{to}: IPv6 is not supported yet"))),
        }
    }

    fn hear(&mut self, outcome: Outcome) -> bool {
        self.counts.0 += 1;
        self.counts.1 += u64::from(!outcome.is_pass());
        self.monitor.hear(outcome)
    }
}

impl Attempt {
    /// What has come of it; none: nothing yet.
    fn go_on(&mut self, target: &Target) -> Option<Outcome> {
        let Probe::Http(probe) = &target.check.probe else {
            return outcome_of(self.connection.heard());
        };
        if self.exchange.is_none() {
            match outcome_of(self.connection.heard())? {
                Outcome::Passed => {}
                failed => return Some(failed),
            }
            let request = answer::request(probe, target.address);
            match Exchange::over(&self.connection, request) {
                Ok(exchange) => self.exchange = Some(exchange),
                Err(_) => return Some(Outcome::Closed),
            }
        }
        self.exchange.as_mut()?.go_on(probe)
    }

    /// What it is when it takes too long.
    fn lateness(&self) -> Outcome {
        match self.exchange {
            None => Outcome::NotConnected,
            Some(_) => Outcome::NotAnswered,
        }
    }
}

impl Exchange {
    fn over(connection: &Knock, request: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            stream: connection.stream()?,
            request,
            sent: 0,
            answer: Vec::new(),
        })
    }

    fn go_on(&mut self, probe: &HttpProbe) -> Option<Outcome> {
        while self.sent < self.request.len() {
            match self.stream.write(&self.request[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if is_not_yet(&error) => return None,
                Err(_) => return Some(Outcome::Closed),
            }
        }
        let mut piece = [0; 4096];
        loop {
            let ended = match self.stream.read(&mut piece) {
                Ok(0) => true,
                Ok(count) => {
                    self.answer.extend_from_slice(&piece[..count]);
                    false
                }
                Err(error) if is_not_yet(&error) => return None,
                Err(_) => true,
            };
            if let Some(outcome) = answer::judge(probe, &self.answer, ended) {
                return Some(outcome);
            }
            if ended {
                return Some(Outcome::Closed);
            }
        }
    }
}

fn outcome_of(heard: Heard) -> Option<Outcome> {
    match heard {
        Heard::Nothing => None,
        Heard::Open => Some(Outcome::Passed),
        Heard::Refused => Some(Outcome::Refused),
        Heard::Unreachable => Some(Outcome::Unreachable),
    }
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use trapeze_core::config::Check;
    use trapeze_core::health::{Standing, TargetKey};

    use super::*;

    fn target(address: SocketAddr, probe: Probe) -> Target {
        Target {
            key: TargetKey {
                backend: "b1".into(),
                pool: "web".into(),
                port: address.port(),
            },
            address,
            check: Check {
                probe,
                interval: Duration::from_millis(50),
                timeout: Duration::from_millis(300),
                rise: 1,
                fall: 1,
                port: None,
            },
        }
    }

    /// Works until what is held of the only server is that.
    fn work_until(checker: &mut Checker, wanted: Standing) -> Outcome {
        let begun = Instant::now();
        while checker.jobs()[0].monitor.standing() != wanted {
            assert!(begun.elapsed() < Duration::from_secs(20), "{checker:?}");
            checker.work(begun.elapsed());
            std::thread::sleep(Duration::from_millis(2));
        }
        checker.jobs()[0].monitor.last().expect("it was asked")
    }

    fn checking(address: SocketAddr, probe: Probe) -> Checker {
        let mut checker = Checker::new(Ipv4Addr::UNSPECIFIED);
        checker.configure(Duration::ZERO, [target(address, probe)]);
        checker
    }

    fn http() -> Probe {
        Probe::Http(HttpProbe::default())
    }

    #[test]
    fn a_listener_passes_until_it_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut checker = checking(listener.local_addr().unwrap(), Probe::Tcp);
        assert_eq!(work_until(&mut checker, Standing::Up), Outcome::Passed);
        drop(listener);
        assert_eq!(work_until(&mut checker, Standing::Down), Outcome::Refused);
    }

    #[test]
    fn a_server_that_accepts_and_says_nothing_is_down_by_http_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut checker = checking(address, http());
        assert_eq!(
            work_until(&mut checker, Standing::Down),
            Outcome::NotAnswered
        );
        assert_eq!(
            work_until(&mut checking(address, Probe::Tcp), Standing::Up),
            Outcome::Passed
        );
    }

    #[test]
    fn answers_decide() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = ["200 OK", "503 No", "204 Fine", "", "200 Again"];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 512];
                let count = stream.read(&mut asked).unwrap();
                assert!(asked[..count].starts_with(b"GET / HTTP/1.1\r\n"));
                if !answer.is_empty() {
                    write!(stream, "HTTP/1.1 {answer}\r\n\r\n").unwrap();
                }
            }
        });
        let mut checker = checking(address, http());
        for expected in [
            Outcome::Passed,
            Outcome::Status(503),
            Outcome::Passed,
            Outcome::Closed,
            Outcome::Passed,
        ] {
            let wanted = match expected {
                Outcome::Passed => Standing::Up,
                _ => Standing::Down,
            };
            assert_eq!(work_until(&mut checker, wanted), expected);
        }
        server.join().unwrap();
    }

    #[test]
    fn what_is_held_outlives_a_change_of_how_it_is_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut checker = checking(address, http());
        work_until(&mut checker, Standing::Down);
        checker.configure(Duration::from_secs(1), [target(address, Probe::Tcp)]);
        assert_eq!(checker.jobs()[0].monitor.standing(), Standing::Down);
        assert_eq!(work_until(&mut checker, Standing::Up), Outcome::Passed);
        checker.configure(Duration::from_secs(2), []);
        assert!(checker.jobs().is_empty());
    }
}
