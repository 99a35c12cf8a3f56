//! Of one pool: its stack, and windows of what was found where, of all requests and by tenant.

use super::histogram::{Histogram, Sums};
use super::stack::Stack;
use crate::mixing::splitmix64;

/// Makes another key of a prompt's last one, for the blocks of its answer.
const ANSWER: u64 = 0x9D0C_5A1E_63B7_F24B;
/// Blocks of answers that are taken to have been asked for again before any was seen.
const DOUBT: f64 = 16.0;
/// Blocks of answers after which what was seen of older ones counts half.
const MEMORY: f64 = 4096.0;
/// Of the entries, the share that blocks of prompts may take; the rest is for answers.
const FOR_PROMPTS: f64 = 0.75;
/// One block in 2^24 is the least that is sampled.
const MAX_HALVINGS: u32 = 24;

/// A request that was answered; sizes are in blocks unless they say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Of the prompt's full blocks, little-endian.
    pub keys: &'a [[u8; 8]],
    /// Those of them that a cache may serve.
    pub servable: usize,
    /// What prompt and answer together filled beyond the prompt's full blocks.
    pub answer: usize,
    pub block_size: f64,
    pub prompt_tokens: f64,
    pub served_tokens: f64,
    pub elsewhere_tokens: f64,
    pub tenant: usize,
}

/// See the module.
#[derive(Debug)]
pub struct ReuseDistances {
    stack: Stack,
    most: usize,
    halvings: u32,
    reach: f64,
    windows: Vec<Histogram>,
    tenants: Vec<Histogram>,
    /// Blocks of answers that the next prompt went on with, and those of them that it asked for.
    continued: f64,
    again: f64,
    samples: Vec<usize>,
}

impl ReuseDistances {
    /// At most so many entries and tenants; windows by their half-lives in seconds, the first also by tenant.
    #[must_use]
    pub fn new(most: usize, half_lives: &[f64], tenants: usize) -> Self {
        let first = half_lives.first().copied().unwrap_or(1.0);
        Self {
            stack: Stack::new(most),
            most,
            halvings: 0,
            reach: f64::INFINITY,
            windows: half_lives.iter().map(|seconds| Histogram::new(*seconds)).collect(),
            tenants: (0..tenants).map(|_| Histogram::new(first)).collect(),
            continued: DOUBT,
            again: DOUBT,
            samples: Vec::new(),
        }
    }

    /// Nobody asks for a larger cache than this: deeper blocks are dropped, and as many are sampled as find room.
    pub fn set_reach(&mut self, reach: f64) {
        self.reach = reach.max(1.0);
        #[expect(clippy::cast_precision_loss, reason = "far fewer")]
        let room = self.most as f64 * FOR_PROMPTS;
        while self.reach / f64::from(1_u32 << self.halvings) > room && self.halvings < MAX_HALVINGS {
            self.halvings += 1;
            let halvings = self.halvings;
            self.stack.thin(|key| sampled(key, halvings), 2.0);
        }
    }

    /// Forgets a tenant, whose number is another's from now on.
    pub fn forget_tenant(&mut self, tenant: usize, half_life: f64) {
        if let Some(window) = self.tenants.get_mut(tenant) {
            *window = Histogram::new(half_life);
        }
    }

    /// A request has been answered: finds its blocks in the stack, and puts them on top, the first of them last; below
    /// them its answer.
    pub fn note(&mut self, asked: &Asked<'_>, now: f64) {
        self.sample(asked.keys);
        let mut found = Vec::with_capacity(self.samples.len() + 2);
        self.find(asked, &mut found);
        self.count(asked, &found, now);
        self.use_all(asked);
        self.stack.trim(self.reach);
    }

    /// A window, and of it the sums, the seconds that it has, and the shares that caches of these sizes would have held.
    #[must_use]
    pub fn curve(&self, window: usize, capacities: &[f64], now: f64) -> Option<(Sums, f64, Vec<f64>)> {
        Some(told(self.windows.get(window)?, capacities, now))
    }

    /// The same of a tenant.
    #[must_use]
    pub fn tenant_curve(&self, tenant: usize, capacities: &[f64], now: f64) -> Option<(Sums, f64, Vec<f64>)> {
        Some(told(self.tenants.get(tenant)?, capacities, now))
    }

