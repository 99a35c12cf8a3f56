//! Puts the name by which a client asked for a model in place of its engine's. Pure.
//!
//! Every API is known here by its members alone: `model` stands in the answer, in a chunk, or in an event's `response` or
//! `message`. All other members stay the bytes that they were, those of the same name deeper down among them.

use std::borrow::Cow;
use std::ops::Range;

use super::event::{Part, payload};
use crate::json_members::{members, value_of};

const MODEL: &[u8] = b"model";
const HOLDERS: [&[u8]; 2] = [b"response", b"message"];
static NAMED: Part = Part::new(b"\"model\"");

/// An answer's JSON, or an event of a stream, with another model; `name` is JSON.
#[must_use]
pub fn with_model<'a>(data: &'a [u8], name: &[u8]) -> Cow<'a, [u8]> {
    if !NAMED.is_in(data) {
        return Cow::Borrowed(data);
    }
    let mut json = payload(data);
    if json.is_empty() {
        json = 0..data.len();
    }
    match place(&data[json.clone()]) {
        Some(found) => {
            let (start, end) = (json.start + found.start, json.start + found.end);
            Cow::Owned([&data[..start], name, &data[end..]].concat())
        }
        None => Cow::Borrowed(data),
    }
}

/// Where the name is in the object that is all of `text`; None where it has none.
fn place(text: &[u8]) -> Option<Range<usize>> {
    let top = members(text)?;
    let found = value_of(text, &top, MODEL).or_else(|| {
        let holder = HOLDERS.iter().find_map(|name| value_of(text, &top, name))?;
        let within = value_of(&text[holder.clone()], &members(&text[holder.clone()])?, MODEL)?;
        Some(holder.start + within.start..holder.start + within.end)
    })?;
    (text[found.start] == b'"').then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> String {
        String::from_utf8(with_model(text.as_bytes(), b"\"asked\"").into_owned()).unwrap()
    }

    #[test]
    fn the_name_is_put_in_wherever_an_api_has_it() {
        for text in [
            r#"{"id":"c","model":"NAME","choices":[{"delta":{"content":"\"model\":\"m\""}}]}"#,
            "data: {\"model\" : \"NAME\"}\n\n",
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"NAME\"}}\n\n",
            r#"{"response":{"metadata":{"model":"m"},"model":"NAME","tools":[{"model":"m"}]}}"#,
            r#"{"content":[{"type":"tool_use","input":{"model":"m"}}],"model":"NAME"}"#,
        ] {
            assert_eq!(named(&text.replace("NAME", "m")), text.replace("NAME", "asked"));
        }
    }

    #[test]
    fn all_else_stays() {
        for text in [
            "",
            "data: [DONE]\n\n",
            ": \"model\"\n\n",
            r#"{"model":null}"#,
            r#"{"model":"m""#,
            r#"{"response":"\"model\""}"#,
            r#"{"choices":[{"model":"m"}]}"#,
            r#"{"delta":{"partial_json":"{\"model\":\"m\"}"}}"#,
        ] {
            assert_eq!(named(text), text);
        }
    }
}
