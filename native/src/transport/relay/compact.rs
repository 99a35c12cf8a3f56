//! Reads JSON as engines write it: without white space, names of members without escapes. Pure.
//!
//! It is stricter than other readers, never laxer: what it reads, they read, and as the same.

use std::ops::Range;

use memchr::memchr2;

/// Bound on nested objects and arrays.
const MAX_DEPTH: usize = 16;
/// Digits of an integer that any reader takes as one.
const MAX_DIGITS: usize = 15;

/// Reads from a text; after None it is nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Compact<'a> {
    text: &'a str,
    pub at: usize,
}

impl<'a> Compact<'a> {
    /// None where there is a byte that compact JSON never has.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let least = data.iter().fold(u8::MAX, |least, byte| least.min(*byte));
        (least >= b' ').then_some(Self { text, at: 0 })
    }

    #[must_use]
    pub fn ended(&self) -> bool {
        self.at == self.text.len()
    }

    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// A part of the text.
    #[must_use]
    pub fn text(&self, part: Range<usize>) -> &'a str {
        &self.text[part]
    }

    /// Reads one byte, where it is the next.
    pub fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    pub fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    /// Reads these bytes, where they are the next.
    pub fn word(&mut self, word: &str) -> bool {
        let there = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if there { word.len() } else { 0 };
        there
    }

    /// Reads an object; `member` reads the value of each name. How many there are.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<usize> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Some(0);
        }
        let mut members = 0;
        loop {
            let name = self.string()?;
            if name.contains('\\') {
                return None;
            }
            self.expect(b':')?;
            member(self, name)?;
            members += 1;
            if !self.take(b',') {
                self.expect(b'}')?;
                return Some(members);
            }
        }
    }

    /// Reads an array; `item` reads each. How many there are.
    pub fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<usize> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Some(0);
        }
        let mut items = 0;
        loop {
            item(self)?;
            items += 1;
            if !self.take(b',') {
                self.expect(b']')?;
                return Some(items);
            }
        }
    }

    /// Reads a string; what is between its quotes, with sound escapes.
    pub fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            self.at += memchr2(b'"', b'\\', &self.text.as_bytes()[self.at..])?;
            let end = self.at;
            if self.take(b'"') {
                return Some(&self.text[start..end]);
            }
            self.at += escape(&self.text[self.at..])?.1;
        }
    }

    /// Reads an integer that is not negative.
    pub fn integer(&mut self) -> Option<u64> {
        let rest = &self.text.as_bytes()[self.at..];
        let digits = rest.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > MAX_DIGITS || (rest[0] == b'0' && digits > 1) {
            return None;
        }
        self.at += digits;
        let ends = matches!(self.peek(), Some(b',' | b']' | b'}'));
        ends.then(|| rest[..digits].iter().fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0')))
    }

    /// Reads any value; `name` says of each member's name within it whether it may be there.
    pub fn skip(&mut self, name: fn(&str) -> bool) -> Option<()> {
        self.skip_to(name, 0)
    }

    fn skip_to(&mut self, name: fn(&str) -> bool, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.object(|inner, own| if name(own) { inner.skip_to(name, depth + 1) } else { None }).map(drop),
            b'[' => self.array(|inner| inner.skip_to(name, depth + 1)).map(drop),
            b't' | b'f' | b'n' => (self.word("true") || self.word("false") || self.word("null")).then_some(()),
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Option<()> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let digits = self.text.as_bytes()[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        (digits > 0).then_some(())
    }
}

/// The character that an escape at the beginning of `text` stands for, and its length.
fn escape(text: &str) -> Option<(char, usize)> {
    let character = match text.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return code_point(text),
        _ => return None,
    };
    Some((character, 2))
}

fn code_point(text: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hexadecimal { u32::from_str_radix(digits, 16).ok() } else { None }
    };
    let first = unit(0)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 6));
    }
    let second = unit(6)?;
    let pair = (0xD800..0xDC00).contains(&first) && (0xDC00..0xE000).contains(&second);
    let joined = 0x10000 + ((first & 0x3FF) << 10 | second & 0x3FF);
    if pair { Some((char::from_u32(joined)?, 12)) } else { None }
}

/// Adds the text of a string, given what is between its quotes.
pub fn unescape(mut raw: &str, into: &mut String) -> Option<()> {
    while let Some(at) = raw.find('\\') {
        into.push_str(&raw[..at]);
        let (character, length) = escape(&raw[at..])?;
        into.push(character);
        raw = &raw[at + length..];
    }
    into.push_str(raw);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(text: &str) -> bool {
        Compact::new(text.as_bytes()).is_some_and(|mut json| json.skip(|name| name != "no").is_some() && json.ended())
    }

    #[test]
    fn reads_compact_json() {
        for sound in [
            "null",
            "true",
            "false",
            "0",
            "-0.5e+3",
            "12E9",
            "\"\"",
            "\"a\\\"\\u00e9\\ud83d\\ude00é\"",
            "[]",
            "[1,[2],{}]",
            r#"{"a":[{"b":null}],"c":"no"}"#,
        ] {
            assert!(skipped(sound), "{sound}");
        }
    }

    #[test]
    fn reads_nothing_else() {
        let deep = "[".repeat(MAX_DEPTH + 2) + &"]".repeat(MAX_DEPTH + 2);
        for wrong in [
            "",
            "nul",
            "tru",
            "01",
            "-",
            "1.",
            "1e",
            ".5",
            "+1",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\udc00\\ud800\"",
            "\"\n\"",
            "[1,]",
            "[1 ]",
            "[",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\\n\":1}",
            r#"{"a":{"no":1}}"#,
            "1 ",
            "\"\\u+123\"",
            &deep,
        ] {
            assert!(!skipped(wrong), "{wrong}");
        }
        assert!(Compact::new(b"\"\xff\"").is_none());
    }

    #[test]
    fn reads_integers() {
        let integer = |text: &str| Compact::new(text.as_bytes()).unwrap().integer();
        assert_eq!(
            (integer("0,"), integer("123]"), integer("999999999999999}")),
            (Some(0), Some(123), Some(999_999_999_999_999))
        );
        for wrong in ["00,", "-1,", "1.0,", "1e3,", "1", "9999999999999999,", "x"] {
            assert_eq!(integer(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn takes_escapes_for_what_they_are() {
        let mut text = String::new();
        unescape(r#"a\"\\\/\b\f\n\r\té\u00E9\ud83D\ude00z"#, &mut text).unwrap();
        assert_eq!(text, "a\"\\/\u{8}\u{c}\n\r\téé😀z");
    }
}
