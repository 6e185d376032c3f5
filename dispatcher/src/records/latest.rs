//! A flow's latest request, as its record has it: what it has come to, and how the next
//! one takes its place. The data path does the same (bpf/lib/flow.bpf.h, boundary.bpf.h).

use std::time::Duration;

use trapeze_core::seq::ServerSeq;
use trapeze_datapath::abi::{Finished, Flow};

use crate::cluster::Choice;

/// What it has come to, if nobody has been told yet. Its backend has had `stood` placed by
/// decisions that stand.
pub(super) fn finished(flow: &Flow, stood: u64) -> Option<Finished> {
    let bytes = match flow.is_answered() {
        true => flow.last_ack.wrapping_sub(flow.asked_ack),
        false => 0,
    };
    (flow.report != 0).then(|| Finished {
        object: flow.object,
        bytes: bytes.into(),
        elapsed_ns: flow.acked_ns.saturating_sub(flow.asked_ns),
        ended_ns: if bytes > 0 { flow.acked_ns } else { 0 },
        charge_us: flow.charge_us,
        shared: flow.shared,
        pool: flow.pool,
        slot: flow.backend,
        kind: flow.kind,
        class: flow.class,
        lost: (bytes == 0).into(),
        stood: stood as u32,
    })
}

/// The owner has been given another one, the client having `heard` so much: because it
/// was chosen, if `choice` says so. What is to be told is of the one before, and of this
/// one too if that has not been answered: nobody can tell their answers apart.
pub(super) fn replace(
    flow: &mut Flow,
    heard: ServerSeq,
    choice: Option<&Choice>,
    stood: u64,
    now: Duration,
) -> [Option<Finished>; 2] {
    let mut told = [finished(flow, stood), None];
    let answered = flow.is_answered();
    flow.report = 0;
    flow.requests += 1;
    flow.asked_ack = heard.raw();
    flow.asked_ns = now.as_nanos() as u64;
    let Some(choice) = choice else { return told };
    let placed = &choice.placed;
    flow.pool = choice.pool.0.into();
    flow.object = placed.request.object;
    flow.kind = placed.request.kind.number();
    flow.class = placed.request.class as u8;
    flow.acked_ns = 0;
    flow.shared = placed.shared;
    flow.report = placed.report.into();
    // Those of a client that does not wait for answers are finished together.
    let before_us = std::mem::replace(&mut flow.charge_us, placed.charge_us);
    if !answered {
        told[1] = finished(flow, stood);
        flow.report = 0;
    }
    flow.charge_us = flow.charge_us.wrapping_add(before_us);
    told
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use trapeze_core::config::{PoolNumber, Retry, Transfer};
    use trapeze_core::policy::{Class, Kind, Request};
    use trapeze_datapath::abi::Pod;

    use super::*;
    use crate::memory::Placed;

    const NOW: Duration = Duration::from_secs(5);

    /// Of pool 1 and object 7; placed a second ago, charged 300.
    fn flow() -> Flow {
        Flow {
            backend: 3,
            pool: 1,
            object: 7,
            kind: 9,
            charge_us: 300,
            shared: 2,
            report: 1,
            requests: 1,
            asked_ack: 1000,
            last_ack: 1000,
            asked_ns: 4_000_000_000,
            ..Flow::zeroed()
        }
    }

    fn answered() -> Flow {
        Flow {
            last_ack: 6000,
            acked_ns: 4_500_000_000,
            ..flow()
        }
    }

    /// Of pool 2 and object 8, charged 50.
    fn choice() -> Choice {
        let request = Request {
            kind: Kind::new(4),
            ..Request::new(8, Class::Dynamic)
        };
        Choice {
            transfer: Transfer::Rebuild,
            slot: 3,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            server_port: 0,
            pool: PoolNumber(2),
            retry: Retry::default(),
            placed: Placed {
                request,
                charge_us: 50,
                shared: 4,
                report: true,
            },
        }
    }

    fn ask(flow: &mut Flow, choice: Option<&Choice>) -> [Option<Finished>; 2] {
        replace(flow, ServerSeq::new(flow.last_ack), choice, 77, NOW)
    }

    #[test]
    fn the_answered_one_is_told_before_the_next_takes_its_place() {
        let mut flow = answered();
        let [Some(before), None] = ask(&mut flow, Some(&choice())) else {
            panic!("the one before is told, and no other");
        };
        assert_eq!((before.object, before.pool, before.slot), (7, 1, 3));
        assert_eq!((before.bytes, before.lost, before.stood), (5000, 0, 77));
        assert_eq!(before.elapsed_ns, 500_000_000);
        assert_eq!(
            (flow.object, flow.pool, flow.kind, flow.shared),
            (8, 2, 4, 4)
        );
        assert_eq!((flow.class, flow.report), (Class::Dynamic as u8, 1));
        assert_eq!((flow.asked_ack, flow.asked_ns), (6000, 5_000_000_000));
        assert_eq!((flow.requests, flow.acked_ns), (2, 0));
        assert_eq!(finished(&flow, 0).map(|told| told.lost), Some(1));
    }

    #[test]
    fn of_what_is_not_answered_in_between_both_are_unseen() {
        let mut flow = flow();
        let [Some(before), Some(next)] = ask(&mut flow, Some(&choice())) else {
            panic!("both are told");
        };
        assert_eq!((before.object, before.lost, before.charge_us), (7, 1, 300));
        assert_eq!((next.object, next.lost, next.charge_us), (8, 1, 50));
        assert_eq!((next.pool, next.bytes), (2, 0));
        assert_eq!((flow.report, flow.charge_us), (0, 350), "still charged");
        // The next one is not answered in between either, and the first is told once.
        let third = ask(&mut flow, Some(&choice()));
        assert!(third[0].is_none() && third[1].is_some());
        assert_eq!(flow.charge_us, 400);
    }

    #[test]
    fn what_was_not_chosen_is_nothing_that_anybody_wants_to_hear_of() {
        let mut flow = answered();
        let told = ask(&mut flow, None);
        assert!(told[0].is_some_and(|before| before.object == 7) && told[1].is_none());
        assert_eq!((flow.report, flow.asked_ack, flow.pool), (0, 6000, 1));
        assert_eq!(finished(&flow, 0), None);
    }
}
