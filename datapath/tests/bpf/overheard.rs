//! What a dispatcher knows of the answers of a server without an agent, of whose packets some
//! may not come by it, come again, or come late; and when a flow may leave such a server
//! (docs/protocol/splice.md 5.4, 5.5).

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use trapeze_core::membership::lots::NOBODY;
use trapeze_core::wire::meta::{Binding, Care, Kind, Meta};
use trapeze_datapath::abi::{self, Answers, Flow, Overheard, Parting, Pod, SPLICED_FOLLOWED};
use trapeze_datapath::dispatcher::Parted;
use trapeze_datapath::map::Update;

use crate::answers::{LOST, boundary, expected, joined, streams};
use crate::bench::*;
use crate::keeper::{Daemon, KEEPERS_SLOT, among};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;
use crate::splice::{OWN, SERVER, headers, spliced, splices};

/// The server's first byte: its numbers wrap soon.
const FIRST: u32 = 0xffff_ffc0;
/// Where the client's next request starts.
const START: u32 = CLIENT_ISN.wrapping_add(30);

struct Listener {
    bench: Bench,
    key: abi::FlowKey,
    ahead: u32,
}

impl Listener {
    fn all() -> Vec<Self> {
        let splice = splices()[1];
        Bench::both()
            .map(|bench| Self {
                key: spliced(&bench, &splice, SPLICED_FOLLOWED),
                bench,
                ahead: splice.ahead,
            })
            .into()
    }

    /// Nothing said yet.
    fn reset(&self, flags: u16) {
        let begun = Overheard {
            answers: Answers {
                next: FIRST,
                flags,
                ..Answers::zeroed()
            },
            ..Overheard::zeroed()
        };
        let overheard = &self.bench.maps.overheard;
        overheard.put(&self.key, &begun, Update::Any).unwrap();
    }

    fn segment(&self, flags: u8, at: usize, bytes: &[u8]) -> Tcp {
        Tcp {
            source: SERVER,
            dest: OWN,
            options: timestamps(1000, 2),
            ..segment(flags, FIRST.wrapping_add(at as u32), START, bytes)
        }
    }

    fn hear(&self, at: usize, bytes: &[u8]) -> Answers {
        let segment = self.segment(ACK, at, bytes);
        let got = self.bench.run(&segment.frame());
        assert_eq!(got.verdict, Verdict::Redirect, "it goes on");
        self.answers()
    }

    fn overheard(&self) -> Overheard {
        let overheard = &self.bench.maps.overheard;
        overheard.get(&self.key).unwrap().expect("it is followed")
    }

    fn answers(&self) -> Answers {
        self.overheard().answers
    }

    /// May the flow leave, whose client has had so many bytes of answers to so many requests?
    fn part(&self, requests: u32, heard: usize) -> Parted {
        let parting = Parting {
            key: self.key,
            start: START,
            told: START,
            requests,
            heard: self.known(heard),
            ..Parting::zeroed()
        };
        self.bench.parter.part(parting).unwrap()
    }

    /// As the client knows the number.
    fn known(&self, at: usize) -> u32 {
        FIRST.wrapping_add(at as u32).wrapping_add(self.ahead)
    }

