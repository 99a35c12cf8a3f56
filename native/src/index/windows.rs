//! Hits of models with several KV cache groups, as `core/cachefleet_core/hit_rule.py` has them: of the prefix that
//! full attention allows, the longest at whose end each window has its last blocks.

use super::arena::Place;
use super::matching::Walk;
use super::sets::{NOBODY, SetId, Sets};
use super::spans::pieces;
use super::table::Ahead;
use super::tier::Tier;
use crate::mixing::splitmix64;
use crate::reader::Key;

/// Windows of one rule at most.
pub const MOST_WINDOWS: usize = 4;

/// What a hit on a worker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// All blocks from the first on.
    pub full: bool,
    count: u8,
    windows: [u32; MOST_WINDOWS],
    /// Blocks at a hit's end that are computed again.
    dropped: u32,
}

impl Rule {
    /// The windows by the number of their last blocks; None for too many, or one of no blocks.
    #[must_use]
    pub fn new(full: bool, windows: &[u32], dropped: u32) -> Option<Self> {
        let count = u8::try_from(windows.len()).ok().filter(|_| windows.len() <= MOST_WINDOWS)?;
        let mut lengths = [0; MOST_WINDOWS];
        lengths[..windows.len()].copy_from_slice(windows);
        (!windows.contains(&0)).then_some(Self { full, count, windows: lengths, dropped })
    }

    #[must_use]
    pub fn plain(&self) -> bool {
        self.full && self.count == 0 && self.dropped == 0
    }

    /// Whether it asks for blocks of windows.
    #[must_use]
    pub fn windowed(&self) -> bool {
        self.count > 0
    }

    #[inline]
    fn windows(&self) -> &[u32] {
        &self.windows[..usize::from(self.count)]
    }
}

/// A stretch of a prompt's blocks that the same workers hold in one window, known for the prompt of this number.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    set: SetId,
    start: u32,
    end: u32,
    prompt: u32,
}

/// Windows of different lengths whose strips are kept between prompts.
const MOST_STRIPS: usize = 64;

/// Places that are fetched ahead of the one that is looked up.
const AHEAD: u32 = 8;

/// A prompt's blocks in one window, looked up when they are asked for.
#[derive(Debug, Default)]
struct Strip {
    window: u32,
    prompt: u32,
    known: Vec<Stretch>,
    mixed: Vec<u64>,
}

/// The strips of one prompt; kept between prompts, so that few allocate and none has to be cleared.
#[derive(Debug, Default)]
pub struct Strips {
    windows: Vec<Strip>,
    prompt: u32,
    /// Workers to look at, with what full attention allows.
    active: Vec<(u32, u32, Rule)>,
}

/// Where the blocks lie.
pub struct Blocks<'a, K> {
    pub tier: &'a Tier,
    pub sets: &'a Sets,
    pub keys: &'a [K],
}

impl<K: Key> Blocks<'_, K> {
    /// Fetches what finds a block in a window.
    #[inline]
    fn soon(&self, window: u32, at: u32) {
        if let Some(key) = self.keys.get(at as usize) {
            self.tier.table.soon(window_key(key.key(), window));
        }
    }
}

/// The key under which a block is held in the window of this many blocks.
#[inline]
#[must_use]
pub fn window_key(key: u64, window: u32) -> u64 {
    (key ^ splitmix64(u64::from(window))).max(1)
}

impl Strips {
    /// Begins another prompt; numbers that come again find nothing of their first time.
    fn begin(&mut self) {
        if self.prompt == u32::MAX || self.windows.len() > MOST_STRIPS {
            *self = Self::default();
        }
        self.prompt += 1;
    }

    /// Gives each worker of `asked` whose rule is not plain the depth of its hit, of at most `usable` blocks.
    #[expect(clippy::cast_possible_truncation, reason = "callers bound a prompt's blocks")]
    pub fn settle<'r, K: Key>(
        &mut self,
        walk: &mut Walk,
        blocks: &Blocks<K>,
        asked: impl Iterator<Item = (u32, &'r Rule)>,
        usable: usize,
    ) {
        self.begin();
        let most = usable.min(blocks.keys.len()) as u32;
        let mut active = std::mem::take(&mut self.active);
        active.clear();
        let mut last = 0;
        for (slot, rule) in asked {
            let held = walk.depth(slot);
            if rule.plain() || (rule.full && held == 0) {
                continue;
            }
            let depth = if rule.full { held.min(most) } else { most };
            active.push((slot, depth, *rule));
            if depth != last {
                last = depth;
                rule.windows().iter().for_each(|window| blocks.soon(*window, depth.saturating_sub(*window)));
            }
        }
        for (slot, depth, rule) in &active {
            walk.set_depth(*slot, if *depth == 0 { 0 } else { self.hit(blocks, rule, *slot, *depth) });
        }
        self.active = active;
    }

