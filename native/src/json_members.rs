//! Members of a JSON object and items of an array, as ranges of its bytes. Values are found, not validated.

use std::ops::Range;

use crate::json::{blank, expect, string_end, value_end};

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name, between its quotes.
    pub name: Range<usize>,
    pub value: Range<usize>,
}

/// The members of the object that is all of `text`; None where that is no object.
#[must_use]
pub fn members(text: &[u8]) -> Option<Vec<Member>> {
    let mut members = Vec::new();
    parts(text, b'{', b'}', |at| {
        let start = expect(text, at, b'"')?;
        let end = string_end(text, start)?;
        let value = value(text, expect(text, end, b':')?)?;
        members.push(Member { name: start..end - 1, value: value.clone() });
        Some(value.end)
    })?;
    Some(members)
}

/// The items of the array that is all of `text`; None where that is no array.
#[must_use]
pub fn items(text: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut items = Vec::new();
    parts(text, b'[', b']', |at| {
        let item = value(text, at)?;
        items.push(item.clone());
        Some(item.end)
    })?;
    Some(items)
}

/// The value of the last member of a name.
#[must_use]
pub fn value_of(text: &[u8], members: &[Member], name: &[u8]) -> Option<Range<usize>> {
    members.iter().rev().find(|member| text[member.name.clone()] == *name).map(|member| member.value.clone())
}

/// Reads what is between two brackets and separated by commas; `part` returns the index after one.
fn parts(text: &[u8], open: u8, close: u8, mut part: impl FnMut(usize) -> Option<usize>) -> Option<()> {
    let mut at = expect(text, 0, open)?;
    let end = match expect(text, at, close) {
        Some(end) => end,
        None => loop {
            at = part(at)?;
            match expect(text, at, b',') {
                Some(next) => at = next,
                None => break expect(text, at, close)?,
            }
        },
    };
    text[end..].iter().all(|byte| blank(*byte)).then_some(())
}

/// The value at an index, without the blanks around it.
fn value(text: &[u8], start: usize) -> Option<Range<usize>> {
    let end = value_end(text, start)?;
    let before = text[start..end].iter().take_while(|byte| blank(**byte)).count();
    let after = text[start..end].iter().rev().take_while(|byte| blank(**byte)).count();
    (before + after < end - start).then(|| start + before..end - after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Option<Vec<(&str, &str)>> {
        let found = members(text.as_bytes())?;
        Some(found.into_iter().map(|member| (&text[member.name], &text[member.value])).collect())
    }

    #[test]
    fn members_and_items_are_found_whatever_is_between_them() {
        let text = " { \"a\" : [1, {\"b\":\"]}\"}] ,\"\\\"\":\"\\\\\" , \"c\":-1.5e3 }\n";
        let expected = vec![("a", "[1, {\"b\":\"]}\"}]"), ("\\\"", "\"\\\\\""), ("c", "-1.5e3")];
        assert_eq!(named(text), Some(expected));
        assert_eq!(named("{ }"), Some(vec![]));
        let list = b"[ 1,[2] ,{} ]";
        let found: Vec<_> = items(list).unwrap().into_iter().map(|item| &list[item]).collect();
        assert_eq!(found, [b"1".as_slice(), b"[2]", b"{}"]);
        assert_eq!(items(b"[]"), Some(vec![]));
    }

    #[test]
    fn what_is_no_object_or_array_has_none() {
        for text in
            ["", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\": }", "{\"a\":1,}", "{\"a\":1}x", "{a:1}", "{\"a\":[}"]
        {
            assert_eq!(named(text), None, "{text}");
        }
        for text in ["", "{}", "[", "[1,]", "[,1]", "[1", "[1]x", "[ , ]"] {
            assert_eq!(items(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_last_of_a_name_counts() {
        let text = b"{\"a\":1,\"b\":2,\"a\":3}";
        let found = members(text).unwrap();
        assert_eq!(value_of(text, &found, b"a").map(|value| &text[value]), Some(b"3".as_slice()));
        assert_eq!(value_of(text, &found, b"c"), None);
    }
}
