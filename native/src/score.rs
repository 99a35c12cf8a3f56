//! What a request costs on one worker, itself and others.
//!
//! In seconds:
//!
//! ```text
//! T(Q + I + U)  +  D * t  +  (1 + D) * w * E / R  +  L / V  +  A      with  T(x) = x / R + ITL * ceil(x / C)
//! ```
//!
//! with Q + I the tokens that wait there, by its last report and of what this replica has sent that the report does not
//! show yet, U the prompt's tokens that are not cached there, R its prefill rate in tokens a second, ITL its inter-token
//! latency, C the tokens it computes in one step, and E the cached tokens that would have to be evicted to make room; of
//! these the share w is computed again later. L are tokens loaded from the host's memory or a disk at V tokens a second;
//! others do not wait for that. A is how long the adapter that is asked for is loaded onto the device.
//! `t = T(Q + I + U) - T(Q + I)` is the time that computing the prompt takes, and D how many others wait for each second
//! of it:
//!
//! ```text
//! D = k * (s + T(Q + I) + t / 2)
//! ```
//!
//! with k those that wait for each second of a queue, and s the queue that is there on the mean (`Worth::delays`). What
//! waiting for the prompt's prefix has paid is taken off what the request costs others, on workers that do not hold it.
//!
//! Of the blocks that the index says a worker holds, or that were just sent there, only that share is counted as cached
//! that its answers so far make credible. `tests/reference/scoring.py` says the same in Python, bit for bit.

use crate::throughput::Throughput;

/// A report older than this says nothing about caches, and excludes no worker.
const STALE_AFTER_SECONDS: f64 = 5.0;
/// Trust in a worker whose blocks have all been served so far.
pub const WHOLE: u32 = 1000;
/// A pool that is busy for longer is taken to be busy for so long: a queue ends some time.
const MOST_BUSY: f64 = 0.9;

/// What work and evictions on a worker cost others: `Worth` of `routing/worth.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Worth {
    pub eviction: f64,
    pub requests_per_second: f64,
    pub computed_per_second: f64,
    pub request_tokens: f64,
}

impl Worth {
    /// Nothing is known: what is evicted counts whole, and nobody is delayed.
    pub const UNLEARNT: Self =
        Self { eviction: 1.0, requests_per_second: 0.0, computed_per_second: 0.0, request_tokens: 0.0 };

    /// Of so many evicted tokens, those that will be computed again because of it.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "tokens are far fewer than 2**52, and a share of them is no less than 0"
    )]
    pub fn computed_again(&self, evicted: u64) -> u64 {
        (self.eviction * evicted as f64).round_ties_even() as u64
    }

    /// Requests that wait for each second of a queue, and the seconds of queue that are there on the mean, on a worker
    /// that computes a token in `token_seconds`.
    fn delays(&self, token_seconds: f64) -> (f64, f64) {
        let busy = MOST_BUSY.min(self.computed_per_second * token_seconds);
        (self.requests_per_second / (1.0 - busy), busy / 2.0 * self.request_tokens * token_seconds)
    }
}

/// A worker as decisions see it, whatever the request. `None` was not reported.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct View {
    pub reported_at: Option<f64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub queued_tokens: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub inflight_tokens: u64,
    pub tokens_per_second: Option<f64>,
    pub inter_token_seconds: Option<f64>,
    pub loaded_per_second: Option<f64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub batched_tokens: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded_or_none))]
    pub blocks_total: Option<u64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded_or_none))]
    pub blocks_free: Option<u64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks_reserved: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks_idle: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks_used: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded_or_none))]
    pub blocks_blank: Option<u64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub requests: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub last_used: u64,
    /// Parts of `WHOLE` of its blocks that are counted on.
    pub trust: u32,
    pub worth: Worth,
}

impl View {
    /// A worker of which nothing is known.
    pub const UNKNOWN: Self = Self {
        reported_at: None,
        queued_tokens: 0,
        inflight_tokens: 0,
        tokens_per_second: None,
        inter_token_seconds: None,
        loaded_per_second: None,
        batched_tokens: 0,
        blocks_total: None,
        blocks_free: None,
        blocks_reserved: 0,
        blocks_idle: 0,
        blocks_used: 0,
        blocks_blank: None,
        requests: 0,
        last_used: 0,
        trust: WHOLE,
        worth: Worth::UNLEARNT,
    };

    /// What others' throughput is learnt from.
    #[must_use]
    pub fn measured(&self) -> (Option<f64>, Option<f64>, Option<f64>, u64) {
        (self.tokens_per_second, self.inter_token_seconds, self.loaded_per_second, self.batched_tokens)
    }

    /// Tokens to be computed there before a new request's.
    #[must_use]
    pub fn waiting_tokens(&self) -> u64 {
        self.queued_tokens + self.inflight_tokens
    }

    /// Whether its blocks are not known, or were reported too long ago.
    #[must_use]
    pub fn stale(&self, now: f64) -> bool {
        self.reported_at.is_none_or(|at| now - at > STALE_AFTER_SECONDS)
    }

    #[inline]
    fn counted(&self, blocks: u32) -> u64 {
        if self.trust == WHOLE {
            return u64::from(blocks);
        }
        u64::from(blocks) * u64::from(self.trust) / u64::from(WHOLE)
    }

    /// Of so many blocks of a prompt that it has, those that a hit will have.
    #[inline]
    #[must_use]
    pub fn usable(&self, blocks: u32, prompt: &Prompt) -> u64 {
        if blocks == 0 { 0 } else { self.counted(blocks).min(prompt.usable_blocks) }
    }

