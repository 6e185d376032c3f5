//! Many downloads at once, each byte of which is compared with the file's, and the times
//! at which nothing came.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Cluster;

/// Shorter ones are not noted.
const GAP_MIN: Duration = Duration::from_millis(50);
/// Who hears nothing for so long has failed.
const HANGS: Duration = Duration::from_secs(30);
/// Bytes that are compared at a time.
const PIECE: usize = 128 << 10;

/// A time in which a client read nothing.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// When it had something last,
    pub from: Instant,
    /// and when it had something again.
    pub to: Instant,
}

/// Downloads in progress.
pub struct Downloads {
    threads: Vec<JoinHandle<io::Result<Vec<Gap>>>>,
    had: Arc<Vec<AtomicU64>>,
}

impl Downloads {
    /// One for each of the names, files of `root`, from a host.
    pub fn start(
        cluster: &Cluster,
        host: &str,
        to: SocketAddrV4,
        root: &Path,
        names: &[String],
    ) -> Self {
        let had: Arc<Vec<AtomicU64>> = Arc::new(names.iter().map(|_| AtomicU64::new(0)).collect());
        let threads = names.iter().enumerate().map(|(index, name)| {
            let (had, name) = (had.clone(), name.clone());
            let file = File::open(root.join(&name)).expect("a file of the site");
            cluster.spawn(host, move || download(to, &name, &file, &had[index]))
        });
        Self {
            threads: threads.collect(),
            had,
        }
    }

    /// Bytes of its body that each of them has had.
    pub fn had(&self) -> Vec<u64> {
        (self.had.iter())
            .map(|had| had.load(Ordering::Relaxed))
            .collect()
    }

    /// Those that have ended, well or not.
    pub fn ended(&self) -> usize {
        self.threads.iter().filter(|t| t.is_finished()).count()
    }

    /// Waits for their ends: for each, when nothing came.
    ///
    /// # Panics
    /// One failed, or had a byte that is not the file's.
    pub fn join(self) -> Vec<Vec<Gap>> {
        let had = self.had.clone();
        let each = self.threads.into_iter().enumerate();
        let ends: Vec<_> = each
            .map(|(i, t)| (i, t.join().expect("its bytes are the file's")))
            .collect();
        let (well, failed): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(_, end)| end.is_ok());
        let failed: Vec<String> = failed
            .iter()
            .map(|(i, end)| {
                format!(
                    "download {i} after {} bytes: {}",
                    had[*i].load(Ordering::Relaxed),
                    end.as_ref().unwrap_err()
                )
            })
            .collect();
        assert!(failed.is_empty(), "{failed:#?}");
        well.into_iter().filter_map(|(_, gaps)| gaps.ok()).collect()
    }
}

/// The longest time around `at` in which a client had nothing, within `within` behind it.
pub fn stall(gaps: &[Gap], at: Instant, within: Duration) -> Duration {
    let near = gaps
        .iter()
        .filter(|gap| gap.to > at && gap.from < at + within);
    near.map(|gap| gap.to - gap.from).max().unwrap_or_default()
}

fn download(to: SocketAddrV4, name: &str, file: &File, had: &AtomicU64) -> io::Result<Vec<Gap>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(HANGS))?;
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())?;
    let length = file.metadata()?.len();
    read_head(&mut stream, length)?;
    let (mut at, mut gaps, mut heard) = (0, Vec::new(), Instant::now());
    let (mut got, mut expected) = (vec![0; PIECE], vec![0; PIECE]);
    while at < length {
        let most = PIECE.min((length - at) as usize);
        let count = stream.read(&mut got[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        if now - heard > GAP_MIN {
            gaps.push(Gap {
                from: heard,
                to: now,
            });
        }
        heard = now;
        file.read_exact_at(&mut expected[..count], at)?;
        assert!(
            got[..count] == expected[..count],
            "/{name} differs within {count} bytes from {at} on"
        );
        at += count as u64;
        had.store(at, Ordering::Relaxed);
    }
    Ok(gaps)
}

fn read_head(stream: &mut TcpStream, length: u64) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let expected = format!("\r\ncontent-length: {length}\r\n");
    match head.starts_with("http/1.1 200 ") && head.contains(&expected) {
        true => Ok(()),
        false => Err(io::Error::other(head)),
    }
}
