//! The client's TCP: just enough of RFC 9293 to be a fair partner, with
//! Nagle's algorithm (RFC 896), and retransmission after a silence.

use super::*;

const FIRST_SILENCE: Duration = Duration::from_millis(200);
const LONGEST_SILENCE: Duration = Duration::from_secs(2);

pub(super) struct Client {
    pub(super) stream: Vec<u8>,
    /// Where the head ends.
    pub(super) head: usize,
    /// The application writes so many bytes at once, and so often.
    chunk: usize,
    pause: Duration,
    written: usize,
    nagle: bool,
    closes: bool,
    mss: usize,
    acked: usize,
    next: usize,
    furthest: usize,
    edge: usize,
    silence: Duration,
    silent_until: Option<Duration>,
    echo: u32,
    /// To send the first unacknowledged bytes once more, before their time.
    again: bool,
}

impl Client {
    pub(super) fn new(rng: &mut SmallRng, head: usize, body: usize) -> Self {
        let mut stream = b"GET / HTTP/1.1\r\nA: ".to_vec();
        stream.extend((stream.len()..head - 4).map(|_| rng.random_range(b'a'..=b'z')));
        stream.extend_from_slice(b"\r\n\r\n");
        stream.extend((0..body).map(|_| rng.random::<u8>()));
        let slowly = rng.random_bool(0.5);
        let chunk = if slowly {
            stream.len() / rng.random_range(10..200) + 1
        } else {
            stream.len()
        };
        Self {
            stream,
            head,
            chunk,
            pause: ms(rng.random_range(0..20)),
            written: 0,
            nagle: rng.random(),
            closes: rng.random_bool(0.3),
            mss: *[100, 536, 1448].get(rng.random_range(0..3)).unwrap(),
            acked: 0,
            next: 0,
            furthest: 0,
            edge: 65535,
            silence: FIRST_SILENCE,
            silent_until: None,
            echo: OUR_CLOCK,
            again: false,
        }
    }

    /// The application writes; says when it will again.
    pub(super) fn write(&mut self) -> Option<Duration> {
        self.written = self.stream.len().min(self.written + self.chunk);
        (self.written < self.stream.len()).then_some(self.pause)
    }

    /// The number behind everything, FIN included.
    pub(super) fn end(&self) -> usize {
        self.stream.len() + usize::from(self.closes)
    }

    pub(super) fn done(&self) -> bool {
        self.acked == self.end()
    }

    pub(super) fn send(&mut self, rng: &mut SmallRng, now: Duration) -> Vec<Packet> {
        let mut packets = Vec::new();
        if std::mem::take(&mut self.again) {
            let sent = self.next.min(self.stream.len());
            packets.push(Packet {
                at: self.acked,
                payload: self.stream[self.acked..sent.min(self.acked + self.mss)].to_vec(),
                fin: false,
                clocks: Some((now.as_millis() as u32, self.echo)),
            });
        }
        while let Some(packet) = self.next_packet(rng, now) {
            self.next = packet.at + packet.payload.len() + usize::from(packet.fin);
            self.furthest = self.furthest.max(self.next);
            packets.push(packet);
        }
        if !packets.is_empty() && self.silent_until.is_none() {
            self.silent_until = Some(now + self.silence);
        }
        packets
    }

    fn next_packet(&self, rng: &mut SmallRng, now: Duration) -> Option<Packet> {
        let sendable = self.written.min(self.edge).saturating_sub(self.next);
        let mut len = sendable.min(self.mss);
        if self.nagle && len < self.mss && self.next > self.acked && self.next == self.furthest {
            return None;
        }
        if len > 1 && rng.random_bool(0.1) {
            len = rng.random_range(1..len);
        }
        let fin = self.closes && self.next + len == self.stream.len();
        if len == 0 && !fin {
            return None;
        }
        Some(Packet {
            at: self.next,
            payload: self.stream[self.next..self.next + len].to_vec(),
            fin,
            clocks: Some((now.as_millis() as u32, self.echo)),
        })
    }

    pub(super) fn on_ack(&mut self, ack: Ack, now: Duration) {
        assert!(ack.at <= self.furthest, "acknowledged what was not sent");
        self.edge = self.edge.max(ack.edge);
        self.echo = self.echo.max(ack.clock);
        // RFC 5681 §3.2, but hastier: disorder looks like loss.
        self.again = ack.at == self.acked && ack.at < self.next.min(self.stream.len());
        if ack.at > self.acked {
            self.acked = ack.at;
            self.next = self.next.max(ack.at);
            self.silence = FIRST_SILENCE;
            self.silent_until = (self.acked < self.furthest).then(|| now + self.silence);
        }
    }

    /// Sends everything again that has not been acknowledged for too long.
    pub(super) fn on_timer(&mut self, now: Duration) {
        if self.silent_until.is_some_and(|until| until <= now) {
            self.next = self.acked;
            self.silence = (self.silence * 2).min(LONGEST_SILENCE);
            self.silent_until = None;
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.silent_until
    }
}