    fn is_dropped_as(&self, segment: &Tcp, why: &str) {
        let Outcome {
            verdict, counted, ..
        } = self.bench.run(&segment.frame());
        assert_eq!((verdict, counted), (Verdict::Drop, vec![why]));
    }
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome\nbody";

#[test]
fn each_byte_counts_once_however_it_is_cut() {
    let mut random = SmallRng::seed_from_u64(3);
    for listener in Listener::all() {
        for (what, parts) in streams() {
            let (bytes, ends) = joined(&parts);
            for round in 0..6 {
                listener.reset(0);
                let mut sent = 0;
                while sent < bytes.len() {
                    let from = random.random_range(0..=sent);
                    let to = random.random_range(from + 1..=bytes.len().min(from + 900));
                    sent = sent.max(to);
                    let answers = listener.hear(from, &bytes[from..to]);
                    let wanted = expected(&ends, sent);
                    assert_eq!(boundary(&answers), wanted, "{what}, {round}: {sent}");
                }
            }
        }
    }
}

#[test]
fn a_gap_in_counted_bytes_is_no_matter() {
    let mut long = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n".to_vec();
    let body = long.len();
    long.resize(body + 3000, b'\n');
    let end = long.len();
    let bytes = [&long[..], ANSWER].concat();
    for listener in Listener::all() {
        for (from, to) in [(body, body + 1000), (body + 1900, end), (end - 1, end)] {
            listener.reset(0);
            listener.hear(0, &bytes[..body]);
            listener.hear(from, &bytes[from..to]);
            // What came late.
            listener.hear(body, &bytes[body..body + 700]);
            assert_eq!(listener.answers().finished, u16::from(to == end));
            let answers = listener.hear(end, &bytes[end..]);
            assert_eq!(boundary(&answers), Some(2), "{from}..{to}");
        }
        // In a chunk, too, but not across its end.
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0a\r\n0123456789\r\n0\r\n\r\n";
        let size = chunked.len() - 5 - 12;
        for (skipped, is_known) in [(9, true), (10, true), (11, false)] {
            listener.reset(0);
            listener.hear(0, &chunked[..size]);
            let answers = listener.hear(size + skipped, &chunked[size + skipped..]);
            assert_eq!(boundary(&answers), is_known.then_some(1), "{skipped}");
            assert_eq!(answers.phase == LOST, !is_known, "{skipped}");
        }
    }
}

#[test]
fn any_other_gap_loses_the_thread_for_good() {
    for listener in Listener::all() {
        let body = ANSWER.len() - 9;
        for at in 1..=body {
            listener.reset(0);
            assert_eq!(listener.hear(at, &ANSWER[at..]).phase, LOST, "{at}");
            assert_eq!(listener.hear(0, ANSWER).phase, LOST, "{at}");
            assert_eq!(listener.part(1, ANSWER.len()), Parted::Never, "{at}");
        }
        // Nobody repeats what lies so far back: the numbers have gone round.
        listener.reset(0);
        listener.hear(0, ANSWER);
        assert_eq!(listener.hear(3 << 30, ANSWER).phase, LOST);
    }
}

/// TCP will drop them, and they come again.
#[test]
fn bytes_that_have_changed_on_the_way_are_not_believed() {
    for listener in Listener::all() {
        listener.reset(0);
        let right = listener.segment(ACK, 0, ANSWER);
        let mut frame = right.frame();
        let at = frame.len() - 14;
        assert_eq!(frame[at], b'9');
        frame[at] = b'8';
        assert_eq!(listener.bench.run(&frame).verdict, Verdict::Redirect);
        assert_eq!(listener.answers().next, FIRST);
        assert_eq!(boundary(&listener.hear(0, ANSWER)), Some(1));
        // Of a sender that leaves its sum to the card nothing has changed.
        listener.reset(0);
        listener.bench.run(&right.frame_partial());
        assert_eq!(boundary(&listener.answers()), Some(1));
        // Of all lengths: the sum is made piece by piece.
        for length in (500..1400).step_by(7) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let whole = [head.as_bytes(), &vec![b'x'; length]].concat();
            listener.reset(0);
            assert_eq!(boundary(&listener.hear(0, &whole)), Some(1), "{length}");
        }
    }
}

/// Whatever is lost, comes late or twice: if it may leave, that is an answer's end.
#[test]
fn whatever_comes_by_nobody_guesses() {
    let mut random = SmallRng::seed_from_u64(11);
    for listener in Listener::all() {
        let mut left = 0;
        for (what, parts) in streams() {
            let (bytes, ends) = joined(&parts);
            for round in 0..40 {
                listener.reset(0);
                let mut pieces = Vec::new();
                let mut at = 0;
                while at < bytes.len() {
                    let to = bytes.len().min(at + random.random_range(1..=400));
                    pieces.push((at, to));
                    at = to;
                }
                if round % 2 == 0 {
                    pieces.retain(|_| !random.random_bool(0.1));
                }
                let again = pieces.clone();
                pieces.extend(again.into_iter().filter(|_| random.random_bool(0.1)));
                let few = (round % 4 / 2) * pieces.len().min(3);
                pieces[..few].shuffle(&mut random);
                for (from, to) in pieces {
                    listener.hear(from, &bytes[from..to]);
                }
                for (index, &end) in ends.iter().enumerate().rev() {
                    let requests = index as u32 + 1;
                    let before = listener.overheard();
                    for heard in [end - 1, end + 1] {
                        let parted = listener.part(requests, heard);
                        assert!(!matches!(parted, Parted::Yes { .. }), "{what}: {parted:?}");
                    }
                    assert_eq!(before, listener.overheard());
                    if let Parted::Yes { end: there, .. } = listener.part(requests, end) {
                        assert_eq!(there, listener.known(end), "{what}, {round}");
                        left += 1;
                        break;
                    }
                }
            }
        }
        assert!(left > 50, "{left} of 440");
    }
}

