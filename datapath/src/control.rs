//! How the command line asks a daemon: on a socket in the node's run directory, one line
//! of JSON in, one out. What is asked is the daemon's affair.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::Node;

const PATIENCE: Duration = Duration::from_secs(5);
/// More than any question needs.
const LONGEST: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody is there.
    #[error("the daemon does not answer at {path} (is it running?): {source}")]
    Absent {
        /// The socket.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It went away in the middle, or is slow.
    #[error("the daemon has not answered: {0}")]
    Lost(#[from] io::Error),
    /// It is of another version.
    #[error("not an answer that this version knows: {0}")]
    Strange(#[from] serde_json::Error),
    /// Its own words.
    #[error("{0}")]
    Refused(String),
}

/// Asks the daemon behind a socket.
pub fn ask<Answer: for<'de> Deserialize<'de>>(
    socket: &Path,
    request: &impl Serialize,
) -> Result<Answer, AskError> {
    let mut stream = UnixStream::connect(socket).map_err(|source| AskError::Absent {
        path: socket.display().to_string(),
        source,
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    serde_json::to_writer(&mut stream, request)?;
    stream.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str::<Result<Answer, String>>(&line)?.map_err(AskError::Refused)
}

/// Where a node's daemon is to be asked.
pub fn listen(node: &Node) -> io::Result<UnixListener> {
    let path = node.control_socket();
    let _ = std::fs::remove_file(&path);
    UnixListener::bind(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Serves for the life of the process.
pub fn serve<Request: for<'de> Deserialize<'de>, Answer: Serialize, Error: std::fmt::Display>(
    listener: &UnixListener,
    mut respond: impl FnMut(Request) -> Result<Answer, Error>,
) {
    for stream in listener.incoming().flatten() {
        // Whoever goes away in the middle wants no answer.
        let _ = answer(stream, &mut respond);
    }
}

fn answer<Request: for<'de> Deserialize<'de>, Answer: Serialize, Error: std::fmt::Display>(
    mut stream: UnixStream,
    respond: &mut impl FnMut(Request) -> Result<Answer, Error>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    let result = match serde_json::from_str(&line) {
        // With its causes, where it has any.
        Ok(request) => respond(request).map_err(|e| format!("{e:#}")),
        Err(error) => Err(format!("not a question that this version knows: {error}")),
    };
    serde_json::to_writer(&mut stream, &result)?;
    stream.write_all(b"\n")
}
