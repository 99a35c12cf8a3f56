//! Counts the parts of a JSON body that cost most to decode, without decoding it.
//!
//! Besides, whether it is text at all. A string reaches from a quote to the next that is not escaped, or to the end. Grammar is not checked: what is within
//! the bounds may still be no JSON.

use memchr::memmem;

use crate::json::string_end;

/// The most that a body may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Objects and arrays.
    pub containers: usize,
    /// Strings, names of members among them.
    pub strings: usize,
    /// Commas between items and members.
    pub items: usize,
    /// Nested objects and arrays.
    pub depth: usize,
}

/// The name of the limit that `body` crosses first, in reading order; "text" for one within all that is no text.
#[must_use]
pub fn fault(body: &[u8], limits: &Limits) -> Option<&'static str> {
    excess(body, limits).or_else(|| (!is_text(body)).then_some("text"))
}

/// Whether a body is UTF-8, and no escape in it is half of a surrogate pair alone.
#[must_use]
pub fn is_text(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok() && !has_lone_surrogate(body)
}

/// Whether one unit of a surrogate pair is escaped without the other.
fn has_lone_surrogate(body: &[u8]) -> bool {
    let mut second = None; // where the second unit of a pair is
    for at in memmem::find_iter(body, b"\\u") {
        let backslashes = body[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
        if backslashes % 2 == 1 {
            continue; // another one escapes this backslash
        }
        match unit(body, at) {
            Some(0xdc00..=0xdfff) if second == Some(at) => (),
            Some(0xd800..=0xdbff) if matches!(unit(body, at + 6), Some(0xdc00..=0xdfff)) => second = Some(at + 6),
            Some(0xd800..=0xdfff) => return true,
            _ => (),
        }
    }
    false
}

/// The UTF-16 unit of the escape at an index; None where that is none.
fn unit(body: &[u8], at: usize) -> Option<u16> {
    let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, &byte| Some(unit << 4 | u16::try_from(char::from(byte).to_digit(16)?).ok()?))
}

/// The name of the limit that `body` crosses first, in reading order.
#[must_use]
pub fn excess(body: &[u8], limits: &Limits) -> Option<&'static str> {
    let (mut containers, mut strings, mut items, mut depth) = (0, 0, 0, 0_usize);
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'"' => {
                strings += 1;
                at = string_end(body, at).unwrap_or(body.len());
            }
            b'{' | b'[' => {
                containers += 1;
                depth += 1;
            }
            b'}' | b']' if depth == 0 => return None, // no JSON goes on like this; its decoder will say so
            b'}' | b']' => depth -= 1,
            b',' => items += 1,
            _ => continue,
        }
        if containers > limits.containers {
            return Some("containers");
        }
        if depth > limits.depth {
            return Some("depth");
        }
        if strings > limits.strings {
            return Some("strings");
        }
        if items > limits.items {
            return Some("items");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Limits = Limits { containers: 3, strings: 3, items: 3, depth: 2 };

    #[test]
    fn finds_what_is_crossed_first() {
        assert_eq!(excess(b"", &FEW), None);
        assert_eq!(excess(br#"{"a": [1, 2, 3]}"#, &FEW), None);
        assert_eq!(excess(b"[[]], [], []", &FEW), Some("containers"));
        assert_eq!(excess(b"[[[1,1,1,1,1]]]", &FEW), Some("depth"));
        assert_eq!(excess(br#"["a", "b", "c", "d"]"#, &FEW), Some("strings"));
        assert_eq!(excess(b"[1,2,3,4,5]", &FEW), Some("items"));
    }

    #[test]
    fn a_lone_surrogate_is_no_text() {
        for text in [
            r#""\ud83d\ude00""#,
            r#""\uD83D\uDE00""#,
            r#""\\ud83d""#,
            r#""\\\\udc00 \ud7ff\ue000 \u12""#,
            "\u{1f600}",
            "",
        ] {
            assert!(is_text(text.as_bytes()), "{text}");
        }
        for other in [
            r#""\ud83d""#,
            r#""\ude00""#,
            r#""\ud83d\ud83d\ude00""#,
            r#""\ud83d\ude00\ude00""#,
            r#""\\\udfff""#,
            r#""\\ud83d\ude00""#,
        ] {
            assert_eq!(fault(other.as_bytes(), &FEW), Some("text"), "{other}");
        }
        assert!(!is_text(b"\xed\xa0\x80") && !is_text(b"\xff"));
    }

    #[test]
    fn what_is_in_a_string_does_not_count() {
        assert_eq!(excess(br#"["[[[[,,,,\"[[[[", 1]"#, &FEW), None);
        assert_eq!(excess(br#""[[[["#, &FEW), None);
        assert_eq!(excess(br#""\"#, &FEW), None);
        assert_eq!(excess(br#""\\"[[["#, &FEW), Some("depth"));
    }
}
