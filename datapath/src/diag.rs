//! The kernel's sockets by NETLINK_SOCK_DIAG: which TCP ports have listeners on this host
//! (it looks at listeners only, however many connections there are), and the end of one
//! connection's socket.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use trapeze_core::flow::FlowKey;

const TCP_LISTEN: u32 = 10;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_HEADER: usize = 16;
const REQUEST: usize = NLMSG_HEADER + 56;

/// Which socket of a 4-tuple: another one that takes its place has another cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie([u8; 8]);

/// The socket that a connection has on this host. Not the listener, which the kernel finds
/// for every client that has none.
///
/// # Errors
/// IPv6 is not supported yet.
pub fn find(flow: &FlowKey) -> io::Result<Option<Cookie>> {
    let bytes = about(flow, SOCK_DIAG_BY_FAMILY, libc::NLM_F_REQUEST, ANY)?;
    let answer = ask(&bytes)?;
    if u16::from_ne_bytes([answer[4], answer[5]]) == SOCK_DIAG_BY_FAMILY {
        // struct inet_diag_msg: the cookie ends its inet_diag_sockid.
        if u32::from(answer[17]) == TCP_LISTEN {
            return Ok(None);
        }
        let cookie = answer.get(60..68).and_then(|at| at.first_chunk());
        return Ok(cookie.copied().map(Cookie));
    }
    found(&answer).map(|_| None)
}

/// Removes that socket of a connection, as a reset would; whether it was there still.
///
/// # Errors
/// The kernel lacks INET_DIAG_DESTROY, or we the right to. IPv6 is not supported yet.
pub fn destroy(flow: &FlowKey, cookie: Cookie) -> io::Result<bool> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    found(&ask(&about(flow, SOCK_DESTROY, flags, cookie)?)?)
}

const ANY: Cookie = Cookie([0xff; 8]);

/// A request about one connection's socket: struct inet_diag_sockid has our port and the
/// other's, our address and the other's, and the cookie.
fn about(flow: &FlowKey, kind: u16, flags: i32, cookie: Cookie) -> io::Result<[u8; REQUEST]> {
    let (IpAddr::V4(client), IpAddr::V4(vip)) = (flow.client.ip(), flow.vip.ip()) else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let mut bytes = request(libc::AF_INET as u8);
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    bytes[20..24].fill(0xff);
    bytes[24..26].copy_from_slice(&flow.vip.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&flow.client.port().to_be_bytes());
    bytes[28..32].copy_from_slice(&vip.octets());
    bytes[44..48].copy_from_slice(&client.octets());
    bytes[64..72].copy_from_slice(&cookie.0);
    Ok(bytes)
}

fn ask(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let fd = open()?;
    send(&fd, bytes)?;
    let mut answer = vec![0u8; 1024];
    // SAFETY: a whole buffer.
    let length = unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if length < (NLMSG_HEADER + 4) as isize {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(length as usize);
    Ok(answer)
}

/// Of an NLMSG_ERROR.
fn found(answer: &[u8]) -> io::Result<bool> {
    let code = i32::from_ne_bytes(*answer[NLMSG_HEADER..].first_chunk().expect("long enough"));
    match -code {
        0 => Ok(true),
        libc::ENOENT | libc::ESTALE => Ok(false),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The ports on which something listens, over IPv4 or IPv6.
pub fn listening_ports() -> io::Result<BTreeSet<u16>> {
    let fd = open()?;
    let mut ports = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        send(&fd, &request(family as u8))?;
        while read_answer(&fd, &mut ports)? {}
    }
    Ok(ports)
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            NETLINK_SOCK_DIAG,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// struct nlmsghdr, struct inet_diag_req_v2 (linux/inet_diag.h).
fn request(family: u8) -> [u8; REQUEST] {
    let mut bytes = [0u8; REQUEST];
    bytes[0..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = libc::IPPROTO_TCP as u8;
    bytes[20..24].copy_from_slice(&(1u32 << TCP_LISTEN).to_ne_bytes());
    bytes
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a whole buffer.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// False at the end of the dump.
fn read_answer(fd: &OwnedFd, ports: &mut BTreeSet<u16>) -> io::Result<bool> {
    let mut buffer = [0u8; 32768];
    // SAFETY: a whole buffer.
    let length = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut rest = &buffer[..length as usize];
    while rest.len() >= NLMSG_HEADER {
        let size = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        if kind != SOCK_DIAG_BY_FAMILY || size < NLMSG_HEADER + 8 || size > rest.len() {
            return Ok(false); // NLMSG_DONE or NLMSG_ERROR
        }
        // struct inet_diag_msg: family, state, timer, retrans, then the socket's own port.
        ports.insert(u16::from_be_bytes([rest[20], rest[21]]));
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
    }
    Ok(true)
}
