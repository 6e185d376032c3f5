//! The Rust mirror of bpf/include/abi.h against the types that the compiled
//! objects carry (BTF), and its constants against the header's text. Needs no root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use libbpf_rs::HasSize;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Composite, CompositeMember, MemberAttr};
use std::net::Ipv4Addr;
use trapeze_core::config::SprayMode;
use trapeze_core::flow::{Handshake, WindowScales};
use trapeze_core::head::Expected;
use trapeze_core::membership::{Presence, SprayState, lots};
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{self, Care, Held, Kind, Leave, Meta, Refusal};
use trapeze_core::wire::{geneve, meta as wire_meta};
use trapeze_datapath::abi::{self, FlowState};

const HEADER: &str = concat!(
    include_str!("../../bpf/include/abi/agent.h"),
    include_str!("../../bpf/include/abi/answers.h"),
    include_str!("../../bpf/include/abi/counters.h"),
    include_str!("../../bpf/include/abi/flow.h"),
    include_str!("../../bpf/include/abi/handshake.h"),
    include_str!("../../bpf/include/abi/node.h"),
    include_str!("../../bpf/include/abi/placing.h"),
    include_str!("../../bpf/include/abi/splice.h"),
    include_str!("../../bpf/include/abi/wire.h"),
);
const OBJECTS: [(&str, &str); 5] = [
    ("dispatch_tc", concat!(env!("OUT_DIR"), "/dispatch_tc.o")),
    ("dispatch_xdp", concat!(env!("OUT_DIR"), "/dispatch_xdp.o")),
    ("agent", concat!(env!("OUT_DIR"), "/agent.o")),
    ("spray_tc", concat!(env!("OUT_DIR"), "/spray_tc.o")),
    ("spray_xdp", concat!(env!("OUT_DIR"), "/spray_xdp.o")),
];

/// Size, and each field's offset.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    size: usize,
    fields: Vec<(String, usize)>,
}

/// A struct of an object, if it uses it.
fn layout_in(btf: &Btf, name: &str) -> Option<Layout> {
    let found: Composite = btf.type_by_name(name)?;
    Some(Layout {
        size: found.size(),
        fields: fields(&found),
    })
}

fn fields(of: &Composite) -> Vec<(String, usize)> {
    let name_and_offset = |member: CompositeMember| {
        let name = member.name.expect("no anonymous field").to_str().unwrap();
        let MemberAttr::Normal { offset } = member.attr else {
            panic!("{name} is a bit field");
        };
        (name.to_owned(), offset as usize / 8)
    };
    of.iter().map(name_and_offset).collect()
}

