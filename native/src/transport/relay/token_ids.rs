//! Lists of token ids in an answer or an event: replaced by null, or counted. Pure.
//!
//! The JSON of engines is compact, and a quote inside text is always escaped, so that the tests for members match no text.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr_iter, memmem};

use super::event::contains;
use crate::json_members::{Member, items, members, value_of};

const LIST: &[u8] = b"token_ids\":[";
const PROMPT: &[u8] = b"prompt_";
const CHOICE: &[u8] = b"\"choices\":[{";
/// Members of a KV connector, which may have any name, `token_ids` included.
const PARAMETERS: &[u8] = b"\"kv_transfer_params\":{";
const HOLLOW: &[u8] = b"\"delta\":{}";
const NULL: &[u8] = b"null";

/// One list of token ids.
struct List {
    range: Range<usize>,
    ids: u64,
    /// The ids are a prompt's.
    of_prompt: bool,
}

#[must_use]
pub fn are_in(data: &[u8]) -> bool {
    contains(data, LIST)
}

/// An answer, or an event's JSON, with null for its token ids, and every other byte unchanged; all of it where it is not
/// vLLM's.
#[must_use]
pub fn without(data: &[u8]) -> Cow<'_, [u8]> {
    if !are_in(data) {
        return Cow::Borrowed(data); // as nearly all
    }
    let (mut out, mut at) = (Vec::with_capacity(data.len()), 0);
    for list in ranges(data) {
        out.extend_from_slice(&data[at..list.start]);
        out.extend_from_slice(NULL);
        at = list.end;
    }
    out.extend_from_slice(&data[at..]);
    Cow::Owned(out)
}

/// How many ids the lists have: those produced, and those of the longest prompt. None where not every list is a choice's
/// or a prompt's.
#[must_use]
pub fn count(data: &[u8]) -> Option<(u64, u64)> {
    all_are_choices(data).then(|| {
        lists(data).fold((0, 0), |(produced, prompt), list| {
            if list.of_prompt { (produced, prompt.max(list.ids)) } else { (produced + list.ids, prompt) }
        })
    })
}

/// Whether an event exists only because ids were asked for: a parser held its text back.
#[must_use]
pub fn alone(data: &[u8]) -> bool {
    contains(data, HOLLOW) && hollow(data).unwrap_or(false)
}

fn all_are_choices(data: &[u8]) -> bool {
    contains(data, CHOICE) && !contains(data, PARAMETERS)
}

fn lists(data: &[u8]) -> impl Iterator<Item = List> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let name = at + memmem::find(&data[at..], LIST)?;
        let start = name + LIST.len() - 1;
        at = start + memchr(b']', &data[start..])? + 1;
        let inner = &data[start + 1..at - 1];
        let ids = if inner.is_empty() { 0 } else { 1 + memchr_iter(b',', inner).count() as u64 };
        Some(List { range: start..at, ids, of_prompt: data[..name].ends_with(PROMPT) })
    })
}

/// Where token ids are.
fn ranges(data: &[u8]) -> Vec<Range<usize>> {
    if all_are_choices(data) {
        return lists(data).map(|list| list.range).collect();
    }
    let Some((top, choices)) = choices(data) else { return Vec::new() };
    let mut ranges: Vec<_> = [top].into_iter().chain(choices).flat_map(|part| ids_of(data, part)).collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// The members of an answer, and those of each of its choices.
fn choices(data: &[u8]) -> Option<(Vec<Member>, Vec<Vec<Member>>)> {
    let top = members(data)?;
    let list = value_of(data, &top, b"choices")?;
    let choice = |item: Range<usize>| {
        let start = list.start + item.start;
        let within = members(&data[start..list.start + item.end])?;
        let moved = |range: Range<usize>| start + range.start..start + range.end;
        Some(
            within
                .into_iter()
                .map(|Member { name, value }| Member { name: moved(name), value: moved(value) })
                .collect(),
        )
    };
    let choices = items(&data[list.clone()])?.into_iter().map(choice).collect::<Option<_>>()?;
    Some((top, choices))
}

fn ids_of(data: &[u8], members: Vec<Member>) -> impl Iterator<Item = Range<usize>> {
    let is_ids = |name: &[u8]| name == b"token_ids" || name == b"prompt_token_ids";
    members.into_iter().filter(move |member| is_ids(&data[member.name.clone()])).map(|member| member.value)
}

fn hollow(data: &[u8]) -> Option<bool> {
    let (_, choices) = choices(data)?;
    let [choice] = choices.as_slice() else { return Some(false) };
    let is = |name, expected: &[u8]| value_of(data, choice, name).map(|value| data[value] == *expected);
    let null = |name| is(name, NULL).unwrap_or(true);
    Some(is(b"delta", b"{}").unwrap_or(false) && null(b"finish_reason") && null(b"logprobs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> String {
        String::from_utf8(without(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn ids_become_null_and_every_other_byte_stays() {
        let text = r#"{"choices":[{"text":"\"token_ids\":[1]","p":1.0e-3,"token_ids":[1,2],"prompt_token_ids":[]}],"prompt_token_ids":[3],"x":[ 1 ]}"#;
        let expected = text.replace("[1,2]", "null").replace("[]", "null").replace("[3]", "null");
        assert_eq!(cut(text), expected);
        assert_eq!(count(text.as_bytes()), Some((2, 1)));
        let spaced = r#"{ "choices": [ {"token_ids":[1], "a" : 2} ], "kv_transfer_params":{"token_ids":[2]} }"#;
        assert_eq!(cut(spaced), spaced.replace("[1]", "null"));
        assert_eq!(count(spaced.as_bytes()), None);
    }

    #[test]
    fn what_is_no_answer_stays() {
        for text in [r#"{"token_ids":[1"#, r#"["token_ids":[]"#, r#"{"choices":7,"token_ids":[1]}"#, "{}"] {
            assert_eq!(cut(text), text);
        }
        let unended = r#"{"choices":[{"token_ids":[1,2"#;
        assert_eq!((cut(unended).as_str(), count(unended.as_bytes())), (unended, Some((0, 0))));
    }

    #[test]
    fn an_event_without_a_word_is_there_for_its_ids_alone() {
        let hollow = r#"{"choices":[{"delta":{},"finish_reason":null,"logprobs":null,"token_ids":[1]}]}"#;
        assert!(alone(hollow.as_bytes()));
        for other in [
            hollow.replace("{},", "{\"content\":\"\"},"),
            hollow.replace("\"finish_reason\":null", "\"finish_reason\":\"stop\""),
            hollow.replace("\"logprobs\":null", "\"logprobs\":{}"),
            hollow.replace("}]}", "},{}]}"),
            hollow.replace("]}", ""),
        ] {
            assert!(!alone(other.as_bytes()), "{other}");
        }
    }
}
