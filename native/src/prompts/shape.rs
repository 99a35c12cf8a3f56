//! The shape of a prompt: digests of its parts in their order.

use super::words::Word;
use std::sync::Arc;

/// What a part of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartKind {
    Tool = 1,
    System = 2,
    Text = 3,
    Reasoning = 4,
    Calls = 5,
    Media = 6,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    Other = 0,
    System = 1,
    User = 2,
    Assistant = 3,
    Tool = 4,
}

impl Role {
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" | "function" => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// What is known of a part's text besides its digest.
#[derive(Debug)]
pub struct Details {
    pub words: Box<[Word]>,
    /// A digest that is the same where only times, ids and numbers differ.
    pub normal: u64,
}

impl Details {
    #[must_use]
    pub fn bytes(&self) -> usize {
        DETAIL_BYTES + size_of_val(&*self.words)
    }
}

/// Memory of details besides their words.
const DETAIL_BYTES: usize = 120;

/// One part of a prompt.
#[derive(Clone, Debug)]
pub struct Part {
    pub digest: u64,
    /// A digest of a tool's name; 0 for other parts.
    pub name: u64,
    pub kind: PartKind,
    pub role: Role,
    /// Number of its message, of a tool its place in the list.
    pub index: u32,
    /// Of its text.
    pub bytes: u32,
    pub details: Arc<Details>,
}

impl Part {
    /// Whether two parts are the same for a prompt, wherever they are.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.digest, self.kind, self.role) == (other.digest, other.kind, other.role)
    }
}

/// A prompt without its text.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// A digest of the members that change what a template makes of the same parts.
    pub parameters: u64,
    /// A digest of the salt under which its blocks are kept.
    pub salt: u64,
    pub parts: Vec<Part>,
}

impl Shape {
    #[must_use]
    pub fn text_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.bytes)).sum()
    }
}
