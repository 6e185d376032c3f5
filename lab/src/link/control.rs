//! How a running relay is asked and told: one line of JSON each way on a Unix
//! socket. The question is `null`, or the settings to use from now on; the
//! answer is a [`Report`].

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::settings::LinkSettings;
use super::shape::Counters;

/// What a relay does, and what became of the frames so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What happens to each frame.
    pub settings: LinkSettings,
    /// Frames that the host sent.
    pub from_host: Counters,
    /// Frames sent to the host.
    pub to_host: Counters,
}

/// Asks the relay at `socket` for its counters.
///
/// # Errors
/// No relay answers there.
pub fn ask(socket: &Path) -> Result<Report> {
    talk(socket, None)
}

/// Has the relay at `socket` treat frames as `settings` say.
///
/// # Errors
/// No relay answers there.
pub fn change(socket: &Path, settings: &LinkSettings) -> Result<Report> {
    talk(socket, Some(settings))
}

fn talk(socket: &Path, question: Option<&LinkSettings>) -> Result<Report> {
    let exchange = || -> Result<Report> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        writeln!(stream, "{}", serde_json::to_string(&question)?)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    };
    exchange().with_context(|| format!("the link's relay at {} does not answer", socket.display()))
}

/// Makes the socket at which a relay can be asked.
///
/// # Errors
/// The path is taken or its directory is missing.
pub fn listen(socket: &Path) -> Result<UnixListener> {
    UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))
}

/// Answers questions for ever; `answer` makes the changes that they ask for.
///
/// # Errors
/// The listener fails.
pub fn serve(
    listener: &UnixListener,
    mut answer: impl FnMut(Option<LinkSettings>) -> Report,
) -> Result<()> {
    for stream in listener.incoming() {
        let mut stream = stream?;
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut line = String::new();
        let read = BufReader::new(&stream).read_line(&mut line);
        let Ok(question) = read
            .map_err(anyhow::Error::from)
            .and_then(|_| Ok(serde_json::from_str(&line)?))
        else {
            continue;
        };
        let report = serde_json::to_string(&answer(question))?;
        let _ = writeln!(stream, "{report}");
    }
    Ok(())
}
