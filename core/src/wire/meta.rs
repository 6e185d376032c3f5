//! The option of our encapsulation: what one node tells another about the
//! packet enclosed (`struct meta` in bpf/include/abi/wire.h has the layout), and the
//! tag that proves it.
//!
//! The tag binds the option to the node it is for and to the flow, not to the
//! packet: one option serves every packet of a flow until the next handoff, and
//! segmentation offload may cut packets as it likes.

use crate::flow::{Handshake, WindowScales};
use crate::seq::ClientSeq;

mod keys;
mod kind;

pub use keys::{Binding, Keys, TagError, key_id, tag};
pub use kind::{CAME_AGAIN, Held, Kind, Leave, Refusal, Sender, Vacancy};

use kind::write_end;

/// Bytes of the option without its header.
pub const LEN: usize = 32;
/// Bytes before the tag.
const TAG_AT: usize = 24;
const VERSION: u8 = 1;
const MAX_WINDOW_SHIFT: u8 = 14; // RFC 7323 §2.3

/// The option's bytes, as they travel.
pub type Raw = [u8; LEN];

/// What one node tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// What for.
    pub kind: Kind,
    /// Raised by every handoff of the flow, so that late news loses. In a
    /// request: that of the connection which had the 4-tuple before; 0: none.
    pub epoch: u32,
    /// The client's sequence number at which a request starts.
    pub start: ClientSeq,
    /// What the handshake agreed.
    pub handshake: Handshake,
    /// Where the server listens; 0: on the VIP's own port.
    pub server_port: u16,
    /// Requests that an owner has been given, or answers that it has given, modulo
    /// 2^16, in the kinds that speak of them.
    pub requests: u16,
    /// What a backend is to do about the answers.
    pub care: Care,
}

/// What a backend is to do about the answers of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Care {
    /// Know where each of them ends.
    pub follow: bool,
    /// The request at `start` is a HEAD: its answer has no body.
    pub head: bool,
    /// The client's connection outlives a server that closes without owing one.
    pub outlive: bool,
    /// Its socket may wait for the flow to come back, when another backend has got it.
    pub park: bool,
    /// The request at `start` is kept: where the server closes on it, another one is given it. In FORWARD alone.
    pub kept: bool,
}

/// An option that this version does not understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Another version of the protocol.
    #[error("version {0} of the encapsulation: are all nodes up to date?")]
    Version(u8),
    /// An unknown kind.
    #[error("unknown kind {0}: are all nodes up to date?")]
    Kind(u8),
    /// An unknown reason.
    #[error("unknown reason {0}: are all nodes up to date?")]
    Reason(u8),
    /// A window shift above 14.
    #[error("a window shift above 14")]
    WindowScale,
}

impl Meta {
    /// A word that says nothing of a flow: all but its kind is 0.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            epoch: 0,
            start: ClientSeq::new(0),
            handshake: Handshake::default(),
            server_port: 0,
            requests: 0,
            care: Care::default(),
        }
    }

    /// The option's bytes, tagged for `binding` with the signing key.
    pub fn seal(&self, keys: &Keys, binding: &Binding) -> Raw {
        keys.seal_again(&self.encode(keys.signing_id()), binding)
    }

    /// The option's bytes with a tag of zeros.
    pub fn encode(&self, key_id: u8) -> Raw {
        let mut raw = [0; LEN];
        let (kind, reason, value) = self.kind.encode();
        let value = match self.kind {
            Kind::SplitRelease { .. } => self.start.raw(),
            _ => value,
        };
        let reason = match self.kind {
            Kind::Forward if self.care.kept => FORWARD_KEPT,
            _ => reason,
        };
        raw[..4].copy_from_slice(&[VERSION, kind, key_id, reason]);
        raw[4..8].copy_from_slice(&self.epoch.to_be_bytes());
        raw[8..12].copy_from_slice(&self.start.raw().to_be_bytes());
        raw[12..16].copy_from_slice(&handshake_bytes(&self.handshake));
        raw[15] |= self.care.bits();
        raw[16..18].copy_from_slice(&self.server_port.to_be_bytes());
        raw[18..20].copy_from_slice(&self.requests.to_be_bytes());
        match self.kind {
            Kind::Released { clock, .. } => raw[12..16].copy_from_slice(&clock.to_be_bytes()),
            Kind::Elsewhere { end, .. } => raw[12..16].copy_from_slice(&end.raw().to_be_bytes()),
            Kind::Gc { reach, .. } | Kind::Retired { reach, .. } => {
                raw[12..16].copy_from_slice(&reach.raw().to_be_bytes());
            }
            Kind::ProbeAnswer {
                sender: Some(sender),
                ..
            } => {
                raw[12..16].copy_from_slice(&sender.clock.to_be_bytes());
                raw[16..20].copy_from_slice(&sender.next.raw().to_be_bytes());
            }
            Kind::Split { own, echo, .. } => {
                raw[4..8].copy_from_slice(&echo.to_be_bytes());
                write_end(own, &mut raw);
            }
            Kind::SplitProbe { own } => write_end(own, &mut raw),
            Kind::SplitRelease { own, reach } => {
                write_end(own, &mut raw);
                let ahead = self.start.distance_to(reach).clamp(0, 0xff_ffff) as u32;
                let [_, high, low @ ..] = ahead.to_be_bytes();
                raw[3] = high;
                raw[12..14].copy_from_slice(&self.requests.to_be_bytes());
                raw[14..16].copy_from_slice(&low);
            }
            _ => {}
        }
        raw[20..24].copy_from_slice(&value.to_be_bytes());
        raw
    }

    /// Reads an option, whatever its tag says: see [`Keys::verify`].
    pub fn decode(raw: &Raw) -> Result<Self, MetaError> {
        if raw[0] != VERSION {
            return Err(MetaError::Version(raw[0]));
        }
        let kind = Kind::decode(raw)?;
        let says_where = matches!(
            kind,
            Kind::ProbeAnswer {
                sender: Some(_),
                ..
            }
        );
        // Another word stands where others have the handshake.
        let has_handshake = !says_where
            && !matches!(
                kind,
                Kind::Released { .. }
                    | Kind::Elsewhere { .. }
                    | Kind::Gc { .. }
                    | Kind::Retired { .. }
                    | Kind::SplitRelease { .. }
            );
        let (epoch, start, requests) = match kind {
            Kind::Split { .. } => (0, 0, 0),
            Kind::SplitProbe { .. } => (u32_at(raw, 4), 0, 0),
            Kind::SplitRelease { .. } => (u32_at(raw, 4), u32_at(raw, 20), u16_at(raw, 12)),
            _ if says_where => (u32_at(raw, 4), u32_at(raw, 8), 0),
            _ => (u32_at(raw, 4), u32_at(raw, 8), u16_at(raw, 18)),
        };
        Ok(Self {
            kind,
            epoch,
            start: ClientSeq::new(start),
            handshake: if has_handshake {
                handshake(raw)?
            } else {
                Handshake::default()
            },
            server_port: if says_where { 0 } else { u16_at(raw, 16) },
            requests,
            care: if has_handshake {
                Care {
                    kept: kind == Kind::Forward && raw[3] & FORWARD_KEPT != 0,
                    ..Care::of(raw[15])
                }
            } else {
                Care::default()
            },
        })
    }
}

