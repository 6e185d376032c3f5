//! The wedge [MIGRATE01 §4.2]: goes on with answers of backends that have died. A dispatcher
//! sets the client's connection up here, at the freshest byte that the client has had; the
//! wedge asks the local server for the rest, and relays that once it is proved to be the
//! rest of the very object (docs/protocol/takeover.md §4), or said to be of the very stream (§10).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};
use trapeze_core::flow::{FlowKey, addr_from_bytes};
use trapeze_core::takeover::{End, Message, Rest, Take, WEDGE_PORT, parts, state};
use trapeze_datapath::abi::{
    ADOPTED_CLOSES, ADOPTED_STAYS, ADOPTED_UNTIL_CLOSE, Adoption, ServerKey,
};
use trapeze_datapath::agent::Adopter;
use trapeze_datapath::clock;
use trapeze_datapath::linger::reset_on_close;
use trapeze_datapath::netns;
use trapeze_datapath::pipe::Pipe;

use crate::support::Support;

/// Answers that are gone on with at once; more wait in the queue for [`accept`](TcpListener::accept), and
/// those that find it full are refused, as by any server.
const MOST: usize = 4096;
/// Files that are open for each of them: the client, the server, and a pipe's two ends.
const FILES: u64 = 4;
/// Files that are left for all else.
const OTHER_FILES: u64 = 256;
/// All answers of a backend come at the same moment, when that has died. The kernel cuts it to
/// net.core.somaxconn.
const BACKLOG: i32 = MOST as i32;
/// Before another one is accepted, where that is not possible now.
const PAUSE: Duration = Duration::from_millis(10);
/// Who has asked, or was asked, says something within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// A client that has not taken anything for so long is slow. Its server is asked anew if it says nothing for as long
/// behind that.
const SLOW: Duration = Duration::from_secs(1);
/// A dispatcher is told so often, and so many times, that an answer is not gone on with.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(100);
const REFUSALS: u32 = 20;
/// A client takes its time with what it was sent.
const CLIENTS_PATIENCE: Duration = Duration::from_secs(600);
/// The longest head that a server may answer with.
const HEAD_MAX: usize = 65_536;
/// Bytes that a server may be ahead of what is relayed. The kernel would let it be some megabytes ahead, of each of
/// thousands of answers: more than it has memory for TCP.
const AHEAD: usize = 256 << 10;
/// Bytes that are relayed at a time.
const PIECE: u64 = 1 << 20;

/// Where connections to go on with come: they may wait there before [`start`].
pub fn listen() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, WEDGE_PORT))?;
    // The standard library's is 128.
    SockRef::from(&listener).listen(BACKLOG)?;
    Ok(listener)
}

