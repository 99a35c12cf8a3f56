//! Counts the parts of a JSON body that cost most to decode, without decoding it: the twin of `wire.json_bounds`.
//!
//! A string reaches from a quote to the next that is not escaped, or to the end. Grammar is not checked: what is within
//! the bounds may still be no JSON.

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
    fn what_is_in_a_string_does_not_count() {
        assert_eq!(excess(br#"["[[[[,,,,\"[[[[", 1]"#, &FEW), None);
        assert_eq!(excess(br#""[[[["#, &FEW), None);
        assert_eq!(excess(br#""\"#, &FEW), None);
        assert_eq!(excess(br#""\\"[[["#, &FEW), Some("depth"));
    }
}
