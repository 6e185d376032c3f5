//! Which cookies are believed: those for this very connection, under a key of
//! ours, not older than two periods and at most one ahead.

use std::time::Duration;

use trapeze_core::flow::Handshake;
use trapeze_datapath::abi::{COOKIE_PERIOD_S, COOKIE_ROTATION_SHIFT, Pod, Proof, SiphashKey};
use trapeze_datapath::clock;
use trapeze_datapath::map::Update;

use crate::bench::*;
use crate::cookie::{self, NO_SCALE, Terms, key_of};
use crate::handshake::{ALL, NOTHING, agreed, echo, shake, shake_at};
use crate::outcome::{Outcome, Verdict};
use crate::packet::*;

const FULL: Terms = Terms {
    mss: 1460,
    shift: 9,
    sack: true,
    ecn: true,
    timestamps: true,
};
const SMALL: Terms = Terms {
    mss: 1220,
    shift: NO_SCALE,
    sack: false,
    ecn: true,
    timestamps: false,
};

/// Some of TSval above its option bits.
const CLOCK: u32 = 0x7654_3200;

/// The first payload of a connection with this cookie.
fn first(terms: &Terms, cookie: u32) -> Tcp {
    Tcp {
        options: match terms.timestamps {
            true => timestamps(1, CLOCK | terms.tsval_bits()),
            false => Vec::new(),
        },
        ack: cookie.wrapping_add(1),
        ..request()
    }
}

fn made_now(terms: &Terms) -> u32 {
    made_at(terms, cookie::period(), key_of)
}

fn made_at(terms: &Terms, period: u64, key_of: impl Fn(u64) -> SiphashKey) -> u32 {
    terms.cookie(&key_of(period), &flow_key(CLIENT, VIP), CLIENT_ISN, period)
}

fn believed(terms: &Terms, frame: &[u8], cookie: u32) -> Outcome {
    let packet = to_daemon(agreed(terms, &SERVICE), CLIENT_ISN, cookie, frame);
    Outcome::new(Verdict::Pass, packet, &["cookie-valid", "to-daemon"])
}

/// Both ways to show a cookie: in payload and in the bare ACK.
fn refuse(bench: &Bench, what: &str, packet: &Tcp) {
    bench.expect(what, &packet.frame(), &Outcome::drop("bad-cookie"));
    let bare = Tcp {
        payload: Vec::new(),
        ..packet.clone()
    };
    bench.expect(what, &bare.frame(), &Outcome::drop("bad-cookie"));
    assert_eq!(bench.state().proofs, [], "{what}");
}

#[test]
fn age_and_skew_have_limits() {
    for bench in Bench::both() {
        for terms in [FULL, SMALL] {
            for ahead in -40..=40i64 {
                let period = cookie::period().wrapping_add_signed(ahead);
                let cookie = made_at(&terms, period, key_of);
                let packet = first(&terms, cookie);
                let what = format!("{ahead} periods ahead");
                match ahead {
                    -2..=1 => {
                        let frame = packet.frame();
                        bench.expect(&what, &frame, &believed(&terms, &frame, cookie));
                    }
                    _ => refuse(&bench, &what, &packet),
                }
            }
        }
    }
}

/// As [`first`], whole: what is expected of a cookie of `period` at `now`.
fn expect_at(bench: &Bench, what: &str, terms: &Terms, now: u64, period: u64) {
    let cookie = made_at(terms, period, key_of);
    let packet = first(terms, cookie);
    match period.wrapping_sub(now) as i64 {
        -2..=1 => {
            let frame = packet.frame();
            bench.expect(what, &frame, &believed(terms, &frame, cookie));
        }
        _ => refuse(bench, what, &packet),
    }
}

/// Just after a period has begun, and a while before it ends.
fn moments(period: u64) -> [Duration; 2] {
    let begin = Duration::from_secs(period * COOKIE_PERIOD_S);
    [begin, begin + Duration::from_secs(COOKIE_PERIOD_S - 3)]
}

