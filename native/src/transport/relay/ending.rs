//! Recognises the ordinary end of a stream with one choice: the event that ends it, its usage, `[DONE]`. Pure.
//!
//! It is what `answer.StreamFilter` makes of these: without usage that only the gateway asked for, whose system
//! fingerprint then is the last member of the event that ends the choice.

use super::chunk::{Chunk, json};

/// What ends the JSON of an event, with the event.
const CLOSED: &[u8] = b"}\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";
const FINGERPRINT: &[u8] = b",\"system_fingerprint\":";

/// What the client is sent of an end. None where it is not ordinary; else `chunk` has read its first event.
#[must_use]
pub fn passed(events: &[Vec<u8>], chunk: &mut Chunk, strip_ids: bool, strip_usage: bool) -> Option<Vec<u8>> {
    let [last, usage, done] = events else { return None };
    if done != DONE {
        return None;
    }
    let fingerprint = fingerprint(usage)?;
    chunk.read_last(last)?;
    let mut out = Vec::with_capacity(last.len() + usage.len() + done.len());
    chunk.pass(last, &mut out, strip_ids);
    if !strip_usage {
        out.extend_from_slice(usage);
    } else if !fingerprint.is_empty() {
        out.truncate(out.len() - CLOSED.len());
        for part in [FINGERPRINT, fingerprint, CLOSED] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(done);
    Some(out)
}

/// The system fingerprint in an event of usage, as JSON; empty where it has none. None for any other event.
fn fingerprint(event: &[u8]) -> Option<&[u8]> {
    let mut json = json(event)?;
    let (mut choices, mut usage, mut fingerprint) = (0, 0, 0..0);
    json.object(|json, name| match name {
        "choices" => {
            choices += 1;
            json.word("[]").then_some(())
        }
        "usage" => {
            usage += 1;
            (json.peek() == Some(b'{')).then_some(()).and_then(|()| json.skip(|_| true))
        }
        "system_fingerprint" if fingerprint.end == 0 => {
            let start = json.at;
            if !json.word("null") {
                json.string()?;
                fingerprint = start..json.at;
            }
            Some(())
        }
        "error" | "type" | "system_fingerprint" => None,
        _ => json.skip(|_| true),
    })?;
    (choices == 1 && usage == 1 && json.ended()).then(|| json.text(fingerprint).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: &str = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop","token_ids":[1]}]}"#;
    const SIGNED: &str = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop","token_ids":null}],"system_fingerprint":"f"}"#;
    const USAGE: &str = r#"data: {"id":"c","choices":[],"usage":{"a":{"b":1}},"system_fingerprint":"f"}"#;

    fn end(last: &str, usage: &str, done: &str) -> [Vec<u8>; 3] {
        [last, usage, done].map(|event| format!("{event}\n\n").into_bytes())
    }

    fn passed(events: &[Vec<u8>], strip: bool) -> Option<String> {
        let passed = super::passed(events, &mut Chunk::default(), strip, strip)?;
        Some(String::from_utf8(passed).unwrap())
    }

    #[test]
    fn usage_goes_and_leaves_its_fingerprint() {
        let events = end(LAST, USAGE, "data: [DONE]");
        assert_eq!(passed(&events, true).unwrap(), format!("{SIGNED}\n\ndata: [DONE]\n\n"));
        assert_eq!(passed(&events, false).unwrap(), format!("{LAST}\n\n{USAGE}\n\ndata: [DONE]\n\n"));
        for usage in [USAGE.replace(r#":"f""#, ":null"), USAGE.replace(r#","system_fingerprint":"f""#, "")] {
            let told = passed(&end(LAST, &usage, "data: [DONE]"), true).unwrap();
            assert_eq!(told, format!("{}\n\ndata: [DONE]\n\n", LAST.replace("[1]", "null")));
        }
    }

    #[test]
    fn leaves_all_else_to_python() {
        let whole = end(LAST, USAGE, "data: [DONE]");
        assert_eq!((passed(&whole[..2], true), passed(&whole[1..], true)), (None, None));
        assert_eq!(passed(&[whole.clone(), whole].concat(), true), None);
        for last in
            [LAST.replace("stop", "cache_threshold"), LAST.replace("\"stop\"", "null"), LAST.replace('a', "\"error\"")]
        {
            assert_eq!(passed(&end(&last, USAGE, "data: [DONE]"), true), None, "{last}");
        }
        for usage in [
            USAGE.replace("[]", "[1]"),
            USAGE.replace(r#"{"a":{"b":1}}"#, "null"),
            USAGE.replace(r#""id""#, r#""error""#),
            USAGE.replace(r#""id":"c""#, r#""usage":{}"#),
            USAGE.replace(r#""id":"c""#, r#""system_fingerprint":"f""#),
            USAGE.replace(r#":"f""#, ":1"),
            USAGE.replace(',', ", "),
            LAST.to_owned(),
        ] {
            assert_eq!(passed(&end(LAST, &usage, "data: [DONE]"), true), None, "{usage}");
        }
        for done in ["data:[DONE]", "data: [DONE]\n", ": [DONE]"] {
            assert_eq!(passed(&end(LAST, USAGE, done), true), None, "{done}");
        }
    }
}
