use super::parts::{LONGEST, Part, Unsealed, cut};
use super::state::length;
use super::*;
use crate::config::ClusterKey;
use crate::flow::FlowKey;
use crate::seq::ServerSeq;
use crate::wire::meta::Keys;

const HEAD: &str = "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 1000\r\n\
                    Connection: keep-alive\r\nETag: \"5f-a\"\r\nX-Backend: b1\r\n\r\n";
const PART: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 600\r\nETag: \"5f-a\"\r\n\
                    Content-Range: bytes 400-999/1000\r\n\r\n";
const REQUEST: &str = "GET /x?y HTTP/1.1\r\nHost: a\r\nUser-Agent: curl\r\nRange: bytes=0-\r\n\
                       If-None-Match: \"q\"\r\nconnection: keep-alive\r\nCookie: z=1\r\n\r\n";

fn rest(sent: u64) -> Rest {
    Rest::of(HEAD.as_bytes(), sent).unwrap()
}

#[test]
fn what_is_left_is_cut_in_the_head_or_in_the_body() {
    let in_body = rest(HEAD.len() as u64 + 400);
    assert_eq!(
        (&in_body.of_head[..], &in_body.bytes),
        (&b""[..], &(400..1000))
    );
    assert_eq!(in_body.length(), 600);
    let in_head = rest(10);
    assert_eq!(in_head.of_head, HEAD.as_bytes()[10..]);
    assert_eq!(in_head.bytes, 0..1000);
    assert_eq!(in_head.length(), 1000 + HEAD.len() as u64 - 10);
    let whole = HEAD.len() as u64 + 1000;
    assert!(
        Rest::of(HEAD.as_bytes(), whole).is_none(),
        "nothing is left"
    );
    let of_part = Rest::of(PART.as_bytes(), PART.len() as u64 + 100).unwrap();
    assert_eq!(of_part.bytes, 500..1000, "a part's part");
}

#[test]
fn it_is_asked_for_as_the_client_asked() {
    let request = rest(HEAD.len() as u64 + 400)
        .request(REQUEST.as_bytes())
        .unwrap();
    let expected = "GET /x?y HTTP/1.1\r\nHost: a\r\nUser-Agent: curl\r\nCookie: z=1\r\n\
                    Range: bytes=400-999\r\nIf-Range: \"5f-a\"\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8(request).unwrap(), expected);
    let post = REQUEST.replace("GET", "POST");
    assert!(rest(400).request(post.as_bytes()).is_none());
    let two = REQUEST.repeat(2);
    assert!(rest(400).request(two.as_bytes()).is_none(), "whose is it?");
    assert!(
        rest(400).request(&REQUEST.as_bytes()[..50]).is_none(),
        "half a head"
    );
}

#[test]
fn only_the_very_rest_is_taken_for_it() {
    let rest = rest(HEAD.len() as u64 + 400);
    assert_eq!(rest.judge(PART.as_bytes()), Ok(PART.len()));
    let changed = |from: &str, to: &str| rest.judge(PART.replace(from, to).as_bytes());
    assert_eq!(
        changed("206 Partial Content", "200 OK"),
        Err(NotSame::Status(200))
    );
    let validator = |there: &str| {
        Err(NotSame::Validator {
            wanted: "\"5f-a\"".into(),
            there: there.into(),
        })
    };
    assert_eq!(changed("5f-a", "5f-b"), validator("\"5f-b\""));
    let none = "without a validator";
    assert_eq!(changed("\"5f-a\"", "W/\"5f-a\""), validator("W/\"5f-a\""));
    assert_eq!(changed("ETag", "X-Tag"), validator(none));
    assert!(changed("bytes 400", "Bytes 400").is_ok(), "RFC 9110 §14.1");
    assert_eq!(changed("bytes 400", "lines 400"), Err(NotSame::Unreadable));
    assert_eq!(changed("/1000", "/1001"), Err(NotSame::Part));
    assert_eq!(changed("400-999", "399-998"), Err(NotSame::Part));
    assert_eq!(changed("Length: 600", "Length: 599"), Err(NotSame::Part));
    assert_eq!(
        changed("ETag", "Content-Encoding: gzip\r\nETag"),
        Err(NotSame::Coding)
    );
    assert_eq!(
        changed("Content-Length: 600", "Transfer-Encoding: chunked"),
        Err(NotSame::Unreadable)
    );
    assert_eq!(rest.judge(&PART.as_bytes()[..60]), Err(NotSame::Unreadable));
}

