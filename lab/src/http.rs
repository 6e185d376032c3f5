//! Answers, as far as the experiments' clients read them.

use std::io::{self, BufRead};

/// An answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its status; 0 where the first line has none.
    pub status: u16,
    /// Bytes of the body.
    pub length: u64,
}

/// Reads a head.
///
/// # Errors
/// It does not come whole, or does not tell its body's length.
pub fn read_head(from: &mut impl BufRead) -> io::Result<Head> {
    let (mut line, mut status, mut length) = (String::new(), 0, None);
    loop {
        line.clear();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        if let Some(rest) = text.strip_prefix("HTTP/1.1 ") {
            status = rest
                .split(' ')
                .next()
                .and_then(|code| code.parse().ok())
                .unwrap_or(0);
        }
        if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
    let length = match (status, length) {
        (204, None) => 0,
        (_, Some(length)) => length,
        _ => return Err(io::Error::other("an answer without its length")),
    };
    Ok(Head { status, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_to_their_ends() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 204 No\r\n\r\n";
        let mut from = &text[..];
        let head = |status, length| Head { status, length };
        assert_eq!(read_head(&mut from).unwrap(), head(200, 3));
        from = &from[3..];
        assert_eq!(read_head(&mut from).unwrap(), head(204, 0));
        assert!(read_head(&mut from).is_err());
        assert!(read_head(&mut &b"HTTP/1.1 200 OK\r\n\r\n"[..]).is_err());
        assert!(read_head(&mut &b"HTTP/1.1 200 OK\r\nContent-Len"[..]).is_err());
    }
}
