//! Packets that no TCP of ours sends.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Options, Timestamps};
use trapeze_core::wire::{checksum, ipv4};
use trapeze_datapath::clock;
use trapeze_datapath::packet_socket::{Batch, PacketSocket};

use crate::cluster::until;

/// Sends whole IPv4 packets from the calling thread's network.
pub struct RawSender(Socket);

impl RawSender {
    /// Opens it.
    ///
    /// # Panics
    /// CAP_NET_RAW is missing.
    pub fn open() -> Self {
        let protocol = Protocol::from(255); // IPPROTO_RAW: headers included
        Self(Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).expect("CAP_NET_RAW"))
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Those of sendto; a full queue is none.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let to: [u8; 4] = packet[16..20].try_into().expect("an IPv4 header");
        let to = SocketAddr::from(SocketAddrV4::new(Ipv4Addr::from(to), 0));
        match self.0.send_to(packet, &to.into()) {
            Err(error) if error.raw_os_error() != Some(105) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a segment.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_segment(&self, segment: &Segment) -> io::Result<()> {
        self.send(&segment.to_packet())
    }
}

/// A TCP client of its own, at an address that no kernel holds: it decides
/// which segments there are, and sees each one that arrives.
///
/// The lab's hosts must know that the address is at c1: [`Cluster::lend_address`].
///
/// [`Cluster::lend_address`]: crate::Cluster::lend_address
pub struct RawClient {
    interface: PacketSocket,
    batch: Batch,
    sender: RawSender,
    client: SocketAddrV4,
    server: SocketAddrV4,
    isn: u32,
    server_isn: u32,
    latest_timestamp: u32,
    received: Vec<u8>,
    largest: usize,
    ended: Option<Flags>,
    acknowledged: u32,
    outdated: usize,
    sacked: Vec<Range<usize>>,
}

/// What a raw client announces, unshifted.
const WINDOW: u16 = 8192;
const WINDOW_SCALE: u8 = 7;

impl RawClient {
    /// Connects to `server` from `client`.
    ///
    /// # Panics
    /// No SYN-ACK comes.
    pub fn connect(client: SocketAddrV4, server: SocketAddrV4) -> Self {
        let mut raw = Self::connect_silently(client, server);
        raw.acknowledge();
        raw
    }

    /// As [`Self::connect`], but the ACK that ends the handshake is not sent,
    /// as if the network had lost it.
    ///
    /// # Panics
    /// As [`Self::connect`].
    pub fn connect_silently(client: SocketAddrV4, server: SocketAddrV4) -> Self {
        let mut raw = Self {
            interface: PacketSocket::open("eth0").expect("c1's interface"),
            batch: Batch::default(),
            sender: RawSender::open(),
            client,
            server,
            isn: 0x7fff_f000 ^ u32::from(client.port()) << 8,
            server_isn: 0,
            latest_timestamp: 0,
            received: Vec::new(),
            largest: 0,
            ended: None,
            acknowledged: 0,
            outdated: 0,
            sacked: Vec::new(),
        };
        let syn = raw.segment(raw.isn, Flags::SYN, b"");
        raw.sender.send_segment(&syn).expect("the SYN is sent");
        until("the SYN-ACK comes", || {
            raw.receive();
            (raw.server_isn != 0).then_some(())
        });
        raw
    }

    /// Sends bytes that stand at `offset` of the client's stream.
    pub fn send(&mut self, offset: usize, bytes: &[u8]) {
        self.send_with(offset, Flags::ACK | Flags::PSH, bytes);
    }

    /// As [`Self::send`], with other flags.
    pub fn send_with(&mut self, offset: usize, flags: Flags, bytes: &[u8]) {
        let seq = self.isn.wrapping_add(1).wrapping_add(offset as u32);
        let segment = self.segment(seq, flags, bytes);
        self.sender.send_segment(&segment).expect("it is sent");
    }

    /// Acknowledges what has been received in order.
    pub fn acknowledge(&mut self) {
        self.send(self.acknowledged as usize, b"");
    }

    /// Receives until `enough`; acknowledges each arrival.
    pub fn receive_until(&mut self, what: &str, mut enough: impl FnMut(&Self) -> bool) {
        until(what, || {
            if self.receive() {
                self.acknowledge();
            }
            enough(self).then_some(())
        });
    }

    /// Receives what comes until `enough`, and acknowledges nothing.
    pub fn hear_until(&mut self, what: &str, mut enough: impl FnMut(&Self) -> bool) {
        until(what, || {
            self.receive();
            enough(self).then_some(())
        });
    }

    /// As [`Self::hear_until`], but no longer than that. False: in vain.
    pub fn hear_for(&mut self, time: Duration, mut enough: impl FnMut(&Self) -> bool) -> bool {
        let start = Instant::now();
        while !enough(self) && start.elapsed() < time {
            self.receive();
            std::thread::sleep(Duration::from_millis(5));
        }
        enough(self)
    }

    /// As if only so many bytes had arrived.
    pub fn lose_behind(&mut self, bytes: usize) {
        self.received.truncate(bytes);
    }

    /// Receives until `enough`, and acknowledges over and over what has come, as what answers
    /// each segment that it has had does.
    pub fn repeat_until(&mut self, what: &str, mut enough: impl FnMut(&Self) -> bool) {
        until(what, || {
            self.receive();
            self.acknowledge();
            enough(self).then_some(())
        });
    }

