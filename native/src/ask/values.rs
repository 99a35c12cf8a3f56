//! Values of a request's members, read as the engine reads them.

use super::Fault;
use super::members::Members;
use crate::json::blank;
use crate::json_members::{Member, items, members};
use std::borrow::Cow;

/// The text of a JSON string; None for any other value, and for what is no Unicode.
#[must_use]
pub fn unquoted(json: &[u8]) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(json).ok().map(Cow::Owned)
}

/// A text member; "" where it is absent or null.
pub(super) fn text(fields: &Members, name: &'static str) -> Result<String, Fault> {
    let Some(value) = fields.given(name) else { return Ok(String::new()) };
    let text = unquoted(value).ok_or_else(|| Fault::member(name, format!("`{name}` must be text.")))?;
    Ok(text.into_owned())
}

/// Whether the engine reads a value as true; it refuses the other values that are not false itself.
#[must_use]
pub fn lax_bool(value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return false };
    let fraction = value.strip_prefix(b"1.").is_some_and(|zeros| !zeros.is_empty() && zeros.iter().all(|&b| b == b'0'));
    let word = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or_default();
    let words = [&b"1"[..], b"true", b"t", b"y", b"yes", b"on"];
    matches!(value, b"true" | b"1") || fraction || words.iter().any(|yes| word.eq_ignore_ascii_case(yes))
}

/// A whole number from 1 on, at most what fits; None for anything else.
#[must_use]
pub fn count(value: Option<&[u8]>) -> Option<i64> {
    let digits = value?;
    if digits.is_empty() || digits == b"0" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(std::str::from_utf8(digits).ok()?.parse().unwrap_or(i64::MAX))
}

/// A number as JSON writes it; None for other values.
pub(super) fn number(value: &[u8]) -> Option<f64> {
    let written = value.first().is_some_and(|first| first.is_ascii_digit() || *first == b'-');
    std::str::from_utf8(value).ok().filter(|_| written)?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A number that is written as such or as text, with blanks around it or underscores between digits.
pub(super) fn number_or_text(value: &[u8]) -> Option<f64> {
    let Some(text) = unquoted(value) else { return number(value) };
    let text = text.trim();
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let misplaced = |(at, byte): (usize, &u8)| *byte == b'_' && !(at > 0 && is_digit(at - 1) && is_digit(at + 1));
    if bytes.iter().enumerate().any(misplaced) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Whether a value is a list of prompts: its first item is a text or a list.
#[must_use]
pub fn lists_prompts(value: &[u8]) -> bool {
    let first = value.strip_prefix(b"[").and_then(|rest| rest.iter().find(|byte| !blank(**byte)));
    matches!(first, Some(b'"' | b'['))
}

/// The number of prompts: 1 for a value that is no list of them.
pub(super) fn prompts(value: &[u8]) -> usize {
    if lists_prompts(value) { items(value).map_or(1, |items| items.len()) } else { 1 }
}

/// The number of texts and media that a pooling model computes one by one: of a list of ids 1.
pub(super) fn inputs(value: &[u8]) -> usize {
    let first = value.strip_prefix(b"[").and_then(|rest| rest.iter().find(|byte| !blank(**byte)));
    if first == Some(&b'{') { items(value).map_or(1, |items| items.len()) } else { prompts(value) }
}

/// The members of an object and the items of a list, borrowed.
pub(crate) struct Object<'a> {
    json: &'a [u8],
    members: Vec<Member>,
}

impl<'a> Object<'a> {
    pub(crate) fn of(json: &'a [u8]) -> Option<Self> {
        Some(Self { json, members: members(json)? })
    }

    /// The value of the last member of a name that is not null.
    pub(crate) fn given(&self, name: &str) -> Option<&'a [u8]> {
        let member = self.members.iter().rev().find(|member| self.has_name(member, name))?;
        Some(&self.json[member.value.clone()]).filter(|value| *value != b"null")
    }

    /// Whether it has a member of one of these names.
    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        self.members.iter().any(|member| names.iter().any(|name| self.has_name(member, name)))
    }

    fn has_name(&self, member: &Member, name: &str) -> bool {
        let written = &self.json[member.name.clone()];
        let quoted = member.name.start - 1..member.name.end + 1;
        // One with escapes is longer than what it says.
        written == name.as_bytes()
            || written.len() > name.len()
                && memchr::memchr(b'\\', written).is_some()
                && unquoted(&self.json[quoted]).is_some_and(|text| text == name)
    }
}

/// The items of a list; none for any other value.
pub(crate) fn listed(json: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    let items = if json.first() == Some(&b'[') { items(json).unwrap_or_default() } else { Vec::new() };
    items.into_iter().map(|item| &json[item])
}
