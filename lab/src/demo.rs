//! `trapeze lab demo`: what Trapeze does, shown on a lab of its own in less than
//! a minute. Everything that is said is measured, and a claim that does not hold
//! ends the demo with an error.
//!
//! Not here: how fast it is. `trapeze lab bench` measures that.

mod client;
mod hops;
mod screen;
mod site;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use trapeze_datapath::signal::{Signal, Signals};

use crate::lab::{self, Lab, LabGuard};
use crate::options::Options;
use crate::role::{Process, VIP};
use client::{Answer, Download, Request};
use hops::{DataPath, Hops};
use screen::{Screen, bytes, count, seconds};
use site::Site;

/// The download of the first and the last act, and its length.
const LARGE: (&str, u64) = ("/100m", 100 << 20);
/// What the dispatcher may carry of a large answer: acknowledgements.
const DISPATCHER_SHARE_PERCENT: f64 = 3.0;
/// Slow enough that the daemon's death falls into the middle of it.
const RATE_LIMIT_BYTES: u64 = 25 << 20;
const KILL_AT: u64 = 20 << 20;
/// URLs that are asked for again and again.
const PAGES: [&str; 6] = ["/home", "/news", "/music", "/films", "/books", "/dogs"];
const REPEATS: usize = 4;
const PICTURE: &str = "           requests, ACKs             encapsulated
c1 ----------------------> d1 ----------------------> b1
^                     dispatcher             |------> b2
|                                            '------> b3
|                                                     |
'------------ answers, straight from the server ------'";

/// Shows everything, and takes its lab down in any case.
///
/// # Errors
/// What was shown did not hold, or the lab could not be made.
pub fn run(name: &str) -> Result<()> {
    lab::check_root()?;
    // Before anything is made: an interrupt must not leave a lab behind.
    let signals = Signals::block()?;
    let began = Instant::now();
    let mut screen = Screen::new();
    let site = Site::make(name)?;
    screen.title("Trapeze: a load balancer that gets out of the way");
    let lab = LabGuard::up(&Options {
        config: Some(site.config().to_owned()),
        root: Some(site.root().to_owned()),
        tls: true,
        ..Options::named(name)
    })
    .context("the lab does not come up")?;
    let up_after = began.elapsed();
    let mut demo = Demo {
        lab: &lab,
        screen: &mut screen,
        signals: &signals,
    };
    let shown = demo.show(up_after);
    if let Err(error) = &shown
        && !error.is::<Interrupted>()
    {
        let logs = demo.last_words();
        screen.failed(&format!("{error:#}"), &logs);
    }
    let down = lab.clone().down().context("the lab does not come down");
    // What failed has been said; the lab's own removal comes second.
    shown.map_err(|error| match error.is::<Interrupted>() {
        true => error,
        false => anyhow!("the demo failed: see above"),
    })?;
    down?;
    screen.end(&format!(
        "All of it held. The lab is gone again; {} in all. To play with one of your own:\n\
         {} lab up",
        seconds(began.elapsed()),
        std::env::args().next().unwrap_or_else(|| "trapeze".into())
    ));
    Ok(())
}

/// By SIGINT or SIGTERM.
#[derive(Debug)]
struct Interrupted;

impl std::error::Error for Interrupted {}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted; the lab is gone")
    }
}

struct Demo<'a> {
    lab: &'a Lab,
    screen: &'a mut Screen,
    signals: &'a Signals,
}

