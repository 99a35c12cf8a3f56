//! A request's members as the parts of its prompt: tools, system texts, messages.

use super::keyed_digest;
use super::shape::{Described, Details, Item, Part, PartKind, Role, Shape, ToolList};
use super::words::words;
use crate::ask::Members;
use crate::ask::values::{Object, listed, unquoted};
use crate::mixing::GOLDEN;
use memchr::memmem::Finder;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

/// Parts of one prompt; one with more has no shape.
pub const MOST_PARTS: usize = 2048;
const MAX_DEPTH: usize = 3;
/// Members that a prompt is made of, in its order: all tools, system texts, and what is said.
const OF_PROMPT: [&str; 6] = ["tools", "system", "instructions", "messages", "input", "prompt"];
/// Among them.
const SYSTEM: std::ops::Range<usize> = 1..3;
/// Members that change what a template makes of the same parts.
#[rustfmt::skip]
const PARAMETERS: [&str; 11] = [
    "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents",
    "reasoning_effort", "reasoning", "thinking", "add_special_tokens", "truncate_prompt_tokens", "mm_processor_kwargs",
];
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];
const CALLS: [&str; 3] = ["tool_calls", "function_call", "tool_call_id"];

/// Gives what is known of an item by its digest, where it is known.
pub trait Known {
    /// Whether words are kept of texts.
    const WORDS: bool;

    fn item(&self, digest: u64) -> Option<Arc<Item>>;

    /// The same of a list of tools.
    fn tools(&self, digest: u64) -> Option<Arc<ToolList>>;

    /// See a part's text, while it is there.
    fn read(&self, _part: &Part, _text: &[u8]) {}
}

/// What JSON is read as.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Form {
    Tool = 1,
    System,
    /// A message before which are only system texts.
    Leading,
    Message,
    /// A text that is the whole prompt, or a list of such.
    Prompt,
    /// All tools.
    Tools,
}

/// What is read of an item.
#[derive(Default)]
struct Read {
    first: Option<Described>,
    others: Vec<Described>,
}

impl Read {
    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn push(&mut self, one: Described) {
        if self.first.is_none() {
            self.first = Some(one);
        } else {
            self.others.push(one);
        }
    }
}

/// Reads shapes under one secret.
pub struct Reader<'a, K> {
    pub secret: u64,
    pub known: &'a K,
}

