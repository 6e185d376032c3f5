//! Compressed traces: gzip's members one after the other, and what stands behind them. As
//! with `gzip` itself that is no reason to refuse the rest: tapes and block devices pad
//! files with zeros, and copies that were broken off leave bytes of other files.

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;

/// What every member begins with (RFC 1952 §2.3.1).
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads all members.
pub(super) struct Members<R> {
    /// None behind the last one.
    member: Option<GzDecoder<R>>,
    /// Whether something stands behind it.
    followed: Rc<Cell<bool>>,
}

impl<R: BufRead> Members<R> {
    /// Of a file that begins with [`MAGIC`], and where it will be told whether something
    /// that is no member follows them.
    pub(super) fn new(input: R) -> (Self, Rc<Cell<bool>>) {
        let followed = Rc::new(Cell::new(false));
        let members = Members {
            member: Some(GzDecoder::new(input)),
            followed: Rc::clone(&followed),
        };
        (members, followed)
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let rest = member.get_mut().fill_buf()?;
            // Of the next one's two bytes the second may not be there yet.
            let another = !rest.is_empty() && rest.iter().zip(MAGIC).all(|(a, b)| *a == b);
            self.followed.set(!rest.is_empty() && !another);
            let input = self.member.take().map(GzDecoder::into_inner);
            self.member = input.filter(|_| another).map(GzDecoder::new);
        }
        Ok(0)
    }
}
