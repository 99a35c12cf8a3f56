//! Finds a bare LF in the head of an HTTP/1 request.
//!
//! hyper takes a bare LF as the end of a line, which RFC 9112 (2.2) allows; a proxy before this server may take it as
//! a part of the line, so that the two read different fields. hyper cannot be told to refuse it, so the bytes are looked
//! at before it parses them: what was read is given to it in parts, each of which ends with a head or a body at the
//! latest. Bodies of known length are not looked at.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memchr;

/// Put in the place of a bare LF: no head may have it anywhere, and hyper answers 400.
const REFUSED: u8 = 0;

/// What the next bytes of a connection belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// A head is whole, and hyper has not said yet what follows it.
    HeadEnded,
    /// So many bytes of a body are to come.
    Body(u64),
    /// A chunked body, whose end only hyper knows, and heads that were sent behind it.
    Chunks,
    /// Another protocol than HTTP.
    Upgraded,
}

/// Follows the heads of one connection's requests.
pub struct Heads(Mutex<Position>);

struct Position {
    part: Part,
    lines: Lines,
    /// The head has a line that is not empty: those before a request are skipped.
    begun: bool,
    /// A bare LF has come since the last empty line of `Part::Chunks`.
    bare: bool,
    /// The bytes given last ended with such an empty line.
    paused: bool,
}

/// How the line that is read has begun.
#[derive(Default)]
struct Lines {
    /// Its bytes so far.
    size: usize,
    last: u8,
}

/// How a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Bare { empty: bool },
    Empty,
    Filled,
}

impl Lines {
    /// Where the next line in `data[from..]` ends, at its LF, and how; None where its rest is to come.
    fn next(&mut self, data: &[u8], from: usize) -> Option<(usize, End)> {
        let Some(size) = memchr(b'\n', &data[from..]) else {
            self.size += data.len() - from;
            self.last = data[from..].last().copied().unwrap_or(self.last);
            return None;
        };
        let last = if size > 0 { data[from + size - 1] } else { self.last };
        let end = match self.size + size {
            0 => End::Bare { empty: true },
            1 if last == b'\r' => End::Empty,
            _ if last == b'\r' => End::Filled,
            _ => End::Bare { empty: false },
        };
        *self = Self::default();
        Some((from + size, end))
    }
}

impl Default for Heads {
    fn default() -> Self {
        let lines = Lines::default();
        Self(Mutex::new(Position { part: Part::Head, lines, begun: false, bare: false, paused: false }))
    }
}

impl Heads {
    /// Looks at bytes that hyper is to read, of which there are some; how many it may read before it is asked again. A
    /// bare LF in a head is overwritten.
    pub fn check(&self, data: &mut [u8]) -> usize {
        self.lock().check(data)
    }

    /// hyper has read a head, which a body of this length follows, or a chunked one. Whether all its lines end with CRLF
    /// where that was not made sure before.
    pub fn parsed(&self, length: Option<u64>) -> bool {
        let mut position = self.lock();
        let fine = position.part != Part::Chunks || !position.bare;
        position.enter(length.map_or(Part::Chunks, |length| if length > 0 { Part::Body(length) } else { Part::Head }));
        fine
    }

