//! Transfers: many at once, a connection and a request for each, as the paper's client
//! makes them [SPLICE06 §7.2].

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use socket2::{Domain, Socket, Type};
use trapeze_datapath::netns;

use crate::http;

/// Longer than a connection stalls because of anything that is tried here.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is written or read at once, in bytes.
const PIECE: usize = 16 << 10;

/// What is transferred.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// To whom, or from whom.
    pub address: SocketAddrV4,
    /// How many at once.
    pub transfers: u16,
    /// Bytes of each.
    pub bytes: u64,
    /// From the client to the server (PUT), or the other way (GET).
    pub upload: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Transfers {
    /// How long each took, from connecting to the answer's last byte, in seconds, in order.
    pub durations_s: Vec<f64>,
    /// From the first one's begin to the last one's end, in seconds.
    pub total_s: f64,
    /// All bodies' bits over that time, in Mbit/s.
    pub mbps: f64,
    /// The longest time in which each did not get on, in milliseconds, in order.
    pub pauses_ms: Vec<f64>,
    /// The longest time in which none did, in milliseconds.
    pub pause_of_all_ms: f64,
    /// How many failed, and why the first one did.
    pub failed: usize,
    /// See there.
    pub failure: Option<String>,
}

impl Transfers {
    /// A transfer's mean duration in seconds.
    pub fn mean_s(&self) -> f64 {
        self.durations_s.iter().sum::<f64>() / self.durations_s.len().max(1) as f64
    }

    /// The durations' standard deviation in seconds.
    pub fn deviation_s(&self) -> f64 {
        let mean = self.mean_s();
        let squares: f64 = self.durations_s.iter().map(|s| (s - mean).powi(2)).sum();
        (squares / self.durations_s.len().max(1) as f64).sqrt()
    }

    /// The longest pause of the transfer with the longest but one in a hundred.
    pub fn pause_p99_ms(&self) -> f64 {
        let at = (self.pauses_ms.len() * 99).div_ceil(100);
        self.pauses_ms
            .get(at.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }
}

/// Makes all of them from a host's network, and does `meanwhile`.
///
/// # Errors
/// The namespace cannot be entered, or `meanwhile` fails. Failed transfers are in the result.
pub fn make(
    namespace: &Path,
    plan: &Plan,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Transfers> {
    let begun = Instant::now();
    let all = Progress::from(begun);
    let done = Mutex::new((Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..plan.transfers)
            .map(|_| {
                let (all, done) = (&all, &done);
                scope.spawn(move || -> io::Result<()> {
                    netns::enter(namespace)?;
                    let own = Progress::from(Instant::now());
                    let result = transfer(plan, || {
                        own.moves();
                        all.moves();
                    });
                    let took = own.begun.elapsed().as_secs_f64();
                    let mut done = done.lock().expect("no transfer panics with it");
                    match result {
                        Ok(()) => done.0.push((took, own.longest_ms())),
                        Err(error) => done.1.push(error.to_string()),
                    }
                    Ok(())
                })
            })
            .collect();
        meanwhile()?;
        for transfer in transfers {
            transfer.join().expect("a transfer")?;
        }
        anyhow::Ok(())
    })?;
    let total_s = begun.elapsed().as_secs_f64();
    let (done, failures) = done.into_inner().expect("no transfer panics with it");
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    Ok(Transfers {
        total_s,
        mbps: done.len() as f64 * plan.bytes as f64 * 8.0 / 1e6 / total_s,
        durations_s: sorted(done.iter().map(|(took, _)| *took).collect()),
        pauses_ms: sorted(done.iter().map(|(_, pause)| *pause).collect()),
        pause_of_all_ms: all.longest_ms(),
        failed: failures.len(),
        failure: failures.into_iter().next(),
    })
}

/// When something last got on, and the longest time in which it did not.
struct Progress {
    begun: Instant,
    last_us: AtomicU64,
    longest_us: AtomicU64,
}

impl Progress {
    fn from(begun: Instant) -> Self {
        Progress {
            begun,
            last_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
        }
    }

    fn moves(&self) {
        let now = self.begun.elapsed().as_micros() as u64;
        let last = self.last_us.fetch_max(now, Ordering::Relaxed);
        self.longest_us
            .fetch_max(now.saturating_sub(last), Ordering::Relaxed);
    }

    fn longest_ms(&self) -> f64 {
        self.longest_us.load(Ordering::Relaxed) as f64 / 1e3
    }
}

fn transfer(plan: &Plan, moves: impl Fn()) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // What is written is on its way soon: writes get on as the transfer does.
    socket.set_tcp_notsent_lowat(PIECE as u32)?;
    socket.connect_timeout(&std::net::SocketAddr::V4(plan.address).into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    moves();
    let bytes = plan.bytes;
    let head = match plan.upload {
        true => format!("PUT /upload HTTP/1.1\r\nHost: lab\r\nContent-Length: {bytes}\r\n\r\n"),
        false => format!("GET /{bytes} HTTP/1.1\r\nHost: lab\r\n\r\n"),
    };
    (&stream).write_all(head.as_bytes())?;
    if plan.upload {
        let piece = [0x5a; PIECE];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(PIECE as u64);
            (&stream).write_all(&piece[..next as usize])?;
            moves();
            left -= next;
        }
    }
    let mut answer = BufReader::with_capacity(PIECE, &stream);
    let head = http::read_head(&mut answer)?;
    let wanted = match plan.upload {
        true => head.length,
        false => bytes,
    };
    if !matches!(head.status, 200 | 201 | 204) || head.length != wanted {
        let problem = format!("answered {} with {} bytes", head.status, head.length);
        return Err(io::Error::other(problem));
    }
    let mut left = head.length;
    let mut piece = [0; PIECE];
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let read = answer.read(&mut piece[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        moves();
        left -= read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_found() {
        let progress = Progress::from(Instant::now());
        progress.moves();
        std::thread::sleep(Duration::from_millis(20));
        progress.moves();
        progress.moves();
        assert!(progress.longest_ms() >= 20.0);
    }

    #[test]
    fn ninety_nine_in_a_hundred_pause_no_longer() {
        let transfers = |count: u32| Transfers {
            durations_s: vec![1.0, 3.0],
            total_s: 3.0,
            mbps: 1.0,
            pauses_ms: (1..=count).map(f64::from).collect(),
            pause_of_all_ms: 0.0,
            failed: 0,
            failure: None,
        };
        assert_eq!(transfers(100).pause_p99_ms(), 99.0);
        assert_eq!(transfers(1).pause_p99_ms(), 1.0);
        assert_eq!(transfers(0).pause_p99_ms(), 0.0);
        let two = transfers(2);
        assert_eq!((two.mean_s(), two.deviation_s()), (2.0, 1.0));
    }
}
