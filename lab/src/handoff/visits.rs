//! Visitors: clients that make a connection, send several requests over it, read
//! the answers, and leave; over and over, many at once.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;
use socket2::{Domain, Socket, Type};
use trapeze_datapath::netns;

use crate::http;
use crate::random::Random;

/// Longer than any connection of an experiment lasts.
const PATIENCE: Duration = Duration::from_secs(60);

/// What visitors do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom they visit.
    pub address: SocketAddrV4,
    /// How many at a time.
    pub visitors: u16,
    /// Requests of each visit.
    pub requests: u32,
    /// Send all of them at once, or each when the last has been answered.
    pub at_once: bool,
    /// The paths asked for.
    pub paths: Vec<String>,
    /// Ask for them in turns; else the first ones more often, in proportion to 1/n.
    pub alternate: bool,
    /// The receive buffer that is asked of the kernel, in bytes; it announces about as
    /// much. 0: the kernel's own choice.
    pub window: u32,
    /// How long they keep coming.
    pub duration: Duration,
    /// Of what they ask for.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Visits {
    /// Answers that arrived whole.
    pub answers: u64,
    /// Visits that ended well within the time.
    pub whole: u64,
    /// Their durations together, from connecting to the last byte, in microseconds.
    pub lifetimes_us: u64,
    /// Times from sending the first request to its whole answer, in microseconds, together.
    pub first_answers_us: u64,
    /// How long it took.
    pub duration_us: u64,
    /// Visits that failed, and why the first one did.
    pub failed: u64,
    /// See there.
    pub failure: Option<String>,
}

impl Visits {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.answers as f64 * 1e6 / self.duration_us.max(1) as f64
    }

    /// A visit's mean duration in milliseconds.
    pub fn lifetime_ms(&self) -> f64 {
        self.lifetimes_us as f64 / 1e3 / self.whole.max(1) as f64
    }
}

/// Has visitors come from a host's network, until the time is over.
///
/// # Errors
/// The namespace cannot be entered. Failed visits are in the result.
pub fn make(namespace: &Path, plan: &Plan) -> io::Result<Visits> {
    let begun = Instant::now();
    let end = begun + plan.duration;
    let all = Mutex::new(Visits::default());
    std::thread::scope(|scope| {
        let visitors: Vec<_> = (0..plan.visitors)
            .map(|number| {
                let all = &all;
                scope.spawn(move || {
                    netns::enter(namespace)?;
                    keep_coming(plan, number, end, all);
                    Ok(())
                })
            })
            .collect();
        (visitors.into_iter()).try_for_each(|visitor| visitor.join().expect("a visitor"))
    })
    .map(|()| {
        let mut visits = all.into_inner().expect("no visitor panics with it");
        visits.duration_us = plan.duration.as_micros() as u64;
        visits
    })
}

fn keep_coming(plan: &Plan, number: u16, end: Instant, all: &Mutex<Visits>) {
    let mut random = Random::new(plan.seed << 16 | u64::from(number));
    let weights: f64 = (1..=plan.paths.len()).map(|n| 1.0 / n as f64).sum();
    while Instant::now() < end {
        let paths: Vec<&str> = (0..plan.requests)
            .map(|turn| match plan.alternate {
                true => turn as usize % plan.paths.len(),
                false => draw(&mut random, weights).min(plan.paths.len() - 1),
            })
            .map(|index| plan.paths[index].as_str())
            .collect();
        let visit = visit(plan, &paths, end);
        let mut all = all.lock().expect("no visitor panics with it");
        match visit {
            Ok(visit) => {
                all.answers += u64::from(visit.answers);
                if visit.ended < end {
                    all.whole += 1;
                    all.lifetimes_us += (visit.ended - visit.begun).as_micros() as u64;
                    all.first_answers_us += visit.first_answer.as_micros() as u64;
                }
            }
            Err(error) => {
                all.failed += 1;
                all.failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// An index, by Zipf's law with exponent 1; `weights` are the sum of all.
fn draw(random: &mut Random, weights: f64) -> usize {
    let mut left = random.fraction() * weights;
    let mut index = 0_usize;
    while left > 0.0 {
        index += 1;
        left -= 1.0 / index as f64;
    }
    index.saturating_sub(1)
}

struct Visit {
    begun: Instant,
    ended: Instant,
    first_answer: Duration,
    /// Within the time.
    answers: u32,
}

fn visit(plan: &Plan, paths: &[&str], end: Instant) -> io::Result<Visit> {
    let begun = Instant::now();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if plan.window > 0 {
        socket.set_recv_buffer_size(plan.window as usize)?;
    }
    socket.connect_timeout(&std::net::SocketAddr::V4(plan.address).into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answers = BufReader::with_capacity(1 << 16, &stream);
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n");
    if plan.at_once {
        let text: String = paths.iter().map(|path| request(path)).collect();
        (&stream).write_all(text.as_bytes())?;
    }
    let sent = Instant::now();
    let mut visit = Visit {
        begun,
        ended: sent,
        first_answer: Duration::ZERO,
        answers: 0,
    };
    for (index, path) in paths.iter().enumerate() {
        if !plan.at_once {
            (&stream).write_all(request(path).as_bytes())?;
        }
        read_answer(&mut answers)?;
        visit.ended = Instant::now();
        if index == 0 {
            visit.first_answer = visit.ended - sent;
        }
        visit.answers += u32::from(visit.ended < end);
    }
    Ok(visit)
}

/// Head and body of an answer that tells its length.
fn read_answer(from: &mut impl BufRead) -> io::Result<()> {
    let head = http::read_head(from)?;
    let read = io::copy(&mut from.take(head.length), &mut io::sink())?;
    match (head.status == 200, read == head.length) {
        (true, true) => Ok(()),
        (false, _) => Err(io::Error::other("another answer than 200")),
        (_, false) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_to_their_ends() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\
                     Content-Length: 0\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\nx";
        let mut from = &text[..];
        assert!(read_answer(&mut from).is_ok());
        assert!(read_answer(&mut from).is_ok());
        assert!(read_answer(&mut from).is_err());
        assert!(read_answer(&mut from).is_err());
        let mut cut = &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"[..];
        assert!(read_answer(&mut cut).is_err());
    }

    #[test]
    fn the_first_path_is_drawn_most() {
        let mut random = Random::new(1);
        let weights = 1.0 + 0.5 + 1.0 / 3.0;
        let mut counts = [0; 3];
        for _ in 0..6000 {
            counts[draw(&mut random, weights)] += 1;
        }
        assert!(counts[0] > counts[1] && counts[1] > counts[2], "{counts:?}");
        assert!(counts[2] > 900, "{counts:?}");
    }
}
