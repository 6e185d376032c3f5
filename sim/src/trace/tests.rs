//! Traces as they come.

use std::io::Write;

use super::*;

fn read(text: &str) -> Trace {
    Trace::read(text.as_bytes()).expect("it has a request")
}

fn urls(trace: &Trace) -> Vec<String> {
    (trace.records.iter())
        .map(|r| String::from_utf8(trace.objects[r.object as usize].path.to_vec()).unwrap())
        .collect()
}

#[test]
fn csv_in_its_plainest_form() {
    let trace = read(
        "t,url,bytes,status,method\n0,/a.html,100,200,GET\n1.5,/b,7,200,GET\n2,/a.html,120,200,GET\n",
    );
    assert_eq!(urls(&trace), ["/a.html", "/b", "/a.html"]);
    assert_eq!(trace.records[1].at_ns, 1_500_000_000);
    assert_eq!(
        trace.objects[0].bytes, 120,
        "the largest answer is the file"
    );
    assert_eq!(
        (
            trace.reading.format,
            trace.reading.lines,
            trace.reading.malformed
        ),
        ("CSV", 3, 0)
    );
}

#[test]
fn csv_columns_are_found_by_name_and_may_be_missing() {
    let trace = read("method;uri;size\r\nGET;/a;10\r\nHEAD;/b;0\r\nGET;/c\r\n");
    assert_eq!(urls(&trace), ["/a", "/b", "/c"]);
    assert_eq!(trace.records[0].content, Content::Needed);
    assert_eq!(
        trace.records[1].content,
        Content::Spared,
        "HEAD has no contents"
    );
}

#[test]
fn csv_without_a_header_has_the_usual_columns() {
    let trace = read("0,/a,5,200,GET\n1,/b,-,304,GET\n");
    assert_eq!(urls(&trace), ["/a", "/b"]);
    assert_eq!(
        (trace.records[1].bytes, trace.records[1].content),
        (0, Content::Spared)
    );
}

#[test]
fn csv_quotes_are_taken_as_they_are_meant() {
    let trace = read(
        "t,url,bytes,status,method\n0,\"/a,b\",1,200,GET\n1,\"/say \"\"hi\"\"\",1,200,GET\n2,/mid\"dle,1,200,GET\n3,\"/open,1,200,GET\n",
    );
    assert_eq!(urls(&trace)[..3], ["/a,b", "/say \"hi\"", "/mid\"dle"]);
    assert_eq!(
        urls(&trace)[3],
        "\"/open",
        "a quote that is not closed is a character"
    );
}

#[test]
fn malformed_lines_are_counted_and_shown() {
    let trace = read(
        "t,url,bytes,status,method\n0,/a,1,200,GET\nnonsense\nx,/b,1,200,GET\n1,/c,many,200,GET\n1,/d,1,abc,GET\n2,/e,1,200,GET\n",
    );
    assert_eq!(urls(&trace), ["/a", "/e"]);
    assert_eq!((trace.reading.lines, trace.reading.malformed), (6, 4));
    let left: Vec<_> = (trace.reading.left_out.iter())
        .map(|l| (l.reason, l.lines, l.first_line, l.text.as_str()))
        .collect();
    assert_eq!(
        left,
        [
            ("no column for the URL", 1, 3, "nonsense"),
            ("the time is no number", 1, 4, "x,/b,1,200,GET"),
            (
                "the size is no number below 2^50",
                1,
                5,
                "1,/c,many,200,GET"
            ),
            ("the status is no number", 1, 6, "1,/d,1,abc,GET"),
        ]
    );
}

#[test]
fn requests_are_put_in_order_of_time() {
    let trace = read("t,url\n5,/b\n3,/a\n7,/c\n,/d\n");
    assert_eq!(urls(&trace), ["/a", "/b", "/c", "/d"]);
    assert_eq!(trace.reading.out_of_order, 1);
    assert_eq!(trace.records[0].at_ns, 0);
}

#[test]
fn large_times_are_of_smaller_units() {
    let trace = read("t,url\n1600000000000,/a\n1600000000250,/b\n");
    assert_eq!(trace.records[1].at_ns, 250_000_000);
}