    /// Entries, the blocks that they stand for, and the share of blocks that is sampled.
    #[must_use]
    pub fn size(&self) -> (usize, f64, f64) {
        (self.stack.len(), self.stack.blocks(), 1.0 / self.each())
    }

    /// Those of a prompt's blocks that are sampled.
    fn sample(&mut self, keys: &[[u8; 8]]) {
        self.samples.clear();
        let halvings = self.halvings;
        let places = keys.iter().enumerate();
        self.samples
            .extend(places.filter(|(_, key)| sampled(u64::from_le_bytes(**key), halvings)).map(|(place, _)| place));
    }

    /// Places in the stack, with how many blocks that are servable were found there.
    fn find(&mut self, asked: &Asked<'_>, found: &mut Vec<(f64, f64)>) {
        let mut last = 0;
        for at in &self.samples {
            let Some((above, _)) = self.stack.place(u64::from_le_bytes(asked.keys[*at])) else {
                let unknown = *at;
                return self.find_answer(asked, last, unknown, found);
            };
            if *at < asked.servable {
                found.push((above + 1.0, self.each()));
            }
            last = *at;
        }
        self.find_answer(asked, last, asked.keys.len(), found);
    }

    /// Finds the answer with which this prompt goes on from an earlier one, whose end is between a block that is known
    /// and one that is not: its blocks are known by nothing but their number.
    #[expect(clippy::cast_precision_loss, reason = "far fewer")]
    fn find_answer(&mut self, asked: &Asked<'_>, known: usize, unknown: usize, found: &mut Vec<(f64, f64)>) {
        let halvings = self.halvings;
        let keys = (known..unknown).rev().map(|at| (at + 1, answer_key(asked.keys[at])));
        let mut ends = keys.filter(|(_, key)| sampled(*key, halvings));
        let Some((end, key, (above, blocks))) = ends.find_map(|(end, key)| Some((end, key, self.stack.place(key)?)))
        else {
            return;
        };
        let asked_for = (blocks / self.each()).min(asked.servable.saturating_sub(end) as f64);
        self.learn(asked, end, asked_for);
        let again = asked_for * self.again / self.continued;
        if again > 0.0 {
            found.push((above + f64::midpoint(again, 1.0), again * self.each()));
            self.stack.take(key, again * self.each());
        }
    }

    /// The blocks that one sampled block stands for.
    fn each(&self) -> f64 {
        f64::from(1_u32 << self.halvings)
    }