#[test]
fn what_no_strong_validator_names_is_not_gone_on_with() {
    let of = |from: &str, to: &str| Rest::of(HEAD.replace(from, to).as_bytes(), 400).is_some();
    assert!(of("nginx", "apache"));
    assert!(!of("\"5f-a\"", "W/\"5f-a\""));
    assert!(!of("ETag", "X-Tag"));
    assert!(!of("200", "203"));
    assert!(!of(
        "Content-Length: 1000",
        "Content-Length: 1000\r\nContent-Length: 1000"
    ));
    assert!(!of("Content-Length: 1000", "Content-Length: +1000"));
    assert!(!of("Content-Length: 1000", "Transfer-Encoding: chunked"));
}

/// RFC 9110 §8.8.2.2.
#[test]
fn a_time_is_a_validator_where_it_is_strong_and_there_is_no_tag() {
    const OLD: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let with = |text: &str, tag: &str| text.replace("ETag: \"5f-a\"", tag);
    let times = format!("Last-Modified: {OLD}\r\nDate: Sun, 06 Nov 1994 09:49:37 GMT");
    let of = |fields: &str| Rest::of(with(HEAD, fields).as_bytes(), HEAD.len() as u64 + 500);
    assert!(of(&times.replace("09:49", "08:50")).is_some());
    assert!(
        of(&times.replace("09:49", "08:49")).is_none(),
        "it may change within its second"
    );
    assert!(of(&times.replace("\r\nDate", "\r\nX-Date")).is_none());
    assert!(
        of(&format!("{times}\r\nETag: W/\"1\"")).is_none(),
        "§13.1.5"
    );
    assert!(of(&format!("{times}\r\nLast-Modified: {OLD}")).is_none());
    assert!(of(&format!("{times}\r\nLast-Modified: {OLD}\r\nETag: \"1\"")).is_some());
    let sent = (with(HEAD, &times).len() + 400) as u64;
    let rest = Rest::of(with(HEAD, &times).as_bytes(), sent).unwrap();
    let request = String::from_utf8(rest.request(REQUEST.as_bytes()).unwrap()).unwrap();
    assert!(
        request.contains(&format!("\r\nIf-Range: {OLD}\r\n")),
        "{request}"
    );
    let judge = |fields: &str| rest.judge(with(PART, fields).as_bytes());
    // Whether it is strong there is of no matter: it is the one that was.
    let part = format!("Last-Modified: {OLD}");
    assert_eq!(judge(&part), Ok(with(PART, &part).len()));
    for other in [
        &part.replace("37", "38"),
        &format!("{part}\r\nETag: \"5f-a\""),
        "X: y",
    ] {
        assert!(
            matches!(judge(other), Err(NotSame::Validator { .. })),
            "{other}"
        );
    }
}

fn keys(secret: u8) -> Keys {
    Keys::new(&[ClusterKey {
        id: 3,
        secret: [secret; 16],
    }])
    .unwrap()
}

fn flow(port: u16) -> FlowKey {
    FlowKey {
        client: ([192, 0, 2, 1], port).into(),
        vip: "10.77.0.100:80".parse().unwrap(),
    }
}

