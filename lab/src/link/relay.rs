//! The process that carries frames between a host's port and the bridge, one
//! thread for each direction. It runs in the lab's switch namespace.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::{Context, Result};
use trapeze_datapath::packet_socket::{Batch, PacketSocket, wake_on_time};

use super::control::{self, Report};
use super::settings::LinkSettings;
use super::shape::{Counters, Shaper};

/// One direction, as its thread and the control socket share it.
struct Direction {
    /// Tells it from all others of the lab, whose frames meet another fate.
    name: String,
    from: Arc<PacketSocket>,
    to: Arc<PacketSocket>,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    new_settings: Option<LinkSettings>,
    counters: Counters,
    /// What the kernel dropped before the thread could read it.
    unread: u64,
}

/// Relays until it is killed.
///
/// # Errors
/// An interface does not exist or goes away; the control socket cannot be made.
pub fn run(host: &str, network: &str, settings: LinkSettings, socket: &Path) -> Result<()> {
    let open = |interface: &str| {
        PacketSocket::open(interface)
            .map(Arc::new)
            .with_context(|| format!("cannot read frames of {interface}"))
    };
    let (host_end, network_end) = (open(host)?, open(network)?);
    let directions = [
        Direction::new(format!("from {host}"), &host_end, &network_end),
        Direction::new(format!("to {host}"), &network_end, &host_end),
    ];
    let listener = control::listen(socket)?;
    let settings = Mutex::new(settings);
    std::thread::scope(|scope| {
        for direction in &directions {
            let initial = lock(&settings).clone();
            scope.spawn(move || {
                let error = direction.carry(initial).expect_err("it carries for ever");
                eprintln!("the link {} has ended: {error}", direction.name);
                std::process::exit(1);
            });
        }
        println!("ready");
        control::serve(&listener, |change| {
            let mut settings = lock(&settings);
            if let Some(change) = change {
                for direction in &directions {
                    lock(&direction.shared).new_settings = Some(change.clone());
                }
                *settings = change;
            }
            Report {
                settings: settings.clone(),
                from_host: directions[0].counters(),
                to_host: directions[1].counters(),
            }
        })
    })
}

impl Direction {
    fn new(name: String, from: &Arc<PacketSocket>, to: &Arc<PacketSocket>) -> Self {
        Direction {
            name,
            from: Arc::clone(from),
            to: Arc::clone(to),
            shared: Mutex::default(),
        }
    }

    /// Reads, shapes and sends until a socket fails.
    fn carry(&self, settings: LinkSettings) -> io::Result<std::convert::Infallible> {
        wake_on_time();
        let start = Instant::now();
        let mut shaper = Shaper::new(settings, &self.name);
        let mut batch = Batch::default();
        let mut due = Vec::new();
        loop {
            let timeout = shaper
                .next_due()
                .map(|due| due.saturating_sub(start.elapsed()));
            self.from.wait(timeout)?;
            self.from.receive(&mut batch)?;
            if let Some(settings) = lock(&self.shared).new_settings.take() {
                shaper.change(settings, &self.name);
            }
            let now = start.elapsed();
            for frame in batch.frames() {
                shaper.accept(now, frame);
            }
            due.clear();
            while let Some(frame) = shaper.take_due(now) {
                due.push(frame);
            }
            shaper.counters.failed += self.to.send(&due)?;
            lock(&self.shared).counters = Counters {
                failed: shaper.counters.failed + batch.truncated(),
                ..shaper.counters
            };
        }
    }

    fn counters(&self) -> Counters {
        let mut shared = lock(&self.shared);
        shared.unread += self.from.take_drops().unwrap_or(0);
        Counters {
            failed: shared.counters.failed + shared.unread,
            ..shared.counters
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds this")
}
