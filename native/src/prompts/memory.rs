//! Shapes of the latest prompts, in bounded memory, and the nearest of them to a new one.
//!
//! A prompt that goes on from an earlier one, with all its parts and all its blocks, is kept in its place: it has all
//! that the earlier one had, under the same anchors, and only what is new is noted.

use super::anchors::{Begun, Runs, anchors};
use super::order::{Kept, Order};
use super::parts::{Known, Reader};
use super::places::Places;
use super::relation::{Earlier, Relation, begun, relation};
use super::shape::{Item, Part, Shape, Shared, ToolList};
use super::{Digests, joined};
use crate::ask::Members;
use crate::plane::reservations::shared_blocks;
use std::collections::HashMap;
use std::sync::Arc;

/// Prompts kept of one line: a tenant's in a pool.
pub const MOST_OF_LINE: usize = 1024;
/// Earlier prompts that one is compared with.
const MOST_COMPARED: usize = 8;
/// Runs that are looked up together: a turn has one or two messages more than the one before.
const LOOKED_UP_FIRST: usize = 4;
/// Memory of a prompt besides its keys, shape and anchors.
const PROMPT_BYTES: usize = 320;
/// Bytes by which a prompt with other tools must have more: some 64 tokens.
const FURTHER: u64 = 256;
/// Share of all memory for the table of anchors: its inverse.
const OF_PLACES: usize = 4;

struct Prompt {
    line: u64,
    shape: Arc<Shape>,
    keys: Box<[u64]>,
    earlier: Earlier,
    /// The anchor of all its parts.
    whole: u64,
    /// Where it goes on from an earlier one, as much of it.
    begun: Begun,
    last_key: Option<u64>,
    /// Of its latest keeping.
    stamp: u32,
}

impl Prompt {
    fn new(whole: u64, line: u64, shape: Arc<Shape>, keys: Box<[u64]>, tokens: u32) -> Self {
        let (earlier, last_key) = (Earlier::of(&shape, tokens), keys.last().copied());
        let begun = Begun { parts: shape.parts.len(), keys: keys.len() };
        Self { line, shape, keys, earlier, whole, begun, last_key, stamp: 0 }
    }

    fn bytes(&self) -> usize {
        PROMPT_BYTES + 8 * self.keys.len() + self.shape.bytes()
    }

    /// Whether a prompt begins with all its parts and all its blocks; `run` is the anchor of as many parts as it has.
    fn begins(&self, run: u64, parts: usize, keys: &[u64]) -> bool {
        let blocks = self.begun.keys.checked_sub(1).and_then(|last| keys.get(last).copied());
        self.whole == run && self.begun.parts == parts && blocks == self.last_key
    }
}

type Prompts = HashMap<u32, Prompt, Digests>;

/// Whether an entry of an order is its prompt's latest.
fn current(prompts: &Prompts) -> impl Fn(Kept) -> bool {
    |(number, stamp)| prompts.get(&number).is_some_and(|prompt| prompt.stamp == stamp)
}

/// An earlier prompt with which a new one begins, by its number.
#[derive(Clone, Copy)]
struct Base {
    number: u32,
    begun: Begun,
}

/// A prompt that is not kept yet.
struct New<'a> {
    line: u64,
    shape: &'a Shape,
    keys: &'a [u64],
    runs: Runs,
    base: Option<Base>,
    /// Its anchors but for those of its base.
    fresh: Vec<u64>,
}

/// What kept prompts have in common, by its digest.
struct Kind<T>(HashMap<u64, Arc<T>, Digests>);

impl<T> Default for Kind<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T: Shared> Kind<T> {
    /// Note one more prompt that has it; the bytes that this takes where it is the first one.
    fn keep(&mut self, one: &Arc<T>) -> Option<usize> {
        if !one.used() {
            return None;
        }
        self.0.entry(one.digest()).or_insert_with(|| one.clone());
        Some(one.bytes())
    }

    /// Note one prompt less; the bytes that this frees where it was the last one.
    ///
    /// Two prompts that came at once have an equal one each.
    fn drop(&mut self, one: &Arc<T>) -> Option<usize> {
        if !one.unused() {
            return None;
        }
        if self.0.get(&one.digest()).is_some_and(|held| Arc::ptr_eq(held, one)) {
            self.0.remove(&one.digest());
        }
        Some(one.bytes())
    }
}