/// Goes on with what comes, as long as the process lives.
pub fn start(
    listener: TcpListener,
    support: Arc<Support>,
    adopter: Arc<Adopter>,
) -> io::Result<()> {
    let files = netns::take_all_files()?.saturating_sub(OTHER_FILES);
    let most = MOST.min((files / FILES) as usize).max(1);
    let busy = Arc::<AtomicUsize>::default();
    std::thread::Builder::new()
        .name("wedge".into())
        .spawn(move || {
            loop {
                let has_room = busy.load(Ordering::Relaxed) < most;
                let accepted = has_room.then(|| listener.accept());
                let Some(Ok((client, _))) = accepted else {
                    std::thread::sleep(PAUSE);
                    continue;
                };
                busy.fetch_add(1, Ordering::Relaxed);
                let (support, adopter, busy) = (support.clone(), adopter.clone(), busy.clone());
                let ended = busy.clone();
                let work = move || {
                    if let Err(error) = go_on(client, &support, &adopter) {
                        eprintln!("wedge: {error}");
                    }
                    busy.fetch_sub(1, Ordering::Relaxed);
                };
                let builder = std::thread::Builder::new().name("wedge".into());
                if builder.spawn(work).is_err() {
                    ended.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
    Ok(())
}

/// Of one connection, to its end.
fn go_on(mut client: TcpStream, support: &Support, adopter: &Adopter) -> io::Result<()> {
    let seat = FlowKey {
        client: client.peer_addr()?,
        vip: client.local_addr()?,
    };
    // Somebody on this host has connected to the wedge itself.
    if seat.vip.port() == WEDGE_PORT {
        return Ok(());
    }
    // Until its answer is adopted, whatever ends it is a reset.
    reset_on_close(&client, true)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let Some(setup) = support.maps().setups.get(&seat.into())? else {
        return Ok(());
    };
    let mut flow = seat;
    if setup.origin != 0 {
        flow.client.set_port(u16::from_be(setup.origin));
    }
    let command = read_command(&mut client)?;
    let opened = Message::open(&command, &support.keys(), &flow);
    let Some(Message::Take(take)) = opened else {
        return Err(io::Error::other(format!("{flow:?}: no command of ours")));
    };
    let (rest, server, begun) = match find_rest(&take, &flow, support) {
        Ok(found) => found,
        Err(not_found) => return refuse(client, &take, &flow, support, not_found),
    };
    let adoption = Adoption {
        key: seat.into(),
        epoch: take.state.epoch,
        remaining: rest.length(),
        command: command.len() as u32,
        end: match rest.end {
            End::Length => ADOPTED_STAYS,
            End::Closes | End::Never => ADOPTED_CLOSES,
            End::UntilClose => ADOPTED_UNTIL_CLOSE,
        },
    };
    if !adopter.adopt(&adoption)? {
        return Err(io::Error::other(format!(
            "{flow:?}: it is another's by now"
        )));
    }
    // From here on its end in the midst of it is one more reason to go on elsewhere; of what ends
    // where we close, only its server's end may be taken for that.
    reset_on_close(&client, rest.end == End::UntilClose)?;
    support.maps().count("taken-over", 1)?;
    // As its own: so it can be taken over once more.
    let now_ms = clock::monotonic().as_millis() as u32;
    let clock_offset = take.state.clock.wrapping_sub(now_ms);
    support.hold(&flow, take.state.clone(), clock_offset);
    client.set_write_timeout(Some(CLIENTS_PATIENCE))?;
    client.set_nodelay(true)?;
    client.write_all(&rest.of_head)?;
    let mut found = (rest, server, begun);
    let mut had = take.had + found.0.of_head.len() as u64;
    loop {
        let (rest, server, begun) = &found;
        let before = had;
        match relay(server, &mut client, begun, rest, &mut had)? {
            Relayed::All => return finish(client),
            Relayed::ToClientsEnd => return Ok(()),
            Relayed::ToServersEnd if rest.end == End::UntilClose => {
                reset_on_close(&client, false)?;
                return finish(client);
            }
            Relayed::ToServersEnd if rest.end.is_open() || had == before => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Clients that are slow may be too slow for the server, and are not for us.
            Relayed::ToServersEnd => {
                let take = Take {
                    had,
                    ..take.clone()
                };
                found = find_rest(&take, &flow, support)
                    .map_err(|not_found| io::Error::other(not_found.why))?;
                support.maps().count("asked-anew", 1)?;
            }
        }
    }
}

/// The command, whole.
fn read_command(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut command = vec![0; state::HEAD_LEN];
    client.read_exact(&mut command)?;
    let length = state::length(&command).expect("a whole head");
    if length > parts::LONGEST {
        return Err(io::Error::other("no command of ours"));
    }
    command.resize(length, 0);
    client.read_exact(&mut command[state::HEAD_LEN..])?;
    Ok(command)
}

/// Why there is no rest here.
pub struct NotFound {
    /// Its server is not there just now: it has not been asked.
    pub is_away: bool,
    /// For people.
    pub why: String,
}

impl From<&str> for NotFound {
    fn from(why: &str) -> Self {
        Self {
            is_away: false,
            why: why.into(),
        }
    }
}

/// What is left, the server that is about to send it, and the first bytes of its body.
pub fn find_rest(
    take: &Take,
    flow: &FlowKey,
    support: &Support,
) -> Result<(Rest, TcpStream, Vec<u8>), NotFound> {
    let rest = Rest::of(&take.state.head, take.had).ok_or("nothing is left to go on with")?;
    let request = (rest.request(&take.state.request)).ok_or("its request cannot be asked again")?;
    let ask = || -> io::Result<(TcpStream, Vec<u8>)> {
        let mut server = connect(server_of(take, flow, support)?)?;
        server.set_read_timeout(Some(PATIENCE))?;
        server.write_all(&request)?;
        let answer = read_head(&mut server)?;
        Ok((server, answer))
    };
    let (server, mut answer) = ask().map_err(|error| NotFound {
        is_away: error.kind() == io::ErrorKind::ConnectionRefused,
        why: format!("its server does not answer: {error}"),
    })?;
    let body_at = (rest.judge(&answer)).map_err(|why| NotFound::from(&*why.to_string()))?;
    let begun = answer.split_off(body_at);
    Ok((rest, server, begun))
}

/// To the local server.
fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    // Before it is connected: the window is scaled by it.
    socket.set_recv_buffer_size(AHEAD)?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    Ok(socket.into())
}

/// Where the server listens that the client has asked.
fn server_of(take: &Take, flow: &FlowKey, support: &Support) -> io::Result<SocketAddr> {
    if take.server_port == 0 {
        return Ok(flow.vip);
    }
    let key = ServerKey {
        port: take.server_port.to_be_bytes(),
        pad: 0,
    };
    let named = support.maps().servers.get(&key)?;
    let address = named.map_or(flow.vip.ip(), |server| addr_from_bytes(server.addr));
    Ok((address, take.server_port).into())
}

/// The head of what a server answers, and perhaps more. What it says before that is not for us
/// (RFC 9110 §15.2).
fn read_head(server: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
        match end {
            Some(end) if is_interim(&answer) => {
                answer.drain(..end + 4);
                continue;
            }
            Some(_) => break,
            None if answer.len() >= HEAD_MAX => break,
            None => {}
        }
        match server.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// One that another head follows: 1xx, but for 101.
fn is_interim(head: &[u8]) -> bool {
    let status = head.split(|&byte| byte == b' ').nth(1);
    status.is_some_and(|status| status.starts_with(b"1") && status != b"101")
}

/// Never a byte that is not proved. Another backend may have it: until the dispatcher takes the
/// flow away, which resets the socket unseen by the client, it is told so.
fn refuse(
    mut client: TcpStream,
    take: &Take,
    flow: &FlowKey,
    support: &Support,
    NotFound { is_away, why }: NotFound,
) -> io::Result<()> {
    support.maps().count("not-same", 1)?;
    let line = take.state.request.split(|&b| b == b'\r').next();
    let line = String::from_utf8_lossy(line.unwrap_or(&[]));
    eprintln!(
        "{flow:?}: {line}: not gone on with after {} bytes: {why}",
        take.had
    );
    let epoch = take.state.epoch;
    let refusal = Message::Refusal {
        epoch,
        is_away,
        why,
    };
    client.set_read_timeout(Some(REFUSAL_INTERVAL))?;
    for _ in 0..REFUSALS {
        support.tell(flow, &refusal);
        match client.read(&mut [0; 512]) {
            Err(error) if is_no_end(&error) => {}
            Ok(count) if count > 0 => {}
            _ => break,
        }
    }
    Ok(())
}

/// Nothing has come yet, or the process was stopped meanwhile.
fn is_no_end(error: &io::Error) -> bool {
    [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind())
}

/// How far an answer was relayed.
enum Relayed {
    All,
    /// Or as long as it says something.
    ToServersEnd,
    /// As most streams are.
    ToClientsEnd,
}

/// What is left of the body, of which some bytes have been read; and of the answer, how many bytes the client was
/// given.
fn relay(
    server: &TcpStream,
    client: &mut TcpStream,
    begun: &[u8],
    rest: &Rest,
    had: &mut u64,
) -> io::Result<Relayed> {
    let mut left = rest.bytes.end - rest.bytes.start;
    let begun = &begun[..begun.len().min(left as usize)];
    if let Err(error) = client.write_all(begun) {
        return ended(error);
    }
    left -= begun.len() as u64;
    *had += begun.len() as u64;
    let mut pipe = Pipe::new()?;
    while left > 0 {
        let read = match pipe.fill(server, left.min(PIECE) as usize) {
            Ok(0) => return Ok(Relayed::ToServersEnd),
            Ok(read) => read,
            Err(error) if rest.end.is_open() && error.kind() == io::ErrorKind::WouldBlock => {
                if let Err(error) = is_there(client) {
                    return ended(error);
                }
                continue;
            }
            // Silent for too long, or it has reset the connection.
            Err(_) if !rest.end.is_open() => return Ok(Relayed::ToServersEnd),
            Err(error) => return Err(error),
        };
        let began = Instant::now();
        if let Err(error) = pipe.empty(client, read) {
            return ended(error);
        }
        left -= read as u64;
        *had += read as u64;
        // The kernel may have dropped what it had offered to take meanwhile, and the server's repeats it after
        // a timer that has doubled for as long.
        if began.elapsed() > SLOW && !rest.end.is_open() {
            server.set_read_timeout(Some(SLOW))?;
        }
    }
    Ok(Relayed::All)
}

/// A client that has gone is no error.
fn ended(error: io::Error) -> io::Result<Relayed> {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(Relayed::ToClientsEnd),
        _ => Err(error),
    }
}

/// A stream may be silent for long; a client that has gone meanwhile is seen here. One that has closed its
/// side alone has not.
fn is_there(client: &mut TcpStream) -> io::Result<()> {
    client.set_nonblocking(true)?;
    let heard = client.read(&mut [0; 512]);
    client.set_nonblocking(false)?;
    match heard {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// The flow is one without an owner from here on, once the client has all: the data path
/// turns the FIN round (docs/protocol/handoff.md 7). Or the client's connection closes,
/// as its answer has said.
fn finish(mut client: TcpStream) -> io::Result<()> {
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(CLIENTS_PATIENCE))?;
    let mut nothing = [0; 512];
    while client.read(&mut nothing).is_ok_and(|count| count > 0) {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_before_the_answer_is_passed_over() {
        const ANSWER: &[u8] = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx";
        let before: [&[u8]; 3] = [
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n",
            b"",
        ];
        for at in 0..before.len() {
            let said = [&before[at..].concat(), ANSWER].concat();
            assert_eq!(read_head(&mut &said[..]).unwrap(), ANSWER);
        }
        let other = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";
        assert_eq!(read_head(&mut &other[..]).unwrap(), other);
    }
}