/// Where the cookie's few bits of the period begin anew, and where keys change.
#[test]
fn boundaries_of_periods_and_rotations_are_crossed() {
    let rotation = 1 << COOKIE_ROTATION_SHIFT;
    let start = (cookie::period() >> COOKIE_ROTATION_SHIFT) << COOKIE_ROTATION_SHIFT;
    let bench_periods = (0..=5)
        .chain(14..=17)
        .chain(rotation - 3..=rotation + 3)
        .chain(4 * rotation - 1..=4 * rotation + 1);
    let periods: Vec<u64> = bench_periods.map(|after| start + after).collect();
    for bench in Bench::both() {
        for &now in &periods {
            bench.publish_cookie_keys_at(now, key_of);
            for moment in moments(now) {
                bench.set_clock(moment);
                for terms in [FULL, SMALL] {
                    for ahead in -5..=4i64 {
                        let what = format!("period {}, {ahead} ahead", now - start);
                        let period = now.wrapping_add_signed(ahead);
                        expect_at(&bench, &what, &terms, now, period);
                    }
                }
            }
        }
    }
}

/// A SYN's answer carries the present period's cookie, under its rotation's key.
#[test]
fn a_syn_is_answered_in_the_present_period() {
    let start = (cookie::period() >> COOKIE_ROTATION_SHIFT) << COOKIE_ROTATION_SHIFT;
    for bench in Bench::both() {
        for now in [start - 1, start, start + 1, start + 15, start + 16] {
            bench.publish_cookie_keys_at(now, key_of);
            for moment in moments(now) {
                bench.set_clock(moment);
                for offer in [ALL, NOTHING] {
                    shake_at(&bench, &offer, VIP, &SERVICE, now, moment);
                }
            }
        }
    }
}

/// A daemon that died before it published the next key: its dispatchers give no
/// cookie that nobody could check, and believe those of before for as long as ever.
#[test]
fn without_the_next_key_only_the_last_cookies_serve() {
    let start = (cookie::period() >> COOKIE_ROTATION_SHIFT) << COOKIE_ROTATION_SHIFT;
    for bench in Bench::both() {
        bench.publish_cookie_keys_at(start, |period| match period < start {
            true => key_of(period),
            false => SiphashKey::zeroed(),
        });
        for (now, answered) in [(start - 1, true), (start, false), (start + 1, false)] {
            bench.set_clock(moments(now)[0]);
            let syn = ALL.syn(VIP).frame();
            match answered {
                true => assert_eq!(bench.run(&syn).counted, ["syn-answered"]),
                false => bench.expect("no key", &syn, &Outcome::drop("no-cookie-key")),
            }
            for terms in [FULL, SMALL] {
                expect_at(&bench, "the last one", &terms, now, start - 1);
                let next = first(&terms, made_at(&terms, start, key_of));
                refuse(&bench, "under the key that is not there", &next);
            }
        }
    }
}

/// Dispatchers whose clocks differ by less than a period believe one another.
#[test]
fn a_dispatchers_cookie_is_believed_by_one_whose_clock_differs() {
    let now = cookie::period();
    let middle = Duration::from_secs(now * COOKIE_PERIOD_S + COOKIE_PERIOD_S / 2);
    let second = Duration::from_secs(1);
    for bench in Bench::both() {
        for offer in [ALL, NOTHING] {
            bench.set_clock(middle);
            let (isn, tsval) = shake_at(&bench, &offer, VIP, &SERVICE, now, middle);
            let echo = echo(&offer, VIP, isn, tsval, REQUEST).frame();
            let good = believed(&offer.terms(&SERVICE), &echo, isn);
            for (clock, good) in [
                (middle - 15 * second, &good),
                (middle + 15 * second, &good),
                (middle + 32 * second, &good),
                (middle - 26 * second, &Outcome::drop("bad-cookie")),
                (middle + 42 * second, &Outcome::drop("bad-cookie")),
            ] {
                bench.set_clock(clock);
                bench.expect(&format!("{clock:?}"), &echo, good);
            }
        }
    }
}