/// Items of kept prompts and their lists of tools.
#[derive(Default)]
struct Items {
    single: Kind<Item>,
    tools: Kind<ToolList>,
    bytes: usize,
}

impl Known for Items {
    const WORDS: bool = true;

    fn item(&self, digest: u64) -> Option<Arc<Item>> {
        self.single.0.get(&digest).cloned()
    }

    fn tools(&self, digest: u64) -> Option<Arc<ToolList>> {
        self.tools.0.get(&digest).cloned()
    }
}

impl Items {
    /// Note a prompt in the place of an earlier one; an empty shape is no prompt.
    fn exchange(&mut self, old: &Shape, new: &Shape) {
        if old.tools.as_ref().map(Arc::as_ptr) != new.tools.as_ref().map(Arc::as_ptr) {
            new.tools.iter().for_each(|list| self.keep_tools(list));
            old.tools.iter().for_each(|list| self.drop_tools(list));
        }
        let same = old.items.iter().zip(&new.items).take_while(|(one, other)| Arc::ptr_eq(one, other)).count();
        new.items[same..].iter().for_each(|item| self.keep(item));
        old.items[same..].iter().for_each(|item| self.drop(item));
    }

    fn keep(&mut self, item: &Arc<Item>) {
        self.bytes += self.single.keep(item).unwrap_or(0);
    }

    fn drop(&mut self, item: &Arc<Item>) {
        self.bytes -= self.single.drop(item).unwrap_or(0);
    }

    fn keep_tools(&mut self, list: &Arc<ToolList>) {
        if let Some(bytes) = self.tools.keep(list) {
            self.bytes += bytes;
            list.items.iter().for_each(|item| self.keep(item));
        }
    }

    fn drop_tools(&mut self, list: &Arc<ToolList>) {
        if let Some(bytes) = self.tools.drop(list) {
            self.bytes -= bytes;
            list.items.iter().for_each(|item| self.drop(item));
        }
    }
}

