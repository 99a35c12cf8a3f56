//! Shapes of the latest prompts, in bounded memory, and the nearest of them to a new one.

use super::Digests;
use super::anchors::anchors;
use super::parts::{Known, Reader};
use super::relation::{Relation, relation};
use super::shape::{Details, Part, Shape};
use crate::ask::Members;
use crate::plane::reservations::shared_blocks;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Prompts kept of one line: a tenant's in a pool.
pub const MOST_OF_LINE: usize = 1024;
/// Earlier prompts that one is compared with.
const MOST_COMPARED: usize = 8;
/// Memory of a prompt besides its keys, parts and anchors.
const PROMPT_BYTES: usize = 300;
const PART_BYTES: usize = 48;
/// Of an anchor, in its prompt and in the table.
const ANCHOR_BYTES: usize = 40;

struct Prompt {
    line: u64,
    shape: Arc<Shape>,
    keys: Box<[u64]>,
    tokens: u32,
    anchors: Box<[u64]>,
}

impl Prompt {
    fn bytes(&self) -> usize {
        PROMPT_BYTES + 8 * self.keys.len() + PART_BYTES * self.shape.parts.len() + ANCHOR_BYTES * self.anchors.len()
    }
}

/// What has been learnt of texts, by their digests, with how many parts of kept prompts they are.
#[derive(Default)]
struct Texts(HashMap<u64, (Arc<Details>, u32), Digests>);

impl Known for Texts {
    fn details(&self, digest: u64) -> Option<Arc<Details>> {
        self.0.get(&digest).map(|(details, _)| details.clone())
    }
}

impl Texts {
    /// Note one more part; the bytes that this takes.
    fn keep(&mut self, part: &Part) -> usize {
        let (details, uses) = self.0.entry(part.digest).or_insert_with(|| (part.details.clone(), 0));
        *uses += 1;
        if *uses == 1 { details.bytes() } else { 0 }
    }

    /// Note one part less; the bytes that this frees.
    fn drop(&mut self, part: &Part) -> usize {
        let Some((details, uses)) = self.0.get_mut(&part.digest) else { return 0 };
        *uses -= 1;
        if *uses > 0 {
            return 0;
        }
        let bytes = details.bytes();
        self.0.remove(&part.digest);
        bytes
    }
}

/// Prompts in the order in which they ended, the oldest dropped first.
pub struct PromptMemory {
    secret: u64,
    most_bytes: usize,
    bytes: usize,
    next: u64,
    prompts: HashMap<u64, Prompt, Digests>,
    order: VecDeque<u64>,
    lines: HashMap<u64, VecDeque<u64>, Digests>,
    places: HashMap<u64, u64, Digests>,
    texts: Texts,
}

impl PromptMemory {
    #[must_use]
    pub fn new(secret: u64, most_bytes: usize) -> Self {
        Self {
            secret,
            most_bytes,
            bytes: 0,
            next: 0,
            prompts: HashMap::default(),
            order: VecDeque::new(),
            lines: HashMap::default(),
            places: HashMap::default(),
            texts: Texts::default(),
        }
    }

    /// Bytes of all that is kept, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
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
        Reader { secret: self.secret, known: &self.texts }.shape(fields, salt)
    }

    /// The nearest earlier prompt of a line; None where none has anything in common with it.
    #[must_use]
    pub fn nearest(&self, line: u64, shape: &Shape, keys: &[u64]) -> Option<Relation> {
        let mut found: Vec<u64> = Vec::with_capacity(MOST_COMPARED);
        for anchor in anchors(shape, keys, line) {
            if let Some(number) = self.places.get(&anchor).filter(|number| !found.contains(number)) {
                found.push(*number);
                if found.len() == MOST_COMPARED {
                    break;
                }
            }
        }
        let earlier = found.iter().filter_map(|number| self.prompts.get(number)).filter(|prompt| prompt.line == line);
        nearest_of(&earlier.map(|prompt| compared(prompt, shape, keys)).collect::<Vec<_>>())
    }

    /// Keep a prompt, and drop the oldest beyond the bounds.
    pub fn keep(&mut self, line: u64, shape: Arc<Shape>, keys: &[u64], tokens: u32) {
        let anchors = anchors(&shape, keys, line).into();
        let prompt = Prompt { line, shape, keys: keys.into(), tokens, anchors };
        if prompt.bytes() > self.most_bytes / 4 {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.bytes += prompt.bytes();
        self.bytes += prompt.shape.parts.iter().map(|part| self.texts.keep(part)).sum::<usize>();
        self.places.extend(prompt.anchors.iter().map(|anchor| (*anchor, number)));
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
        for anchor in &prompt.anchors {
            if self.places.get(anchor) == Some(&number) {
                self.places.remove(anchor);
            }
        }
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
        self.bytes -= prompt.shape.parts.iter().map(|part| self.texts.drop(part)).sum::<usize>();
    }
}

/// The one with most in common; rather one that goes on from its earlier prompt, where little more is in common.
fn nearest_of(found: &[Relation]) -> Option<Relation> {
    let nearest = found.iter().max_by_key(|one| one.nearness())?;
    let almost = |one: &&Relation| one.goes_on() && 4 * one.nearness().0 >= 3 * nearest.nearness().0;
    Some(*found.iter().filter(almost).max_by_key(|one| one.nearness()).unwrap_or(nearest))
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
        memory.keep(1, first, &[1, 2, 3], 60);
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
        memory.keep(1, own, &[1, 2, 3], 60);
        memory.keep(1, other, &[1, 4, 5, 6], 70);
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
            memory.keep(number % 3, next, &[number + 1, number + 2], 50);
            assert!(memory.bytes() <= most);
            assert!(memory.order.len() <= 2 * memory.len() + MOST_OF_LINE);
        }
        assert!(memory.len() > 100);
        memory.most_bytes = 0;
        memory.bound();
        assert_eq!((memory.bytes(), memory.len()), (0, 0));
        assert!(memory.places.is_empty() && memory.texts.0.is_empty() && memory.lines.is_empty());
    }

    #[test]
    fn one_line_takes_no_more_than_its_share() {
        let mut memory = PromptMemory::new(3, 1 << 24);
        let kept = shape(&memory, &chat("One.", "two"));
        memory.keep(1, kept, &[7], 9);
        for number in 0..2 * MOST_OF_LINE as u64 {
            let next = shape(&memory, &chat("Same.", "again"));
            memory.keep(2, next, &[number], 9);
        }
        assert_eq!(memory.len(), MOST_OF_LINE + 1);
    }
}
