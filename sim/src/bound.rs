//! What no policy can exceed: a bound on throughput for one that knows all requests in
//! advance, decides at no cost, and may use the memory of all backends as one, split as
//! it likes. No such policy exists; the bound tells how much is left to gain.
//!
//! Whatever the policy, a station can do no more than work all the time, and the work is
//! known but for reads from disk. A file that stays in memory from one request for it to
//! the next takes its bytes for so long, and spares a read. Of all such stays the ones
//! that spare most for the room they take are chosen, until the room of all backends over
//! all the time is used up: no order of replacement can spare more. (Berger, Beckmann and
//! Harchol-Balter, "Practical bounds on optimal caching with variable object sizes",
//! SIGMETRICS 2018, have it for hits: PFOO-L.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use crate::engine::Run;
use crate::hardware::{Hardware, acknowledgements, link_ns, wire_bytes};
use crate::workload::{Ask, Content, Kind, Then};

/// What limits every policy on a run's requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// No policy answers more in a second, but for [`Bound::slack`].
    pub requests_per_second: f64,
    /// What is busy all the time then.
    pub limit: Limit,
    /// Reads that are left, for each request.
    pub disk_reads_per_request: f64,
    /// Of these the ones that nobody can spare: first ones.
    pub first_reads_per_request: f64,
    /// Requests are unfinished when counting begins and when it ends. With more of them at
    /// the end a run may exceed the bound, at most by this share: users over requests, or
    /// over reads where disks are the limit.
    pub slack: f64,
}

/// What a cluster can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Dispatchers' processors.
    Dispatchers,
    /// Backends' processors.
    Processors,
    /// Disks.
    Disks,
    /// Backends' links.
    Links,
    /// The links of clients' hosts.
    ClientLinks,
    /// Their processors.
    ClientProcessors,
    /// Users: each waits for its answer before it asks again.
    Users,
}

/// Nanoseconds of work, by what does it.
#[derive(Default)]
struct Work {
    dispatchers: f64,
    processors: f64,
    links: f64,
    client_links: f64,
    client_processors: f64,
    /// Time that passes if nobody is in anybody's way.
    users: f64,
}

/// A file that could stay in memory from one request for it to the next.
struct Stay {
    read_ns: f64,
    /// Bytes times requests meanwhile that count.
    room: f64,
}

impl Bound {
    /// For the same requests as the run's. Only closed workloads have one: in an open one
    /// throughput is what comes in.
    pub fn of(run: &Run<'_>) -> Option<Bound> {
        let hardware = run.hardware;
        let users = run.workload.pace().users(hardware.backends)?;
        let objects = run.workload.objects();
        let disk = &hardware.backend.disk;
        let mut source = run.workload.start(run.seed, users);
        let mut asked_at = vec![u64::MAX; objects.len()];
        let mut work = Work::default();
        let (mut stays, mut first, mut first_ns) = (Vec::new(), 0u64, 0.0);
        let mut asked = 0u64;
        // When each user asks next, if nobody is in anybody's way.
        let mut free_at: BinaryHeap<Reverse<(u64, u32)>> =
            (0..users as u32).map(|user| Reverse((0, user))).collect();
        let (mut began_ns, mut ended_ns) = (0, 0);
        while asked < run.span.requests {
            let Some(Reverse((now_ns, user))) = free_at.pop() else {
                break;
            };
            let Some(ask) = source.next(user) else {
                break;
            };
            free_at.push(Reverse((now_ns + alone_ns(hardware, &ask), user)));
            ended_ns = now_ns;
            if asked <= run.span.warmup {
                began_ns = now_ns;
            }
            let object = &objects[ask.object as usize];
            let counts = asked >= run.span.warmup;
            if counts {
                work.add(hardware, &ask, object.kind);
            }
            if object.kind == Kind::Static && ask.content == Content::Needed {
                let last = std::mem::replace(&mut asked_at[ask.object as usize], asked);
                let read_ns = disk.read_ns(object.bytes) as f64;
                match (counts, last) {
                    (false, _) => {}
                    (true, u64::MAX) => {
                        first += 1;
                        first_ns += read_ns;
                    }
                    (true, last) => stays.push(Stay {
                        read_ns,
                        room: (object.bytes * (asked - last.max(run.span.warmup))) as f64,
                    }),
                }
            }
            asked += 1;
        }
        let counted = asked.checked_sub(run.span.warmup).filter(|&n| n > 0)? as f64;
        let memory = hardware.backend.cache_bytes as f64 * hardware.backends as f64;
        let (reads, reads_ns) = reads_left(stays, memory * counted);
        work.users = (ended_ns - began_ns) as f64;
        let (limit, ns) = work.longest(hardware, first_ns + reads_ns);
        Some(Bound {
            requests_per_second: counted / (ns / 1e9),
            limit,
            disk_reads_per_request: (first as f64 + reads) / counted,
            first_reads_per_request: first as f64 / counted,
            slack: users as f64
                / match limit {
                    Limit::Disks => first as f64 + reads,
                    _ => counted,
                },
        })
    }
}