const WINDOW_SCALE: u8 = 1;
const SACK: u8 = 2;
const TIMESTAMPS: u8 = 4;
const ECN: u8 = 8;

/// Of a FORWARD's reason.
const FORWARD_KEPT: u8 = 1;
/// The same; the tag does not cover it.
const FORWARD_BEGINS: u8 = 2;
/// *kind* of a FORWARD.
const FORWARD: u8 = 1;

const FOLLOW: u8 = 16;
const HEAD: u8 = 32;
const OUTLIVE: u8 = 64;
const PARK: u8 = 128;

/// A FORWARD's option for the packet with whose payload a request begins (handoff.md 3.5a).
pub fn begins(mut raw: Raw) -> Raw {
    if raw[1] == FORWARD {
        raw[3] |= FORWARD_BEGINS;
    }
    raw
}

/// The option as it was sealed, whether a request begins with its packet or not.
pub fn as_sealed(mut raw: Raw) -> Raw {
    if raw[1] == FORWARD {
        raw[3] &= !FORWARD_BEGINS;
    }
    raw
}

impl Care {
    /// Its bits among the TCP options, as they travel.
    pub fn bits(self) -> u8 {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        bit(self.follow, FOLLOW)
            | bit(self.head, HEAD)
            | bit(self.outlive, OUTLIVE)
            | bit(self.park, PARK)
    }

    fn of(bits: u8) -> Self {
        Self {
            follow: bits & FOLLOW != 0,
            head: bits & HEAD != 0,
            outlive: bits & OUTLIVE != 0,
            park: bits & PARK != 0,
            kept: false,
        }
    }
}

/// A handshake's four bytes, as in the option.
pub fn handshake_bytes(handshake: &Handshake) -> [u8; 4] {
    let scales = handshake.window_scales;
    let [a, b] = handshake.mss.to_be_bytes();
    let scales = scales.map_or(0, |scales| scales.client << 4 | scales.ours & 0xf);
    [a, b, scales, option_bits(handshake)]
}

/// The inverse of [`handshake_bytes`]; none if a window shift is above 14.
pub fn handshake_of(bytes: [u8; 4]) -> Option<Handshake> {
    let mut raw = [0; LEN];
    raw[12..16].copy_from_slice(&bytes);
    handshake(&raw).ok()
}

fn option_bits(handshake: &Handshake) -> u8 {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    bit(handshake.window_scales.is_some(), WINDOW_SCALE)
        | bit(handshake.sack, SACK)
        | bit(handshake.timestamps, TIMESTAMPS)
        | bit(handshake.ecn, ECN)
}

fn handshake(raw: &Raw) -> Result<Handshake, MetaError> {
    let options = raw[15];
    let window_scales = (options & WINDOW_SCALE != 0).then_some(WindowScales {
        client: raw[14] >> 4,
        ours: raw[14] & 0xf,
    });
    if window_scales.is_some_and(|s| s.client > MAX_WINDOW_SHIFT || s.ours > MAX_WINDOW_SHIFT) {
        return Err(MetaError::WindowScale);
    }
    Ok(Handshake {
        mss: u16_at(raw, 12),
        window_scales,
        sack: options & SACK != 0,
        timestamps: options & TIMESTAMPS != 0,
        ecn: options & ECN != 0,
    })
}

fn u16_at(raw: &Raw, at: usize) -> u16 {
    u16::from_be_bytes([raw[at], raw[at + 1]])
}

fn u32_at(raw: &Raw, at: usize) -> u32 {
    u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

#[cfg(test)]
mod tests;
