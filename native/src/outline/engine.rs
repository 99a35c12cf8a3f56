//! One engine: continuous batches with chunked prefill, first come first served, as `simulation/simulated_scheduler.py`
//! has them. Steps in which nothing but answers is computed are played many at once.

use super::load::{Load, Request};
use super::pool::Pool;
use std::collections::VecDeque;

/// A request in the engine; sizes are in tokens.
#[derive(Debug)]
struct Generation {
    number: usize,
    request: Request,
    /// Blocks that it needs, and those of them that were expected to be there when it was sent.
    needed: usize,
    there: usize,
    slots: Vec<u32>,
    /// Prompt and what was said.
    tokens: u64,
    computed: u64,
    /// Blocks that are cached.
    stored: usize,
    preempted: bool,
}

/// A request of which the engine tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub number: usize,
    /// It has its first token.
    pub first: bool,
    pub over: bool,
}

/// What an engine has, and how fast it is.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub tokens_per_second: f64,
    pub inter_token_seconds: f64,
    /// Tokens computed in one step.
    pub batched_tokens: u64,
    /// Requests that run at once.
    pub running: usize,
}

#[derive(Debug)]
pub struct Engine<'l> {
    load: &'l Load,
    rates: Rates,
    pub pool: Pool,
    running: Vec<Generation>,
    waiting: VecDeque<Generation>,
    /// Tokens of prompts that were looked up, and found; and those found of requests from number `since` on.
    pub queries: u64,
    pub hits: u64,
    pub counted_hits: u64,
    since: usize,
}

impl<'l> Engine<'l> {
    /// Without requests; of those from number `since` on it counts hits apart.
    #[must_use]
    pub fn new(load: &'l Load, rates: Rates, pool: Pool, since: usize) -> Self {
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Self { load, rates, pool, running, waiting, queries: 0, hits: 0, counted_hits: 0, since }
    }

    #[must_use]
    pub fn busy(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty())
    }

    /// Blocks that its requests have yet to take of the free ones.
    #[must_use]
    pub fn coming(&self) -> usize {
        let running = self.running.iter().map(|one| one.needed.saturating_sub(one.slots.len()));
        running.chain(self.waiting.iter().map(|one| one.needed.saturating_sub(one.there))).sum()
    }

    /// Takes a request, which fits where there is no other; it needs so many blocks, of which so many are expected to be
    /// there.
    pub fn add(&mut self, number: usize, needed: usize, there: usize) {
        let request = self.load.requests[number];
        let (slots, tokens) = (Vec::new(), request.tokens);
        self.waiting.push_back(Generation {
            number,
            request,
            needed,
            there,
            slots,
            tokens,
            computed: 0,
            stored: 0,
            preempted: false,
        });
    }

    /// Begins the next step, or of steps of answers alone as many as begin within `seconds`; how long they take.
    pub fn begin(&mut self, seconds: f64) -> f64 {
        if let Some(taken) = self.answer(seconds) {
            return taken;
        }
        let mut step = Step { left: self.rates.batched_tokens, ..Step::default() };
        self.schedule_running(&mut step);
        if !step.preempted {
            self.schedule_waiting(&mut step);
        }
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2**52")]
        let prefill = step.prefill as f64 / self.rates.tokens_per_second;
        prefill + if step.answers { self.rates.inter_token_seconds } else { 0.0 }
    }

    /// The step is over: requests that got their first token, or their last.
    pub fn end(&mut self, told: &mut Vec<Told>) {
        let mut place = 0;
        while place < self.running.len() {
            let generation = &mut self.running[place];
            if generation.computed < generation.tokens {
                place += 1;
                continue;
            }
            let first = generation.tokens == generation.request.tokens;
            generation.tokens = generation.computed + 1;
            let over = generation.tokens - generation.request.tokens >= generation.request.outputs;
            if first || over {
                told.push(Told { number: generation.number, first, over });
            }
            if over {
                let ended = self.running.remove(place);
                self.pool.release(&ended.slots);
            } else {
                place += 1;
            }
        }
    }

    /// Plays steps of answers alone; None where there is anything else to do, or blocks may lack.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a count of steps, far below 2**52"
    )]
    fn answer(&mut self, seconds: f64) -> Option<f64> {
        let each = self.rates.inter_token_seconds;
        let alone = self.waiting.is_empty() && self.running.len() as u64 <= self.rates.batched_tokens;
        if !alone || !self.running.iter().all(Generation::answers) {
            return None;
        }
        let left = self.running.iter().map(Generation::left).min()?;
        let steps = if each > 0.0 { left.min((seconds / each).ceil().max(1.0) as u64) } else { left };
        let size = self.load.block_size;
        let lacking: usize = self.running.iter().map(|one| one.lacking(steps, size)).sum();
        if lacking > self.pool.free() {
            return None;
        }
        for generation in &mut self.running {
            generation.grow(&mut self.pool, self.load, steps);
            generation.computed += steps;
        }
        Some(steps as f64 * each)
    }

    fn schedule_running(&mut self, step: &mut Step) {
        let mut place = 0;
        while place < self.running.len() && step.left > 0 {
            let generation = &self.running[place];
            let count = (generation.tokens - generation.computed).min(step.left);
            if !self.make_room(place, count, step) {
                return;
            }
            step.work(&mut self.running[place], count);
            place += 1;
        }
    }

    /// Blocks for so many more tokens, preempting from the back; false where that took the request itself.
    fn make_room(&mut self, place: usize, count: u64, step: &mut Step) -> bool {
        while !self.running[place].grow(&mut self.pool, self.load, count) {
            let Some(mut victim) = self.running.pop() else {
                return false;
            };
            step.preempted = true;
            self.pool.release(&victim.slots);
            victim.slots.clear();
            (victim.computed, victim.stored, victim.preempted) = (0, 0, true);
            self.waiting.push_front(victim);
            if self.running.len() == place {
                return false;
            }
        }
        true
    }

    fn schedule_waiting(&mut self, step: &mut Step) {
        while step.left > 0 && self.running.len() < self.rates.running {
            let Some(mut generation) = self.waiting.pop_front() else {
                return;
            };
            let Some(count) = self.admit(&mut generation, step.left) else {
                return self.waiting.push_front(generation);
            };
            step.work(&mut generation, count);
            self.running.push(generation);
        }
    }

    /// Tokens to compute now of a waiting request; None where the whole of it does not fit.
    fn admit(&mut self, generation: &mut Generation, left: u64) -> Option<u64> {
        let size = self.load.block_size;
        let usable = usize::try_from((generation.tokens - 1) / size).ok()?;
        let (slots, idle) = self.pool.lookup(self.load.all(&generation.request), usable);
        if usize::try_from(generation.tokens.div_ceil(size)).ok()? - slots.len() + idle > self.pool.free() {
            return None;
        }
        let computed = slots.len() as u64 * size;
        if !generation.preempted {
            self.queries += generation.tokens;
            self.hits += computed;
            self.counted_hits += if generation.number < self.since { 0 } else { computed };
        }
        self.pool.touch(&slots);
        (generation.stored, generation.computed, generation.slots) = (slots.len(), computed, slots);
        let count = (generation.tokens - computed).min(left);
        generation.grow(&mut self.pool, self.load, count);
        Some(count)
    }
}