#[test]
fn a_flow_leaves_when_nothing_is_owed_and_its_client_has_all() {
    for listener in Listener::all() {
        listener.reset(0);
        let all = ANSWER.len();
        assert_eq!(listener.part(1, 0), Parted::NotYet, "nothing is said");
        listener.hear(0, &ANSWER[..20]);
        assert_eq!(listener.part(1, 0), Parted::NotYet, "in the head");
        listener.hear(20, &ANSWER[20..]);
        assert_eq!(listener.part(2, all), Parted::NotYet, "one is owed");
        assert_eq!(listener.part(1, all - 1), Parted::NotYet, "unheard");
        let parted = Parted::Yes {
            end: listener.known(all),
            clock: 1000u32.wrapping_add(splices()[1].clock_ahead),
        };
        assert_eq!(listener.part(1, all), parted);
        assert_eq!(listener.part(1, all), parted, "asked again");
        for (flags, bytes) in [
            (ACK, ANSWER),
            (ACK, b""),
            (ACK | FIN, b""),
            (RST | ACK, b""),
        ] {
            listener.is_dropped_as(&listener.segment(flags, all, bytes), "moved");
        }
        assert_eq!(listener.part(1, all), parted, "and again");
        let later = Parting {
            key: listener.key,
            start: START.wrapping_add(5),
            told: START.wrapping_add(5),
            requests: 1,
            heard: listener.known(all),
            ..Parting::zeroed()
        };
        assert_eq!(listener.bench.parter.part(later).unwrap(), Parted::Never);
    }
}

/// The rest of a body has come to the client by another way, which says so.
#[test]
fn what_has_not_come_by_here_has_come_if_its_client_says_so() {
    for listener in Listener::all() {
        listener.reset(0);
        let all = ANSWER.len();
        listener.hear(0, &ANSWER[..all - 5]);
        assert_eq!(listener.part(1, all - 5), Parted::NotYet);
        assert_eq!(
            listener.part(1, all + 1),
            Parted::Never,
            "of what comes next"
        );
        let parted = listener.part(1, all);
        assert!(matches!(parted, Parted::Yes { end, .. } if end == listener.known(all)));
    }
}

#[test]
fn a_flow_stays_where_nobody_knows_where_answers_end() {
    let bytes = |text: &str| text.as_bytes().to_vec();
    for listener in Listener::all() {
        for said in [
            bytes("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"),
            bytes("HTTP/1.0 200 OK\r\n\r\nx"),
            bytes("HTTP/1.1 200 OK\r\n\r\nx"),
            bytes("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
            bytes("SSH-2.0-OpenSSH\r\n"),
            // One more than it was asked for.
            [ANSWER, ANSWER].concat(),
        ] {
            listener.reset(0);
            listener.hear(0, &said);
            let what = String::from_utf8(said.clone()).unwrap();
            assert_eq!(listener.part(1, said.len()), Parted::Never, "{what}");
        }
        for flags in [ACK | FIN, ACK | RST] {
            listener.reset(0);
            listener.hear(0, ANSWER);
            let closes = listener.segment(flags, ANSWER.len(), b"");
            assert_eq!(
                listener.bench.run(&closes.frame()).verdict,
                Verdict::Redirect
            );
            assert_eq!(listener.part(1, ANSWER.len()), Parted::Never);
        }
        // Nobody has followed it.
        listener.bench.maps.overheard.delete(&listener.key).unwrap();
        let unheard = listener.segment(ACK, 0, ANSWER);
        assert_eq!(
            listener.bench.run(&unheard.frame()).verdict,
            Verdict::Redirect
        );
        assert_eq!(listener.part(1, ANSWER.len()), Parted::Never);
    }
}

#[test]
fn the_answer_to_head_has_no_body() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    for listener in Listener::all() {
        listener.reset(abi::ANSWER_TO_HEAD);
        assert_eq!(boundary(&listener.hear(0, head)), Some(1));
        assert_eq!(boundary(&listener.hear(head.len(), ANSWER)), Some(2));
    }
}

/// The server has not had all of the request, though it has answered.
#[test]
fn a_flow_stays_until_its_server_has_all_before_the_request() {
    for listener in Listener::all() {
        listener.reset(0);
        listener.hear(0, ANSWER);
        let parting = Parting {
            key: listener.key,
            start: START.wrapping_add(1),
            told: START.wrapping_add(1),
            requests: 1,
            heard: listener.known(ANSWER.len()),
            ..Parting::zeroed()
        };
        assert_eq!(listener.bench.parter.part(parting).unwrap(), Parted::NotYet);
    }
}

