//! Leaves counts of cached tokens that are 0 out of usage, for pools with `hit.omitZeroCachedTokens`. Pure.
//!
//! Every API is known here by its members alone: usage stands in the answer, or in an event's `response` or `message`. All
//! other members stay the bytes that they were.

use std::borrow::Cow;

use super::event::{Part, payload};
use crate::json_members::{Member, members, value_of};

const USAGE: &[u8] = b"usage";
const HOLDERS: [&[u8]; 2] = [b"response", b"message"];
const DETAILS: [&[u8]; 2] = [b"prompt_tokens_details", b"input_tokens_details"];
const CACHED: &[u8] = b"cached_tokens";
const READ: &[u8] = b"cache_read_input_tokens";
static COUNTS: [Part; 2] = [Part::new(CACHED), Part::new(READ)];
/// Bound on holders within holders.
const MAX_DEPTH: usize = 4;

/// An answer's JSON, or an event of a stream, without counts of cached tokens that are 0.
#[must_use]
pub fn without_zeros(data: &[u8]) -> Cow<'_, [u8]> {
    if !COUNTS.iter().any(|count| count.is_in(data)) {
        return Cow::Borrowed(data); // as nearly all
    }
    let mut json = payload(data);
    if json.is_empty() {
        json = 0..data.len();
    }
    match edited(&data[json.clone()], 0) {
        Some(edited) => Cow::Owned([&data[..json.start], &edited, &data[json.end..]].concat()),
        None => Cow::Borrowed(data),
    }
}

/// The object, edited; None where nothing of it changes, or it is none.
fn edited(text: &[u8], depth: usize) -> Option<Vec<u8>> {
    let value = |member: &Member| {
        let (name, value) = (&text[member.name.clone()], &text[member.value.clone()]);
        match name {
            USAGE => counted(value),
            _ if HOLDERS.contains(&name) && depth < MAX_DEPTH => edited(value, depth + 1),
            _ => None,
        }
    };
    rebuilt(text, |member| match value(member) {
        Some(value) => Change::Edited(value),
        None => Change::Same,
    })
}

/// Usage without zeros; of `OpenAI`'s APIs without the object that has them: clients of typed languages read none that lacks
/// its member.
fn counted(text: &[u8]) -> Option<Vec<u8>> {
    rebuilt(text, |member| {
        let (name, value) = (&text[member.name.clone()], &text[member.value.clone()]);
        let is_zero = if DETAILS.contains(&name) { has_zero(value) } else { name == READ && value == b"0" };
        if is_zero { Change::Gone } else { Change::Same }
    })
}

fn has_zero(details: &[u8]) -> bool {
    let value = members(details).and_then(|members| value_of(details, &members, CACHED));
    value.is_some_and(|value| details[value] == *b"0")
}

/// What becomes of a member.
enum Change {
    Same,
    Edited(Vec<u8>),
    Gone,
}

/// An object of the members that stay; None where all stay as they are.
fn rebuilt(text: &[u8], part: impl Fn(&Member) -> Change) -> Option<Vec<u8>> {
    let (mut parts, mut changed) = (Vec::new(), false);
    for member in members(text)? {
        let start = member.name.start - 1;
        match part(&member) {
            Change::Same => parts.push(text[start..member.value.end].to_vec()),
            Change::Edited(value) => {
                changed = true;
                parts.push([&text[start..member.value.start], &value].concat());
            }
            Change::Gone => changed = true,
        }
    }
    changed.then(|| [b"{".as_slice(), &parts.join(&b','), b"}"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> String {
        String::from_utf8(without_zeros(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn zeros_go_wherever_an_api_has_its_usage() {
        for (text, expected) in [
            (r#"{"usage":{"prompt_tokens_details":{"cached_tokens":0,"a":null},"n":1}}"#, r#"{"usage":{"n":1}}"#),
            (r#"{"response":{"usage":{"input_tokens_details":{"cached_tokens":0}}}}"#, r#"{"response":{"usage":{}}}"#),
            ("event: x\ndata: {\"usage\":{\"cache_read_input_tokens\":0}}\n\n", "event: x\ndata: {\"usage\":{}}\n\n"),
            (r#"{"message":{"usage":{"a":1,"cache_read_input_tokens": 0}}}"#, r#"{"message":{"usage":{"a":1}}}"#),
        ] {
            assert_eq!(left(text), expected);
        }
    }

    #[test]
    fn all_else_stays() {
        for text in [
            r#"{"a":"\"cached_tokens\":0"}"#,
            r#"{"usage":{"cached_tokens":0}}"#,
            r#"{ "usage":{"prompt_tokens_details":{"cached_tokens":10}}}"#,
            r#"{"usage":{"prompt_tokens_details":{"cached_tokens":0.5}}}"#,
            r#""cached_tokens":0"#,
            r#"{"usage":"cached_tokens"}"#,
            "",
        ] {
            assert_eq!(left(text), text);
        }
    }
}
