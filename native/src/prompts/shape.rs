//! The shape of a prompt: digests of its parts in their order.

use super::words::{Word, normal};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

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
#[derive(Debug, Default)]
pub struct Details {
    pub words: Box<[Word]>,
    normal: OnceLock<u64>,
}

impl Details {
    #[must_use]
    pub fn of(words: Vec<Word>) -> Self {
        Self { words: words.into(), normal: OnceLock::new() }
    }

    /// A digest that is the same where only times, ids and numbers differ; it is made when it is first asked for.
    #[must_use]
    pub fn normal(&self, secret: u64) -> u64 {
        *self.normal.get_or_init(|| normal(&self.words, secret))
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        DETAIL_BYTES + size_of_val(&*self.words)
    }
}

/// Memory of details besides their words.
const DETAIL_BYTES: usize = 64;
/// Memory of an item besides its parts, with its place in a table.
const ITEM_BYTES: usize = 200;

/// One part of a prompt.
#[derive(Clone, Copy, Debug)]
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
    /// Among the items of its shape, of a tool among those of the list; and among the parts of that item.
    pub item: u32,
    pub text: u32,
}

impl Part {
    /// Whether two parts are the same for a prompt, wherever they are.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.digest, self.kind, self.role) == (other.digest, other.kind, other.role)
    }

    /// A number that is the same for parts that are the same.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.digest ^ (self.kind as u64) << 56 ^ (self.role as u64) << 48
    }
}

/// How many kept prompts have something; counted by who holds the memory of prompts alone.
#[derive(Debug, Default)]
struct Uses(AtomicU32);

impl Uses {
    /// Count one more; whether that is the first one.
    fn more(&self) -> bool {
        let uses = self.0.load(Ordering::Relaxed);
        self.0.store(uses + 1, Ordering::Relaxed);
        uses == 0
    }

    /// Count one less; whether it was the last one.
    fn less(&self) -> bool {
        let uses = self.0.load(Ordering::Relaxed);
        self.0.store(uses - 1, Ordering::Relaxed);
        uses == 1
    }
}

/// What is read once for all prompts that have it, and goes with the last of them.
pub trait Shared {
    /// Of its JSON, and of what it was read as.
    fn digest(&self) -> u64;

    /// Count a kept prompt that has it; whether that is the first one.
    fn used(&self) -> bool;

    /// Count a kept prompt less; whether it was the last one.
    fn unused(&self) -> bool;

    /// Memory of its own.
    fn bytes(&self) -> usize;
}

/// One tool, system text or message, as its JSON is read: once for all prompts that have it.
#[derive(Debug)]
pub struct Item {
    digest: u64,
    /// Of a message: the next one may be a system text at the beginning, too.
    pub leading: bool,
    uses: Uses,
    /// Most have one part, which is read with the item.
    first: Option<Described>,
    others: Box<[Described]>,
}

/// A part of an item, and what is known of its text.
pub type Described = (Part, Details);

impl Item {
    #[must_use]
    pub fn new(digest: u64, first: Option<Described>, others: Vec<Described>, leading: bool) -> Self {
        Self { digest, leading, uses: Uses::default(), first, others: others.into() }
    }

    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.first.iter().chain(&self.others).map(|(part, _)| part)
    }

    /// Of a part, by its number among the item's.
    fn details(&self, number: usize) -> &Details {
        match (number, &self.first) {
            (0, Some((_, details))) => details,
            _ => &self.others[number - 1].1,
        }
    }
}

impl Shared for Item {
    fn digest(&self) -> u64 {
        self.digest
    }

    fn used(&self) -> bool {
        self.uses.more()
    }

    fn unused(&self) -> bool {
        self.uses.less()
    }

    fn bytes(&self) -> usize {
        let texts: usize = self.first.iter().chain(&self.others).map(|(_, details)| details.bytes()).sum();
        ITEM_BYTES + size_of_val(&*self.others) + texts
    }
}

/// A request's tools, as their list is written: most prompts have the same as an earlier one.
#[derive(Debug)]
pub struct ToolList {
    digest: u64,
    uses: Uses,
    pub parts: Box<[Part]>,
    /// By their number in a part.
    pub items: Box<[Arc<Item>]>,
}

impl ToolList {
    #[must_use]
    pub fn new(digest: u64, parts: Vec<Part>, items: Vec<Arc<Item>>) -> Self {
        Self { digest, uses: Uses::default(), parts: parts.into(), items: items.into() }
    }
}

impl Shared for ToolList {
    fn digest(&self) -> u64 {
        self.digest
    }

    fn used(&self) -> bool {
        self.uses.more()
    }

    fn unused(&self) -> bool {
        self.uses.less()
    }

    fn bytes(&self) -> usize {
        ITEM_BYTES + size_of_val(&*self.parts) + size_of_val(&*self.items)
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
    pub tools: Option<Arc<ToolList>>,
    /// What its other parts were read from.
    pub items: Vec<Arc<Item>>,
}

impl Shape {
    /// Memory of its own, without what it shares with other shapes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Part>() * self.parts.capacity() + size_of::<Arc<Item>>() * self.items.capacity()
    }

    /// What is known of a part's text.
    #[must_use]
    pub fn details(&self, part: &Part) -> &Details {
        let items = match &self.tools {
            Some(list) if part.kind == PartKind::Tool => &list.items[..],
            _ => &self.items,
        };
        items[part.item as usize].details(part.text as usize)
    }

    #[must_use]
    pub fn text_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.bytes)).sum()
    }
}
