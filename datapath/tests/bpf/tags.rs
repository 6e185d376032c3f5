//! Rust and BPF agree on the keyed hash: what one seals the other opens, for
//! any option, addresses and ports (seeded).

use std::net::{Ipv4Addr, SocketAddrV4};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use trapeze_core::flow::{Handshake, WindowScales};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::geneve;
use trapeze_core::wire::meta::{Care, Kind, Meta, Refusal};
use trapeze_datapath::abi::{Flow, FlowState, Pod};
use trapeze_datapath::map::{Update, fill_tag_keys};

use crate::backend::{Agent, DISPATCHER, reply, sealed};
use crate::bench::*;
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const ROUNDS: usize = 500;

fn any_handshake(random: &mut SmallRng) -> Handshake {
    let scales = random.random::<bool>().then(|| WindowScales {
        client: random.random_range(0..=14),
        ours: random.random_range(0..=14),
    });
    Handshake {
        mss: random.random(),
        window_scales: scales,
        sack: random.random(),
        timestamps: random.random(),
        ecn: random.random(),
    }
}

fn any_segment(random: &mut SmallRng) -> Tcp {
    let (length, client) = (random.random_range(1..1200), random.random::<u32>());
    Tcp {
        source: SocketAddrV4::new(Ipv4Addr::from_bits(client), random.random()),
        payload: (0..length).map(|_| random.random()).collect(),
        ..segment(ACK, random.random(), random.random(), b"")
    }
}

fn any_keys(random: &mut SmallRng) -> [trapeze_core::config::ClusterKey; 2] {
    KEY_IDS.map(|id| trapeze_core::config::ClusterKey {
        id,
        secret: random.random(),
    })
}

#[test]
fn what_the_dispatcher_seals_rust_opens() {
    let mut random = SmallRng::seed_from_u64(1);
    for bench in Bench::both() {
        for round in 0..ROUNDS {
            let keys = any_keys(&mut random);
            if round % 50 == 0 {
                fill_tag_keys(&bench.maps.tag_keys, &keys).unwrap();
            } else {
                // One slot is enough, and quick.
                let word =
                    |at: usize| u64::from_le_bytes(*keys[0].secret[at..].first_chunk().unwrap());
                let key = trapeze_datapath::abi::SiphashKey {
                    k0: word(0),
                    k1: word(8),
                    generation: 1,
                };
                bench
                    .maps
                    .tag_keys
                    .put(&KEY_IDS[0].into(), &key, Update::Any)
                    .unwrap();
            }
            let tcp = any_segment(&mut random);
            let (isns, handshake) = (
                [random.random(), random.random()],
                any_handshake(&mut random),
            );
            let meta = Meta {
                kind: Kind::Request {
                    server_isn: ServerSeq::new(isns[1]),
                },
                epoch: 0,
                start: ClientSeq::new(isns[0]) + 1,
                handshake,
                server_port: 0,
                requests: 0,
                care: Care::default(),
            };
            let key = flow_key(tcp.source, tcp.dest);
            let flow = Flow {
                meta: meta.encode(0),
                client_isn: isns[0],
                server_isn: isns[1],
                state: FlowState::Reading as u32,
                ..Flow::zeroed()
            };
            bench.maps.flows.put(&key, &flow, Update::Any).unwrap();
            let packet = bench.run(&tcp.frame()).packet.expect("to the daemon");
            bench.maps.flows.delete(&key).unwrap();
            let keys = trapeze_core::wire::meta::Keys::new(&keys).unwrap();
            let opened = geneve::open(&packet[ETHERNET + 28..], NODE.into(), &keys);
            let opened = opened.unwrap_or_else(|e| panic!("{:?}: {tcp:?}: {e}", bench.hook));
            assert_eq!(opened.meta, meta);
            assert_eq!(opened.inner, tcp.packet());
        }
    }
}

/// No server listens: a packet that is believed comes back, sealed by the agent.
#[test]
fn what_rust_seals_the_agent_opens_and_the_other_way_round() {
    let mut random = SmallRng::seed_from_u64(2);
    let agent = Agent::new();
    for _ in 0..ROUNDS {
        let tcp = any_segment(&mut random);
        let said = Meta {
            kind: Kind::Forward,
            epoch: random.random(),
            start: ClientSeq::new(tcp.seq),
            handshake: any_handshake(&mut random),
            server_port: random.random(),
            requests: 0,
            care: Care::default(),
        };
        let refused = Meta {
            kind: Kind::Refused(Refusal::NoListener),
            ..said
        };
        let frame = reply(&refused, &tcp);
        let expected = Outcome::new(Verdict::SendBack, frame, &["no-listener", "refused"]);
        agent.expect(
            &format!("{said:?}"),
            &sealed(&said, &tcp.packet()),
            &expected,
        );
        let payload = &expected.packet.as_ref().unwrap()[ETHERNET + 28..];
        let opened = geneve::open(payload, DISPATCHER.into(), &keys()).unwrap();
        assert_eq!(opened.meta, refused);
    }
}
