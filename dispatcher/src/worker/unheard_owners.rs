//! Clients that ask ahead, and do not hear who has their next request: its owner comes after an older one, and says what
//! it says from where its answer begins, which may lie beyond the client's window. What lies there is not taken (RFC 9293
//! §3.10.7.4), acknowledgements included: the client would repeat that request for as long as the older answer lasts, and
//! then measure a round trip of as long, so that whatever is lost later is repeated as late
//! (docs/protocol/handoff.md 6.7c).

use std::collections::HashMap;
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::intake::Arrived;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Meta, Sender};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header};

use super::State;
use crate::records::Record;

/// An owner that has not said a word by then is asked when the client repeats itself again.
const WORD: Duration = Duration::from_millis(500);
/// Clients that wait for an owner's word, at most.
const MOST: usize = 1024;

/// Repetitions whose owners are asked, by what their clients said last.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    all: HashMap<FlowKey, (Duration, Arrived<'static>)>,
}

impl State {
    /// The client repeats the beginning of its owner's part, and has not heard all that was said before that one began
    /// to: if the owner has it, the client is told.
    pub(super) fn ask_for_client(&mut self, now: Duration, record: &Record, arrived: &Arrived<'_>) {
        self.count("repeated-unheard");
        let all = &mut self.repeated.all;
        if all.len() >= MOST {
            all.retain(|_, (asked, _)| now < *asked + WORD);
        }
        if all.len() >= MOST {
            return;
        }
        let said = Arrived {
            key: arrived.key,
            isns: arrived.isns,
            cookie: arrived.cookie,
            later: true,
            handshake: arrived.handshake,
            header: arrived.header,
            payload: &[],
            checksum: arrived.checksum,
        };
        all.insert(arrived.key, (now, said));
        let header = Header {
            flags: Flags::ACK,
            ..arrived.header
        };
        let segment = Segment::of_client(&arrived.key, header);
        self.probe(&arrived.key, record, segment);
    }

    /// An owner says how far it has come. The client that has repeated itself is told.
    pub(super) fn tell_client(
        &mut self,
        key: &FlowKey,
        received: ClientSeq,
        sender: Option<Sender>,
    ) {
        let Some((_, said)) = self.repeated.all.remove(key) else {
            return;
        };
        let (Some(sender), Ok(Some(record))) = (sender, self.shared.records.get(key)) else {
            return;
        };
        if record.cookie == said.cookie && (record.isns.client + 1).before(received) {
            let (heard, window) = (ServerSeq::new(said.header.ack), said.header.window);
            let sender = within_window(&record, (heard, window), sender);
            self.intake.reassure(&said, received, sender);
            self.act();
        }
    }
}

/// Where an owner's socket stands, for what is said to the client in its place.
pub(super) fn as_client_takes_it(record: Option<&Record>, sender: Sender) -> Sender {
    match record.filter(|record| record.splice.is_none()) {
        Some(record) => within_window(record, (record.heard, record.window), sender),
        None => sender,
    }
}

/// While the client hears an older owner, the newest one's numbers may lie beyond its window: then the last one in it.
fn within_window(record: &Record, (heard, window): (ServerSeq, u16), sender: Sender) -> Sender {
    let hears_older = heard.before(record.isns.server + 1);
    let shift = Meta::decode(&record.option).map_or(0, |meta| meta.handshake.client_shift());
    let edge = heard + (u32::from(window) << shift).saturating_sub(1);
    match hears_older && edge.before(sender.next) {
        true => Sender {
            next: edge,
            ..sender
        },
        false => sender,
    }
}

/// The client says the first bytes of its owner's part once more, and had not heard, when it did, all that was said before
/// the owner was to begin. One rebuilt from that would begin to send where its predecessor has
/// (docs/protocol/handoff.md 6.7); the data path does not send it there either.
pub(super) fn would_start_too_early(record: &Record, arrived: &Arrived<'_>) -> bool {
    let Header { seq, ack, .. } = arrived.header;
    !arrived.payload.is_empty()
        && ClientSeq::new(seq) == record.isns.client + 1
        && ServerSeq::new(ack).before(record.isns.server + 1)
}
