//! A dispatcher's own ways into its data path.
//!
//! What its daemon has held of a client's stream goes there in segments as long as the kernel's own, and is cut as late
//! as those (GSO). One by one, as datagrams, they would cost the way through this host's stack each
//! (docs/decisions/0035). And packets of clients come in once more, as if they came from them.
//!
//! They go by the loopback device (bpf/dispatch_tc.bpf.c), which is to be up.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use trapeze_core::wire::segment::Segment;

use crate::abi;
use crate::attach::LOOPBACK_IFINDEX;
use crate::raw;
use crate::udp::set_option;

/// The most payload of one segment, in bytes: with all headers in front of it an IP packet has room for it.
pub const LONGEST: usize = 60_000;

/// Its frames begin with what the kernel is to do with them (`struct virtio_net_hdr`, VIRTIO 1.2 §5.1.6).
const OFFLOAD: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const ETHERNET: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const IPV4: usize = 20;
/// Of a TCP header.
const CHECKSUM_AT: u16 = 16;

/// A packet socket at the loopback device, for one of them.
#[derive(Debug)]
pub struct Inlet {
    fd: OwnedFd,
    mac: [u8; 6],
}

/// What is to go there, in order.
#[derive(Debug, Default)]
pub struct InletFrames {
    frames: Vec<Vec<u8>>,
}

impl InletFrames {
    /// Adds a segment between two IPv4 addresses, to be cut into pieces of at most `mss` bytes of payload.
    pub fn push(&mut self, segment: &Segment, mss: u16) {
        let mut frame = vec![0; OFFLOAD + ETHERNET];
        segment.write_uncompleted(&mut frame);
        let headers = frame.len() - OFFLOAD - segment.payload.len();
        frame[0] = NEEDS_CHECKSUM;
        if segment.payload.len() > mss.into() {
            frame[1] = GSO_TCPV4;
            frame[4..6].copy_from_slice(&mss.to_ne_bytes());
        }
        frame[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        frame[6..8].copy_from_slice(&((ETHERNET + IPV4) as u16).to_ne_bytes());
        frame[8..10].copy_from_slice(&CHECKSUM_AT.to_ne_bytes());
        frame[OFFLOAD + 12..OFFLOAD + ETHERNET].copy_from_slice(&ETHERTYPE_IPV4);
        self.frames.push(frame);
    }

    /// Adds a whole IPv4 packet, as it is.
    pub fn push_packet(&mut self, packet: &[u8]) {
        let mut frame = vec![0; OFFLOAD + ETHERNET];
        frame[OFFLOAD + 12..].copy_from_slice(&ETHERTYPE_IPV4);
        frame.extend_from_slice(packet);
        self.frames.push(frame);
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.frames.clear();
    }
}

impl Inlet {
    /// For what was held, at the dispatcher whose data path is at `interface`. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// There is no such interface, or the kernel has no such sockets.
    pub fn of_held(interface: &str) -> io::Result<Self> {
        Self::with_mark(interface, abi::HELD_MARK)
    }

    /// For clients' packets.
    ///
    /// # Errors
    /// As of [`Self::of_held`].
    pub fn of_clients(interface: &str) -> io::Result<Self> {
        Self::with_mark(interface, abi::AGAIN_MARK)
    }

    fn with_mark(interface: &str, mark: u32) -> io::Result<Self> {
        let mac = raw::mac_address(interface)?;
        let fd = raw::socket(libc::AF_PACKET, 0)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 8i32 << 20)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1i32)?;
        let name = raw::packet_address(LOOPBACK_IFINDEX);
        // SAFETY: a whole sockaddr_ll.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const name).cast(),
                size_of_val(&name) as u32,
            )
        };
        match bound {
            0 => Ok(Self { fd, mac }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends segments; those that the kernel has no room for are lost, as on any network. Returns how many.
    ///
    /// # Errors
    /// The loopback device is down.
    pub fn send(&self, segments: &mut InletFrames) -> io::Result<usize> {
        let mut lost = 0;
        for frame in &mut segments.frames {
            frame[OFFLOAD..OFFLOAD + 6].copy_from_slice(&self.mac);
            // SAFETY: a whole frame, which is only read.
            let sent = unsafe {
                libc::send(
                    self.fd.as_raw_fd(),
                    frame.as_ptr().cast(),
                    frame.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if sent >= 0 {
                continue;
            }
            match io::Error::last_os_error() {
                down if down.kind() == io::ErrorKind::NetworkDown => return Err(down),
                _ => lost += 1,
            }
        }
        Ok(lost)
    }
}