    /// What follows is not HTTP.
    pub fn upgraded(&self) {
        self.lock().enter(Part::Upgraded);
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Position {
    fn enter(&mut self, part: Part) {
        *self = Self { part, lines: Lines::default(), begun: false, bare: false, paused: false };
    }

    fn check(&mut self, data: &mut [u8]) -> usize {
        match self.part {
            Part::Head => self.check_head(data),
            Part::Body(left) => self.check_body(left, data.len()),
            Part::Chunks => self.check_chunks(data),
            Part::HeadEnded | Part::Upgraded => data.len(),
        }
    }

    fn check_head(&mut self, data: &mut [u8]) -> usize {
        let mut from = 0;
        while let Some((at, end)) = self.lines.next(data, from) {
            match end {
                End::Empty if self.begun => {
                    self.enter(Part::HeadEnded);
                    return at + 1;
                }
                End::Bare { empty } if self.begun || !empty => data[at] = REFUSED,
                _ => {}
            }
            self.begun |= end == End::Filled;
            from = at + 1;
        }
        data.len()
    }

    fn check_body(&mut self, left: u64, size: usize) -> usize {
        match usize::try_from(left) {
            Ok(left) if left <= size => {
                self.enter(Part::Head);
                left
            }
            _ => {
                self.part = Part::Body(left - size as u64);
                size
            }
        }
    }

    /// A chunked body ends with an empty line, so a head behind it begins after one: what is noted since the last is
    /// that head's alone once hyper has parsed it.
    fn check_chunks(&mut self, data: &[u8]) -> usize {
        self.bare &= !self.paused;
        self.paused = false;
        let mut from = 0;
        while let Some((at, end)) = self.lines.next(data, from) {
            if end == End::Empty {
                self.paused = true;
                return at + 1;
            }
            self.bare |= matches!(end, End::Bare { .. });
            from = at + 1;
        }
        data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Heads;

    /// The parts in which `sent`, which came in pieces of `size` bytes, is given to hyper.
    fn given(heads: &Heads, sent: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        for piece in sent.chunks(size) {
            let mut piece = piece.to_vec();
            while !piece.is_empty() {
                let end = heads.check(&mut piece);
                parts.push(piece.drain(..end).collect());
            }
        }
        parts
    }

    #[test]
    fn a_bare_lf_of_a_head_is_overwritten_wherever_it_stands() {
        for (sent, seen) in [
            ("GET / HTTP/1.1\nhost: x\r\n\r\n", "GET / HTTP/1.1\0host: x\r\n\r\n"),
            ("GET / HTTP/1.1\r\na: 1\nb: 2\r\n\r\n", "GET / HTTP/1.1\r\na: 1\0b: 2\r\n\r\n"),
            ("GET / HTTP/1.1\r\na: 1\r\n\n", "GET / HTTP/1.1\r\na: 1\r\n\0"),
            ("\r\n\nGET / HTTP/1.1\r\na: 1\r\n\r\n", "\r\n\nGET / HTTP/1.1\r\na: 1\r\n\r\n"),
        ] {
            for size in 1..=sent.len() {
                let parts = given(&Heads::default(), sent.as_bytes(), size);
                assert_eq!(String::from_utf8(parts.concat()).unwrap(), seen);
            }
        }
    }

    #[test]
    fn parts_end_with_heads_and_bodies() {
        let head = b"POST / HTTP/1.1\r\na: 1\r\n\r\n";
        for size in 1..=60 {
            let heads = Heads::default();
            assert_eq!(given(&heads, head, size).concat(), head);
            assert!(heads.parsed(Some(6)));
            assert_eq!(given(&heads, b"{\n1\n}\n", size).concat(), b"{\n1\n}\n");
            assert_eq!(given(&heads, b"G\n", size).concat(), b"G\0");
        }
        let together = [head.as_slice(), b"{\n1\n}\nG\n"].concat();
        let heads = Heads::default();
        assert_eq!(heads.check(&mut together.clone()), head.len());
        assert!(heads.parsed(Some(6)));
        assert_eq!(heads.check(&mut together[head.len()..].to_vec()), 6);
    }

    #[test]
    fn of_a_head_behind_chunks_it_is_known() {
        for (next, fine) in [("GET / HTTP/1.1\r\na: 1\r\n\r\n", true), ("GET / HTTP/1.1\na: 1\r\n\r\n", false)] {
            for size in 1..=80 {
                let heads = Heads::default();
                assert!(heads.parsed(None));
                let sent = format!("2\r\n\n\n\r\n0\r\nx: y\r\n\r\n{next}");
                let parts = given(&heads, sent.as_bytes(), size);
                assert_eq!(parts.concat(), sent.as_bytes());
                assert_eq!(heads.parsed(Some(0)), fine, "{size}");
            }
        }
    }

    #[test]
    fn another_protocol_is_left_alone() {
        let heads = Heads::default();
        heads.upgraded();
        assert_eq!(given(&heads, b"a\n\r\nb\n", 100), [b"a\n\r\nb\n"]);
    }
}