#[test]
fn messages_are_about_one_flow() {
    let state = SoftState {
        epoch: 7,
        answer: 2,
        offset: 1 << 33,
        at: ServerSeq::new(u32::MAX - 3),
        clock: 99,
        request: REQUEST.into(),
        head: HEAD.into(),
    };
    let take = Take {
        state: state.clone(),
        had: 5 << 32,
        server_port: 8080,
    };
    let refusals = [false, true].map(|is_away| Message::Refusal {
        epoch: 8,
        is_away,
        why: "no".into(),
    });
    let ask = Message::Ask {
        question: 9,
        take: take.clone(),
    };
    let replies = [None, Some("no".into())].map(|why_not| Message::Reply {
        question: 9,
        why_not,
    });
    let open = Message::open;
    let ahead = Message::Ahead {
        epoch: 7,
        requests: 2,
        bytes: b"GET ".to_vec(),
    };
    let part = Message::Part(Part {
        number: 1 << 31,
        at: 1200,
        whole: 70_000,
        bytes: b"ET".to_vec(),
    });
    let others = [
        Message::Update(state),
        Message::Take(take),
        ask,
        ahead,
        part,
    ];
    for message in others.into_iter().chain(replies).chain(refusals) {
        let bytes = message.seal(&keys(1), &flow(40000));
        assert_eq!(length(&bytes), Some(bytes.len()));
        assert_eq!(open(&bytes, &keys(1), &flow(40000)), Some(message));
        assert_eq!(open(&bytes, &keys(2), &flow(40000)), None);
        assert_eq!(open(&bytes, &keys(1), &flow(40001)), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let damaged = open(&damaged, &keys(1), &flow(40000));
            assert_eq!(damaged, None, "byte {at}");
            assert_eq!(open(&bytes[..at], &keys(1), &flow(40000)), None);
        }
    }
}

/// With cookies, mostly.
#[test]
fn what_is_longer_than_a_frame_comes_in_parts() {
    let (keys, key) = (keys(1), flow(40000));
    let update = |clock: u32, bytes: usize| {
        Message::Update(SoftState {
            epoch: 7,
            answer: 2,
            offset: 0,
            at: ServerSeq::new(0),
            clock,
            request: REQUEST.into(),
            head: vec![b'a'; bytes],
        })
    };
    let sent = |message: &Message| cut(message.seal(&keys, &key), &keys, &key);
    let mut there = Assembly::default();
    let mut heard = |frame: &[u8]| there.open(frame, &keys, &key).map(|m| m.map(|(m, _)| m));
    for bytes in [0, 1100, 1150, 1338, 2600, 20_000, 1 << 20] {
        let message = update(1, bytes);
        let frames = sent(&message);
        assert!(frames.iter().all(|frame| frame.len() <= 1364));
        let (last, others) = frames.split_last().unwrap();
        for frame in others {
            assert_eq!(heard(frame), Ok(None));
        }
        assert_eq!(heard(last), Ok(Some(message)));
    }
    // Two at once; a part that is lost, and all of it again; parts that come twice.
    let (one, other) = (update(1, 3000), update(2, 3000));
    let (ones, others) = (sent(&one), sent(&other));
    for frame in [
        &ones[0], &others[0], &ones[2], &others[1], &ones[0], &ones[1],
    ] {
        assert_eq!(heard(frame), Ok(None));
    }
    assert_eq!(heard(&others[2]), Ok(Some(other)));
    assert_eq!(heard(&ones[1]), Ok(None), "out of its order");
    for frame in &ones[..2] {
        assert_eq!(heard(frame), Ok(None));
    }
    assert_eq!(heard(&ones[2]), Ok(Some(one)));
    // Nobody's, or of too much.
    assert_eq!(there.open(&ones[0], &keys, &flow(40001)), Err(Unsealed));
    let forged = Message::Part(Part {
        number: 1,
        at: 0,
        whole: 5,
        bytes: b"UPDAT".to_vec(),
    });
    assert_eq!(
        there.open(&forged.seal(&keys, &key), &keys, &key),
        Err(Unsealed)
    );
    assert_eq!(sent(&update(1, LONGEST)), [] as [Vec<u8>; 0]);
}

