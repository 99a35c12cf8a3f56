//! The payload of a server-sent event, by the rules of `cachefleet_runtime.sse.event_data`, and parts of it. Pure.

use std::ops::Range;
use std::sync::OnceLock;

use memchr::memchr;
use memchr::memmem::Finder;

pub const DONE: &[u8] = b"[DONE]";
const NAME: &[u8] = b"event:";
const DATA: &[u8] = b"data:";
static ERROR: Part = Part::new(b"\"error\"");
const ERRORS: [&[u8]; 2] = [b"{\"error\"", b"{\"type\":\"error\""];
const ENDS: [&[u8]; 4] = [b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"];

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

/// The name of an event whose first line is its name; empty for any other.
#[must_use]
pub fn name(event: &[u8]) -> &[u8] {
    let Some(rest) = event.strip_prefix(NAME) else { return b"" };
    rest[..memchr(b'\n', rest).unwrap_or(rest.len())].trim_ascii()
}

/// Whether an event is the last that a client waits for.
#[must_use]
pub fn is_last(event: &[u8]) -> bool {
    event[payload(event)] == *DONE || ENDS.contains(&name(event))
}

/// Whether an event may be an error, in the shape of any API.
#[must_use]
pub fn may_be_error(event: &[u8]) -> bool {
    let data = &event[payload(event)];
    ERROR.is_in(event) && (data.is_empty() || is_error(data))
}

/// Whether an event's JSON is an error.
#[must_use]
pub fn is_error(data: &[u8]) -> bool {
    ERRORS.iter().any(|error| data.starts_with(error))
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
        assert!(is_last(b"data:[DONE]\n\n") && !is_last(b"data: [DONE\n\n"));
        assert!(is_last(b"event: message_stop\ndata: {}\n\n") && !is_last(b"event: message_delta\ndata: {}\n\n"));
    }
}