    fn hit<K: Key>(&mut self, blocks: &Blocks<K>, rule: &Rule, slot: u32, allowed: u32) -> u32 {
        let mut end = allowed;
        loop {
            let reached = end;
            for window in rule.windows() {
                end = self.strip(*window, blocks.keys.len()).end(blocks, slot, end);
            }
            if end == reached {
                return end.saturating_sub(rule.dropped);
            }
        }
    }

    fn strip(&mut self, window: u32, length: usize) -> &mut Strip {
        let at = self.windows.iter().position(|strip| strip.window == window).unwrap_or_else(|| {
            self.windows.push(Strip { window, ..Strip::default() });
            self.windows.len() - 1
        });
        let strip = &mut self.windows[at];
        strip.prompt = self.prompt;
        if strip.known.len() < length {
            strip.known.resize(length, Stretch::default());
        }
        strip
    }
}

impl Strip {
    /// The last place up to `end` before which `window` blocks, or all from the first on, are held.
    fn end<K: Key>(&mut self, blocks: &Blocks<K>, slot: u32, mut end: u32) -> u32 {
        while end > self.window {
            let probe = end - self.window; // lies in every window that ends after it, up to `end`
            let Some(found) = self.held(blocks, slot, probe) else {
                end = self.skip(blocks, slot, probe);
                continue;
            };
            let mut right = found.end.min(end);
            while right < end
                && let Some(next) = self.held(blocks, slot, right)
            {
                right = next.end.min(end);
            }
            let least = right.saturating_sub(self.window);
            let mut left = found.start.min(probe);
            while left > least
                && let Some(before) = self.held(blocks, slot, left - 1)
            {
                left = before.start;
            }
            if left <= least {
                return right;
            }
            end = left - 1;
        }
        let mut from = 0;
        while from < end
            && let Some(next) = self.held(blocks, slot, from)
        {
            from = next.end.min(end);
        }
        from
    }

    /// From a block that a worker lacks back, a window at a step, to where the next step's block is held, or none is.
    fn skip<K: Key>(&mut self, blocks: &Blocks<K>, slot: u32, mut end: u32) -> u32 {
        let (step, table) = (self.window, &blocks.tier.table);
        let key = |at: u32| window_key(blocks.keys[at as usize].key(), step);
        let mut fetched = [Ahead::default(); AHEAD as usize];
        for number in 0..AHEAD {
            if let Some(at) = end.checked_sub((number + 1) * step) {
                fetched[number as usize] = table.soon(key(at));
            }
        }
        let mut turn = 0;
        while end > step {
            let at = end - step;
            let known = self.known[at as usize];
            if known.prompt == self.prompt {
                if blocks.sets.has(known.set, slot) {
                    break;
                }
            } else if let Some(id) = table.find_ahead(fetched[turn], key(at), &blocks.tier.arena) {
                self.fill(blocks, at, blocks.tier.arena.place(id));
                if blocks.sets.has(self.known[at as usize].set, slot) {
                    break;
                }
            } else {
                self.known[at as usize] = Stretch { set: NOBODY, start: at, end: at + 1, prompt: self.prompt };
            }
            if let Some(later) = at.checked_sub(AHEAD * step) {
                fetched[turn] = table.soon(key(later));
            }
            turn = (turn + 1) % AHEAD as usize;
            end = at;
        }
        end
    }

    /// The stretch around a block that a worker holds.
    #[inline]
    fn held<K: Key>(&mut self, blocks: &Blocks<K>, slot: u32, at: u32) -> Option<Stretch> {
        if self.known[at as usize].prompt != self.prompt {
            self.look_up(blocks, at);
        }
        let stretch = self.known[at as usize];
        blocks.sets.has(stretch.set, slot).then_some(stretch)
    }

    /// Looks up a block.
    fn look_up<K: Key>(&mut self, blocks: &Blocks<K>, at: u32) {
        let Some(place) = blocks.tier.find(window_key(blocks.keys[at as usize].key(), self.window)) else {
            self.known[at as usize] = Stretch { set: NOBODY, start: at, end: at + 1, prompt: self.prompt };
            return;
        };
        self.fill(blocks, at, place);
    }

    /// Notes who holds a block, and with it those of the window after it that lie in the same run.
    fn fill<K: Key>(&mut self, blocks: &Blocks<K>, at: u32, place: Place) {
        let after = blocks.keys[at as usize..].iter().take(self.window as usize);
        self.mixed.clear();
        self.mixed.extend(after.map(|key| window_key(key.key(), self.window)));
        let run = &blocks.tier.runs[place.run];
        let same = run.common(&blocks.tier.arena, place.offset, &self.mixed);
        for piece in pieces(run.spans(), place.offset, place.offset + same) {
            let start = at + (piece.start - place.offset);
            let stretch = Stretch { set: piece.set, start, end: start + piece.len(), prompt: self.prompt };
            self.known[start as usize..stretch.end as usize].fill(stretch);
        }
    }
}