/// What is never whole takes a bounded place.
#[test]
fn parts_that_nobody_ends_are_forgotten() {
    let mut there = Assembly::default();
    let part = |number| Part {
        number,
        at: 0,
        whole: 2000,
        bytes: vec![0; 1300],
    };
    let end = |number| Part {
        at: 1300,
        bytes: vec![0; 700],
        ..part(number)
    };
    for number in 0..10_000 {
        assert_eq!(there.add(&flow(1), &part(number)), None);
    }
    assert_eq!(there.add(&flow(1), &end(0)), None);
    assert!(there.add(&flow(1), &end(9_999)).is_some());
    let too_long = Part {
        whole: u32::MAX,
        ..part(1)
    };
    assert_eq!(there.add(&flow(1), &too_long), None);
}

#[test]
fn numbers_may_come_round() {
    let state = SoftState {
        epoch: 1,
        answer: 1,
        offset: 5 << 30,
        at: ServerSeq::new(100),
        clock: 0,
        request: Vec::new(),
        head: Vec::new(),
    };
    assert_eq!(state.before(ServerSeq::new(40)), Some((5 << 30) - 60));
    assert_eq!(state.before(ServerSeq::new(1100)), Some((5 << 30) + 1000));
    let begun = SoftState { offset: 0, ..state };
    assert_eq!(begun.before(ServerSeq::new(99)), None, "it has not begun");
    assert_eq!(begun.before(ServerSeq::new(100)), Some(0));
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nETag: \"5f-a\"\r\n\
                      Trapeze-Resume: \"/ticks?stream=42\"\r\n\r\n";
const RESUMED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                       Trapeze-Resume: \"/ticks?stream=42\"\r\nTrapeze-Resume-From: 400\r\n\r\n";

fn of_stream(sent: u64) -> Rest {
    Rest::of(STREAM.as_bytes(), sent).unwrap()
}

#[test]
fn a_stream_is_asked_for_as_its_application_has_said() {
    let rest = of_stream(STREAM.len() as u64 + 400);
    assert_eq!((rest.bytes.start, rest.end), (400, End::UntilClose));
    assert_eq!(rest.length(), stream::UNTIL_CLOSE - 400);
    let asked = REQUEST.replace("Cookie", "trapeze-resume-from: 7\r\nCookie");
    let request = rest.request(asked.as_bytes()).unwrap();
    let expected = "GET /ticks?stream=42 HTTP/1.1\r\nHost: a\r\nUser-Agent: curl\r\nCookie: z=1\r\n\
                    Trapeze-Resume-From: 400\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8(request).unwrap(), expected);
    let begun = of_stream(10);
    assert_eq!(begun.of_head, STREAM.as_bytes()[10..]);
    assert_eq!(begun.bytes.start, 0);
    let endless = STREAM.replace("42\"", "42\"; endless");
    let endless = Rest::of(endless.as_bytes(), 0).unwrap();
    assert_eq!(endless.end, End::Never);
    assert!(endless.end.is_last() && endless.end.is_open());
}

#[test]
fn only_what_is_said_to_be_the_stream_from_there_on_is_taken_for_it() {
    let rest = of_stream(STREAM.len() as u64 + 400);
    assert_eq!(rest.judge(RESUMED.as_bytes()), Ok(RESUMED.len()));
    let changed = |from: &str, to: &str| {
        let head = RESUMED.replace(from, to);
        assert_ne!(head, RESUMED, "{from}");
        rest.judge(head.as_bytes())
    };
    assert_eq!(changed("200 OK", "206 OK"), Err(NotSame::Status(206)));
    assert_eq!(
        changed("Type: text/event-stream", "Range: bytes 400-499/500"),
        Err(NotSame::Part)
    );
    assert_eq!(
        changed("Content-Type", "Content-Encoding: gzip\r\nContent-Type"),
        Err(NotSame::Coding)
    );
    let stream = |there: &str| {
        Err(NotSame::Stream {
            wanted: "\"/ticks?stream=42\"".into(),
            there: there.into(),
        })
    };
    assert_eq!(changed("=42", "=43"), stream("\"/ticks?stream=43\""));
    assert_eq!(
        changed("42\"", "42\";endless"),
        stream("\"/ticks?stream=42\";endless")
    );
    let none = "none until close";
    let with_length = "Content-Length: 100\r\nTrapeze-Resume-From";
    assert_eq!(changed("Trapeze-Resume-From", with_length), stream(none));
    let in_chunks = "Transfer-Encoding: chunked\r\nTrapeze-Resume-From";
    assert_eq!(
        changed("Trapeze-Resume-From", in_chunks),
        Err(NotSame::Unreadable)
    );
    for from in [
        "0",
        "399",
        "+400",
        "400, 400",
        "400\r\nTrapeze-Resume-From: 400",
    ] {
        let judged = changed("From: 400", &format!("From: {from}"));
        assert_eq!(judged, Err(NotSame::From(400)), "{from}");
    }
    assert_eq!(
        changed("\r\nTrapeze-Resume-From: 400", ""),
        Err(NotSame::From(400))
    );
    // Nor is it an object's rest, though it has the same tag.
    assert!(rest.judge(PART.as_bytes()).is_err());
}

#[test]
fn what_says_in_another_way_how_it_is_resumed_is_not_protected() {
    let of = |from: &str, to: &str| Rest::of(STREAM.replace(from, to).as_bytes(), 0).is_some();
    assert!(of("200 OK", "200 Yes"));
    for other in ["201 Created", "206 Partial Content", "404 Not Found"] {
        assert!(!of("200 OK", other));
    }
    for value in [
        "/ticks",
        "\"ticks\"",
        "\"//b/ticks\"",
        "\"http://b/ticks\"",
        "\"/ti cks\"",
        "\"/ti\\\"cks\"",
        "\"/ticks#1\"",
        "\"/ticks\" ;endless",
        "\"/ticks\";Endless",
        "\"/ticks\";endless=1",
        "\"/ticks\";other",
        "\"/ticks\", \"/ticks\"",
        "\"/ticks",
        "\"\"",
        "",
    ] {
        assert!(!of("\"/ticks?stream=42\"", value), "{value}");
    }
    assert!(!of("ETag", "Trapeze-Resume: \"/ticks?stream=42\"\r\nETag"));
    assert!(!of("ETag", "Transfer-Encoding: chunked\r\nETag"));
    assert!(!of("Trapeze-Resume", "X-Resume"));
    // With a length it is an object, by its validator.
    let object = STREAM.replace("ETag", "Content-Length: 1000\r\nETag");
    assert_eq!(Rest::of(object.as_bytes(), 0).unwrap().bytes, 0..1000);
}

#[test]
fn where_an_answer_ends_is_said_as_far_as_numbers_tell() {
    let state = |head: &str, offset: u64, at: u32| SoftState {
        epoch: 1,
        answer: 1,
        offset,
        at: ServerSeq::new(at),
        clock: 0,
        request: REQUEST.into(),
        head: head.into(),
    };
    let whole = HEAD.len() as u32 + 1000;
    assert_eq!(state(HEAD, 0, 7).end(), Some(ServerSeq::new(7 + whole)));
    let wrapped = state(HEAD, 200, u32::MAX - 9).end();
    assert_eq!(wrapped, Some(ServerSeq::new(whole - 210)));
    let far = HEAD.replace("1000", &(5u64 << 30).to_string());
    assert_eq!(state(&far, 0, 7).end(), None);
    let near = state(&far, (4 << 30) + far.len() as u64, 7).end();
    assert_eq!(near, Some(ServerSeq::new(7 + (1 << 30))));
    assert_eq!(state(STREAM, 0, 7).end(), None);
}
