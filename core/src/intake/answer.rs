//! The few answers that a dispatcher gives itself, each in one segment.

/// What a client is told before its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// 400: the head is not one.
    BadRequest,
    /// 404: no rule leads anywhere.
    NotFound,
    /// 408: the head did not come in time.
    RequestTimeout,
    /// 431: the head is larger than configured.
    HeadTooLarge,
    /// 503: no backend takes it.
    ServiceUnavailable,
    /// 504: the backend that had it does not answer, and it must not run twice.
    GatewayTimeout,
    /// 505: HTTP, but of another major version than 1.
    VersionNotSupported,
    /// A fatal TLS alert of this description (RFC 8446 §6).
    TlsAlert(u8),
    /// Nothing but the close.
    Close,
}

/// Does the answer's body travel? Not in answers to HEAD (RFC 9110 §9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Headers and body.
    Full,
    /// Headers only.
    Omitted,
}

impl Answer {
    /// TLS `decode_error`.
    pub const DECODE_ERROR: Self = Self::TlsAlert(50);
    /// TLS `record_overflow`.
    pub const RECORD_OVERFLOW: Self = Self::TlsAlert(22);
    /// TLS `unrecognized_name`.
    pub const UNRECOGNIZED_NAME: Self = Self::TlsAlert(112);

    /// The bytes to send; always fewer than the smallest segment size, 536.
    pub fn bytes(self, body: Body) -> Vec<u8> {
        let status = match self {
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::RequestTimeout => "408 Request Timeout",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::GatewayTimeout => "504 Gateway Timeout",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
            // Record of type alert, version 1.2, level fatal.
            Self::TlsAlert(description) => return vec![21, 3, 3, 0, 2, 2, description],
            Self::Close => return Vec::new(),
        };
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\n\
             Content-Type: text/plain\r\n\
             Content-Length: {}\r\n\
             Connection: close\r\n\r\n",
            status.len() + 1
        );
        if body == Body::Full {
            bytes.push_str(status);
            bytes.push('\n');
        }
        bytes.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_and_fit_one_segment() {
        let answers = [
            Answer::BadRequest,
            Answer::NotFound,
            Answer::RequestTimeout,
            Answer::HeadTooLarge,
            Answer::ServiceUnavailable,
            Answer::GatewayTimeout,
            Answer::VersionNotSupported,
        ];
        for answer in answers {
            let bytes = answer.bytes(Body::Full);
            assert!(bytes.len() < 536);
            let mut headers = [httparse::EMPTY_HEADER; 8];
            let mut response = httparse::Response::new(&mut headers);
            let head = response.parse(&bytes).unwrap().unwrap();
            let length = response
                .headers
                .iter()
                .find(|h| h.name == "Content-Length")
                .unwrap();
            let length: usize = std::str::from_utf8(length.value).unwrap().parse().unwrap();
            assert_eq!(head + length, bytes.len(), "{answer:?}");
            assert_eq!(answer.bytes(Body::Omitted), bytes[..head]);
        }
    }

    #[test]
    fn an_alert_is_a_record() {
        assert_eq!(
            Answer::UNRECOGNIZED_NAME.bytes(Body::Full),
            [21, 3, 3, 0, 2, 2, 112]
        );
        assert!(Answer::Close.bytes(Body::Full).is_empty());
    }
}
