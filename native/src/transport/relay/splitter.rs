//! Splits a byte stream into server-sent events, by the rules of `cachefleet_runtime.sse.EventSplitter`. Pure.
//!
//! An event is its bytes with the blank line that ends it: LF LF or CR LF CR LF.

use std::ops::Range;

use memchr::memchr;

/// An event is longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

/// The bytes after the last whole event, with those that were added since.
#[derive(Debug)]
pub struct Splitter {
    limit: usize,
    bytes: Vec<u8>,
    /// Of `bytes`, hold no end of an event.
    scanned: usize,
}

impl Splitter {
    /// Begins with the first bytes of an event.
    #[must_use]
    pub fn new(limit: usize, begun: Vec<u8>) -> Self {
        Self { limit, bytes: begun, scanned: 0 }
    }

    /// Where more bytes are to be added.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes of the last that were added, and of what is left of those before.
    #[must_use]
    pub fn all(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds to `events` where the whole ones are.
    ///
    /// # Errors
    /// One, or what there is of it, is longer than the limit.
    pub fn split(&mut self, events: &mut Vec<Range<usize>>) -> Result<(), TooLarge> {
        let (bytes, mut start, mut at) = (&self.bytes, 0, self.scanned);
        while let Some(found) = memchr(b'\n', &bytes[at..]) {
            at += found + 1;
            if bytes[start..at].ends_with(b"\n\n") || bytes[start..at].ends_with(b"\r\n\r\n") {
                self.check(at - start)?;
                events.push(start..at);
                start = at;
            }
        }
        self.scanned = bytes.len();
        self.check(bytes.len() - start)
    }

    /// Forgets the first bytes, which make whole events.
    pub fn forget(&mut self, bytes: usize) {
        if bytes == self.bytes.len() {
            self.bytes = Vec::new(); // most wait with nothing: they hold no buffer
        } else {
            self.bytes.drain(..bytes);
        }
        self.scanned -= bytes;
    }

    fn check(&self, size: usize) -> Result<(), TooLarge> {
        if size > self.limit { Err(TooLarge) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]], limit: usize) -> Result<(Vec<Vec<u8>>, Vec<u8>), TooLarge> {
        let (mut splitter, mut found) = (Splitter::new(limit, Vec::new()), Vec::new());
        for piece in pieces {
            splitter.bytes().extend_from_slice(piece);
            let mut events = Vec::new();
            splitter.split(&mut events)?;
            found.extend(events.iter().map(|event| splitter.all()[event.clone()].to_vec()));
            splitter.forget(events.last().map_or(0, |event| event.end));
        }
        Ok((found, splitter.all().to_vec()))
    }

    #[test]
    fn finds_the_same_events_wherever_the_stream_is_cut() {
        let stream = b"data: a\n\ndata: b\r\n\r\n\n\nevent: x\ndata: c\r\n\n\r\n\rdata: d\n\n\r\n\r\nrest\r\n";
        let whole = split(&[stream], 100).unwrap();
        let events: [&[u8]; 6] = [
            b"data: a\n\n",
            b"data: b\r\n\r\n",
            b"\n\n",
            b"event: x\ndata: c\r\n\n",
            b"\r\n\rdata: d\n\n",
            b"\r\n\r\n",
        ];
        assert_eq!((whole.0, whole.1.as_slice()), (events.map(<[u8]>::to_vec).to_vec(), b"rest\r\n".as_slice()));
        let whole = split(&[stream], 100);
        for one in 0..=stream.len() {
            for two in one..=stream.len() {
                assert_eq!(split(&[&stream[..one], &stream[one..two], &stream[two..]], 100), whole);
            }
        }
    }

    #[test]
    fn bounds_an_event_whole_or_begun() {
        assert!(split(&[b"12345678\n\n"], 10).is_ok());
        assert_eq!(split(&[b"123456789\n\n"], 10), Err(TooLarge));
        assert_eq!(split(&[b"12345678901"], 10), Err(TooLarge));
        assert_eq!(split(&[b"1234567890", b"1"], 10), Err(TooLarge));
    }
}