/// From one answer to the next, if nobody is in the way and everything is in memory.
fn alone_ns(hardware: &Hardware, ask: &Ask) -> u64 {
    let clients = &hardware.clients;
    let wire = wire_bytes(ask.bytes);
    let links = [hardware.backend.link_bps, clients.link_bps];
    let on_links = links.map(|bps| bps.map_or(0, |bps| link_ns(wire, bps)));
    // Links and the sending processor work at once.
    let sending_ns = on_links
        .into_iter()
        .fold(hardware.backend.send_ns(ask.bytes), u64::max);
    ask.wait_ns + clients.round_trip_ns + clients.work_ns(ask.bytes) + sending_ns
}

/// How many of the reads are left, and what they take, if the files with the most to
/// spare for their room have it.
fn reads_left(mut stays: Vec<Stay>, mut room: f64) -> (f64, f64) {
    stays.sort_by(|a, b| (a.room * b.read_ns).total_cmp(&(b.room * a.read_ns)));
    let (mut reads, mut reads_ns) = (0.0, 0.0);
    for stay in stays {
        // The last one that fits fits in part.
        let kept = (room / stay.room.max(1.0)).min(1.0);
        room -= kept * stay.room;
        reads += 1.0 - kept;
        reads_ns += (1.0 - kept) * stay.read_ns;
    }
    (reads, reads_ns)
}

impl Work {
    fn add(&mut self, hardware: &Hardware, ask: &Ask, kind: Kind) {
        let Hardware {
            dispatcher,
            backend,
            clients,
            ..
        } = hardware;
        let ends = ask.then == Then::Close;
        let of_connection = |ns: u64| if ends { ns } else { 0 };
        let program_ns = match kind {
            Kind::Dynamic { work_ns } => work_ns,
            Kind::Static => 0,
        };
        let acks = acknowledgements(ask.bytes);
        self.dispatchers += (dispatcher.request_ns
            + of_connection(dispatcher.handshake_ns)
            + acks * dispatcher.packet_ns) as f64;
        let processor_ns = backend.request_ns
            + program_ns
            + backend.send_ns(ask.bytes)
            + of_connection(backend.rebuild_ns.min(backend.connect_ns) + backend.close_ns);
        self.processors += processor_ns as f64;
        let wire = wire_bytes(ask.bytes);
        let on = |bps: Option<u64>| bps.map_or(0.0, |bps| link_ns(wire, bps) as f64);
        self.links += on(backend.link_bps);
        self.client_links += on(clients.link_bps);
        self.client_processors += clients.work_ns(ask.bytes) as f64;
    }

    /// What takes longest, and how long, with so much to read.
    fn longest(&self, hardware: &Hardware, reads_ns: f64) -> (Limit, f64) {
        let backends = hardware.backends.max(1) as f64;
        let hosts = hardware.clients.hosts.max(1) as f64;
        let processors = backends * hardware.backend.cpus.max(1) as f64;
        [
            (
                Limit::Dispatchers,
                self.dispatchers / hardware.dispatchers.max(1) as f64,
            ),
            (Limit::Processors, self.processors / processors),
            (Limit::Disks, reads_ns / backends),
            (Limit::Links, self.links / backends),
            (Limit::ClientLinks, self.client_links / hosts),
            (Limit::ClientProcessors, self.client_processors / hosts),
            (Limit::Users, self.users),
        ]
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("there are some")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Entrant, Span};
    use crate::workload;
    use trapeze_core::config::PolicyKind;

    fn stay(read_ns: f64, room: f64) -> Stay {
        Stay { read_ns, room }
    }

    #[test]
    fn those_stay_that_spare_most_for_their_room() {
        let stays = || vec![stay(10.0, 100.0), stay(10.0, 10.0), stay(30.0, 60.0)];
        assert_eq!(reads_left(stays(), 0.0), (3.0, 50.0));
        assert_eq!(reads_left(stays(), 10.0), (2.0, 40.0));
        assert_eq!(reads_left(stays(), 70.0), (1.0, 10.0));
        // Half of the last one fits.
        assert_eq!(reads_left(stays(), 120.0), (0.5, 5.0));
        assert_eq!(reads_left(stays(), 200.0), (0.0, 0.0));
    }

    #[test]
    fn no_policy_exceeds_it() {
        for name in ["zipf", "ibm", "surge", "webbench", "mix"] {
            let workload = workload::named(name, 3).unwrap();
            let hardware = Hardware::lvscad07().with_backends(3).with_cache(8 << 20);
            for kind in [PolicyKind::LeastConnections, PolicyKind::LardR] {
                let entrant = Entrant::of(kind);
                let run = Run {
                    hardware: &hardware,
                    workload: workload.as_ref(),
                    entrant: &entrant,
                    span: Span::requests(60_000),
                    seed: 3,
                };
                let bound = Bound::of(&run).unwrap();
                let outcome = run.go();
                assert!(
                    outcome.requests_per_second <= bound.requests_per_second * (1.0 + bound.slack),
                    "{name}: {outcome:?} {bound:?}"
                );
                assert!(bound.first_reads_per_request <= bound.disk_reads_per_request);
                assert!(bound.disk_reads_per_request <= outcome.disk_reads_per_request + 0.02);
            }
        }
    }
}