    /// Whether it has so many blocks at all, as far as is known.
    fn possible(&self, needed: u64) -> bool {
        self.blocks_total.is_none_or(|total| needed <= total)
    }

    /// Whether it has room for a request that takes so many of its free blocks: an idle worker has, unless the request
    /// needs more blocks than it has.
    fn has_room(&self, needed: u64, taken: u64) -> bool {
        self.possible(needed) && (self.requests == 0 || self.blocks_free.is_none_or(|free| taken <= free))
    }

    /// How many of `held` blocks of a prompt are in use for certain, so that sharing them takes nothing.
    fn certainly_used(&self, held: u64) -> u64 {
        held.saturating_sub(self.blocks_idle).min(self.blocks_used)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    pub tokens: u64,
    pub block_size: u64,
    /// Its blocks that a hit can have: all but the one with its last token.
    pub usable_blocks: u64,
    /// Free blocks that there must be for the request.
    pub needed_blocks: u64,
    /// Seconds of waiting that have paid for a copy of its prefix.
    pub paid: f64,
    /// Tokens of that prefix: nothing is taken off for who is expected to hold all of it.
    pub paid_tokens: u64,
    /// Whether costs for others count as pools have learnt them.
    pub weighed: bool,
}

impl Prompt {
    /// What its work and evictions cost others on a worker.
    #[must_use]
    pub fn worth(&self, view: &View) -> Worth {
        if self.weighed { view.worth } else { Worth::UNLEARNT }
    }
}

/// What waits on a worker before any new request, and whom that delays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    seconds: f64,
    /// Requests that wait for each second of it, and seconds of queue that are there on the mean.
    delayed: f64,
    standing: f64,
}

impl Queue {
    #[must_use]
    pub fn of(view: &View, throughput: &Throughput, worth: Worth) -> Self {
        let (delayed, standing) = worth.delays(throughput.token_seconds());
        Self { seconds: throughput.seconds(view.waiting_tokens()), delayed, standing }
    }
}

/// What of a request is on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cached {
    /// The index says it holds them.
    pub matched: u32,
    /// They follow the matched ones, below the device.
    pub loadable: u32,
    /// They were just sent there.
    pub sent: u32,
    /// How long the adapter that is asked for would be loaded onto its device.
    pub adapter_seconds: f64,
}

/// The cost of a prompt on one worker, with every part of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    pub matched_blocks: u32,
    /// Tokens that will come from its cache by the index alone, those to be loaded included.
    pub predicted_tokens: u64,
    /// The same, with the blocks of prompts just sent there.
    pub expected_tokens: u64,
    /// Of these, those to be loaded from below the device.
    pub loaded_tokens: u64,
    pub uncached_tokens: u64,
    pub evicted_tokens: u64,
    pub seconds: f64,
    /// Seconds for the work that waits there already, alone.
    pub waiting_seconds: f64,
    pub others_seconds: f64,
    pub paid_seconds: f64,
    pub loading_seconds: f64,
    pub adapter_seconds: f64,
    /// Blocks it would take of the free ones.
    pub taken_blocks: u64,
    pub fits: bool,
    /// Whether it could ever have room.
    pub possible: bool,
}

/// The cost of a prompt on a worker; stale reports exclude nobody.
#[inline(always)]
#[expect(clippy::inline_always, reason = "most callers need a few of the numbers alone")]
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
pub fn score(prompt: &Prompt, view: &View, throughput: &Throughput, queue: &Queue, cached: &Cached, now: f64) -> Score {
    let stale = view.stale(now);
    let usable = |blocks: u32| view.usable(blocks, prompt);
    let (matched, below) = if stale { (0, 0) } else { (cached.matched, cached.loadable) };
    let held = usable(matched);
    let predicted = usable(matched + below) * prompt.block_size;
    let on_device = held.max(usable(cached.sent));
    let there = on_device * prompt.block_size;
    let expected = predicted.max(there);
    let evicted = if stale { 0 } else { evicted(prompt, view, on_device) };
    let taken = prompt.needed_blocks.saturating_sub(view.certainly_used(held));

    let uncached = prompt.tokens - expected;
    let before = queue.seconds;
    let own = throughput.seconds(view.waiting_tokens() + uncached);
    let others = queue.delayed * (queue.standing + before + (own - before) / 2.0);
    let lost =
        if evicted == 0 { 0.0 } else { prompt.worth(view).eviction * evicted as f64 / throughput.tokens_per_second };
    let full = own + (own - before) * others + lost * (1.0 + others);
    let paid = if expected < prompt.paid_tokens { prompt.paid } else { 0.0 };
    let seconds = own.max(full - paid);
    let loaded = expected - there;
    let loading = if loaded == 0 { 0.0 } else { loaded as f64 / throughput.loaded_per_second };
    Score {
        matched_blocks: if view.reported_at.is_some() { cached.matched } else { 0 },
        predicted_tokens: predicted,
        expected_tokens: expected,
        loaded_tokens: expected - there,
        uncached_tokens: uncached,
        evicted_tokens: evicted,
        seconds: seconds + loading + cached.adapter_seconds,
        waiting_seconds: before,
        others_seconds: (own - before + lost) * others,
        paid_seconds: full - seconds,
        loading_seconds: loading,
        adapter_seconds: cached.adapter_seconds,
        taken_blocks: taken,
        fits: stale || view.has_room(prompt.needed_blocks, taken),
        possible: stale || view.possible(prompt.needed_blocks),
    }
}

fn evicted(prompt: &Prompt, view: &View, held: u64) -> u64 {
    match view.blocks_blank {
        Some(blank) => {
            let new = prompt.needed_blocks.saturating_sub(held);
            new.saturating_sub(blank).saturating_mul(prompt.block_size)
        }
        None => 0,
    }
}