/// One step while it is planned.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Tokens that it may compute yet.
    left: u64,
    prefill: u64,
    answers: bool,
    preempted: bool,
}

impl Step {
    fn work(&mut self, generation: &mut Generation, count: u64) {
        if count == 1 && generation.computed >= generation.request.tokens {
            self.answers = true;
        } else {
            self.prefill += count;
        }
        generation.computed += count;
        self.left -= count;
    }
}

impl Generation {
    /// Whether its next step computes a token of its answer alone.
    fn answers(&self) -> bool {
        self.computed + 1 == self.tokens && self.computed >= self.request.tokens
    }

    /// Tokens of its answer that it has yet to say.
    fn left(&self) -> u64 {
        (self.request.tokens + self.request.outputs).saturating_sub(self.tokens).max(1)
    }

    /// Blocks that it lacks for so many more tokens.
    fn lacking(&self, count: u64, block_size: u64) -> usize {
        let blocks = usize::try_from((self.computed + count).div_ceil(block_size)).unwrap_or(usize::MAX);
        blocks.saturating_sub(self.slots.len())
    }

    /// Takes blocks for so many more tokens, and caches those that they fill; false where there are too few.
    fn grow(&mut self, pool: &mut Pool, load: &Load, count: u64) -> bool {
        let lacking = self.lacking(count, load.block_size);
        if lacking > pool.free() {
            return false;
        }
        pool.allocate(lacking, &mut self.slots);
        let full = usize::try_from((self.computed + count) / load.block_size).unwrap_or(usize::MAX);
        if full > self.stored {
            pool.store(&self.slots[self.stored..full], &load.all(&self.request)[self.stored..full]);
            self.stored = full;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Engine, Rates, Told};
    use crate::outline::load::tests::load;
    use crate::outline::pool::Pool;

    const RATES: Rates = Rates { tokens_per_second: 100.0, inter_token_seconds: 0.5, batched_tokens: 8, running: 4 };

    #[test]
    fn answers_are_played_at_once_until_something_else_may_come() {
        let load = load(4, &[(0.0, 8, 10, &[1, 2])]);
        let mut engine = Engine::new(&load, RATES, Pool::new(8, 8), 0);
        engine.add(0, 0, 0);
        let mut told = Vec::new();
        assert!((engine.begin(f64::INFINITY) - 0.08).abs() < 1e-9);
        engine.end(&mut told);
        assert!((engine.begin(1.2) - 1.5).abs() < 1e-9, "three steps begin within 1.2 s");
        engine.end(&mut told);
        assert!((engine.begin(f64::INFINITY) - 3.0).abs() < 1e-9);
        engine.end(&mut told);
        let [first, last] = [(true, false), (false, true)].map(|(first, over)| Told { number: 0, first, over });
        assert_eq!((told, engine.busy()), (vec![first, last], false));
        assert_eq!((engine.pool.held(load.all(&load.requests[0]), 9), engine.pool.free()), (4, 8));
    }

    #[test]
    fn one_that_lacks_a_block_preempts_the_latest() {
        let load = load(4, &[(0.0, 8, 8, &[]), (0.0, 8, 8, &[])]);
        let mut engine = Engine::new(&load, Rates { batched_tokens: 32, ..RATES }, Pool::new(5, 5), 0);
        engine.add(0, 0, 0);
        engine.add(1, 0, 0);
        let (mut told, mut steps) = (Vec::new(), 0);
        while engine.busy() && steps < 100 {
            engine.begin(0.0);
            engine.end(&mut told);
            steps += 1;
        }
        let over: Vec<usize> = told.iter().filter(|one| one.over).map(|one| one.number).collect();
        assert_eq!((over, engine.queries), (vec![0, 1], 16));
    }
}
