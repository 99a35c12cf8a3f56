//! Shapes of the latest prompts, in bounded memory, and the nearest of them to a new one.

use super::Digests;
use super::anchors::Anchors;
use super::parts::{Known, Reader};
use super::places::Places;
use super::relation::{Relation, begun, relation};
use super::shape::{Item, Shape};
use crate::ask::Members;
use crate::plane::reservations::shared_blocks;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Prompts kept of one line: a tenant's in a pool.
pub const MOST_OF_LINE: usize = 1024;
/// Earlier prompts that one is compared with.
const MOST_COMPARED: usize = 8;
/// Memory of a prompt besides its keys, shape and anchors.
const PROMPT_BYTES: usize = 240;
/// Share of all memory for the table of anchors: its inverse.
const OF_PLACES: usize = 4;

struct Prompt {
    line: u64,
    shape: Arc<Shape>,
    keys: Box<[u64]>,
    tokens: u32,
}

impl Prompt {
    fn bytes(&self) -> usize {
        PROMPT_BYTES + 8 * self.keys.len() + self.shape.bytes()
    }
}

/// Items of kept prompts, by their digests.
#[derive(Default)]
struct Items(HashMap<u64, Arc<Item>, Digests>);

impl Known for Items {
    const WORDS: bool = true;

    fn item(&self, digest: u64) -> Option<Arc<Item>> {
        self.0.get(&digest).cloned()
    }
}

impl Items {
    /// Note one more prompt that has an item; the bytes that this takes.
    fn keep(&mut self, item: &Arc<Item>) -> usize {
        if !item.used() {
            return 0;
        }
        self.0.entry(item.digest).or_insert_with(|| item.clone());
        item.bytes()
    }

    /// Note one prompt less; the bytes that this frees. Two prompts that came at once have an equal item each.
    fn drop(&mut self, item: &Arc<Item>) -> usize {
        if !item.unused() {
            return 0;
        }
        if self.0.get(&item.digest).is_some_and(|held| Arc::ptr_eq(held, item)) {
            self.0.remove(&item.digest);
        }
        item.bytes()
    }
}

/// Prompts in the order in which they ended, the oldest dropped first.
pub struct PromptMemory {
    secret: u64,
    most_bytes: usize,
    bytes: usize,
    next: u32,
    prompts: HashMap<u64, Prompt, Digests>,
    order: VecDeque<u64>,
    lines: HashMap<u64, VecDeque<u64>, Digests>,
    places: Places,
    items: Items,
}

impl PromptMemory {
    #[must_use]
    pub fn new(secret: u64, most_bytes: usize) -> Self {
        Self {
            secret,
            most_bytes: most_bytes - most_bytes / OF_PLACES,
            bytes: 0,
            next: 0,
            prompts: HashMap::default(),
            order: VecDeque::new(),
            lines: HashMap::default(),
            places: Places::new(most_bytes / OF_PLACES),
            items: Items::default(),
        }
    }

