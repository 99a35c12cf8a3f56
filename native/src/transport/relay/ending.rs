//! Recognises the ordinary end of a resumable stream: the event that ends its choice, its usage, `[DONE]`. Pure.

use super::chunk::{Chunk, json};

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Whether these are an ordinary end: then `chunk` has read the first event.
#[must_use]
pub fn is_ordinary(events: &[Vec<u8>], chunk: &mut Chunk) -> bool {
    let [last, usage, done] = events else { return false };
    done == DONE && is_usage(usage).is_some() && chunk.read_last(last).is_some()
}

/// None for any event but one of usage.
fn is_usage(event: &[u8]) -> Option<()> {
    let mut json = json(event)?;
    let (mut choices, mut usage, mut fingerprint) = (0, 0, 0);
    json.object(|json, name| match name {
        "choices" => {
            choices += 1;
            json.word("[]").then_some(())
        }
        "usage" => {
            usage += 1;
            (json.peek() == Some(b'{')).then_some(()).and_then(|()| json.skip(|_| true))
        }
        "system_fingerprint" => {
            fingerprint += 1;
            if json.word("null") { Some(()) } else { json.string().map(drop) }
        }
        "error" | "type" => None,
        _ => json.skip(|_| true),
    })?;
    (choices == 1 && usage == 1 && fingerprint <= 1 && json.ended()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: &str = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop","token_ids":[1]}]}"#;
    const USAGE: &str = r#"data: {"id":"c","choices":[],"usage":{"a":{"b":1}},"system_fingerprint":"f"}"#;

    fn end(last: &str, usage: &str, done: &str) -> [Vec<u8>; 3] {
        [last, usage, done].map(|event| format!("{event}\n\n").into_bytes())
    }

    fn is_ordinary(events: &[Vec<u8>]) -> bool {
        super::is_ordinary(events, &mut Chunk::default())
    }

    #[test]
    fn an_end_is_a_last_event_usage_and_done() {
        let done = "data: [DONE]";
        assert!(is_ordinary(&end(LAST, USAGE, done)));
        for usage in [USAGE.replace(r#":"f""#, ":null"), USAGE.replace(r#","system_fingerprint":"f""#, "")] {
            assert!(is_ordinary(&end(LAST, &usage, done)), "{usage}");
        }
    }

    #[test]
    fn leaves_all_else_to_python() {
        let whole = end(LAST, USAGE, "data: [DONE]");
        assert!(!is_ordinary(&whole[..2]) && !is_ordinary(&whole[1..]));
        assert!(!is_ordinary(&[whole.clone(), whole].concat()));
        for last in
            [LAST.replace("stop", "cache_threshold"), LAST.replace("\"stop\"", "null"), LAST.replace('a', "\"error\"")]
        {
            assert!(!is_ordinary(&end(&last, USAGE, "data: [DONE]")), "{last}");
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
            assert!(!is_ordinary(&end(LAST, &usage, "data: [DONE]")), "{usage}");
        }
        for done in ["data:[DONE]", "data: [DONE]\n", ": [DONE]"] {
            assert!(!is_ordinary(&end(LAST, USAGE, done)), "{done}");
        }
    }
}