/// Prompts in the order in which they ended, the oldest dropped first.
pub struct PromptMemory {
    secret: u64,
    most_bytes: usize,
    /// Of prompts, without their items.
    bytes: usize,
    next: u32,
    prompts: Prompts,
    order: Order,
    lines: HashMap<u64, Order, Digests>,
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
            order: Order::default(),
            lines: HashMap::default(),
            places: Places::new(most_bytes / OF_PLACES),
            items: Items::default(),
        }
    }

    /// Bytes of all that is kept, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held() + self.places.bytes()
    }

    fn held(&self) -> usize {
        self.bytes + self.items.bytes
    }

    /// Prompts that are kept; one that another goes on from is part of that.
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
        let new = self.new_prompt(line, shape, keys);
        self.nearest_to(&new)
    }

    /// Keep a prompt, and drop the oldest beyond the bounds.
    pub fn keep(&mut self, line: u64, shape: Arc<Shape>, keys: Box<[u64]>, tokens: u32) {
        self.ended(line, shape, keys, tokens, false);
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
        let new = self.new_prompt(line, &shape, &keys);
        let found = if asked { self.nearest_to(&new) } else { None };
        let (base, fresh, whole) = (new.base, new.fresh, new.runs.whole());
        self.keep_at(base, &fresh, Prompt::new(whole, line, shape, keys, tokens));
        found
    }

    /// What a prompt is found by, and the earlier one from which it goes on.
    fn new_prompt<'a>(&self, line: u64, shape: &'a Shape, keys: &'a [u64]) -> New<'a> {
        let runs = Runs::of(shape, line);
        let base = self.base(&runs, line, shape, keys);
        let fresh = anchors(shape, &runs, keys, self.secret, base.map(|base| base.begun).unwrap_or_default());
        self.places.fetch(&fresh);
        New { line, shape, keys, runs, base, fresh }
    }

    /// The latest prompt that begins with as many of its parts as any does, where all of that one are its beginning.
    fn base(&self, runs: &Runs, line: u64, shape: &Shape, keys: &[u64]) -> Option<Base> {
        self.places.fetch(&runs.anchors()[..LOOKED_UP_FIRST.min(runs.anchors().len())]);
        let found = runs.anchors().iter().enumerate().find_map(|(at, run)| Some((at, *run, self.at(*run, line)?)));
        let (at, run, (number, prompt)) = found?;
        prompt.begins(run, shape.parts.len() - at, keys).then_some(Base { number, begun: prompt.begun })
    }

    fn nearest_to(&self, new: &New<'_>) -> Option<Relation> {
        let Some(base) = new.base else { return self.nearest_by(new, &new.fresh) };
        let found = self.prompts.get(&base.number)?.earlier.gone_on(new.shape, base.begun.parts, base.begun.keys);
        let next = new.shape.parts.get(base.begun.parts).map(|part| joined(part.digest, new.line));
        // Where it has little else, and nothing that an earlier prompt went on with, none is nearer.
        if enough(found.bytes_before, found.bytes_before + found.bytes_after)
            && next.is_none_or(|anchor| self.at(anchor, new.line).is_none())
        {
            return Some(found);
        }
        self.nearest_by(new, &anchors(new.shape, &new.runs, new.keys, self.secret, Begun::default()))
    }

    /// The nearest of those that are found by anchors.
    fn nearest_by(&self, new: &New<'_>, anchors: &[u64]) -> Option<Relation> {
        let mut earlier: Vec<&Prompt> = Vec::with_capacity(MOST_COMPARED);
        for (_, prompt) in anchors.iter().filter_map(|anchor| self.at(*anchor, new.line)) {
            if !earlier.iter().any(|other| std::ptr::eq(*other, prompt)) {
                earlier.push(prompt);
                if earlier.len() == MOST_COMPARED {
                    break;
                }
            }
        }
        nearest_of(&earlier, new.shape, new.keys)
    }

    /// The latest prompt of a line that had an anchor, and its number.
    fn at(&self, anchor: u64, line: u64) -> Option<(u32, &Prompt)> {
        let number = self.places.get(anchor)?;
        Some((number, self.prompts.get(&number).filter(|prompt| prompt.line == line)?))
    }

    /// Keep a prompt, in the place of its base where it has one, under its anchors that are not known.
    fn keep_at(&mut self, base: Option<Base>, fresh: &[u64], mut prompt: Prompt) {
        if prompt.bytes() > self.most_bytes / 4 {
            return;
        }
        self.next = self.next.checked_add(1).unwrap_or(1);
        let stamp = self.next;
        let number = base.map_or(stamp, |base| base.number);
        if base.is_none() {
            self.drop(number);
        }
        for anchor in fresh {
            self.places.put(*anchor, number);
        }
        prompt.stamp = stamp;
        self.put((number, stamp), prompt);
        self.bound();
    }

    /// Keep a prompt under a number, in the place of the one that has it.
    fn put(&mut self, kept: Kept, prompt: Prompt) {
        let (line, shape) = (prompt.line, prompt.shape.clone());
        self.bytes += prompt.bytes();
        let old = self.prompts.insert(kept.0, prompt);
        self.bytes -= old.as_ref().map_or(0, Prompt::bytes);
        self.items.exchange(old.as_ref().map_or(&Shape::default(), |old| &old.shape), &shape);
        self.order.keep(kept, old.is_none(), current(&self.prompts));
        self.lines.entry(line).or_default().keep(kept, old.is_none(), current(&self.prompts));
        let of_line = self.lines.entry(line).or_default();
        if of_line.len() > MOST_OF_LINE
            && let Some(oldest) = of_line.oldest(current(&self.prompts))
        {
            self.drop(oldest);
        }
    }

    fn bound(&mut self) {
        while self.held() > self.most_bytes {
            let Some(oldest) = self.order.oldest(current(&self.prompts)) else { break };
            self.drop(oldest);
        }
    }

    fn drop(&mut self, number: u32) {
        let Some(prompt) = self.prompts.remove(&number) else { return };
        self.bytes -= prompt.bytes();
        self.order.drop();
        if let Some(of_line) = self.lines.get_mut(&prompt.line) {
            of_line.drop();
            if of_line.len() == 0 {
                self.lines.remove(&prompt.line);
            }
        }
        self.items.exchange(&prompt.shape, &Shape::default());
    }
}