/// Of a hash that was made for one form, nobody makes a cookie of the other:
/// its terms would be others than those agreed.
#[test]
fn cookies_with_and_without_timestamps_have_nothing_in_common() {
    for bench in Bench::both() {
        let period = cookie::period() as u32;
        let with = Terms {
            shift: 0,
            sack: false,
            ecn: false,
            ..FULL
        };
        // As if without: 22 of the 24 bits serve. TSval's bits are all zero.
        let cookie = made_now(&with);
        let without = Terms {
            timestamps: false,
            ..with
        };
        let taken = cookie >> 8 << 10 | cookie & 0xff;
        refuse(&bench, "as if without", &first(&without, taken));
        // And the other way, with the two bits that are missing by trial.
        let without = Terms {
            mss: 536,
            shift: 3,
            sack: period & 8 != 0,
            ecn: period & 4 != 0,
            timestamps: false,
        };
        let cookie = made_now(&without);
        for guess in 0..4 {
            let taken = guess << 30 | cookie >> 10 << 8 | cookie & 0xff;
            refuse(&bench, "as if with", &first(&with, taken));
        }
    }
}

#[test]
fn a_cookie_is_for_one_connection() {
    type Change = fn(&mut Tcp);
    let table: [(&str, Change); 7] = [
        ("another client port", |t| t.source.set_port(40124)),
        ("another service port", |t| t.dest.set_port(81)),
        ("another client", |t| {
            t.source.set_ip([192, 0, 2, 34].into())
        }),
        ("another client ISN", |t| t.seq = t.seq.wrapping_add(1)),
        ("a lower client ISN", |t| t.seq = t.seq.wrapping_sub(1)),
        ("another ACK", |t| t.ack = t.ack.wrapping_add(1)),
        ("client and service port swapped", |t| {
            let port = t.source.port();
            t.source.set_port(t.dest.port());
            t.dest.set_port(port);
        }),
    ];
    for bench in Bench::both() {
        for terms in [FULL, SMALL] {
            let honest = first(&terms, made_now(&terms));
            for (what, change) in table {
                let mut packet = honest.clone();
                change(&mut packet);
                if packet.dest.port() > 81 {
                    let frame = packet.frame();
                    bench.expect(what, &frame, &Outcome::untouched(&frame));
                } else {
                    refuse(&bench, what, &packet);
                }
            }
        }
    }
}

#[test]
fn every_bit_of_a_cookie_counts() {
    for bench in Bench::both() {
        for terms in [FULL, SMALL] {
            let cookie = made_now(&terms);
            for bit in 0..32 {
                let packet = first(&terms, cookie ^ 1 << bit);
                refuse(&bench, &format!("bit {bit}"), &packet);
            }
        }
    }
}

#[test]
fn the_low_bits_of_tsecr_belong_to_the_cookie_and_the_high_ones_are_a_clock() {
    for bench in Bench::both() {
        let cookie = made_now(&FULL);
        let echo = CLOCK | FULL.tsval_bits();
        for bit in 0..32 {
            let packet = Tcp {
                options: timestamps(1, echo ^ 1 << bit),
                ..first(&FULL, cookie)
            };
            let what = format!("TSecr bit {bit}");
            if bit < 6 {
                refuse(&bench, &what, &packet);
            } else {
                let frame = packet.frame();
                bench.expect(&what, &frame, &believed(&FULL, &frame, cookie));
            }
        }
        let (with, without) = (first(&FULL, cookie).options, Vec::new());
        for (what, terms, options) in [("lost", FULL, without), ("out of nothing", SMALL, with)] {
            let packet = Tcp {
                options,
                ..first(&terms, made_now(&terms))
            };
            refuse(&bench, &format!("timestamps {what}"), &packet);
        }
    }
}

/// While keys are being changed some dispatchers sign with another one already, or still.
#[test]
fn the_second_keys_cookies_are_believed_and_not_made() {
    let other = |period| SiphashKey {
        k1: 1,
        ..key_of(period)
    };
    for bench in Bench::both() {
        for terms in [FULL, SMALL] {
            let cookie = made_at(&terms, cookie::period(), other);
            let frame = first(&terms, cookie).frame();
            refuse(&bench, "before", &first(&terms, cookie));
            let slot = cookie_key_slot(cookie::period(), 1);
            let keys = &bench.maps.cookie_keys;
            keys.put(&slot, &other(cookie::period()), Update::Any)
                .unwrap();
            bench.expect("meanwhile", &frame, &believed(&terms, &frame, cookie));
            bench.reset();
            let ours = first(&terms, made_now(&terms)).frame();
            bench.expect("ours", &ours, &believed(&terms, &ours, made_now(&terms)));
            bench.reset();
            shake(&bench, &ALL, VIP, &SERVICE);
            bench.reset();
            keys.put(&slot, &SiphashKey::zeroed(), Update::Any).unwrap();
            refuse(&bench, "afterwards", &first(&terms, cookie));
        }
    }
}

