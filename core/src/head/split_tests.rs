//! However the first bytes are cut into segments, the answer is the same; no
//! bytes panic; where httparse takes a head, so do we, and read the same in it.

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::hello_tests::{HELLOS, from_hex, in_records};
use super::http_tests::HEADS;
use super::*;

#[test]
fn every_head_byte_by_byte() {
    for bytes in corpus() {
        for limit in [40, 300, 32 << 10] {
            assert_same(&bytes, 1..=bytes.len(), limit);
        }
    }
}

/// 64 KiB in one-byte segments: looked at once each, this is nothing; looked at
/// anew each time, it is two billion steps and takes minutes in a debug build.
#[test]
fn a_long_head_byte_by_byte_costs_no_more_than_its_length() {
    let limit = 64 << 10;
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    while head.len() < limit - 100 {
        head.extend_from_slice(b"a:b\r\n");
    }
    head.extend_from_slice(b"\r\n");
    assert_same(&head, 1..=head.len(), limit);

    let mut hello = from_hex(HELLOS[0].0.1);
    let body = (9 * 1024u32).to_be_bytes();
    hello[6..9].copy_from_slice(&body[1..]);
    hello.resize(5 + 9 * 1024, 0);
    let records = in_records(&hello, 1);
    assert_same(&records, 1..=records.len(), limit);
}

proptest! {
    #[test]
    fn any_split_gives_the_same(bytes in wild(), cuts in prop::collection::vec(0usize..2000, 0..8), limit in 1usize..3000) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        assert_same(&bytes, cuts, limit);
    }

    #[test]
    fn any_bytes_are_inspected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        inspect_and_use(&bytes);
    }

    #[test]
    fn what_httparse_takes_we_take(bytes in requests()) {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(len)) = request.parse(&bytes) else { return Ok(()) };
        match inspect(&bytes, 32 << 10) {
            Inspection::Http(head) => {
                prop_assert_eq!(head.len, len);
                prop_assert_eq!(Some(head.method), request.method);
                prop_assert_eq!(Some(head.target), request.path.map(str::as_bytes));
                prop_assert_eq!(Some(head.minor_version), request.version);
                let theirs: Vec<_> = request.headers.iter().map(|h| (h.name, h.value)).collect();
                prop_assert_eq!(head.headers().collect::<Vec<_>>(), theirs);
            }
            // The one thing we refuse that a parser of syntax cannot.
            Inspection::Bad(BadHead::Malformed("more than one Host")) => {}
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

/// Seeded and bounded: the same inputs on every machine.
#[test]
fn mutated_heads_never_panic() {
    let mut random = SmallRng::seed_from_u64(0x7472_6170);
    let corpus = corpus();
    for _ in 0..40_000 {
        let mut bytes = corpus[random.random_range(0..corpus.len())].clone();
        for _ in 0..random.random_range(1..5) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random(),
                1 => bytes[at] ^= 1 << random.random_range(0..8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b" \r\n:\0\xff/["[random.random_range(0..8)]),
            }
        }
        inspect_and_use(&bytes);
    }
}

/// As an intake does: asks at each arrival, and stops at the first answer.
fn assert_same(bytes: &[u8], arrivals: impl IntoIterator<Item = usize>, limit: usize) {
    let at_once = inspect(bytes, limit);
    let mut progress = Progress::default();
    let mut last = Inspection::Incomplete;
    for len in arrivals {
        last = inspect_from(&bytes[..len], &mut progress, limit);
        if last != Inspection::Incomplete {
            break;
        }
    }
    match (&last, &at_once) {
        // The last field's end is the only thing that later bytes could move.
        (Inspection::Http(a), Inspection::Http(b)) => assert_eq!(a, b),
        (a, b) => assert_eq!(
            a,
            b,
            "{:?} within {limit}",
            bytes.escape_ascii().to_string()
        ),
    }
}

fn inspect_and_use(bytes: &[u8]) {
    for limit in [0, 1, 64, 1 << 14] {
        if let Inspection::Http(head) = inspect(bytes, limit) {
            assert!(head.len <= bytes.len().min(limit));
            assert!(
                head.headers()
                    .all(|(name, _)| head.header(name).next().is_some())
            );
        }
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let heads = HEADS.iter().map(|(_, bytes, _)| bytes.to_vec());
    let hellos = HELLOS.iter().map(|((_, hex), ..)| from_hex(hex));
    let cut = HELLOS
        .iter()
        .map(|((_, hex), ..)| in_records(&from_hex(hex), 50));
    heads.chain(hellos).chain(cut).collect()
}

/// Pieces of requests in any order, mostly nonsense; or hellos with damage.
fn wild() -> impl Strategy<Value = Vec<u8>> {
    let damaged =
        (0..corpus().len(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(i, at, byte)| {
            let mut bytes = corpus().swap_remove(i);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        });
    prop_oneof![pieces(), damaged]
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "GET ",
        "/",
        "a",
        " ",
        " HTTP/1.1",
        "\r\n",
        "\n",
        "\r",
        "Host: a",
        "Host: b:80",
        "x",
        ":",
        "\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\n",
        "SM\r\n\r\n",
        "http://",
        "CONNECT ",
        "\x16\x03\x01",
        "\x00\x05",
        "\x01\x00",
        "\t",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

/// Mostly well-formed requests.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let line = "[A-Z]{1,8} [!-~é]{1,20} HTTP/1\\.[01]";
    let field = "[A-Za-z!#-]{1,8}:[ \t]{0,2}[ -~é]{0,12}[ \t]{0,2}";
    let end = prop::sample::select(vec!["\r\n", "\n"]);
    (
        line,
        prop::collection::vec((field, end.clone()), 0..6),
        end.clone(),
        end,
    )
        .prop_map(|(line, fields, after_line, last)| {
            let fields: String = fields
                .iter()
                .flat_map(|(field, end)| [field.as_str(), end])
                .collect();
            format!("{line}{after_line}{fields}{last}").into_bytes()
        })
}
