//! How a dispatcher opens a connection to a server without having a TCP endpoint: its SYN
//! has the client's number, and offers what the client has agreed to. What the server says
//! to it makes the [`Splice`].

use std::net::SocketAddrV4;
use std::time::Duration;

use super::Splice;
use crate::config::Transfer;
use crate::flow::Handshake;
use crate::intake::Isns;
use crate::seq::ClientSeq;
use crate::wire::meta::{Care, Kind, Meta};
use crate::wire::segment::Segment;
use crate::wire::tcp::{Flags, Header, Options, Timestamps};

/// A server that is there answers within this; then the SYN goes out again, and after twice as
/// long again and again. RFC 6298 §2.1 has a second for strangers, who are farther away.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// What gets lost is lost because somebody has just died, not because the link is full.
const LONGEST_RETRY: Duration = Duration::from_millis(400);
/// After so long another server is asked.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// A port's earlier connections are ended so often before another port is taken.
const RESETS: u32 = 3;
/// RFC 9293 §3.7.1: what has not said.
const DEFAULT_MSS: u16 = 536;

/// A connection to a server that is being opened.
#[derive(Clone, Debug)]
pub struct Connect {
    transfer: Transfer,
    own: SocketAddrV4,
    server: SocketAddrV4,
    isns: Isns,
    handshake: Handshake,
    clocks: Option<Timestamps>,
    retry_at: Duration,
    retry_after: Duration,
    gives_up: Duration,
    resets: u32,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet.
    Wait,
    /// These go to the server.
    Send(Vec<Segment>),
    /// It is open.
    Open(Open),
    /// Nobody listens there.
    Refused,
    /// Nobody answers, or only about connections that were there before.
    Unreachable,
}

/// A connection that is open, but for the segment that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// How its segments and the client's relate.
    pub splice: Splice,
    /// The most payload of one segment to the server, in bytes.
    pub mss: u16,
    /// The server's clock in its SYN-ACK; 0: it has agreed to none.
    pub clock: u32,
}

impl Connect {
    /// Begins one for the client's connection with those beginnings and that handshake, and
    /// the latest timestamps, if there are; and the first SYN.
    pub fn begin(
        now: Duration,
        transfer: Transfer,
        (own, server): (SocketAddrV4, SocketAddrV4),
        isns: Isns,
        (handshake, clocks): (Handshake, Option<Timestamps>),
    ) -> (Self, Segment) {
        let connect = Self {
            transfer,
            own,
            server,
            isns,
            handshake,
            clocks: clocks.filter(|_| handshake.timestamps),
            retry_at: now + FIRST_RETRY,
            retry_after: FIRST_RETRY,
            gives_up: now + PATIENCE,
            resets: 0,
        };
        let syn = connect.syn();
        (connect, syn)
    }

    /// The server's address.
    pub fn server(&self) -> SocketAddrV4 {
        self.server
    }

    /// Ours.
    pub fn own(&self) -> SocketAddrV4 {
        self.own
    }

    /// When [`Self::on_timeout`] wants to be called.
    pub fn due(&self) -> Duration {
        self.retry_at.min(self.gives_up)
    }

    /// The time that was asked for has come.
    pub fn on_timeout(&mut self, now: Duration) -> Step {
        if now >= self.gives_up {
            return Step::Unreachable;
        }
        if now < self.retry_at {
            return Step::Wait;
        }
        self.retry_after = (self.retry_after * 2).min(LONGEST_RETRY);
        self.retry_at = now + self.retry_after;
        Step::Send(vec![self.syn()])
    }

    /// A segment of the server's (RFC 9293 §3.10.7.3, SYN-SENT).
    pub fn on_segment(&mut self, header: &Header) -> Step {
        let ours = header.ack == (self.isns.client + 1).raw();
        let flags = header.flags;
        match () {
            () if flags.has(Flags::RST | Flags::ACK) && ours => Step::Refused,
            () if flags.has(Flags::RST) => Step::Wait,
            () if flags.has(Flags::SYN | Flags::ACK) && ours => Step::Open(self.open(header)),
            // It has a connection of ours of before, perhaps in TIME-WAIT.
            () if flags.has(Flags::ACK) && !ours => {
                self.resets += 1;
                if self.resets > RESETS {
                    return Step::Unreachable;
                }
                Step::Send(vec![self.reset(header.ack), self.syn()])
            }
            () => Step::Wait,
        }
    }

    /// What the server's host is to know before the server answers, if that is to rewrite the
    /// answers: the option around each SYN. With `care` it knows where they end.
    pub fn word(&self, care: Care) -> Option<Meta> {
        (self.transfer == Transfer::SplitSplice).then(|| Meta {
            kind: Kind::Split {
                own: self.own,
                server_isn: self.isns.server,
                echo: self.clocks.map_or(0, |clocks| clocks.echo),
            },
            epoch: 0,
            start: ClientSeq::new(0),
            handshake: self.handshake,
            server_port: self.server.port(),
            requests: 0,
            care,
        })
    }

    /// What ends the connection for the server, whatever it has heard of it.
    pub fn abandon(&self) -> Segment {
        self.reset((self.isns.client + 1).raw())
    }

    fn open(&self, answer: &Header) -> Open {
        let agreed = &self.handshake;
        let scales = agreed.window_scales;
        let theirs = answer.options.window_scale.filter(|_| scales.is_some());
        let ours = scales.map_or(0, |scales| scales.ours.min(14));
        let server_clock = answer.options.timestamps.map(|clocks| clocks.value);
        let clocks = self.clocks.zip(server_clock);
        let splice = Splice {
            own: self.own,
            server_port: self.server.port(),
            ahead: self.isns.server.raw().wrapping_sub(answer.seq),
            clock_ahead: clocks.map_or(0, |(client, server)| client.echo.wrapping_sub(server)),
            // A server that does not scale takes the client's field as it is.
            to_server_shift: match (scales, theirs) {
                (Some(scales), None) => scales.client.min(14),
                _ => 0,
            },
            to_client_shift: theirs.unwrap_or(0).min(14).cast_signed() - ours.cast_signed(),
            no_timestamps: agreed.timestamps && clocks.is_none(),
            no_ecn: agreed.ecn && !answer.flags.has(Flags::ECE),
            split: self.transfer == Transfer::SplitSplice,
        };
        Open {
            splice,
            mss: answer.options.mss.unwrap_or(DEFAULT_MSS).max(1),
            clock: clocks.map_or(0, |(_, server)| server),
        }
    }

    fn syn(&self) -> Segment {
        let agreed = &self.handshake;
        let ecn = match agreed.ecn {
            true => Flags::ECE | Flags::CWR,
            false => Flags::default(),
        };
        let options = Options {
            mss: Some(agreed.mss),
            window_scale: agreed.window_scales.map(|scales| scales.client),
            sack_permitted: agreed.sack,
            timestamps: self.clocks.map(|clocks| Timestamps {
                value: clocks.value,
                echo: 0,
            }),
            ..Options::default()
        };
        self.segment(Header {
            seq: self.isns.client.raw(),
            flags: Flags::SYN | ecn,
            window: u16::MAX,
            options,
            ..Header::default()
        })
    }

    fn reset(&self, seq: u32) -> Segment {
        self.segment(Header {
            seq,
            flags: Flags::RST,
            ..Header::default()
        })
    }

    fn segment(&self, header: Header) -> Segment {
        Segment {
            source: self.own.into(),
            destination: self.server.into(),
            header,
            payload: Vec::new(),
        }
    }
}