/// The one with most in common; rather one that goes on from its earlier prompt, where little more is in common; and
/// rather than any, one with other tools that has more behind them than what the prompt goes on from.
fn nearest_of(earlier: &[&Prompt], shape: &Shape, keys: &[u64]) -> Option<Relation> {
    let goes_on = earlier.iter().filter_map(|prompt| Some((begun(&prompt.shape, shape)?, *prompt)));
    let blocks = |prompt: &Prompt| shared_blocks(&prompt.keys, keys, 0);
    let own = goes_on.max_by_key(|(bytes, prompt)| (*bytes, blocks(prompt)));
    if let Some((bytes, prompt)) = own
        && enough(bytes, shape.text_bytes())
        && !told_before(earlier, shape.parts.get(prompt.shape.parts.len()))
    {
        return Some(compared(prompt, shape, keys));
    }
    let found: Vec<_> = earlier.iter().map(|prompt| compared(prompt, shape, keys)).collect();
    let nearest = found.iter().max_by_key(|one| one.nearness())?;
    let almost = |one: &&Relation| one.goes_on() && enough(one.nearness().0, nearest.nearness().0);
    let told = found.iter().filter(almost).max_by_key(|one| one.nearness()).unwrap_or(nearest);
    let further = found.iter().max_by_key(|one| (one.bytes_reach, one.nearness()))?;
    let begun = if told.bytes_reach > 0 { told.bytes_reach } else { told.nearness().0 };
    Some(if further.bytes_reach > begun + FURTHER { *further } else { *told })
}

/// Whether an earlier prompt has a part.
fn told_before(earlier: &[&Prompt], part: Option<&Part>) -> bool {
    part.is_some_and(|part| earlier.iter().any(|prompt| prompt.shape.parts.iter().any(|other| other.is(part))))
}

/// Whether a prompt that goes on from one with so many bytes is told rather than one that has `most`.
fn enough(bytes: u64, most: u64) -> bool {
    4 * bytes >= 3 * most
}