#[test]
fn keys_are_of_their_rotation() {
    let foreign = |period| SiphashKey {
        k0: 1,
        ..key_of(period)
    };
    let early = |period| SiphashKey {
        generation: key_of(period).generation + 4,
        ..key_of(period)
    };
    for bench in Bench::both() {
        for terms in [FULL, SMALL] {
            let honest = first(&terms, made_now(&terms));
            refuse(
                &bench,
                "another cluster",
                &first(&terms, made_at(&terms, cookie::period(), foreign)),
            );
            bench.publish_cookie_keys(foreign);
            refuse(&bench, "another key", &honest);
            bench.publish_cookie_keys(early);
            refuse(&bench, "the slot is another rotation's", &honest);
            bench.publish_cookie_keys(key_of);
            let hours = 1 << COOKIE_ROTATION_SHIFT;
            for ago in [-(hours as i64), hours as i64, 4 * hours as i64] {
                let period = cookie::period().wrapping_add_signed(ago);
                let cookie = made_at(&terms, period, key_of);
                refuse(
                    &bench,
                    "a rotation off, its low bits right",
                    &first(&terms, cookie),
                );
            }
            let frame = honest.frame();
            bench.expect(
                "all is well",
                &frame,
                &believed(&terms, &frame, honest.ack - 1),
            );
        }
    }
}

#[test]
fn flags_decide_what_a_proved_packet_is() {
    for bench in Bench::both() {
        let cookie = made_now(&SMALL);
        let packet = |flags, payload: &[u8]| {
            Tcp {
                flags,
                payload: payload.into(),
                ..first(&SMALL, cookie)
            }
            .frame()
        };
        for (flags, payload) in [
            (ACK, REQUEST),
            (ACK | FIN, REQUEST),
            (ACK | FIN, b""),
            (ACK | PSH | URG | ECE | CWR, b"x"),
        ] {
            let frame = packet(flags, payload);
            bench.expect("to the daemon", &frame, &believed(&SMALL, &frame, cookie));
        }
        for (flags, reason) in [
            (RST, "bad-cookie"),
            (RST | ACK, "bad-cookie"),
            (PSH, "bad-flags"),
            (FIN, "bad-flags"),
        ] {
            let frame = packet(flags, REQUEST);
            bench.expect("never good", &frame, &Outcome::drop(reason));
        }
        let mut wrong = packet(ACK, b"");
        wrong[TCP_AT + 14] ^= 1;
        bench.expect("a damaged bare ACK", &wrong, &Outcome::drop("bad-cookie"));
        assert_eq!(bench.state().proofs, []);
    }
}

#[test]
fn a_proof_serves_for_an_hour() {
    for bench in Bench::both() {
        for (seconds, good) in [(1, true), (3590, true), (3610, false), (1 << 33, false)] {
            let ago = seconds * 1_000_000_000;
            let proof = Proof {
                client_isn: CLIENT_ISN,
                server_isn: SERVER_ISN,
                mss: 1388,
                // The clock may be younger; the difference is what counts.
                created_ns: (clock::monotonic().as_nanos() as u64).wrapping_sub(ago),
                ..Proof::zeroed()
            };
            let key = flow_key(CLIENT, VIP);
            bench.proofs.put(&key, &proof, Update::Any).unwrap();
            let frame = request().frame();
            let handshake = Handshake {
                mss: 1388,
                ..Handshake::default()
            };
            let packet = to_daemon(handshake, CLIENT_ISN, SERVER_ISN, &frame);
            let expected = match good {
                true => Outcome::new(Verdict::Pass, packet, &["to-daemon"]),
                false => Outcome::drop("bad-cookie"),
            };
            bench.expect(&format!("after {seconds} s"), &frame, &expected);
        }
    }
}
