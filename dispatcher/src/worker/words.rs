//! What a takeover says to a client, and to a wedge (docs/protocol/takeover.md 4.1, 4.3).

use std::net::{IpAddr, SocketAddrV4};

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::ClientSeq;
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{self, Meta};
use trapeze_core::wire::segment::Segment;
use trapeze_core::wire::tcp::{Flags, Header, Timestamps};

use super::State;
use crate::farewell;

impl State {
    /// What it has had by now, and its clock.
    pub(super) fn ask_client(&mut self, key: &FlowKey, clock: u32) {
        let Ok(Some(record)) = self.shared.records.get(key) else {
            return;
        };
        let (Ok(agreed), IpAddr::V4(client)) = (Meta::decode(&record.option), key.client.ip())
        else {
            return;
        };
        let timestamps = agreed.handshake.timestamps.then_some(Timestamps {
            value: clock,
            echo: 0,
        });
        let question = farewell::question(key, record.heard, record.next, timestamps);
        self.to_clients
            .push(SocketAddrV4::new(client, 0), |out| question.write(out));
    }

    /// What a wedge reads first, in as many segments as it takes; `header` is that of one of all,
    /// with the FIN that goes with the last.
    pub(super) fn take_datagrams(
        &self,
        key: &FlowKey,
        option: &meta::Raw,
        header: &Header,
        command: &[u8],
    ) -> Vec<Vec<u8>> {
        let most = usize::from(self.payload_max_of(header.options.timestamps.is_some()));
        let last = (command.len() - 1) / most;
        let pieces = command.chunks(most).enumerate().map(|(index, piece)| {
            let segment = Segment {
                payload: piece.to_vec(),
                ..Segment::of_client(
                    key,
                    Header {
                        seq: (ClientSeq::new(header.seq) + (index * most) as u32).raw(),
                        flags: match index == last {
                            true => header.flags,
                            false => header.flags.without(Flags::FIN),
                        },
                        ..*header
                    },
                )
            };
            let mut datagram = Vec::new();
            geneve::write(option, &segment.to_packet(), &mut datagram);
            datagram
        });
        pieces.collect()
    }
}