fn compared(prompt: &Prompt, shape: &Shape, keys: &[u64]) -> Relation {
    relation(&prompt.shape, &prompt.earlier, shape, shared_blocks(&prompt.keys, keys, 0))
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
            assert!(memory.order.entries() <= 2 * memory.len() + MOST_OF_LINE && memory.order.len() == memory.len());
        }
        assert!(memory.len() > 100);
        memory.most_bytes = 0;
        memory.bound();
        assert_eq!((memory.held(), memory.len()), (0, 0));
        assert!(memory.items.single.0.is_empty() && memory.items.tools.0.is_empty() && memory.lines.is_empty());
    }

    #[test]
    fn a_prompt_takes_the_place_of_the_one_it_goes_on_from() {
        let mut memory = PromptMemory::new(3, 1 << 20);
        let said = |count: usize| {
            let said = |at: usize| format!(r#", {{"role": "user", "content": "And what of number {at}?"}}"#);
            chat("It is 2026-11-27.", "Hello.")
                .replace("]}", &format!("{}]}}", (0..count).map(said).collect::<String>()))
        };
        for turn in 0..60 {
            let (next, keys) = (shape(&memory, &said(turn)), (0..=turn as u64).collect());
            let found = memory.ended(1, next, keys, 60, true);
            assert_eq!(found.map(|found| (found.goes_on(), found.blocks)), (turn > 0).then_some((true, turn)));
            assert_eq!((memory.len(), memory.items.single.0.len()), (1, turn + 2));
        }
        let dated = shape(&memory, &said(59).replace("11-27", "11-28"));
        assert_eq!(memory.nearest(1, &dated, &[0, 100]).unwrap().difference, Difference::Time);
        let branch = shape(&memory, &said(3).replace("]}", r#", {"role": "user", "content": "Bye."}]}"#));
        let found = memory.ended(1, branch, [0, 1, 2, 3, 200].into(), 60, true).unwrap();
        assert_eq!((found.difference, found.blocks, memory.len()), (Difference::Branch, 4, 2));
    }

    #[test]
    fn a_prompt_whose_blocks_are_others_takes_no_place() {
        let mut memory = PromptMemory::new(3, 1 << 20);
        for (keys, kept) in [([1, 2], 1), ([1, 3], 2), ([1, 3], 2), ([4, 2], 3)] {
            let next = shape(&memory, &chat("Always the same.", "And this, too."));
            memory.keep(1, next, keys.into(), 40);
            assert_eq!(memory.len(), kept);
        }
    }

    #[test]
    fn tools_are_told_apart_once_and_given_back() {
        let mut memory = PromptMemory::new(3, 1 << 20);
        let body = |names: &[&str], said: &str| {
            let tool = |name: &&str| format!(r#"{{"type": "function", "function": {{"name": "{name}"}}}}"#);
            let tools: Vec<_> = names.iter().map(tool).collect();
            chat("Help.", said).replacen('{', &format!(r#"{{"tools": [{}], "#, tools.join(", ")), 1)
        };
        let first = shape(&memory, &body(&["one", "two"], "Hi"));
        memory.keep(1, first.clone(), [1].into(), 40);
        let same = shape(&memory, &body(&["one", "two"], "Bye"));
        assert!(Arc::ptr_eq(first.tools.as_ref().unwrap(), same.tools.as_ref().unwrap()));
        let turned = shape(&memory, &body(&["two", "one"], "Bye"));
        assert_eq!(memory.nearest(1, &turned, &[2]).unwrap().difference, Difference::ToolOrder);
        memory.keep(1, turned, [2].into(), 40);
        assert_eq!((memory.items.tools.0.len(), memory.items.single.0.len()), (2, 5));
        memory.most_bytes = 0;
        memory.bound();
        assert_eq!((memory.held(), memory.items.single.0.len()), (0, 0));
    }

    #[test]
    fn a_turn_with_other_tools_is_nearer_than_the_one_that_is_gone_on_from_where_it_has_more() {
        let tool = |name: &&str| format!(r#"{{"type": "function", "function": {{"name": "{name}"}}}}"#);
        let turn = |names: &[&str], turns: usize| {
            let said =
                |at: usize| format!(r#", {{"role": "user", "content": "{}"}}"#, format!("And {at}? ").repeat(50));
            let tools = names.iter().map(tool).collect::<Vec<_>>().join(", ");
            let said = (0..turns).map(said).collect::<String>();
            chat("Help.", &"Hi. ".repeat(300))
                .replacen('{', &format!(r#"{{"tools": [{tools}], "#), 1)
                .replace("]}", &format!("{said}]}}"))
        };
        let (usual, other, all) = (["one", "two", "three"], ["one", "two", "four"], ["five", "six", "seven"]);
        for (between, expected) in [(usual, Difference::None), (other, Difference::Tools), (all, Difference::None)] {
            let mut memory = PromptMemory::new(3, 1 << 20);
            for (number, names, turns) in [(1, usual, 1), (2, between, 2)] {
                let next = shape(&memory, &turn(&names, turns));
                memory.keep(1, next, [number].into(), 600);
            }
            let next = shape(&memory, &turn(&usual, 3));
            let found = memory.nearest(1, &next, &[1, 7]).unwrap();
            let last = u64::from(next.parts.last().unwrap().bytes);
            assert_eq!(found.difference, expected);
            assert_eq!(found.bytes_reach, if expected == Difference::Tools { next.text_bytes() - last } else { 0 });
        }
    }

    #[test]
    fn one_line_takes_no_more_than_its_share() {
        let mut memory = PromptMemory::new(3, 1 << 24);
        let kept = shape(&memory, &chat("One.", "two"));
        memory.keep(1, kept, [7].into(), 9);
        for number in 0..2 * MOST_OF_LINE as u64 {
            let next = shape(&memory, &chat("Same.", "again"));
            memory.keep(2, next, [number + 1].into(), 9);
        }
        assert_eq!(memory.len(), MOST_OF_LINE + 1);
    }
}
