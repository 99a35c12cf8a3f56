//! The text of a prompt, and keys of its chunks, for prompts whose token ids are not known.

use super::Members;
use crate::keyer::Keyer;

/// Members that make a prompt; those that stay the same from turn to turn come first.
const ORDER: [&str; 6] = ["instructions", "system", "tools", "messages", "input", "prompt"];

/// What a model sees of a body, ordered so that what grows is at its end: the size, and the first `most` bytes.
///
/// A bracket at the end is left out: it closes a list that the next turn makes longer.
#[must_use]
pub fn visible(fields: &Members, most: usize) -> (usize, Vec<u8>) {
    let parts: Vec<_> = ORDER.iter().filter_map(|name| fields.given(name)).collect();
    let closed = usize::from(parts.last().is_some_and(|part| part.ends_with(b"]")));
    let size = (parts.iter().map(|part| part.len() + 1).sum::<usize>()).saturating_sub(1) - closed;
    let mut text = Vec::with_capacity(size + 1);
    for part in parts {
        if !text.is_empty() {
            text.push(b'\n');
        }
        let room = most.saturating_sub(text.len()).min(part.len());
        text.extend_from_slice(&part[..room]);
    }
    text.truncate(size.min(most));
    (size, text)
}

/// A key for each full chunk of a text: a block key, with four bytes of text in place of each token.
#[must_use]
pub fn keys(text: &[u8], keyer: &Keyer) -> Vec<u64> {
    keyer.keys(text.as_chunks::<4>().0, None, 0)
}