    /// Bytes of all that is kept, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes + self.places.bytes()
    }

    /// Prompts that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// The shape of a request's prompt; nothing is kept of it yet.
    #[must_use]
    pub fn shape(&self, fields: &Members, salt: &[u8]) -> Option<Shape> {
        Reader { secret: self.secret, known: &self.items }.shape(fields, salt)
    }

    /// The nearest earlier prompt of a line; None where none has anything in common with it.
    #[must_use]
    pub fn nearest(&self, line: u64, shape: &Shape, keys: &[u64]) -> Option<Relation> {
        self.nearest_at(&Anchors::of(shape, keys, line, self.secret), line, shape, keys)
    }

    /// Keep a prompt, and drop the oldest beyond the bounds.
    pub fn keep(&mut self, line: u64, shape: Arc<Shape>, keys: Box<[u64]>, tokens: u32) {
        let anchors = Anchors::of(&shape, &keys, line, self.secret);
        self.keep_at(&anchors, Prompt { line, shape, keys, tokens });
    }

    /// The nearest earlier prompt of a line, where it is `asked` for; then this one is kept.
    pub fn ended(
        &mut self,
        line: u64,
        shape: Arc<Shape>,
        keys: Box<[u64]>,
        tokens: u32,
        asked: bool,
    ) -> Option<Relation> {
        let anchors = Anchors::of(&shape, &keys, line, self.secret);
        let found = if asked { self.nearest_at(&anchors, line, &shape, &keys) } else { None };
        self.keep_at(&anchors, Prompt { line, shape, keys, tokens });
        found
    }

    fn nearest_at(&self, anchors: &Anchors, line: u64, shape: &Shape, keys: &[u64]) -> Option<Relation> {
        let begun = || anchors.runs().iter().find_map(|run| self.at(*run, line));
        if let Some(prompt) = begun().filter(|prompt| whole(prompt, shape, keys)) {
            return Some(compared(prompt, shape, keys));
        }
        let mut earlier: Vec<&Prompt> = Vec::with_capacity(MOST_COMPARED);
        for prompt in anchors.all.iter().filter_map(|anchor| self.at(*anchor, line)) {
            if !earlier.iter().any(|other| std::ptr::eq(*other, prompt)) {
                earlier.push(prompt);
                if earlier.len() == MOST_COMPARED {
                    break;
                }
            }
        }
        nearest_of(&earlier, shape, keys)
    }

    /// The latest prompt of a line that had an anchor.
    fn at(&self, anchor: u64, line: u64) -> Option<&Prompt> {
        self.prompts.get(&u64::from(self.places.get(anchor)?)).filter(|prompt| prompt.line == line)
    }

    fn keep_at(&mut self, anchors: &Anchors, prompt: Prompt) {
        if prompt.bytes() > self.most_bytes / 4 {
            return;
        }
        self.next = self.next.checked_add(1).unwrap_or(1);
        let (number, line) = (u64::from(self.next), prompt.line);
        self.drop(number);
        self.bytes += prompt.bytes();
        self.bytes += prompt.shape.items.iter().map(|item| self.items.keep(item)).sum::<usize>();
        for anchor in &anchors.all {
            self.places.put(*anchor, self.next);
        }
        self.prompts.insert(number, prompt);
        self.order.push_back(number);
        let of_line = self.lines.entry(line).or_default();
        of_line.push_back(number);
        if of_line.len() > MOST_OF_LINE
            && let Some(oldest) = of_line.front().copied()
        {
            self.drop(oldest);
        }
        self.bound();
    }

    fn bound(&mut self) {
        while self.bytes > self.most_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            self.drop(oldest);
        }
        if self.order.len() > 2 * self.prompts.len() + MOST_OF_LINE {
            self.order.retain(|number| self.prompts.contains_key(number));
        }
    }

    fn drop(&mut self, number: u64) {
        let Some(prompt) = self.prompts.remove(&number) else { return };
        self.bytes -= prompt.bytes();
        if let Some(of_line) = self.lines.get_mut(&prompt.line) {
            if of_line.front() == Some(&number) {
                of_line.pop_front();
            } else {
                of_line.retain(|other| *other != number);
            }
            if of_line.is_empty() {
                self.lines.remove(&prompt.line);
            }
        }
        self.bytes -= prompt.shape.items.iter().map(|item| self.items.drop(item)).sum::<usize>();
    }
}

/// The one with most in common; rather one that goes on from its earlier prompt, where little more is in common.
///
/// What is in common behind a difference is looked for only where no prompt that goes on has as much as that takes.
fn nearest_of(earlier: &[&Prompt], shape: &Shape, keys: &[u64]) -> Option<Relation> {
    let goes_on = earlier.iter().filter_map(|prompt| Some((begun(&prompt.shape, shape)?, *prompt)));
    let blocks = |prompt: &Prompt| shared_blocks(&prompt.keys, keys, 0);
    let own = goes_on.max_by_key(|(bytes, prompt)| (*bytes, blocks(prompt)));
    if let Some((bytes, prompt)) = own
        && enough(bytes, shape.text_bytes())
    {
        return Some(compared(prompt, shape, keys));
    }
    let found: Vec<_> = earlier.iter().map(|prompt| compared(prompt, shape, keys)).collect();
    let nearest = found.iter().max_by_key(|one| one.nearness())?;
    let almost = |one: &&Relation| one.goes_on() && enough(one.nearness().0, nearest.nearness().0);
    Some(*found.iter().filter(almost).max_by_key(|one| one.nearness()).unwrap_or(nearest))
}

