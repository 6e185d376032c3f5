//! Raw IPv4 packets from addresses that are not bound to a socket: the
//! dispatcher speaks as the VIP. And the gratuitous ARP.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::abi;
use crate::udp::{BATCH, Outbox, send_batch, set_option};

/// Sends whole IPv4 packets.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
}

impl RawSocket {
    /// Needs CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        // An agent on this host would take it for its server's.
        Self::with_mark(abi::PASS_BY_MARK)
    }

    /// Of packets that an agent's egress turns round, to the socket that they seem to come from.
    pub fn to_own_sockets() -> io::Result<Self> {
        Self::with_mark(abi::TURN_MARK)
    }

    fn with_mark(mark: u32) -> io::Result<Self> {
        let fd = socket(libc::AF_INET, libc::IPPROTO_RAW)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 4i32 << 20)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        Ok(Self { fd })
    }

    /// Sends packets, each with its IPv4 header, to the address given with it.
    /// Returns how many could not be sent.
    pub fn send(&self, packets: &Outbox) -> usize {
        let batches = packets.entries().chunks(BATCH);
        batches
            .map(|batch| send_batch(&self.fd, packets.bytes(), batch))
            .sum()
    }
}

/// Announces an IPv4 address as being here (RFC 5227 §3); nothing to do for IPv6 yet.
pub(crate) fn gratuitous_arp(address: IpAddr, interface: &str) -> io::Result<()> {
    let IpAddr::V4(address) = address else {
        return Ok(());
    };
    let index = crate::host::ifindex(interface)?;
    let mac = mac_address(interface)?;
    let fd = socket(libc::AF_PACKET, 0)?;
    let mut frame = [0u8; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // ARP for IPv4 over Ethernet, a request about ourselves.
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac);
    frame[28..32].copy_from_slice(&Ipv4Addr::octets(&address));
    frame[38..42].copy_from_slice(&Ipv4Addr::octets(&address));
    let to = packet_address(index);
    // SAFETY: a whole frame and a whole sockaddr_ll.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as u32,
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Where packet sockets are bound, and frames are sent (packet(7)).
pub(crate) fn packet_address(ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = ifindex as i32;
    address
}

/// The link address of an interface.
pub fn mac_address(interface: &str) -> io::Result<[u8; 6]> {
    let answer = ask(interface, libc::SIOCGIFHWADDR)?;
    // SAFETY: filled by the call.
    let data = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|i| data[i] as u8))
}

/// Whether something is at the other end of an interface's cable, and is up.
pub fn has_carrier(interface: &str) -> io::Result<bool> {
    let answer = ask(interface, libc::SIOCGIFFLAGS)?;
    // SAFETY: filled by the call.
    let flags = unsafe { answer.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_RUNNING != 0)
}

/// What the kernel says of an interface (netdevice(7)): `what` is a request that reads the name, and writes the rest.
fn ask(interface: &str, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    let fd = socket(libc::AF_INET, libc::IPPROTO_RAW)?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    // SAFETY: it writes no more than an ifreq.
    if unsafe { libc::ioctl(fd.as_raw_fd(), what as _, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

pub(crate) fn socket(family: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
