//! The payload of a server-sent event, by the rules of `cachefleet_runtime.sse.event_data`. Pure.

use std::ops::Range;

use memchr::{memchr, memmem};

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

#[must_use]
pub fn contains(data: &[u8], part: &[u8]) -> bool {
    memmem::find(data, part).is_some()
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
