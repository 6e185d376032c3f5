//! Splice: a client's connection and the one that a dispatcher has opened to a server
//! without an agent, as one (docs/protocol/splice.md) [SPLICE06 §2, §6.2]. The second
//! begins at the client's own number, so what differs is: the server's numbers, its clock,
//! window scales, and options that it does not know. This is the model of what the data
//! path does (bpf/lib/splice.bpf.h); [`connect`] is how it comes about.

pub mod connect;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::flow::FlowKey;
use crate::seq::{ClientSeq, ServerSeq};
use crate::wire::meta::Sender;
use crate::wire::segment::Segment;
use crate::wire::tcp::{Flags, Header, SackBlocks};

/// The header of an empty segment from before what a server expects, whose socket says then what it has had of the
/// client, and takes nothing of it; one that it does not know it resets (RFC 9293 §3.8.4). As the client would have said
/// it, of which so much is known: what it has said (`next`, or less), and heard.
pub fn keep_alive(next: ClientSeq, heard: ServerSeq, window: u16) -> Header {
    Header {
        seq: next.raw().wrapping_sub(1),
        ack: heard.raw(),
        window,
        flags: Flags::ACK,
        ..Header::default()
    }
}

/// How the segments of a spliced flow change on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Ours, from which the connection to the server is; never port 0.
    pub own: SocketAddrV4,
    /// The server's port.
    pub server_port: u16,
    /// By how much the server's numbers that the client knows are ahead of its own.
    pub ahead: u32,
    /// The same of its timestamps.
    pub clock_ahead: u32,
    /// By how many bits the client's window field goes left (0..=14).
    pub to_server_shift: u8,
    /// The same of the server's; right if negative (-14..=14).
    pub to_client_shift: i8,
    /// The client has agreed to timestamps, the server has not (RFC 7323 §3.2).
    pub no_timestamps: bool,
    /// The same of explicit congestion notification (RFC 3168 §6.1.1).
    pub no_ecn: bool,
    /// The server's host rewrites what it says, as far as it knows the connection; the rest
    /// a dispatcher does.
    pub split: bool,
}

impl Splice {
    /// A client's header, as the server is to have it.
    pub fn to_server(&self, mut header: Header) -> Header {
        header.source_port = self.own.port();
        header.destination_port = self.server_port;
        if header.flags.has(Flags::ACK) {
            header.ack = header.ack.wrapping_sub(self.ahead);
        }
        header.window = shifted(header.window, self.to_server_shift.cast_signed());
        if self.no_ecn {
            header.flags = header.flags.without(Flags::ECE | Flags::CWR);
        }
        let options = &mut header.options;
        // It is a backend's with an agent, and nobody else's.
        options.aged = None;
        match &mut options.timestamps {
            clocks if self.no_timestamps => *clocks = None,
            Some(clocks) if clocks.echo != 0 => {
                clocks.echo = clocks.echo.wrapping_sub(self.clock_ahead);
            }
            _ => {}
        }
        let mut blocks = SackBlocks::default();
        for &(start, end) in options.sack.as_slice() {
            let own = |number: u32| number.wrapping_sub(self.ahead);
            blocks.push(own(start), own(end));
        }
        options.sack = blocks;
        header
    }

    /// A server's header, as that flow's client is to have it.
    pub fn to_client(&self, key: &FlowKey, mut header: Header) -> Header {
        header.source_port = key.vip.port();
        header.destination_port = key.client.port();
        header.seq = header.seq.wrapping_add(self.ahead);
        header.window = shifted(header.window, self.to_client_shift);
        if let Some(clocks) = &mut header.options.timestamps {
            clocks.value = clocks.value.wrapping_add(self.clock_ahead);
        }
        header
    }

    /// Where the server's socket stands, as the client knows it.
    pub fn as_known(&self, sender: Sender) -> Sender {
        Sender {
            next: sender.next + self.ahead,
            clock: match self.no_timestamps || self.clock_ahead == 0 {
                true => 0,
                false => sender.clock.wrapping_add(self.clock_ahead),
            },
            ..sender
        }
    }

    /// A client's segment, as the server at that address is to have it.
    pub fn segment(&self, server: Ipv4Addr, header: Header, payload: Vec<u8>) -> Segment {
        Segment {
            source: SocketAddr::V4(self.own),
            destination: SocketAddrV4::new(server, self.server_port).into(),
            header: self.to_server(header),
            payload,
        }
    }
}

/// RFC 7323 §2.2: a window field, where the other side shifts by another scale.
fn shifted(window: u16, by: i8) -> u16 {
    let bits = u32::from(by.unsigned_abs() & 15);
    match by < 0 {
        true => window >> bits,
        false => (u32::from(window) << bits).min(u16::MAX.into()) as u16,
    }
}