const LOG: &str = r#"10.0.0.1 - - [10/Oct/1995:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326
10.0.0.2 - bob [10/Oct/1995:13:55:37 -0700] "GET /b?x=1 HTTP/1.0" 304 -
10.0.0.2 - - [11/Oct/1995:00:00:00 +0200] "POST /c.cgi HTTP/1.1" 200 10 "http://from.example/" "Agent \"X\""
odd.example - - [10/Oct/1995:13:55:39 -0700] "GET /say"quote".html HTTP/1.0" 200 5
old.example - - [10/Oct/1995:13:55:40 -0700] "GET /old" 200 5
bad line
h - - [10/Oct/1995:13:55:41 -0700] "GET /z z.html HTTP/1.0" 404 -
"#;

#[test]
fn common_log_format_and_what_is_found_in_it() {
    let trace = read(LOG);
    assert_eq!(trace.reading.format, "common log");
    assert_eq!(
        urls(&trace),
        [
            "/a.gif",
            "/b",
            "/say\"quote\".html",
            "/old",
            "/z z.html",
            "/c.cgi"
        ]
    );
    // 22:00 at Greenwich, 64 minutes and 24 seconds after the first.
    assert_eq!(trace.records[5].at_ns, 3_864_000_000_000);
    assert_eq!((trace.reading.lines, trace.reading.malformed), (7, 1));
    let dynamic: Vec<bool> = (trace.objects.iter())
        .map(|o| o.kind != Kind::Static)
        .collect();
    assert_eq!(dynamic, [false, true, true, false, false, false]);
}

#[test]
fn the_epa_log_has_days_without_months() {
    let trace = read(
        "h [29:23:59:59] \"GET /a HTTP/1.0\" 200 1\nh [30:00:00:01] \"GET /b HTTP/1.0\" 200 1\n",
    );
    assert_eq!(trace.records[1].at_ns, 2_000_000_000);
}

#[test]
fn a_day_is_a_day_over_the_end_of_february() {
    let line = |date| format!("h - - [{date}:00:00:00 +0000] \"GET / HTTP/1.0\" 200 1\n");
    let days = |from, to| read(&(line(from) + &line(to))).records[1].at_ns / 86_400_000_000_000;
    assert_eq!(days("28/Feb/1995", "01/Mar/1995"), 1);
    assert_eq!(days("28/Feb/1996", "01/Mar/1996"), 2);
    assert_eq!(days("31/Dec/1999", "01/Jan/2000"), 1);
    assert_eq!(days("01/Jan/2000", "01/Jan/2001"), 366);
}

#[test]
fn compressed_files_are_recognised() {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(LOG.as_bytes()).unwrap();
    let trace = Trace::read(&gz.finish().unwrap()[..]).unwrap();
    assert_eq!(trace.records, read(LOG).records);
}

#[test]
fn absolute_urls_have_their_path() {
    let trace = read(
        "t,url\n0,http://www.example.org/a/b?c=d\n1,https://www.example.org\n2,/at?u=http://x/\n",
    );
    assert_eq!(urls(&trace), ["/a/b", "/", "/at"]);
    assert_eq!(trace.objects[0].query.as_deref(), Some(&b"c=d"[..]));
}

#[test]
fn bytes_that_are_no_text_do_not_matter() {
    let trace = Trace::read(&b"t,url\n0,/\xff\xfe\n1,/ok\n"[..]).unwrap();
    assert_eq!(trace.records.len(), 2);
}

#[test]
fn without_a_request_there_is_no_trace() {
    for text in [
        "",
        "\n\n",
        "t,url,bytes,status,method\n",
        "one two three four five six\n",
    ] {
        let error = Trace::read(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("Common Log Format"), "{error}");
    }
}