impl<K: Known> Reader<'_, K> {
    /// The shape of a request's prompt; None for one of too many parts, and for one without any.
    #[must_use]
    pub fn shape(&self, fields: &Members, salt: &[u8]) -> Option<Shape> {
        let mut shape = Shape { salt: keyed_digest(salt, self.secret), ..Shape::default() };
        let mut prompt = [None; OF_PROMPT.len()];
        for (name, value) in fields.0.iter().filter(|(_, value)| value[..] != b"null"[..]) {
            match OF_PROMPT.iter().position(|of| of == name) {
                Some(at) => prompt[at] = Some(&value[..]),
                None => self.other(&mut shape, name, value),
            }
        }
        for (at, json) in prompt.iter().enumerate().filter_map(|(at, json)| Some((at, (*json)?))) {
            match at {
                0 => self.tools(&mut shape, json),
                at if SYSTEM.contains(&at) => _ = self.add(&mut shape, json, Form::System, 0),
                _ => self.said(&mut shape, json),
            }
        }
        (1..=MOST_PARTS).contains(&shape.parts.len()).then_some(shape)
    }

    /// Note a member that is not part of the prompt.
    fn other(&self, shape: &mut Shape, name: &str, value: &[u8]) {
        match name {
            "cache_salt" => shape.salt ^= keyed_digest(value, self.secret),
            "tool_choice" if value == b"\"none\"" => shape.parameters = shape.parameters.wrapping_add(1),
            name if PARAMETERS.contains(&name) => {
                let digest = keyed_digest(value, self.secret ^ keyed_digest(name.as_bytes(), 1));
                shape.parameters = shape.parameters.wrapping_add(digest);
            }
            _ => {}
        }
    }

    /// Add the parts of an item, which is read only where it is not known; None where it is no such item.
    fn add(&self, shape: &mut Shape, json: &[u8], form: Form, index: u32) -> Option<bool> {
        let digest = self.digest(json, form);
        let item = match self.known.item(digest) {
            Some(item) => item,
            None => Arc::new(self.unknown(digest, json, form, index)?),
        };
        let number = number(shape.items.len());
        shape.parts.extend(item.parts().map(|part| Part { index, item: number, ..*part }));
        let leading = item.leading;
        shape.items.push(item);
        Some(leading)
    }

    fn digest(&self, json: &[u8], form: Form) -> u64 {
        keyed_digest(json, self.secret ^ (form as u64).wrapping_mul(GOLDEN))
    }

    /// Add all tools, which are told apart only where their list is not known.
    fn tools(&self, shape: &mut Shape, json: &[u8]) {
        let digest = self.digest(json, Form::Tools);
        let list = self.known.tools(digest).unwrap_or_else(|| Arc::new(self.unknown_tools(digest, json)));
        shape.parts.extend_from_slice(&list.parts);
        shape.tools = (!list.parts.is_empty()).then_some(list);
    }

    fn unknown_tools(&self, digest: u64, json: &[u8]) -> ToolList {
        let mut of = Shape::default();
        for (index, tool) in listed(json).enumerate() {
            self.add(&mut of, tool, Form::Tool, number(index));
        }
        ToolList::new(digest, of.parts, of.items)
    }

    fn unknown(&self, digest: u64, json: &[u8], form: Form, index: u32) -> Option<Item> {
        let mut read = Read::default();
        let parts = &mut read;
        let mut leading = false;
        match form {
            Form::Tool | Form::Tools => self.tool(parts, json, index),
            Form::System => self.content(parts, json, (PartKind::System, Role::System), index, 0),
            Form::Prompt => self.content(parts, json, (PartKind::Text, Role::User), index, 0),
            Form::Leading | Form::Message => {
                leading = self.message(parts, json, &Object::of(json)?, index, form == Form::Leading);
            }
        }
        Some(Item::new(digest, read.first, read.others, leading))
    }

    fn tool(&self, parts: &mut Read, tool: &[u8], index: u32) {
        let object = Object::of(tool);
        let function = object.as_ref().and_then(|tool| tool.given("function")).and_then(Object::of);
        let name = [function.as_ref(), object.as_ref()].into_iter().flatten().find_map(|tool| tool.given("name"));
        let name = name.map_or(0, |name| keyed_digest(name, self.secret));
        self.part(parts, tool, (PartKind::Tool, Role::System), index);
        parts.first.iter_mut().for_each(|(part, _)| part.name = name);
    }

    /// Messages or input items; a text is one of the user's.
    fn said(&self, shape: &mut Shape, said: &[u8]) {
        let before = shape.items.len();
        let mut form = Form::Leading;
        let items = listed(said);
        shape.parts.reserve(items.len());
        shape.items.reserve(items.len());
        for (index, item) in items.enumerate() {
            let Some(leading) = self.add(shape, item, form, number(index)) else { break };
            if !leading {
                form = Form::Message;
            }
        }
        if shape.items.len() == before {
            self.add(shape, said, Form::Prompt, 0);
        }
    }

    /// One message; whether the next one may still be a system text.
    fn message(&self, parts: &mut Read, json: &[u8], message: &Object<'_>, index: u32, leading: bool) -> bool {
        let role = message.given("role").and_then(unquoted).map(|name| Role::named(&name));
        let Some(role) = role else {
            self.item(parts, json, message, index);
            return false;
        };
        let leading = leading && role == Role::System;
        for reasoning in REASONING.iter().filter_map(|name| message.given(name)) {
            self.content(parts, reasoning, (PartKind::Reasoning, role), index, 0);
        }
        if let Some(content) = message.given("content") {
            let kind = if leading { PartKind::System } else { spoken(content, role) };
            self.content(parts, content, (kind, role), index, 0);
        }
        for calls in CALLS.iter().filter_map(|name| message.given(name)) {
            self.part(parts, calls, (PartKind::Calls, role), index);
        }
        leading
    }

    /// An input item without a role.
    fn item(&self, parts: &mut Read, json: &[u8], item: &Object<'_>, index: u32) {
        let kind = item.given("type").and_then(unquoted).unwrap_or_default();
        let known = match &*kind {
            "reasoning" => (PartKind::Reasoning, Role::Assistant),
            kind if kind.ends_with("_output") => (PartKind::Text, Role::Tool),
            _ => (PartKind::Calls, Role::Assistant),
        };
        self.part(parts, json, known, index);
    }

    /// A text, or a list of parts.
    fn content(&self, parts: &mut Read, json: &[u8], of: (PartKind, Role), index: u32, depth: usize) {
        if json.first() != Some(&b'[') || depth == MAX_DEPTH {
            self.part(parts, json, of, index);
            return;
        }
        for item in listed(json) {
            match Object::of(item) {
                Some(part) => self.typed(parts, item, &part, of, index, depth),
                None => self.part(parts, item, of, index),
            }
            if parts.len() > MOST_PARTS {
                return;
            }
        }
    }

    fn typed(&self, parts: &mut Read, json: &[u8], part: &Object<'_>, of: (PartKind, Role), index: u32, depth: usize) {
        let kind = part.given("type").and_then(unquoted).unwrap_or_default();
        let (known, role) = of;
        match &*kind {
            "tool_use" | "function_call" => self.part(parts, json, (PartKind::Calls, role), index),
            "tool_result" => match part.given("content") {
                Some(content) => self.content(parts, content, (PartKind::Text, Role::Tool), index, depth + 1),
                None => self.part(parts, json, (PartKind::Text, Role::Tool), index),
            },
            "thinking" | "redacted_thinking" | "reasoning" => {
                let said = part.given("thinking").or_else(|| part.given("text")).unwrap_or(json);
                self.part(parts, said, (PartKind::Reasoning, role), index);
            }
            _ => match part.given("text") {
                Some(text) => self.part(parts, text, (known, role), index),
                None => self.part(parts, json, (PartKind::Media, role), index),
            },
        }
    }

    fn part(&self, parts: &mut Read, json: &[u8], (kind, role): (PartKind, Role), index: u32) {
        let text = said(json);
        let digest = keyed_digest(&text, self.secret);
        let (bytes, at) = (number(text.len()), number(parts.len()));
        let part = Part { digest, name: 0, kind, role, index, bytes, item: 0, text: at };
        self.known.read(&part, &text);
        parts.push((part, self.details(&text, kind)));
    }

    fn details(&self, text: &[u8], kind: PartKind) -> Details {
        if kind == PartKind::Media || !K::WORDS { Details::default() } else { Details::of(words(text, self.secret)) }
    }
}

/// The text of a JSON string; any other value as it is written.
fn said(json: &[u8]) -> Cow<'_, [u8]> {
    match json.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")) {
        Some(text) if memchr::memchr(b'\\', text).is_none() => Cow::Borrowed(text),
        _ => unquoted(json).map_or(Cow::Borrowed(json), |text| Cow::Owned(text.into_owned().into_bytes())),
    }
}

/// What a message's content is: an answer may have its reasoning within.
fn spoken(content: &[u8], role: Role) -> PartKind {
    static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"</think>"));
    let reasoned = role == Role::Assistant && END.find(content).is_some();
    if reasoned { PartKind::Reasoning } else { PartKind::Text }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