/// Whether a prompt goes on from an earlier one with all its blocks, and has little else: none is nearer.
fn whole(prompt: &Prompt, shape: &Shape, keys: &[u64]) -> bool {
    let begins = begun(&prompt.shape, shape).is_some_and(|bytes| enough(bytes, shape.text_bytes()));
    begins && shared_blocks(&prompt.keys, keys, 0) == prompt.keys.len()
}

/// Whether a prompt that goes on from one with so many bytes is told rather than one that has `most`.
fn enough(bytes: u64, most: u64) -> bool {
    4 * bytes >= 3 * most
}

fn compared(prompt: &Prompt, shape: &Shape, keys: &[u64]) -> Relation {
    relation(&prompt.shape, shape, shared_blocks(&prompt.keys, keys, 0), prompt.tokens)
}

#[cfg(test)]
mod tests {
    use super::super::relation::Difference;
    use super::*;
    use bytes::Bytes;

    fn shape(memory: &PromptMemory, body: &str) -> Arc<Shape> {
        let members = Members::parse(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
        Arc::new(memory.shape(&members, b"").unwrap())
    }

    fn chat(system: &str, said: &str) -> String {
        format!(
            r#"{{"messages": [{{"role": "system", "content": "{system}"}}, {{"role": "user", "content": "{said}"}}]}}"#
        )
    }

    #[test]
    fn the_nearest_prompt_of_the_same_line_is_found() {
        let mut memory = PromptMemory::new(3, 1 << 20);
        let first =
            shape(&memory, &chat("It is 2026-11-27. Answer what people ask you about trains.", "When does it go?"));
        memory.keep(1, first, [1, 2, 3].into(), 60);
        let next = shape(&memory, &chat("It is 2026-11-28. Answer what people ask you about trains.", "Where is it?"));
        let found = memory.nearest(1, &next, &[1, 9, 9]).unwrap();
        assert_eq!((found.difference, found.blocks, found.tokens), (Difference::Time, 1, 60));
        assert!(memory.nearest(2, &next, &[1, 9, 9]).is_none());
    }

    #[test]
    fn a_prompt_goes_on_from_its_own_turn_though_another_has_more_of_it() {
        let mut memory = PromptMemory::new(3, 1 << 20);
        let said = "Which trains go to the sea on a Sunday, and which of them come back on the same day?";
        let turn = |first: &str, more: &str| {
            let spoken =
                format!(r#"{{"role": "assistant", "content": "{said}"}}, {{"role": "user", "content": "{said}"}}"#);
            chat(said, first).replace("]}", &format!(", {spoken}{more}]}}"))
        };
        let more = r#", {"role": "assistant", "content": "None goes back that late, I am afraid."}"#;
        let (own, other) = (shape(&memory, &turn("First.", "")), shape(&memory, &turn("Another begins.", more)));
        memory.keep(1, own, [1, 2, 3].into(), 60);
        memory.keep(1, other, [1, 4, 5, 6].into(), 70);
        let next = shape(&memory, &turn("First.", more));
        let found = memory.nearest(1, &next, &[1, 2, 3, 7]).unwrap();
        assert_eq!((found.difference, found.blocks), (Difference::None, 3));
    }

    #[test]
    fn memory_is_bounded_and_all_of_it_is_given_back() {
        let most = 200_000;
        let mut memory = PromptMemory::new(3, most);
        for number in 0..3_000u64 {
            let next = shape(&memory, &chat("Always the same words.", &format!("question {number} of {}", number * 7)));
            memory.keep(number % 3, next, [number + 1, number + 2].into(), 50);
            assert!(memory.bytes() <= most);
            assert!(memory.order.len() <= 2 * memory.len() + MOST_OF_LINE);
        }
        assert!(memory.len() > 100);
        memory.most_bytes = 0;
        memory.bound();
        assert_eq!((memory.bytes, memory.len()), (0, 0));
        assert!(memory.items.0.is_empty() && memory.lines.is_empty());
    }

    #[test]
    fn one_line_takes_no_more_than_its_share() {
        let mut memory = PromptMemory::new(3, 1 << 24);
        let kept = shape(&memory, &chat("One.", "two"));
        memory.keep(1, kept, [7].into(), 9);
        for number in 0..2 * MOST_OF_LINE as u64 {
            let next = shape(&memory, &chat("Same.", "again"));
            memory.keep(2, next, [number].into(), 9);
        }
        assert_eq!(memory.len(), MOST_OF_LINE + 1);
    }
}
