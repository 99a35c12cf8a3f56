//! Whether messages have media, whose blocks depend on more than token ids.
//!
//! Messages are taken apart, so that a tool's argument named "image" is not mistaken for one. What is missed here the
//! worker's renderer finds.

use super::Members;
use super::values::{Object, listed, unquoted};
use memchr::memmem::find;

const HINTS: [&[u8]; 9] =
    [b"\"image", b"_image\"", b"_audio\"", b"_url\"", b"_embeds\"", b"_file\"", b"\"file\"", b"\"audio\"", b"\"video"];
/// Types of message parts that are not text.
#[rustfmt::skip]
const KINDS: [&str; 18] = [
    "image_url", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds", "video_url", "video_embeds",
    "prompt_embeds", "input_image", "input_file", "input_video", "image", "document", "file", "audio", "video",
    "computer_screenshot",
];
/// How many of KINDS are known by a member of such a name, where a part has no type.
const BARE: usize = 9;
/// Members of a message or a part that may be a list of parts.
const NESTED: [&str; 2] = ["content", "output"];
const MAX_DEPTH: usize = 4;
/// A member named "uuid" is written with one of these.
const NAMES: [&[u8]; 4] = [b"\"uuid", b"\\u0075", b"\\u0069", b"\\u0064"];

/// Whether a body's list of messages or input items has media; false for anything but a list.
#[must_use]
pub fn holds_media(messages: Option<&[u8]>) -> bool {
    messages.is_some_and(|list| in_list(list, MAX_DEPTH) && HINTS.iter().any(|hint| find(list, hint).is_some()))
}

/// Members with messages, input items, or what is scored.
const HOLDERS: [&str; 10] =
    ["messages", "input", "query", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2"];

/// Whether one of a body's members may name media by `uuid`.
#[must_use]
pub fn may_name_media(fields: &Members) -> bool {
    fields.0.iter().any(|(name, value)| HOLDERS.contains(&&**name) && names_any(value))
}

fn names_any(value: &[u8]) -> bool {
    matches!(value.first(), Some(b'[' | b'{')) && NAMES.iter().any(|name| find(value, name).is_some())
}

fn in_list(list: &[u8], depth: usize) -> bool {
    depth > 0 && listed(list).filter_map(Object::of).any(|part| in_part(&part, depth))
}

fn in_part(part: &Object<'_>, depth: usize) -> bool {
    let kind = part.given("type").and_then(unquoted).unwrap_or_default();
    KINDS.contains(&&*kind)
        || kind.is_empty() && part.has_any(&KINDS[..BARE])
        || NESTED.iter().filter_map(|name| part.given(name)).any(|list| in_list(list, depth - 1))
}