/// What waits here was acknowledged, and its client goes on hearing so.
#[test]
fn clients_are_told_no_less_than_they_were() {
    for listener in Listener::all() {
        listener.reset(0);
        let parting = Parting {
            key: listener.key,
            start: START,
            told: START.wrapping_add(700),
            requests: 1,
            heard: listener.known(0),
            ..Parting::zeroed()
        };
        assert_eq!(listener.bench.parter.part(parting).unwrap(), Parted::NotYet);
        let acknowledged = |ack: u32| {
            let segment = Tcp {
                ack,
                ..listener.segment(ACK, 0, ANSWER)
            };
            let packet = listener.bench.run(&segment.frame()).packet.unwrap();
            headers(&packet).0.ack
        };
        assert_eq!(acknowledged(START), START.wrapping_add(700));
        assert_eq!(
            acknowledged(START.wrapping_add(900)),
            START.wrapping_add(900)
        );
        assert_eq!(acknowledged(START), START, "that is over");
    }
}

/// From beyond its window a server hears nothing (RFC 9293 §3.10.7.4); its client may have been
/// told that what waits here has come.
#[test]
fn who_asks_ahead_is_heard_from_the_edge_of_the_window() {
    const SCALE: u8 = 3;
    for listener in Listener::all() {
        let bench = &listener.bench;
        let binding = Binding::of_flow(BACKEND.into(), CLIENT.into(), VIP.into()).unwrap();
        let follow = Care {
            follow: true,
            ..Care::default()
        };
        let meta = Meta {
            care: follow,
            ..flow_meta(Kind::Forward)
        };
        bench.put_flow(&Flow {
            meta: meta.seal(&keys(), &binding),
            ..bench.flow()
        });
        let goes_acking = |heard: u32, (flags, seq, payload): (u8, u32, &[u8])| {
            let says = Tcp {
                options: timestamps(3, 4),
                ..segment(flags, seq, heard, payload)
            };
            headers(&bench.run(&says.frame()).packet.unwrap()).0.seq
        };
        let goes_from =
            |flags, seq, payload: &[u8]| goes_acking(listener.known(0), (flags, seq, payload));
        let server_says = |ack: u32, window: u16| {
            let says = Tcp {
                ack,
                window,
                ..listener.segment(ACK, 0, b"")
            };
            assert_eq!(bench.run(&says.frame()).verdict, Verdict::Redirect);
        };
        listener.reset(0);
        let mut overheard = listener.overheard();
        overheard.window_scale = SCALE;
        let known = &bench.maps.overheard;
        known.put(&listener.key, &overheard, Update::Any).unwrap();
        let far = START + (1 << 20);
        assert_eq!(goes_from(ACK, far, b""), far, "nobody knows");

        server_says(START, 100);
        let edge = START + (100 << SCALE);
        for (seq, goes) in [(START, START), (edge, edge), (edge + 1, edge), (far, edge)] {
            assert_eq!(goes_from(ACK, seq, b""), goes);
        }
        let elsewhere = goes_acking(listener.known(1), (ACK, far, b""));
        assert_eq!(elsewhere, far, "its window was heard of elsewhere, too");
        assert_eq!(goes_from(ACK, far, b"bytes"), far, "they come again");
        assert_eq!(goes_from(ACK | FIN, far, b""), far);
        server_says(START + 8, 0);
        assert_eq!(goes_from(ACK, far, b""), edge, "nothing is taken back");
        server_says(START + 8, 200);
        assert_eq!(goes_from(ACK, far, b""), START + 8 + (200 << SCALE));
    }
}

/// Since its lots have been dealt anew a server's packets come by another dispatcher than its client's. What it
/// acknowledges is its keeper's to hear; what it says is too long to be passed.
#[test]
fn what_a_server_has_come_to_have_its_keeper_hears() {
    for listener in Listener::all() {
        let bench = &listener.bench;
        let says = |flags, bytes: &[u8]| bench.run(&listener.segment(flags, 0, bytes).frame());
        among(bench, |_| KEEPERS_SLOT, Daemon::Fit);
        listener.reset(0);
        for flags in [ACK, ACK | FIN, RST] {
            assert_eq!(says(flags, b"").counted, ["passed"]);
        }
        assert_eq!(says(ACK, ANSWER).counted, ["spliced-to-client"]);
        among(bench, |_| NOBODY, Daemon::Fit);
        assert_eq!(says(ACK, b"").counted, ["spliced-to-client"]);
    }
}