type Mirror = (&'static str, usize, &'static [(&'static str, usize)]);

fn mirror_layout(mirror: &Mirror) -> Layout {
    let fields = mirror.2.iter();
    Layout {
        size: mirror.1,
        fields: fields.map(|&(name, at)| (name.to_owned(), at)).collect(),
    }
}

/// FlowKey is flow_key in C.
fn c_name(rust: &str) -> String {
    let mut name = String::new();
    for (at, letter) in rust.char_indices() {
        if letter.is_uppercase() && at > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[test]
fn every_struct_is_the_same_in_rust_and_c() {
    let mirrors: [Mirror; 39] = [
        abi::Splice::LAYOUT,
        abi::Spliced::LAYOUT,
        abi::Split::LAYOUT,
        abi::FlowKey::LAYOUT,
        abi::ServiceKey::LAYOUT,
        abi::Service::LAYOUT,
        abi::Flow::LAYOUT,
        abi::Finished::LAYOUT,
        abi::Feedback::LAYOUT,
        abi::HealthWord::LAYOUT,
        abi::Backend::LAYOUT,
        abi::BackendLoad::LAYOUT,
        abi::SiphashKey::LAYOUT,
        abi::Node::LAYOUT,
        abi::Proof::LAYOUT,
        abi::Setup::LAYOUT,
        abi::Answers::LAYOUT,
        abi::Done::LAYOUT,
        abi::BegunAnswer::LAYOUT,
        abi::UnreadKey::LAYOUT,
        abi::Unread::LAYOUT,
        abi::Protection::LAYOUT,
        abi::Adoption::LAYOUT,
        abi::Standing::LAYOUT,
        abi::DecisionKey::LAYOUT,
        abi::Decision::LAYOUT,
        abi::Turn::LAYOUT,
        abi::Turns::LAYOUT,
        abi::ServerKey::LAYOUT,
        abi::Server::LAYOUT,
        abi::Presence::LAYOUT,
        abi::Peer::LAYOUT,
        abi::Dispatcher::LAYOUT,
        abi::Spraying::LAYOUT,
        abi::Lots::LAYOUT,
        abi::Sent::LAYOUT,
        abi::SentRing::LAYOUT,
        abi::Trust::LAYOUT,
        abi::Sieve::LAYOUT,
    ];
    let mut met = BTreeMap::new();
    for (object, path) in OBJECTS {
        let btf = Btf::from_path(path).unwrap();
        for mirror in &mirrors {
            let name = c_name(mirror.0);
            if let Some(layout) = layout_in(&btf, &name) {
                assert_eq!(layout, mirror_layout(mirror), "struct {name} in {object}");
                *met.entry(name).or_insert(0) += 1;
            }
        }
    }
    for mirror in &mirrors {
        let name = c_name(mirror.0);
        assert!(met.contains_key(&name), "no object has struct {name}");
    }
    assert_eq!(met["flow"], 2, "both dispatchers");
}

/// A check that cannot fail proves nothing.
#[test]
fn a_shifted_field_would_be_seen() {
    let btf = Btf::from_path(OBJECTS[0].1).unwrap();
    let truth = layout_in(&btf, "flow").unwrap();
    assert_eq!(truth, mirror_layout(&abi::Flow::LAYOUT));
    for at in 0..truth.fields.len() {
        let mut wrong = truth.clone();
        wrong.fields[at].1 += 1;
        assert_ne!(wrong, mirror_layout(&abi::Flow::LAYOUT));
        wrong = truth.clone();
        wrong.fields[at].0.push('x');
        assert_ne!(wrong, mirror_layout(&abi::Flow::LAYOUT));
    }
    assert_eq!(layout_in(&btf, "no_such_struct"), None);
}

/// Each of the map's entries is a named reason or event.
#[test]
fn counters_have_as_many_names_as_places() {
    for (object, path) in OBJECTS {
        let open = libbpf_rs::ObjectBuilder::default().open_file(path).unwrap();
        for (map, names) in [("drops", abi::DROP_REASONS), ("events", abi::EVENTS)] {
            let found = open.maps().find(|m| m.name() == map).unwrap();
            assert_eq!(
                found.max_entries() as usize,
                names.len(),
                "{map} of {object}"
            );
            let mut unique: Vec<_> = names.iter().map(|(name, _)| name).collect();
            unique.sort();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{map}: a name stands twice");
        }
    }
    assert_eq!(abi::DROP_REASONS[0].0, "none");
}

/// A name that nothing counts would say "never" for ever.
#[test]
fn every_reason_and_event_is_counted_somewhere() {
    let bpf = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf"));
    let mut programs = String::new();
    for dir in [bpf.to_owned(), bpf.join("lib")] {
        let files = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for file in files.filter(|path| path.is_file()) {
            programs += &fs::read_to_string(file).unwrap();
        }
    }
    let words: BTreeSet<&str> = programs
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    let mut names = 0;
    for (table, prefix) in [("DROP_REASONS", "DROP_"), ("EVENTS", "EVENT_")] {
        let start = format!("#define {table}(X)");
        let (_, rest) = HEADER.split_once(&start).expect("the table is there");
        let (rows, _) = rest.split_once("enum ").unwrap();
        for row in rows.split("X(").skip(1) {
            let (name, _) = row.split_once(',').unwrap();
            let constant = format!("{prefix}{name}");
            // The latter are the agent's daemon's (AgentMaps::count()).
            let elsewhere =
                ["NONE", "SET_AGAIN", "ADOPTED", "ASKED_ANEW", "NOT_SAME"].contains(&name);
            assert!(elsewhere || words.contains(&*constant), "{constant}");
            names += 1;
        }
    }
    assert_eq!(names, abi::DROP_REASONS.len() + abi::EVENTS.len());
}

/// The number of `#define name number` or `name = number` in the header.
fn constant(name: &str) -> u64 {
    let text = HEADER.lines().find_map(|line| {
        let line = line.trim();
        let value = match line.strip_prefix("#define ") {
            Some(rest) => rest.strip_prefix(name)?.strip_prefix(' ')?,
            None => line.strip_prefix(name)?.strip_prefix(" = ")?,
        };
        value.split([' ', ',', '\t']).next()
    });
    let text = text.unwrap_or_else(|| panic!("abi.h has no {name}"));
    let text = text.trim_end_matches(['u', 'l']);
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|e| panic!("{name}: {text}: {e}"))
}

#[test]
fn constants_are_the_same() {
    assert_eq!(constant("ENCAP_LEN"), abi::ENCAP_LEN as u64);
    assert_eq!(constant("ENCAP_LEN"), 20 + 8 + geneve::HEADER_LEN as u64);
    assert_eq!(constant("GENEVE_PORT"), u64::from(abi::GENEVE_PORT));
    assert_eq!(constant("GENEVE_PORT"), u64::from(geneve::PORT));
    assert_eq!(constant("PEERS_PORT"), u64::from(abi::PEERS_PORT));
    assert_eq!(constant("PASS_BY_MARK"), u64::from(abi::PASS_BY_MARK));
    assert_eq!(constant("TURN_MARK"), u64::from(abi::TURN_MARK));
    assert_eq!(constant("HELD_MARK"), u64::from(abi::HELD_MARK));
    assert_eq!(constant("UNREAD_REACH"), u64::from(abi::UNREAD_REACH));
    assert_eq!(constant("COOKIE_PERIOD_S"), abi::COOKIE_PERIOD_S);
    let rotations = u64::from(abi::COOKIE_ROTATIONS);
    assert_eq!(constant("COOKIE_ROTATIONS"), rotations);
    let sets = u64::from(abi::COOKIE_KEY_SETS);
    assert_eq!(constant("COOKIE_KEY_SETS"), sets);
    assert_eq!(
        constant("COOKIE_ROTATION_SHIFT"),
        u64::from(abi::COOKIE_ROTATION_SHIFT)
    );
    assert_eq!(constant("EPOCH_SHIFT"), u64::from(abi::EPOCH_SHIFT));
    assert_eq!(constant("SLOT_BY_TURNS"), u64::from(abi::SLOT_BY_TURNS));
    assert_eq!(constant("TURNS_MAX"), abi::TURNS_MAX as u64);
    assert_eq!(constant("LOTS"), abi::LOTS as u64);
    assert_eq!(constant("UNREAD_MAX"), abi::UNREAD_MAX as u64);
    assert_eq!(constant("DISPATCHERS_MAX"), abi::DISPATCHERS_MAX as u64);
    assert_eq!(constant("SENT_ENTRIES"), abi::SENT_ENTRIES as u64);
    assert_eq!(constant("SIEVE_KEYS"), abi::SIEVE_KEYS as u64);
    assert_eq!(constant("TRUST_NS"), abi::TRUST_NS);
    assert_eq!(constant("CLOSES_WITHIN_NS"), abi::CLOSES_WITHIN_NS);
    assert_eq!(constant("SENT_START"), abi::SENT_START as u64);
    assert_eq!(constant("SENT_END"), abi::SENT_END as u64);
    assert_eq!(constant("NO_DISPATCHER"), u64::from(lots::NOBODY));
    for (name, mode) in [
        ("SPRAY_BATCH", SprayMode::Batch(40)),
        ("SPRAY_WORKLOAD", SprayMode::Workload),
        ("SPRAY_FLOW_HASH", SprayMode::FlowHash),
    ] {
        let spraying = abi::Spraying::new(mode, "any");
        assert_eq!(constant(name), u64::from(spraying.mode), "{name}");
        assert!(spraying.batch > 0, "{name}");
    }
    for (name, state) in [
        ("SPRAY_STANDBY", SprayState::Standby),
        ("SPRAY_ACTIVE", SprayState::Active),
        ("SPRAY_YIELDING", SprayState::Yielding),
    ] {
        assert_eq!(constant(name), u64::from(state.word()), "{name}");
        let role = u64::from(Presence::Spray(state).role());
        assert_eq!(constant("MEMBER_SPRAY"), role);
    }
    let dispatcher = Presence::Dispatcher { workload: None };
    assert_eq!(constant("MEMBER_DISPATCHER"), u64::from(dispatcher.role()));
    for (name, state) in [
        ("PRESENCE_LEAVING", Presence::Leaving),
        ("PRESENCE_JOINING", Presence::Joining),
    ] {
        assert_eq!(constant(name), u64::from(state.word()), "{name}");
    }
    assert_eq!(constant("OTHERS_MAX"), abi::OTHERS_MAX as u64);
    assert_eq!(
        constant("HEAD_MAX"),
        trapeze_core::head::LIKENESS_HEAD_MAX as u64
    );
    for (name, state) in [
        ("FLOW_READING", FlowState::Reading),
        ("FLOW_ESTABLISHED", FlowState::Established),
        ("FLOW_CLIENT_FIN", FlowState::ClientFin),
        ("FLOW_RESET", FlowState::Reset),
        ("FLOW_VACANT", FlowState::Vacant),
    ] {
        assert_eq!(constant(name), state as u64);
        assert_eq!(FlowState::from_raw(state as u32), Some(state));
    }
    assert_eq!(FlowState::from_raw(0), None);
    assert_eq!(FlowState::from_raw(6), None);
    for (name, number) in [
        ("SPLICE_NO_TIMESTAMPS", u32::from(abi::SPLICE_NO_TIMESTAMPS)),
        ("SPLICE_NO_ECN", abi::SPLICE_NO_ECN.into()),
        ("SPLICE_SPLIT", abi::SPLICE_SPLIT.into()),
        ("META_SPLICE", abi::META_SPLICE.into()),
        ("SPLICED_CONNECTING", abi::SPLICED_CONNECTING),
        ("SPLICED_OPEN", abi::SPLICED_OPEN),
        ("SPLICED_FOLLOWED", abi::SPLICED_FOLLOWED),
        ("ANSWER_TO_HEAD", abi::ANSWER_TO_HEAD.into()),
        ("HELD_ANSWERING", abi::HELD_ANSWERING),
        ("HELD_UNACKED", abi::HELD_UNACKED),
        ("HELD_CLOSING", abi::HELD_CLOSING),
    ] {
        assert_eq!(constant(name), u64::from(number), "{name}");
    }
    for (name, mark) in [
        ("MARK_TUNNEL", abi::MARK_TUNNEL),
        ("MARK_HELD", abi::MARK_HELD),
        ("MARK_MOVING", abi::MARK_MOVING),
        ("MARK_PIPELINES", abi::MARK_PIPELINES),
        ("MARK_SHORT", abi::MARK_SHORT),
        ("MARK_SHORT_BEFORE", abi::MARK_SHORT_BEFORE),
        ("MARK_RELEASING", abi::MARK_RELEASING),
        ("MARK_TAKING", abi::MARK_TAKING),
        ("MARK_PROTECTED", abi::MARK_PROTECTED),
        ("MARK_ENDS", abi::MARK_ENDS),
        ("MARK_STAYED", abi::MARK_STAYED),
        ("MARK_UNSURE", abi::MARK_UNSURE),
        ("MARK_ENTRUSTED", abi::MARK_ENTRUSTED),
        ("MARK_SPENT", abi::MARK_SPENT),
        ("MARK_REFUSED", abi::MARK_REFUSED),
        ("ANSWER_BODY", abi::ANSWER_BODY.into()),
    ] {
        assert_eq!(constant(name), u64::from(mark), "{name}");
    }
    for (name, number) in [
        ("ANSWER_ENDLESS", abi::ANSWER_ENDLESS.into()),
        ("ADOPTED_STAYS", abi::ADOPTED_STAYS),
        ("ADOPTED_CLOSES", abi::ADOPTED_CLOSES),
        ("ADOPTED_UNTIL_CLOSE", abi::ADOPTED_UNTIL_CLOSE),
    ] {
        assert_eq!(constant(name), u64::from(number), "{name}");
    }
    assert_eq!(
        constant("ANSWER_UNTIL_CLOSE"),
        trapeze_core::takeover::stream::UNTIL_CLOSE
    );
    for (name, expected) in [
        ("EXPECT_HEAD", Expected::Head),
        ("EXPECT_CHUNK", Expected::Chunk),
        ("EXPECT_CHUNK_AFTER", Expected::ChunkAfter),
        ("EXPECT_TRAILER", Expected::Trailer),
        ("EXPECT_UPGRADED", Expected::Upgraded),
        ("EXPECT_INVITED", Expected::Invited),
    ] {
        assert_eq!(constant(name), u64::from(expected.number()), "{name}");
        assert_eq!(Expected::from_number(expected.number()), Some(expected));
    }
    assert_eq!(Expected::from_number(6), None);
    let open = libbpf_rs::ObjectBuilder::default()
        .open_file(OBJECTS[0].1)
        .unwrap();
    for (map, entries) in [
        ("backends", abi::BACKENDS_MAX),
        ("loads", abi::BACKENDS_MAX),
        ("turns", abi::POOLS_MAX),
    ] {
        let found = open.maps().find(|m| m.name() == map).unwrap();
        assert_eq!(found.max_entries() as usize, entries, "{map}");
    }
}

/// What core writes stands where C reads it.
#[test]
fn the_option_is_the_same() {
    let btf = Btf::from_path(OBJECTS[2].1).unwrap();
    let layout = layout_in(&btf, "meta").unwrap();
    assert_eq!(layout.size, wire_meta::LEN);
    let field = |raw: &meta::Raw, name: &str| {
        let at = layout.fields.iter().position(|(field, _)| field == name);
        let at = at.unwrap_or_else(|| panic!("struct meta has no {name}"));
        let end = layout.fields.get(at + 1).map_or(layout.size, |next| next.1);
        let bytes = &raw[layout.fields[at].1..end];
        bytes
            .iter()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte))
    };
    let meta = |kind| Meta {
        kind,
        epoch: 0x0102_0304,
        start: ClientSeq::new(0x0506_0708),
        handshake: Handshake {
            mss: 0x090a,
            window_scales: Some(WindowScales {
                client: 11,
                ours: 12,
            }),
            sack: true,
            timestamps: false,
            ecn: false,
        },
        server_port: 0x0d0e,
        requests: 0x0f10,
        care: Care {
            follow: true,
            ..Care::default()
        },
    };
    let kinds = [
        ("META_FORWARD", Kind::Forward, 0, 0),
        (
            "META_REQUEST",
            Kind::Request {
                server_isn: ServerSeq::new(77),
            },
            0,
            77,
        ),
        ("META_PROBE", Kind::Probe, 0, 0),
        (
            "META_PROBE_ANSWER",
            Kind::ProbeAnswer {
                received: ClientSeq::new(88),
                sender: None,
            },
            0,
            88,
        ),
        (
            "META_REFUSED",
            Kind::Refused(Refusal::NoListener),
            constant("REFUSAL_NO_LISTENER"),
            0,
        ),
        (
            "META_REFUSED",
            Kind::Refused(Refusal::AcceptQueueFull),
            constant("REFUSAL_ACCEPT_QUEUE_FULL"),
            0,
        ),
        (
            "META_REFUSED",
            Kind::Refused(Refusal::Behind),
            constant("REFUSAL_BEHIND"),
            0,
        ),
        (
            "META_REFUSED",
            Kind::Refused(Refusal::NoSeat),
            constant("REFUSAL_NO_SEAT"),
            0,
        ),
        ("META_ICMP", Kind::Icmp, 0, 0),
        ("META_ECHO", Kind::Echo, 0, 0),
        ("META_ECHO_REPLY", Kind::EchoReply { feedback: None }, 0, 0),
        (
            "META_HANDOFF",
            Kind::Handoff {
                next: Ipv4Addr::from_bits(99),
            },
            0,
            99,
        ),
        (
            "META_HELD",
            Kind::Held(Held::Answering),
            constant("HELD_ANSWERING"),
            0,
        ),
        (
            "META_HELD",
            Kind::Held(Held::Unacknowledged {
                end: ServerSeq::new(5),
            }),
            constant("HELD_UNACKED"),
            5,
        ),
        (
            "META_HELD",
            Kind::Held(Held::Closing),
            constant("HELD_CLOSING"),
            0,
        ),
        (
            "META_HELD",
            Kind::Held(Held::Stranger),
            constant("HELD_STRANGER"),
            0,
        ),
        (
            "META_RELEASE",
            Kind::Release {
                leave: Leave::HalfPipe,
                reach: ClientSeq::new(0),
            },
            constant("RELEASE_HALF_PIPE"),
            0,
        ),
        (
            "META_RELEASE",
            Kind::Release {
                leave: Leave::HalfPipeUnprotected,
                reach: ClientSeq::new(0),
            },
            constant("RELEASE_UNPROTECTED"),
            0,
        ),
        (
            "META_RELEASE",
            Kind::Forsake,
            constant("RELEASE_FORSAKEN"),
            0,
        ),
        ("META_SUPPORT", Kind::Support, 0, 0),
        ("META_DONE", Kind::Done, 0, 0),
        (
            "META_SPRAYED",
            Kind::Sprayed { again: true },
            constant("CAME_AGAIN"),
            0,
        ),
        (
            "META_PASSED",
            Kind::Passed {
                by_joining: true,
                again: false,
                before: 3,
            },
            constant("PASSED_BY_JOINING"),
            3,
        ),
        (
            "META_ENTRUSTED",
            Kind::Entrusted {
                backend: Ipv4Addr::new(1, 2, 3, 4),
            },
            0,
            0x0102_0304,
        ),
        ("META_RECORDS", Kind::Records, 0, 0),
        ("META_SPLICE", Kind::Splice, 0, 0),
        (
            "META_BEAT",
            Kind::Beat(Presence::Spray(SprayState::Active)),
            constant("MEMBER_SPRAY"),
            constant("SPRAY_ACTIVE"),
        ),
        (
            "META_BEAT_REPLY",
            Kind::BeatReply(Presence::Dispatcher { workload: None }),
            constant("MEMBER_DISPATCHER"),
            0,
        ),
    ];
    for (name, kind, reason, value) in kinds {
        let raw = meta(kind).encode(0x0f);
        let expected = [
            ("version", constant("META_VERSION")),
            ("kind", constant(name)),
            ("key_id", 0x0f),
            ("reason", reason),
            ("epoch", 0x0102_0304),
            ("start", 0x0506_0708),
            ("mss", 0x090a),
            ("window_scales", 0xbc),
            (
                "tcp_options",
                constant("TCP_OPTION_WINDOW_SCALE")
                    | constant("TCP_OPTION_SACK")
                    | constant("CARE_FOLLOW"),
            ),
            ("server_port", 0x0d0e),
            ("requests", 0x0f10),
            ("value", value),
            ("tag", 0),
        ];
        assert_eq!(
            expected.len(),
            layout.fields.len(),
            "every field is checked"
        );
        for (what, expected) in expected {
            assert_eq!(field(&raw, what), expected, "{what} of {name}");
        }
    }
    let bits = |handshake| {
        let raw = Meta {
            handshake,
            care: Care::default(),
            ..meta(Kind::Forward)
        };
        field(&raw.encode(0), "tcp_options")
    };
    let none = Handshake::default();
    assert_eq!(bits(none), 0);
    assert_eq!(
        bits(Handshake {
            timestamps: true,
            ..none
        }),
        constant("TCP_OPTION_TIMESTAMPS")
    );
    assert_eq!(
        bits(Handshake { ecn: true, ..none }),
        constant("TCP_OPTION_ECN")
    );
    assert_eq!(
        bits(Handshake { sack: true, ..none }),
        constant("TCP_OPTION_SACK")
    );
}
