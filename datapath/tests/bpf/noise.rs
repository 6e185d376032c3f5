//! No bytes upset the programs, and what carries no valid cookie or tag changes
//! no record: random frames, frames cut anywhere, valid frames with a few bytes
//! changed. Seeded, so that a failure comes again.

use std::net::{Ipv4Addr, SocketAddrV4};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Kind, Leave};
use trapeze_datapath::abi::FlowState;
use trapeze_datapath::map::Update;

use crate::agent::echo;
use crate::backend::{Agent, CONFIRMED, meta, sealed};
use crate::bench::*;
use crate::handshake::{Offer, THEIR_TIME};
use crate::kernel;
use crate::packet::*;

const ROUNDS: usize = 20_000;

/// Of flows that have a record, no packet of these may be: any packet ages them.
const BYSTANDER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 250), 9);

/// A frame that is none, or one of these, damaged.
fn damaged(random: &mut SmallRng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = match random.random_range(0..=seeds.len()) {
        0 => (0..random.random_range(34..200))
            .map(|_| random.random())
            .collect(),
        number => seeds[number - 1].clone(),
    };
    for _ in 0..random.random_range(0..=3) {
        let at = random.random_range(0..frame.len());
        frame[at] = match random.random_range(0..3) {
            0 => frame[at] ^ 1 << random.random_range(0..8),
            1 => [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)],
            _ => random.random(),
        };
    }
    match random.random_range(0..4) {
        // The kernel runs none at tc that are shorter than an IP header (6.18).
        0 => frame.truncate(random.random_range(34..=frame.len().max(35))),
        1 => frame.resize(frame.len() + random.random_range(1..100), 0xdd),
        _ => {}
    }
    frame
}

fn client_seeds() -> Vec<Vec<u8>> {
    let full = Offer {
        mss: Some(1460),
        scale: Some(9),
        sack: true,
        timestamps: true,
        ecn: true,
    };
    let quoted = Tcp {
        source: VIP,
        dest: BYSTANDER,
        ..segment(ACK, 1, 2, b"")
    };
    let error = icmp(NODE, *VIP.ip(), 3, 4, &quoted.packet()[..28]);
    let with_options = Tcp {
        options: timestamps(THEIR_TIME, 5),
        ..request()
    };
    vec![
        full.syn(VIP).frame(),
        segment(SYN, 1, 0, b"").frame_partial(),
        request().frame(),
        segment(ACK, 1, 2, b"").frame(),
        segment(ACK | FIN, 1, 2, b"").frame(),
        segment(RST, 1, 2, b"").frame(),
        with_options.frame(),
        ethernet(THEIR_MAC, OUR_MAC, 0x0800, &error),
    ]
}

#[test]
fn a_dispatcher_withstands_noise() {
    for bench in Bench::both() {
        let mut random = SmallRng::seed_from_u64(3);
        let seeds = client_seeds();
        for (port, state) in [(9, FlowState::Established), (10, FlowState::Reading)] {
            let key = flow_key(SocketAddrV4::new(*BYSTANDER.ip(), port), VIP);
            bench
                .maps
                .flows
                .put(&key, &record(state), Update::Any)
                .unwrap();
        }
        bench.run(&seeds[0]); // the next hop is known
        let before = bench.state();
        for round in 0..ROUNDS {
            let frame = damaged(&mut random, &seeds);
            let result = kernel::test_run(&bench.program, &frame);
            let hook = bench.hook;
            let (value, _) =
                result.unwrap_or_else(|e| panic!("{hook:?} {round}: {e}: {frame:02x?}"));
            let verdicts: &[u32] = match hook {
                Hook::Tc => &[u32::MAX, 0, 2, 7],
                Hook::Xdp => &[1, 2, 3, 4],
            };
            assert!(
                verdicts.contains(&value),
                "{hook:?} {round}: {value}: {frame:02x?}"
            );
        }
        let after = bench.state();
        assert_eq!(after, before, "{:?}", bench.hook);
    }
}

#[test]
fn an_agent_withstands_noise() {
    let agent = Agent::new();
    let mut random = SmallRng::seed_from_u64(4);
    agent.put_setup(&request(), EPOCH, request().seq, CONFIRMED);
    let error = icmp(NODE, *VIP.ip(), 3, 4, &request().packet()[..28]);
    let (end, reach) = (ServerSeq::new(6), ClientSeq::new(7));
    let kinds = [
        (Kind::Forward, EPOCH),
        (Kind::Probe, EPOCH),
        (Kind::Handoff { next: NODE }, EPOCH + 1),
        (
            Kind::Release {
                leave: Leave::HalfPipe,
                reach,
            },
            EPOCH + 1,
        ),
        (Kind::Gc { end, reach }, EPOCH),
        (Kind::Retired { end, reach }, EPOCH),
    ];
    let mut seeds: Vec<Vec<u8>> = kinds
        .into_iter()
        .flat_map(|(kind, epoch)| {
            let start = request().seq;
            let later = segment(ACK, start.wrapping_add(5), 6, b"more");
            [request(), later].map(|tcp| sealed(&meta(kind, epoch, start), &tcp.packet()))
        })
        .collect();
    seeds.push(sealed(&meta(Kind::Icmp, EPOCH, 1), &error));
    seeds.push(sealed(&meta(Kind::Echo, EPOCH, 1), &echo()));
    for seed in &mut seeds {
        // So far from a good tag that no few changes make it one.
        let tag = ETHERNET + 28 + 12 + 24;
        seed[tag..tag + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    let before = agent.maps.setups.all().unwrap();
    for round in 0..ROUNDS {
        let frame = damaged(&mut random, &seeds);
        for (what, program) in [("ingress", &agent.ingress), ("egress", &agent.egress)] {
            let result = kernel::test_run(program, &frame);
            let (value, packet) =
                result.unwrap_or_else(|e| panic!("{what} {round}: {e}: {frame:02x?}"));
            match value {
                u32::MAX => assert_eq!(packet, frame, "{what} {round}: passes untouched"),
                2 => assert_eq!(what, "ingress", "{round}: egress drops nothing"),
                _ => panic!("{what} {round}: {value}: {frame:02x?}"),
            }
        }
    }
    assert_eq!(agent.maps.setups.all().unwrap(), before);
}