impl Demo<'_> {
    fn show(&mut self, up_after: Duration) -> Result<()> {
        self.introduce(up_after)?;
        self.answers_bypass_the_dispatcher()?;
        self.content_chooses_the_server()?;
        self.server_names_choose_the_server()?;
        self.a_daemon_dies_in_mid_download()?;
        self.a_server_is_missing()
    }

    fn introduce(&mut self, up_after: Duration) -> Result<()> {
        self.scene("A cluster on this machine")?;
        self.screen.say(&format!(
            "Five hosts, each in a network namespace of its own, up after {}. c1 is a client \
             with curl. d1 is a dispatcher. b1, b2 and b3 run plain nginx, and Trapeze's agent \
             beside it. All packets to {VIP} go to d1.",
            seconds(up_after)
        ));
        self.screen.block(PICTURE);
        self.screen.say(
            "d1 reads the first request of a connection, picks a server, and hands the live TCP \
             connection over. Client and server are unmodified.",
        );
        Ok(())
    }

    /// Bytes at every interface, before and after a large download.
    fn answers_bypass_the_dispatcher(&mut self) -> Result<()> {
        self.scene("The answer does not pass the dispatcher")?;
        let request = Request::get(LARGE.0);
        self.screen.command(&request);
        let hops = Hops::of(self.lab, &["c1", "d1", "b1", "b2", "b3"])?;
        let data_path = DataPath::of(self.lab, "d1")?;
        let (before, passed_before) = (hops.read()?, data_path.read()?);
        let began = Instant::now();
        let answer = Download::start(self.lab, &request)?.finish()?;
        let took = began.elapsed();
        let (after, passed_after) = (hops.read()?, data_path.read()?);
        self.check_large(&answer)?;
        self.screen.say(&format!(
            "{} from {} in {}, every byte as it should be. What each interface saw of it:",
            bytes(LARGE.1),
            answer.server,
            seconds(took)
        ));

        let carried = after.since(&before);
        let received = carried.received("c1");
        let mut table = String::new();
        writeln!(table, "{:<16}{:>12}{:>12}", "host", "received", "sent")?;
        for (host, traffic) in carried.iter() {
            writeln!(
                table,
                "{:<16}{:>12}{:>12}{}",
                label(host, &answer.server),
                bytes(traffic.received),
                bytes(traffic.sent),
                match host {
                    "d1" => format!(
                        "   {:.2} % of what c1 received",
                        percent(traffic.received.max(traffic.sent), received)
                    ),
                    _ => String::new(),
                }
            )?;
        }
        self.screen.block(&table);
        let dispatcher = carried.of("d1");
        let share = percent(dispatcher.received.max(dispatcher.sent), received);
        ensure!(received >= LARGE.1, "c1 received only {received} bytes");
        ensure!(
            carried.of(&answer.server).sent >= LARGE.1,
            "{} did not send the answer",
            answer.server
        );
        ensure!(
            share < DISPATCHER_SHARE_PERCENT,
            "d1 carried {share:.2} % of the answer's bytes, which is no bypass"
        );
        let passed = passed_after.since(&passed_before);
        ensure!(passed.to_daemon >= 1, "no packet went to d1's daemon");
        self.screen.say(&format!(
            "A proxy would have received and sent all of it. Of d1's packets {} went to its \
             daemon: the request. The kernel forwarded the other {}: acknowledgements.",
            count(passed.to_daemon),
            count(passed.forwarded)
        ));
        Ok(())
    }

    fn content_chooses_the_server(&mut self) -> Result<()> {
        self.scene("Content chooses the server")?;
        self.screen
            .say("The cluster's configuration has these rules:");
        self.screen.block(Site::rules());
        let cases = [
            (Request::get("/img/logo"), "b2"),
            (Request::get("/1k").host("www.static.example"), "b3"),
            (Request::get("/1k").header("X-Canary", "yes"), "b3"),
        ];
        for (request, expected) in cases {
            let answer = self.fetch(&request)?;
            self.screen.answer(&request, &answer.server);
            ensure!(
                answer.server == expected,
                "{request} went to {}, not to {expected}",
                answer.server
            );
        }
        self.screen.say(&format!(
            "No rule matches the rest. There the policy is hrw: the URL's hash decides, so that \
             each server's cache holds its own share. {} pages, each on {REPEATS} new connections:",
            PAGES.len()
        ));
        let mut homes = Vec::new();
        let mut line = String::new();
        for page in PAGES {
            let servers = self.servers_of(page)?;
            ensure!(
                servers.iter().all(|server| *server == servers[0]),
                "{page} went to {}: not always the same server",
                servers.join(", ")
            );
            write!(line, "{page} -> {}   ", servers[0])?;
            homes.push(servers[0].clone());
        }
        self.screen.block(line.trim_end());
        homes.sort();
        homes.dedup();
        ensure!(homes.len() > 1, "all pages went to {}", homes[0]);
        Ok(())
    }

    fn server_names_choose_the_server(&mut self) -> Result<()> {
        self.scene("A TLS server name chooses the server")?;
        self.screen.say(
            "d1 has no key. It reads the name that the client's first TLS message asks for, and \
             hands the connection over. The certificate is the server's own:",
        );
        for (name, expected) in [("img.www.lab", Some("b2")), ("shop.www.lab", None)] {
            let request = Request::get("/1k").tls(name);
            let answer = self.fetch(&request)?;
            let certificate = answer.certificate.as_deref().unwrap_or("none");
            self.screen.answer(
                &request,
                &format!("{}, certificate of {certificate}", answer.server),
            );
            ensure!(
                certificate == format!("{}.lab", answer.server),
                "{} answered with the certificate of {certificate}",
                answer.server
            );
            if let Some(expected) = expected {
                ensure!(
                    answer.server == expected,
                    "{name} went to {}, not to {expected}",
                    answer.server
                );
            }
        }
        Ok(())
    }

    fn a_daemon_dies_in_mid_download(&mut self) -> Result<()> {
        self.scene("The dispatcher's daemon dies in mid-download")?;
        let request = Request::get(LARGE.0).rate_limit(RATE_LIMIT_BYTES);
        self.screen.command(&request);
        let data_path = DataPath::of(self.lab, "d1")?;
        let mut download = Download::start(self.lab, &request)?;
        download.read_to(KILL_AT)?;
        self.lab.kill("d1", Some(Process::Dispatch))?;
        let at_death = data_path.read()?;
        self.screen.say(&format!(
            "kill -9 of d1's daemon after {}. Nobody reads requests now; another client asks, and \
             has to wait.",
            bytes(download.received())
        ));
        let mut waiting = Download::start(self.lab, &Request::get("/1k"))?;
        let answer = download.finish()?;
        let forwarded = data_path.read()?.since(&at_death).forwarded;
        self.check_large(&answer)?;
        ensure!(
            forwarded > 0,
            "d1 forwarded nothing after its daemon's death: it came too late"
        );
        self.screen.say(&format!(
            "The download is complete, every byte as it should be. Without a daemon d1's kernel \
             forwarded {} more packets of it.",
            count(forwarded)
        ));
        self.check_interrupt()?;
        ensure!(
            !waiting.has_ended(),
            "a new request was answered without a daemon"
        );
        let began = Instant::now();
        self.lab.start("d1", Some(Process::Dispatch))?;
        let restarted = began.elapsed();
        let answer = self.fetch(&Request::get(PAGES[1]))?;
        let waited = waiting.finish()?;
        waited.check_status()?;
        self.screen.say(&format!(
            "Started again in {}. A new client is served by {}, and the one that waited by {}: its \
             own TCP sent the request again until somebody read it.",
            seconds(restarted),
            answer.server,
            waited.server
        ));
        Ok(())
    }

    fn a_server_is_missing(&mut self) -> Result<()> {
        self.scene("A server is missing")?;
        let page = PAGES[0];
        let home = self.fetch(&Request::get(page))?.server;
        let agent = DataPath::of_agent(self.lab, &home)?;
        let before = agent.read()?;
        self.lab.kill(&home, Some(Process::Server))?;
        self.screen.say(&format!(
            "{page} lives on {home}. kill -9 of {home}'s nginx, and the next request:"
        ));
        let request = Request::get(page);
        let answer = self.fetch(&request)?;
        self.screen.answer(&request, &answer.server);
        ensure!(answer.server != home, "{home} answered without a server");
        let refused = agent.read()?.since(&before).refused;
        // More than one when the client's TCP was quicker than d1.
        ensure!(refused > 0, "{home} has given nothing back");
        self.screen.say(&format!(
            "{home}'s agent found no listener and gave the request back to d1, which had the next \
             server take it. The client saw one answer, and no error.",
        ));
        self.lab.start(&home, Some(Process::Server))?;
        self.wait_until_home(page, &home)?;
        self.screen
            .say(&format!("nginx runs again, and {page} is back on {home}."));
        Ok(())
    }

    /// A backend without a server is left alone for a second.
    fn wait_until_home(&mut self, page: &str, home: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.fetch(&Request::get(page))?.server != home {
            ensure!(
                Instant::now() < deadline,
                "{page} does not come back to {home}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn servers_of(&mut self, page: &str) -> Result<Vec<String>> {
        (0..REPEATS)
            .map(|_| Ok(self.fetch(&Request::get(page))?.server))
            .collect()
    }

    fn fetch(&mut self, request: &Request) -> Result<Answer> {
        self.check_interrupt()?;
        let answer = Download::start(self.lab, request)?.finish()?;
        answer.check_status().with_context(|| request.to_string())?;
        Ok(answer)
    }

    fn check_large(&self, answer: &Answer) -> Result<()> {
        answer.check_status()?;
        ensure!(
            answer.length == LARGE.1,
            "{} bytes came of {}",
            answer.length,
            LARGE.1
        );
        ensure!(
            answer.is_identical,
            "the bytes that came are not the document's"
        );
        self.check_interrupt()
    }

    fn scene(&mut self, title: &str) -> Result<()> {
        self.check_interrupt()?;
        self.screen.scene(title);
        Ok(())
    }

    fn check_interrupt(&self) -> Result<()> {
        match self.signals.wait(Duration::ZERO)? {
            Some(Signal::Stop) => Err(Interrupted.into()),
            _ => Ok(()),
        }
    }

    /// The ends of the daemons' logs, which go with the lab.
    fn last_words(&self) -> String {
        let Ok(status) = self.lab.status() else {
            return String::new();
        };
        let mut words = String::new();
        for (host, process) in [
            ("d1", "dispatch"),
            ("b1", "agent"),
            ("b2", "agent"),
            ("b3", "agent"),
        ] {
            let log = status.logs.join(format!("{host}.{process}.log"));
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(4)..] {
                words += &format!("{host} {process}: {line}\n");
            }
        }
        words
    }
}

fn label(host: &str, server: &str) -> String {
    match host {
        "c1" => "c1 client".to_owned(),
        "d1" => "d1 dispatcher".to_owned(),
        _ if host == server => format!("{host} server"),
        _ => host.to_owned(),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}