    /// What has been received in order.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// How much of our stream has been acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged as usize
    }

    /// How many segments with payload have acknowledged less than one before them. A client does
    /// not take the clock of such a one.
    pub fn outdated(&self) -> usize {
        self.outdated
    }

    /// What the latest acknowledgement says has come beyond that (RFC 2018).
    pub fn sacked(&self) -> &[Range<usize>] {
        &self.sacked
    }

    /// The flags with which the other side ended it, once it has.
    pub fn ended(&self) -> Option<Flags> {
        self.ended
    }

    /// The longest IP packet since the last call.
    pub fn take_largest(&mut self) -> usize {
        std::mem::take(&mut self.largest)
    }

    /// Tells the server that a packet was too long for a link (RFC 1191 §4).
    pub fn say_fragmentation_needed(&self, mtu: u16) {
        self.send_icmp(3, 4, mtu);
    }

    /// Sends an ICMP error about the server's latest segment.
    pub fn send_icmp(&self, kind: u8, code: u8, mtu: u16) {
        let next = self.server_isn.wrapping_add(1 + self.received.len() as u32);
        let quoted = Segment {
            source: self.server.into(),
            destination: self.client.into(),
            header: Header {
                seq: next,
                flags: Flags::ACK,
                ..Header::default()
            },
            payload: Vec::new(),
        };
        let mut icmp = vec![kind, code, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(&quoted.to_packet()[..28]);
        let sum = checksum::Sum::default().plus(&icmp).finish();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = Vec::new();
        let (from, to) = (*self.client.ip(), *self.server.ip());
        ipv4::write_header(from, to, 1, icmp.len(), &mut packet);
        packet.extend(icmp);
        self.sender.send(&packet).expect("it is sent");
    }

    fn segment(&self, seq: u32, flags: Flags, payload: &[u8]) -> Segment {
        let is_syn = flags.has(Flags::SYN);
        let next = self.server_isn.wrapping_add(1 + self.received.len() as u32);
        Segment {
            source: self.client.into(),
            destination: self.server.into(),
            header: Header {
                seq,
                ack: if is_syn { 0 } else { next },
                flags,
                window: WINDOW,
                options: Options {
                    mss: is_syn.then_some(1460),
                    window_scale: is_syn.then_some(WINDOW_SCALE),
                    sack_permitted: is_syn,
                    timestamps: Some(Timestamps {
                        value: clock::monotonic().as_millis() as u32,
                        echo: self.latest_timestamp,
                    }),
                    ..Options::default()
                },
                ..Header::default()
            },
            payload: payload.to_vec(),
        }
    }

    /// True if a segment with something in it has arrived.
    fn receive(&mut self) -> bool {
        let wait = std::time::Duration::from_millis(20);
        self.interface
            .wait(Some(wait))
            .expect("the interface is up");
        let mut batch = std::mem::take(&mut self.batch);
        self.interface
            .receive(&mut batch)
            .expect("the interface is up");
        let mut news = false;
        for frame in batch.frames() {
            news |= self.on_frame(frame);
        }
        self.batch = batch;
        news
    }

    fn on_frame(&mut self, frame: &[u8]) -> bool {
        let Some((0x0800, ip)) = frame.get(12..).and_then(|rest| {
            let (kind, ip) = rest.split_first_chunk::<2>()?;
            Some((u16::from_be_bytes(*kind), ip))
        }) else {
            return false;
        };
        let Ok(packet) = ipv4::Packet::parse(ip) else {
            return false;
        };
        if packet.protocol() != ipv4::PROTOCOL_TCP || packet.destination() != *self.client.ip() {
            return false;
        }
        let Ok((header, payload)) = Header::parse(packet.payload()) else {
            return false;
        };
        if header.destination_port != self.client.port() {
            return false;
        }
        self.on_segment(&header, payload);
        self.largest = self.largest.max(payload.len() + 52);
        !payload.is_empty() || header.flags.has(Flags::FIN)
    }

    fn on_segment(&mut self, header: &Header, payload: &[u8]) {
        if let Some(timestamps) = header.options.timestamps {
            self.latest_timestamp = timestamps.value;
        }
        if header.flags.has(Flags::RST) {
            self.ended = Some(header.flags);
            return;
        }
        if header.flags.has(Flags::SYN) {
            self.server_isn = header.seq;
            return;
        }
        let acknowledged = header.ack.wrapping_sub(self.isn.wrapping_add(1));
        if acknowledged < 1 << 30 {
            self.outdated += usize::from(!payload.is_empty() && acknowledged < self.acknowledged);
            self.acknowledged = self.acknowledged.max(acknowledged);
        }
        let place = |seq: u32| seq.wrapping_sub(self.isn.wrapping_add(1)) as usize;
        let blocks = header.options.sack.as_slice().iter();
        self.sacked = blocks.map(|&(from, to)| place(from)..place(to)).collect();
        let next = self.server_isn.wrapping_add(1 + self.received.len() as u32);
        let known = next.wrapping_sub(header.seq) as usize;
        if known <= payload.len() {
            self.received.extend_from_slice(&payload[known..]);
            if header.flags.has(Flags::FIN) {
                self.ended = Some(header.flags);
            }
        }
    }
}