/// Lines that logs of today have, each with what is to be made of it.
#[test]
fn odd_log_lines_are_read_as_they_are_meant() {
    let at = "[10/Oct/2025:13:55:36 +0530]";
    let cases = [
        // Combined, with an IPv6 client and quotes in the agent.
        (
            format!(r#"2001:db8::1 - - {at} "GET /a HTTP/2.0" 200 5 "-" "x \"y\" z""#),
            "/a",
        ),
        // Several addresses, as X-Forwarded-For has them.
        (
            format!(r#"1.2.3.4, 5.6.7.8 - - {at} "GET /b HTTP/1.1" 200 -"#),
            "/b",
        ),
        // A user with blanks; a virtual host in front.
        (
            format!(r#"www.example.org:80 h - "a b" {at} "GET /c HTTP/1.1" 304 -"#),
            "/c",
        ),
        (
            format!(r#"[2001:db8::1] - - {at} "GET /c HTTP/1.1" 304 -"#),
            "/c",
        ),
        // HTTP/0.9, escaped quotes, a tab.
        (format!(r#"h - - {at} "GET /d" 200 5"#), "/d"),
        (
            format!(r#"h - - {at} "GET /e\"e HTTP/1.1" 200 5"#),
            "/e\\\"e",
        ),
        (format!("h - - {at} \"GET\t/f\tHTTP/1.0\" 200 5"), "/f"),
        (
            format!(r#"h - - {at} "get http://x.example/g?h HTTP/1.1" 200 5"#),
            "/g",
        ),
    ];
    for (line, path) in &cases {
        let trace = read(&format!("{line}\r\n"));
        assert_eq!(urls(&trace), [*path], "{line}");
        assert_eq!((trace.reading.untimed, trace.reading.malformed), (0, 0));
    }
    let all: String = cases.iter().map(|(line, _)| format!("{line}\n")).collect();
    assert_eq!(read(&all).records.len(), cases.len());
}

#[test]
fn nothing_is_lost_without_a_word() {
    let trace = read(
        "no log, no CSV
h - - [10/Oct/2025:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 5

# a comment
h - - [10/Oct/2025:13:55:36 +0000] \"-\" 408 -
h - - [whenever] \"GET /b HTTP/1.1\" 200 5
h - - [10/Oct/2025:13:55:36 +0000] \"GET /c HTTP/1.1\" 200 5k
h - - [10/Oct/2025:13:55:36 +0000] \"GET /cut
h - - [10/Oct/2025:13:55:36 +0000] \"-\" 408 -
",
    );
    assert_eq!(urls(&trace), ["/a", "/b"]);
    let reading = &trace.reading;
    assert_eq!(
        (
            reading.lines,
            reading.malformed,
            reading.untimed,
            reading.blank
        ),
        (7, 5, 1, 2)
    );
    let left: Vec<_> = (reading.left_out.iter())
        .map(|l| (l.reason, l.lines, l.first_line))
        .collect();
    assert_eq!(
        left,
        [
            ("no URL", 2, 5),
            ("neither Common Log Format nor CSV", 1, 1),
            ("the size is no number below 2^50", 1, 7),
            ("no request in quotes with a status after it", 1, 8),
        ]
    );
    assert_eq!(
        reading.lines,
        trace.records.len() as u64 + reading.malformed
    );
}

#[test]
fn a_line_without_end_takes_no_memory_without_end() {
    let mut text = b"t,url\n0,/a\n1,/".to_vec();
    text.resize(text.len() + 3 * LINE_MAX, b'x');
    text.extend(b"\n2,/b\n");
    let trace = Trace::read(&text[..]).unwrap();
    assert_eq!(urls(&trace), ["/a", "/b"]);
    let left = &trace.reading.left_out[0];
    assert_eq!((left.reason, left.first_line), ("longer than 1 MiB", 3));
    assert_eq!(left.text.len(), SHOWN);
}

#[test]
fn no_more_is_read_than_is_wanted() {
    let trace = Trace::read_first("t,url\n0,/a\n1,/b\n2,/c\n".as_bytes(), 2).unwrap();
    assert_eq!(urls(&trace), ["/a", "/b"]);
}

#[test]
fn a_compressed_file_that_is_cut_off_is_an_error() {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gz.write_all(LOG.as_bytes()).unwrap();
    let whole = gz.finish().unwrap();
    let error = Trace::read(&whole[..whole.len() / 2]).unwrap_err();
    assert!(error.to_string().contains("after line"), "{error}");
}

proptest::proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        let _ = Trace::read(&bytes[..]);
        let _ = Trace::read([&b"t,url,bytes,status,method\n"[..], &bytes].concat().as_slice());
        let _ = Trace::read([LOG.as_bytes(), &bytes].concat().as_slice());
    }
}

/// Times that no clock shows are none, as if they could not be read.
#[test]
fn impossible_times_are_not_believed() {
    for wrong in [
        "31/Feb/1995:00:00:00 +0000",
        "29/Feb/1995:00:00:00 +0000",
        "00/Oct/1995:00:00:00 +0000",
        "10/Foo/1995:00:00:00 +0000",
        "10/Oct/0:00:00:00 +0000",
        "10/Oct/99999:00:00:00 +0000",
        "10/Oct/1995:25:61:61 +0000",
        "10/Oct/1995:13:99:00 +0000",
        "10/Oct/1995:13:99 +0000",
        "10/Oct/1995:-1:00:00 +0000",
        "10/Oct/1995:nan:00:00 +0000",
        "10/Oct/1995:00:00:00 -9999",
        "10/Oct/1995:00:00:00 +1",
        "32:00:00:00",
    ] {
        let before = "10/Oct/1995:13:55:36 +0000";
        let line = |at: &str| format!("h - - [{at}] \"GET /a HTTP/1.0\" 200 1\n");
        let trace = read(&(line(before) + &line(wrong)));
        assert_eq!(trace.reading.untimed, 1, "{wrong}");
        assert_eq!(trace.records[1].at_ns, 0, "{wrong}");
    }
    for right in [
        "29/Feb/1996:23:59:60 +1400",
        "10/Oct/1995:13:55:36.25 -12:00",
        "10/10/1995:13:55:36",
        "10/Oct/1995:13:55:36 UTC",
    ] {
        let trace = read(&format!("h - - [{right}] \"GET /a HTTP/1.0\" 200 1\n"));
        assert_eq!(trace.reading.untimed, 0, "{right}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_counted() {
    let trace = read("t,url,bytes\n0,/a,1\n1e300,/b,1\n1,/c,-10\n2,/d,-0.5\n3,/e,1\n");
    assert_eq!(urls(&trace), ["/a", "/e"]);
    let left: Vec<_> = (trace.reading.left_out.iter())
        .map(|l| (l.reason, l.lines, l.first_line))
        .collect();
    assert_eq!(
        left,
        [
            ("the size is below zero", 2, 4),
            ("the time is after the year 2200", 1, 3)
        ]
    );
    assert_eq!(trace.profile().seconds, 3.0);
}

#[test]
fn a_header_without_urls_is_an_error_that_names_the_column() {
    for text in [
        "t,bytes,status\n0,10,200\n1,20,200\n",
        "when,what,howmuch\n0,/a,5\n",
        "# exported\nt;bytes\n0;10\n",
        "\"t\",\"bytes\"\n0,10\n",
        "t,bytes,status\n",
    ] {
        let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("without a column for the URL") && error.contains("column url"),
            "{text:?}: {error}"
        );
    }
    // Of logs the columns are known.
    let trace = read(&format!("some,words\n{LOG}"));
    assert_eq!(trace.reading.format, "common log");
}

#[test]
fn lines_may_end_as_on_old_macs() {
    let trace = read("t,url\r0,/a\r1,/b\r");
    assert_eq!(urls(&trace), ["/a", "/b"]);
    assert_eq!(read(&LOG.replace('\n', "\r")).records, read(LOG).records);
    assert_eq!(read(&LOG.replace('\n', "\r\n")).records, read(LOG).records);
}

#[test]
fn what_follows_compressed_data_is_ignored_and_said() {
    let gz = |text: &str| {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        gz.finish().unwrap()
    };
    let (first, second) = LOG.split_at(LOG.len() / 2);
    let whole = [gz(first), gz(second)].concat();
    let trace = Trace::read(&whole[..]).unwrap();
    assert_eq!(trace.records, read(LOG).records, "several members");
    assert!(!trace.reading.trailing);
    for rest in [&[0; 512][..], b"junk", &[0x1f, 0]] {
        let trace = Trace::read(&[&whole, rest].concat()[..]).unwrap();
        assert_eq!(trace.records, read(LOG).records);
        assert!(trace.reading.trailing, "{rest:?}");
    }
}

/// What is shown of a line that was left out does nothing to the terminal.
#[test]
fn control_characters_of_strangers_are_not_shown_as_they_are() {
    let error = Trace::read("\u{1b}[2Jgarbage\u{7}\n".as_bytes()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("\\u{1b}[2Jgarbage\\u{7}"), "{said}");
    assert!(!said.chars().any(char::is_control), "{said:?}");
}
