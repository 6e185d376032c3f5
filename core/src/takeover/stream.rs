//! Streams that are made as they are sent, and have no validator: their application says in the
//! answer's head how another backend goes on with one (docs/protocol/takeover.md §10).

/// `Trapeze-Resume`: by what request the stream is gone on with.
pub const RESUME: &str = "trapeze-resume";
/// `Trapeze-Resume-From`: from which byte of its body on; in the request, and the same in the answer.
pub const RESUME_FROM: &str = "trapeze-resume-from";
/// Bytes of the body of an answer until close, as the data path counts them: more than ever come.
pub const UNTIL_CLOSE: u64 = 1 << 62;

/// The parameter that says so.
const ENDLESS: &str = "endless";

/// What an application says: a Structured Fields string (RFC 9651 §3.3.3), with one parameter at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume<'a> {
    /// The field's value, which names the stream.
    pub said: &'a str,
    /// In origin-form (RFC 9112 §3.2.1).
    pub target: &'a str,
    /// The application never ends it: where it closes all the same, it has died.
    pub is_endless: bool,
}

impl<'a> Resume<'a> {
    /// `"/ticks?stream=42"`, or the same with `;endless`. None: it says something else.
    pub fn parse(said: &'a str) -> Option<Self> {
        let (target, parameter) = said.strip_prefix('"')?.split_once('"')?;
        let is_endless = match parameter.strip_prefix(';') {
            Some(name) if name.trim_start_matches(' ') == ENDLESS => true,
            None if parameter.is_empty() => false,
            _ => return None,
        };
        // "//" would be another host to some; a fragment is not sent, and a backslash escapes.
        let is_plain = target.starts_with('/')
            && !target.starts_with("//")
            && (target.bytes()).all(|b| b.is_ascii_graphic() && b != b'\\' && b != b'#');
        is_plain.then_some(Self {
            said,
            target,
            is_endless,
        })
    }
}
