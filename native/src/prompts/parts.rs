//! A request's members as the parts of its prompt: tools, system texts, messages.

use super::keyed_digest;
use super::shape::{Details, Part, PartKind, Role, Shape};
use super::words::{normal, words};
use crate::ask::Members;
use crate::ask::values::{Object, listed, unquoted};
use memchr::memmem::find;
use std::borrow::Cow;
use std::sync::Arc;

/// Parts of one prompt; one with more has no shape.
pub const MOST_PARTS: usize = 2048;
const MAX_DEPTH: usize = 3;
/// Members that change what a template makes of the same parts.
#[rustfmt::skip]
const PARAMETERS: [&str; 11] = [
    "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents",
    "reasoning_effort", "reasoning", "thinking", "add_special_tokens", "truncate_prompt_tokens", "mm_processor_kwargs",
];
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];
const CALLS: [&str; 3] = ["tool_calls", "function_call", "tool_call_id"];

/// Gives what is known of a part's text by the text's digest, where it is known.
pub trait Known {
    fn details(&self, digest: u64) -> Option<Arc<Details>>;

    /// See a part's text, while it is there.
    fn read(&self, _part: &Part, _text: &[u8]) {}
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
        let mut parts = Vec::with_capacity(16);
        for (index, tool) in fields.given("tools").into_iter().flat_map(|tools| listed(tools)).enumerate() {
            parts.push(self.tool(tool, number(index)));
        }
        for name in ["system", "instructions"] {
            if let Some(system) = fields.given(name) {
                self.content(&mut parts, system, (PartKind::System, Role::System), 0, 0);
            }
        }
        for name in ["messages", "input", "prompt"] {
            if let Some(said) = fields.given(name) {
                self.said(&mut parts, said);
            }
        }
        let salts = fields.given("cache_salt").map_or(0, |own| keyed_digest(own, self.secret));
        let salt = keyed_digest(salt, self.secret) ^ salts;
        let fits = (1..=MOST_PARTS).contains(&parts.len());
        fits.then(|| Shape { parameters: self.parameters(fields), salt, parts })
    }

    fn parameters(&self, fields: &Members) -> u64 {
        let one = |name: &&str| Some(keyed_digest(fields.given(name)?, self.secret ^ keyed_digest(name.as_bytes(), 1)));
        let without = fields.given("tool_choice").is_some_and(|choice| choice[..] == b"\"none\""[..]);
        PARAMETERS.iter().filter_map(one).fold(u64::from(without), u64::wrapping_add)
    }

    fn tool(&self, tool: &[u8], index: u32) -> Part {
        let object = Object::of(tool);
        let function = object.as_ref().and_then(|tool| tool.given("function")).and_then(Object::of);
        let name = [function.as_ref(), object.as_ref()].into_iter().flatten().find_map(|tool| tool.given("name"));
        let name = name.map_or(0, |name| keyed_digest(name, self.secret));
        Part { name, ..self.part(tool, (PartKind::Tool, Role::System), index) }
    }

    /// Messages or input items; a text is one of the user's.
    fn said(&self, parts: &mut Vec<Part>, said: &[u8]) {
        let mut leading = true;
        let mut any = false;
        for (index, item) in listed(said).enumerate() {
            let Some(message) = Object::of(item) else { break };
            any = true;
            leading = self.message(parts, item, &message, number(index), leading);
        }
        if !any {
            self.content(parts, said, (PartKind::Text, Role::User), 0, 0);
        }
    }

    /// One message; whether the next one may still be a system text.
    fn message(&self, parts: &mut Vec<Part>, json: &[u8], message: &Object<'_>, index: u32, leading: bool) -> bool {
        let role = message.given("role").and_then(unquoted).map(|name| Role::named(&name));
        let Some(role) = role else {
            parts.push(self.item(json, message, index));
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
            parts.push(self.part(calls, (PartKind::Calls, role), index));
        }
        leading
    }

    /// An input item without a role.
    fn item(&self, json: &[u8], item: &Object<'_>, index: u32) -> Part {
        let kind = item.given("type").and_then(unquoted).unwrap_or_default();
        let known = match &*kind {
            "reasoning" => (PartKind::Reasoning, Role::Assistant),
            kind if kind.ends_with("_output") => (PartKind::Text, Role::Tool),
            _ => (PartKind::Calls, Role::Assistant),
        };
        self.part(json, known, index)
    }

    /// A text, or a list of parts.
    fn content(&self, parts: &mut Vec<Part>, json: &[u8], of: (PartKind, Role), index: u32, depth: usize) {
        if json.first() != Some(&b'[') || depth == MAX_DEPTH {
            parts.push(self.part(json, of, index));
            return;
        }
        for item in listed(json) {
            match Object::of(item) {
                Some(part) => self.typed(parts, item, &part, of, index, depth),
                None => parts.push(self.part(item, of, index)),
            }
            if parts.len() > MOST_PARTS {
                return;
            }
        }
    }

    fn typed(
        &self,
        parts: &mut Vec<Part>,
        json: &[u8],
        part: &Object<'_>,
        of: (PartKind, Role),
        index: u32,
        depth: usize,
    ) {
        let kind = part.given("type").and_then(unquoted).unwrap_or_default();
        let (known, role) = of;
        match &*kind {
            "tool_use" | "function_call" => parts.push(self.part(json, (PartKind::Calls, role), index)),
            "tool_result" => match part.given("content") {
                Some(content) => self.content(parts, content, (PartKind::Text, Role::Tool), index, depth + 1),
                None => parts.push(self.part(json, (PartKind::Text, Role::Tool), index)),
            },
            "thinking" | "redacted_thinking" | "reasoning" => {
                let said = part.given("thinking").or_else(|| part.given("text")).unwrap_or(json);
                parts.push(self.part(said, (PartKind::Reasoning, role), index));
            }
            _ => match part.given("text") {
                Some(text) => parts.push(self.part(text, (known, role), index)),
                None => parts.push(self.part(json, (PartKind::Media, role), index)),
            },
        }
    }

    fn part(&self, json: &[u8], (kind, role): (PartKind, Role), index: u32) -> Part {
        let text = unquoted(json).map_or(Cow::Borrowed(json), |text| match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        });
        let digest = keyed_digest(&text, self.secret);
        let details = self.known.details(digest).unwrap_or_else(|| Arc::new(self.details(&text, kind)));
        let part = Part { digest, name: 0, kind, role, index, bytes: number(text.len()), details };
        self.known.read(&part, &text);
        part
    }

    fn details(&self, text: &[u8], kind: PartKind) -> Details {
        let found = if kind == PartKind::Media { Vec::new() } else { words(text, self.secret) };
        Details { normal: normal(&found, self.secret), words: found.into() }
    }
}

/// What a message's content is: an answer may have its reasoning within.
fn spoken(content: &[u8], role: Role) -> PartKind {
    let reasoned = role == Role::Assistant && find(content, b"</think>").is_some();
    if reasoned { PartKind::Reasoning } else { PartKind::Text }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
