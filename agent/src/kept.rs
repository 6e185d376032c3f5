//! What is known of answers in progress, for the daemon after this one: the data path brings their heads
//! once, and who has died cannot pass them on (docs/protocol/takeover.md 2.1c).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use trapeze_core::flow::{FlowKey, addr_bytes, addr_from_bytes};
use trapeze_core::takeover::{Message, SoftState, state};
use trapeze_core::wire::meta::Keys;

/// An answer that dispatchers are told of, or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub flow: FlowKey,
    pub state: SoftState,
    pub clock_offset: u32,
    /// It is protected if it is in progress still after so long, in whole milliseconds.
    pub delay: Duration,
}

/// Puts these in place of all that the file has. It is for root alone: heads have cookies.
pub fn write(path: &Path, keys: &Keys, all: impl Iterator<Item = Kept>) -> io::Result<()> {
    let mut bytes = Vec::new();
    for one in all {
        for end in [one.flow.client, one.flow.vip] {
            bytes.extend(addr_bytes(end.ip()));
            bytes.extend(end.port().to_be_bytes());
        }
        bytes.extend(one.clock_offset.to_be_bytes());
        bytes.extend((one.delay.as_millis() as u64).to_be_bytes());
        bytes.extend(Message::Update(one.state).seal(keys, &one.flow));
    }
    let next = path.with_extension("next");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&next)?.write_all(&bytes)?;
    fs::rename(next, path)
}

/// What the file has, up to where it makes no sense. No file is as good as an empty one.
pub fn read(path: &Path, keys: &Keys) -> Vec<Kept> {
    let bytes = fs::read(path).unwrap_or_default();
    let mut left = &bytes[..];
    std::iter::from_fn(|| next(&mut left, keys)).collect()
}

fn next(left: &mut &[u8], keys: &Keys) -> Option<Kept> {
    let mut end = || {
        Some(
            (
                addr_from_bytes(array(left)?),
                u16::from_be_bytes(array(left)?),
            )
                .into(),
        )
    };
    let flow = FlowKey {
        client: end()?,
        vip: end()?,
    };
    let clock_offset = u32::from_be_bytes(array(left)?);
    let delay = Duration::from_millis(u64::from_be_bytes(array(left)?));
    let message = left.split_off(..state::length(left)?)?;
    let Message::Update(state) = Message::open(message, keys, &flow)? else {
        return None;
    };
    Some(Kept {
        flow,
        state,
        clock_offset,
        delay,
    })
}

fn array<const N: usize>(left: &mut &[u8]) -> Option<[u8; N]> {
    left.split_off(..N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapeze_core::config::ClusterKey;
    use trapeze_core::seq::ServerSeq;

    fn keys(secret: u8) -> Keys {
        Keys::new(&[ClusterKey {
            id: 3,
            secret: [secret; 16],
        }])
        .unwrap()
    }

    fn kept(port: u16) -> Kept {
        Kept {
            flow: FlowKey {
                client: ([192, 0, 2, 1], port).into(),
                vip: "10.77.0.100:80".parse().unwrap(),
            },
            state: SoftState {
                epoch: 9,
                answer: 2,
                offset: 1 << 33,
                at: ServerSeq::new(7),
                clock: 5,
                request: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                head: vec![0xff; usize::from(port)],
            },
            clock_offset: 77,
            delay: Duration::from_millis(1500),
        }
    }

    #[test]
    fn the_next_daemon_finds_what_was_written_last() {
        let directory = std::env::temp_dir().join(format!("trapeze-kept-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("answers");
        assert_eq!(read(&path, &keys(7)), []);
        write(&path, &keys(7), [kept(1)].into_iter()).unwrap();
        let all = [kept(100), kept(0), kept(5000)];
        write(&path, &keys(7), all.clone().into_iter()).unwrap();
        assert_eq!(read(&path, &keys(7)), all);
        // By another cluster's key, cut short, changed: nothing that was not written.
        assert_eq!(read(&path, &keys(8)), []);
        let mut bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(&path, &keys(7)), all[..2]);
        bytes[80] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path, &keys(7)), []);
        fs::remove_dir_all(directory).unwrap();
    }
}
