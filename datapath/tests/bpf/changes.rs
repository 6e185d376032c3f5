//! How the daemon changes a record that packets change meanwhile.

use trapeze_core::membership::lots::NOBODY;
use trapeze_datapath::abi::{Flow, FlowState, MARK_HELD};
use trapeze_datapath::dispatcher::FlowChanged;
use trapeze_datapath::map::Update;

use crate::bench::*;
use crate::keeper::{Daemon, among};
use crate::packet::{ACK, PSH};

fn key() -> trapeze_datapath::abi::FlowKey {
    flow_key(CLIENT, VIP)
}

/// The record, and what the daemon makes of it: held, and with a later boundary.
fn read_and_changed(bench: &Bench) -> (Flow, Flow) {
    bench.put_flow(&established());
    let before = bench.flow();
    let mut after = before;
    after.marks |= MARK_HELD;
    after.next = after.next.wrapping_add(100);
    after.requests += 1;
    after.meta[7] = after.meta[7].wrapping_add(1);
    (before, after)
}

#[test]
fn what_packets_have_said_meanwhile_stays() {
    for bench in Bench::both() {
        among(&bench, |_| NOBODY, Daemon::Fit);
        let (before, after) = read_and_changed(&bench);
        let packet = segment(ACK | PSH, CLIENT_ISN + 1, SERVER_ISN + 1, REQUEST);
        bench.run(&packet.frame());
        let meanwhile = bench.flow();
        assert_eq!(meanwhile.packets, before.packets + 1);
        assert_ne!(meanwhile.last_seq, before.last_seq);
        assert_ne!(meanwhile.lot, before.lot);

        let changed = bench.changer.change(&key(), &before, &after).unwrap();
        assert_eq!(changed, FlowChanged::Yes);
        let expected = Flow {
            last_seq: meanwhile.last_seq,
            last_ack: meanwhile.last_ack,
            window: meanwhile.window,
            packets: meanwhile.packets,
            bytes: meanwhile.bytes,
            last_seen_ns: meanwhile.last_seen_ns,
            lot: meanwhile.lot,
            ..after
        };
        assert_eq!(bench.flow(), expected);
    }
}

#[test]
fn what_was_read_too_long_ago_changes_nothing() {
    type Change = fn(&mut Flow);
    let changes: [(&str, Change); 6] = [
        ("another owner", |flow| flow.backend += 1),
        ("another epoch", |flow| flow.meta[4] ^= 1),
        ("a later boundary", |flow| flow.next += 1),
        ("held", |flow| flow.marks ^= MARK_HELD),
        ("closed", |flow| flow.state = FlowState::ClientFin as u32),
        ("being changed", |flow| flow.busy = 1),
    ];
    for bench in Bench::both() {
        for (what, change) in changes {
            let (before, after) = read_and_changed(&bench);
            let mut now = before;
            change(&mut now);
            bench.maps.flows.put(&key(), &now, Update::Replace).unwrap();
            let changed = bench.changer.change(&key(), &before, &after).unwrap();
            assert_eq!(changed, FlowChanged::Stale, "{what}");
            assert_eq!(bench.flow(), now, "{what}");
        }
        let (before, after) = read_and_changed(&bench);
        bench.reset();
        let changed = bench.changer.change(&key(), &before, &after).unwrap();
        assert_eq!(changed, FlowChanged::Gone);
        assert_eq!(bench.state().flows, []);
    }
}
