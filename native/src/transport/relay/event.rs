//! The payload of a server-sent event, by the rules of `cachefleet_runtime.sse.event_data`, and parts of it. Pure.

use std::ops::Range;
use std::sync::OnceLock;

use memchr::memchr;
use memchr::memmem::Finder;

pub const DONE: &[u8] = b"[DONE]";
const NAME: &[u8] = b"event:";
const DATA: &[u8] = b"data:";

/// Where the payload of an event of one `data` line is, after its name or without one; empty for anything else.
#[must_use]
pub fn payload(event: &[u8]) -> Range<usize> {
    let start = if event.starts_with(NAME) { memchr(b'\n', event).map_or(0, |end| end + 1) } else { 0 };
    let Some(rest) = event[start..].strip_prefix(DATA) else { return 0..0 };
    let rest = rest.trim_ascii_start();
    let start = event.len() - rest.len();
    let payload = start..start + rest.trim_ascii_end().len();
    if memchr(b'\n', &event[payload.clone()]).is_some() { 0..0 } else { payload }
}

/// Whether an event is the last of a chat's or completion's stream.
#[must_use]
pub fn is_done(event: &[u8]) -> bool {
    event[payload(event)] == *DONE
}

/// Bytes that every event is searched for: the search is prepared once.
pub struct Part(&'static [u8], OnceLock<Finder<'static>>);

impl Part {
    #[must_use]
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self(bytes, OnceLock::new())
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where the bytes are first.
    #[must_use]
    pub fn find(&self, data: &[u8]) -> Option<usize> {
        self.1.get_or_init(|| Finder::new(self.0)).find(data)
    }

    #[must_use]
    pub fn is_in(&self, data: &[u8]) -> bool {
        self.find(data).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_that_of_one_line() {
        for (event, expected) in [
            ("data: a\n\n", "a"),
            ("data:a b \r\n\r\n", "a b"),
            ("event: x\ndata: a\n\n", "a"),
            ("event: x\n\n", ""),
            ("event:", ""),
            ("data: a\ndata: b\n\n", ""),
            (": a\n\n", ""),
            ("data: \n\n", ""),
            ("", ""),
        ] {
            assert_eq!(&event[payload(event.as_bytes())], expected, "{event}");
        }
        assert!(is_done(b"data:[DONE]\n\n") && !is_done(b"data: [DONE\n\n"));
    }
}
