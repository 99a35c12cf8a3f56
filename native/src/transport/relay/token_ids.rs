//! Lists of token ids in an answer or an event: replaced by null, or counted. Pure.
//!
//! The JSON of engines is compact, and a quote inside text is always escaped, so that the tests for members match no text.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr_iter};

use super::event::Part;
use crate::json_members::{Member, items, members, value_of};

static LIST: Part = Part::new(b"token_ids\":[");
static CHOICE: Part = Part::new(b"\"choices\":[{");
/// Members of a KV connector, which may have any name, `token_ids` included.
static PARAMETERS: Part = Part::new(b"\"kv_transfer_params\":{");
static HOLLOW: Part = Part::new(b"\"delta\":{}");
const PROMPT: &[u8] = b"prompt_";
const NULL: &[u8] = b"null";

/// The lists of token ids in an answer, or in an event's JSON.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenIds {
    lists: Vec<Range<usize>>,
    /// How many were produced, and how many the longest prompt has. None where not every list is a choice's or a prompt's.
    pub counts: Option<(u64, u64)>,
}

impl TokenIds {
    /// None where there are no lists.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let first = LIST.find(data)?;
        if CHOICE.is_in(data) && !PARAMETERS.is_in(data) {
            return Some(Self::found(data, first));
        }
        let Some((top, choices)) = choices(data) else { return Some(Self::default()) };
        let mut lists: Vec<_> = [top].into_iter().chain(choices).flat_map(|part| ids_of(data, part)).collect();
        lists.sort_by_key(|range| range.start);
        Some(Self { lists, counts: None })
    }

    /// Every list, the name of the first of which is at an index.
    fn found(data: &[u8], first: usize) -> Self {
        let (mut lists, mut produced, mut prompt, mut next) = (Vec::new(), 0, 0, Some(first));
        while let Some(name) = next {
            let start = name + LIST.len() - 1;
            let Some(end) = memchr(b']', &data[start..]).map(|length| start + length + 1) else { break };
            let inner = &data[start + 1..end - 1];
            let ids = if inner.is_empty() { 0 } else { 1 + memchr_iter(b',', inner).count() as u64 };
            if data[..name].ends_with(PROMPT) {
                prompt = ids.max(prompt);
            } else {
                produced += ids;
            }
            lists.push(start..end);
            next = LIST.find(&data[end..]).map(|name| end + name);
        }
        Self { lists, counts: Some((produced, prompt)) }
    }

    /// The bytes with null for the lists, which begin `offset` bytes into them; every other byte stays.
    #[must_use]
    pub fn cut(&self, bytes: &[u8], offset: usize) -> Vec<u8> {
        let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
        for list in &self.lists {
            out.extend_from_slice(&bytes[at..offset + list.start]);
            out.extend_from_slice(NULL);
            at = offset + list.end;
        }
        out.extend_from_slice(&bytes[at..]);
        out
    }
}

/// A whole answer with null for its token ids, and every other byte unchanged; all of it where it is not vLLM's.
#[must_use]
pub fn without_ids(body: &[u8]) -> Cow<'_, [u8]> {
    TokenIds::read(body).map_or(Cow::Borrowed(body), |ids| Cow::Owned(ids.cut(body, 0)))
}

/// Whether an event that has token ids exists only because they were asked for: a parser held its text back.
#[must_use]
pub fn alone(data: &[u8]) -> bool {
    HOLLOW.is_in(data) && hollow(data).unwrap_or(false)
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

    fn count(text: &str) -> Option<(u64, u64)> {
        TokenIds::read(text.as_bytes()).and_then(|ids| ids.counts)
    }

    fn cut(text: &str) -> String {
        String::from_utf8(without_ids(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn ids_become_null_and_every_other_byte_stays() {
        let text = r#"{"choices":[{"text":"\"token_ids\":[1]","p":1.0e-3,"token_ids":[1,2],"prompt_token_ids":[]}],"prompt_token_ids":[3],"x":[ 1 ]}"#;
        let expected = text.replace("[1,2]", "null").replace("[]", "null").replace("[3]", "null");
        assert_eq!(cut(text), expected);
        assert_eq!(count(text), Some((2, 1)));
        let spaced = r#"{ "choices": [ {"token_ids":[1], "a" : 2} ], "kv_transfer_params":{"token_ids":[2]} }"#;
        assert_eq!(cut(spaced), spaced.replace("[1]", "null"));
        assert_eq!(count(spaced), None);
    }

    #[test]
    fn what_is_no_answer_stays() {
        for text in [r#"{"token_ids":[1"#, r#"["token_ids":[]"#, r#"{"choices":7,"token_ids":[1]}"#, "{}"] {
            assert_eq!(cut(text), text);
        }
        let unended = r#"{"choices":[{"token_ids":[1,2"#;
        assert_eq!((cut(unended).as_str(), count(unended)), (unended, Some((0, 0))));
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