    /// How much of an answer the next prompt asks for, as far as its own answer tells.
    #[expect(clippy::cast_precision_loss, reason = "far fewer")]
    fn learn(&mut self, asked: &Asked<'_>, end: usize, blocks: f64) {
        let served = asked.served_tokens / asked.block_size - end as f64;
        if served < 0.0 || blocks <= 0.0 {
            return;
        }
        if self.continued > MEMORY {
            self.continued /= 2.0;
            self.again /= 2.0;
        }
        self.continued += blocks;
        self.again += served.floor().min(blocks);
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer")]
    fn count(&mut self, asked: &Asked<'_>, found: &[(f64, f64)], now: f64) {
        let looked_up = self.samples.partition_point(|at| *at < asked.servable);
        let sums = Sums {
            requests: 1.0,
            prompt_tokens: asked.prompt_tokens,
            servable_tokens: asked.servable as f64 * asked.block_size,
            served_tokens: asked.served_tokens,
            elsewhere_tokens: asked.elsewhere_tokens,
            servable: asked.servable as f64,
            unsampled: asked.servable as f64 - self.each() * looked_up as f64,
        };
        for window in self.windows.iter_mut().chain(self.tenants.get_mut(asked.tenant)) {
            let heavy = window.weight(now);
            window.count(&sums, heavy);
            for (place, blocks) in found {
                window.find(*place, blocks * heavy);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer")]
    fn use_all(&mut self, asked: &Asked<'_>) {
        let (keys, each) = (asked.keys, self.each());
        let answer = keys.last().map(|last| answer_key(*last)).filter(|key| sampled(*key, self.halvings));
        if let Some(key) = answer.filter(|_| asked.answer > 0) {
            self.stack.use_one(key, asked.answer as f64 * each);
        }
        for at in self.samples.iter().rev() {
            self.stack.use_one(u64::from_le_bytes(keys[*at]), each);
        }
    }
}

fn told(window: &Histogram, capacities: &[f64], now: f64) -> (Sums, f64, Vec<f64>) {
    let (sums, seconds) = window.sums(now);
    (sums, seconds, window.shares(capacities))
}

fn sampled(key: u64, halvings: u32) -> bool {
    splitmix64(key).trailing_zeros() >= halvings
}

fn answer_key(last: [u8; 8]) -> u64 {
    splitmix64(u64::from_le_bytes(last) ^ ANSWER)
}

#[cfg(test)]
mod tests {
    use super::{Asked, ReuseDistances};

    const HOUR: f64 = 3600.0;

    fn keys(chain: u64, blocks: u64) -> Vec<[u8; 8]> {
        (0..blocks).map(|block| (chain << 32 | block).to_le_bytes()).collect()
    }

    fn asked(keys: &[[u8; 8]], answer: usize, served_tokens: f64) -> Asked<'_> {
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let prompt_tokens = keys.len() as f64 + 1.0;
        Asked {
            keys,
            servable: keys.len(),
            answer,
            block_size: 1.0,
            prompt_tokens,
            served_tokens,
            elsewhere_tokens: 0.0,
            tenant: 0,
        }
    }

    fn shares(of: &ReuseDistances, capacities: &[f64]) -> Vec<f64> {
        of.curve(0, capacities, 0.0).expect("a window").2
    }

    #[test]
    fn a_prompt_asked_for_again_is_found_where_all_others_since_left_it() {
        let mut pool = ReuseDistances::new(1000, &[HOUR], 1);
        for chain in [1, 2, 1] {
            pool.note(&asked(&keys(chain, 64), 0, 0.0), 0.0);
        }
        assert_eq!(shares(&pool, &[64.0, 128.0]), [0.0, 1.0 / 3.0], "{pool:?}");
    }

    #[test]
    fn the_blocks_of_an_answer_take_room_and_are_found_by_the_next_turn() {
        let mut pool = ReuseDistances::new(1000, &[HOUR], 1);
        let (first, second) = (keys(1, 64), keys(1, 100));
        pool.note(&asked(&first, 20, 0.0), 0.0);
        assert!((pool.size().1 - 84.0).abs() < 1e-9);
        pool.note(&asked(&second, 0, 84.0), 0.0);
        assert!((pool.size().1 - 100.0).abs() < 1e-9, "{:?}", pool.size());
        assert!((shares(&pool, &[1000.0])[0] - 84.0 / 164.0).abs() < 1e-9);
    }

    #[test]
    fn answers_that_later_prompts_leave_out_are_not_counted_on() {
        let mut pool = ReuseDistances::new(100_000, &[HOUR], 1);
        for chain in 0..400 {
            pool.note(&asked(&keys(chain, 64), 20, 0.0), 0.0);
            pool.note(&asked(&keys(chain, 100), 0, 64.0), 0.0);
        }
        let share = shares(&pool, &[1e6])[0];
        assert!((share - 64.0 / 164.0).abs() < 0.005, "{share}");
    }

    #[test]
    fn a_sample_finds_what_all_blocks_show() {
        let mut all = ReuseDistances::new(1 << 18, &[HOUR], 1);
        let mut few = ReuseDistances::new(1 << 15, &[HOUR], 1);
        few.set_reach(262_144.0);
        for turn in 0..4000_u64 {
            let prompt = keys(turn * turn % 2003, 20 + turn % 97);
            all.note(&asked(&prompt, 3, 0.0), 0.0);
            few.note(&asked(&prompt, 3, 0.0), 0.0);
        }
        assert!(few.size().0 <= 1 << 15 && few.size().2 < 0.1, "{:?}", few.size());
        for capacity in [10_000.0, 20_000.0, 40_000.0, 60_000.0, 100_000.0] {
            let (exact, near) = (shares(&all, &[capacity])[0], shares(&few, &[capacity])[0]);
            assert!((exact - near).abs() < 0.02, "{capacity}: {exact} {near}");
        }
    }
}
