//! `Index.choose`: matching, scoring and choice in one call.

use super::candidates::{Board, Candidates, Known};
use super::errors::guard;
use super::index::Index;
use super::ints;
use super::state::State;
use crate::choice::{self, Order, Reason, Scored};
use crate::digest::Tier;
use crate::index::Rule;
use crate::reader::Key;
use crate::score::{Cached, Prompt, Score, View, score};
use crate::throughput::Throughput;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

const MOST_TOKENS: u64 = 1 << 40;

/// The best candidate for a prompt, and what explains it.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Choice {
    made: choice::Choice,
    blind: bool,
    largest: u64,
    queue_seconds: f64,
    report_age: Option<f64>,
    now: f64,
    leading: Vec<Kept>,
    all: Vec<Kept>,
}

/// A score with what it was computed from.
#[derive(Clone, Copy)]
struct Kept {
    score: Score,
    view: View,
    throughput: Throughput,
}

#[pymethods]
impl Choice {
    /// Index of the chosen candidate; where there is no room, of the least loaded one.
    #[getter]
    fn first(&self) -> usize {
        self.made.first.candidate
    }

    /// Value of `Reason` in `controlplane/cachefleet_controlplane/routing/decision.py`.
    #[getter]
    fn reason(&self) -> &'static str {
        match self.made.reason {
            Reason::LongestPrefix => "longest_prefix",
            Reason::LoadOverPrefix => "load_over_prefix",
            Reason::Cold => "cold",
            Reason::Load => "load_only",
            Reason::Turn => "round_robin",
            Reason::NoRoom => "no_room",
            Reason::TooLarge => "too_large",
        }
    }

    /// Whether caches were not looked at: nothing is known of the prompt, or of what workers hold.
    #[getter]
    fn blind(&self) -> bool {
        self.blind
    }

    /// The most tokens of the prompt that any candidate is expected to hold.
    #[getter]
    fn longest(&self) -> u64 {
        self.made.longest
    }

    /// Seconds by which the chosen one's queue is longer than the shortest, where it holds the most.
    #[getter]
    fn excess(&self) -> f64 {
        self.made.excess
    }

    /// Tokens of the prompt predicted from the chosen one's cache.
    #[getter]
    fn predicted_tokens(&self) -> u64 {
        self.made.first.predicted_tokens
    }

    /// Of the expected ones, those to be loaded from below the device.
    #[getter]
    fn loaded_tokens(&self) -> u64 {
        self.made.first.loaded_tokens
    }

    #[getter]
    fn uncached_tokens(&self) -> u64 {
        self.made.first.uncached_tokens
    }

    /// Blocks that the index says the chosen one holds.
    #[getter]
    fn matched_blocks(&self) -> u32 {
        self.made.first.matched_blocks
    }

    /// Tokens predicted from the chosen one's cache, with the blocks of prompts just sent there.
    #[getter]
    fn expected_tokens(&self) -> u64 {
        self.made.first.expected_tokens
    }

    /// What the request costs on the chosen one.
    #[getter]
    fn seconds(&self) -> f64 {
        self.made.first.seconds
    }

    /// Seconds since the chosen one's last report; None where its blocks are not known.
    #[getter]
    fn report_age(&self) -> Option<f64> {
        self.report_age
    }

    /// The chosen one's queue: tokens to be computed before, over its rate.
    #[getter]
    fn queue_seconds(&self) -> f64 {
        self.queue_seconds
    }

    /// Blocks of the largest candidate; 0 where none tells.
    #[getter]
    fn largest(&self) -> u64 {
        self.largest
    }

    #[getter]
    fn leading_count(&self) -> usize {
        self.leading.len()
    }

    /// The leading candidates: index and numbers of each, by the names of `CandidateScore`.
    fn leading<'py>(&self, py: Python<'py>) -> PyResult<Vec<(usize, Bound<'py, PyDict>)>> {
        self.leading.iter().map(|kept| kept.numbers(py, self.now)).collect()
    }

    /// The same of all candidates; none where not all were to be kept.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Vec<(usize, Bound<'py, PyDict>)>> {
        self.all.iter().map(|kept| kept.numbers(py, self.now)).collect()
    }
}

impl Kept {
    fn numbers<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(usize, Bound<'py, PyDict>)> {
        let Self { score, view, throughput } = self;
        let numbers = PyDict::new(py);
        numbers.set_item("matched_blocks", score.matched_blocks)?;
        numbers.set_item("predicted_tokens", score.predicted_tokens)?;
        numbers.set_item("expected_tokens", score.expected_tokens)?;
        numbers.set_item("queued_tokens", view.queued_tokens)?;
        numbers.set_item("inflight_tokens", view.inflight_tokens)?;
        numbers.set_item("uncached_tokens", score.uncached_tokens)?;
        numbers.set_item("evicted_tokens", score.evicted_tokens)?;
        numbers.set_item("tokens_per_second", throughput.tokens_per_second)?;
        numbers.set_item("inter_token_seconds", throughput.inter_token_seconds)?;
        numbers.set_item("batched_tokens", throughput.batched_tokens)?;
        numbers.set_item("requests", view.requests)?;
        numbers.set_item("seconds", score.seconds)?;
        numbers.set_item("report_age", view.reported_at.map(|at| now - at))?;
        numbers.set_item("needed_blocks", score.taken_blocks)?;
        numbers.set_item("free_blocks", view.blocks_free)?;
        numbers.set_item("reserved_blocks", view.blocks_reserved)?;
        numbers.set_item("total_blocks", view.blocks_total)?;
        numbers.set_item("fits", score.fits)?;
        numbers.set_item("worth_tokens", view.worth.computed_again(score.evicted_tokens))?;
        numbers.set_item("others_seconds", score.others_seconds)?;
        numbers.set_item("paid_seconds", score.paid_seconds)?;
        numbers.set_item("loaded_tokens", score.loaded_tokens)?;
        numbers.set_item("loading_seconds", score.loading_seconds)?;
        numbers.set_item("loading_measured", throughput.loading_measured)?;
        numbers.set_item("adapter_seconds", view.adapter_seconds)?;
        Ok((score.candidate, numbers))
    }
}

/// What is asked of the workers' blocks.
struct Asked<'a, K> {
    keys: &'a [K],
    /// Tokens in each of the keys' chunks, where they are those of a text.
    tokens_each: Option<f64>,
    /// Candidates that were just sent some of its blocks, and how many.
    sent: Vec<(usize, u32)>,
    /// Candidates of which only the first blocks are counted on, and how many.
    refuted: Vec<(usize, u32)>,
}

#[pymethods]
impl Index {
    /// The best candidate for a prompt, by "cost", by "load" or in "turn"; None without candidates.
    ///
    /// `sent` are candidates that were just sent some of its blocks, and how many; `refuted` those of which only the
    /// first blocks are counted on, and how many. `paid` is waiting that has paid for a copy of the first `paid_tokens`
    /// tokens. With `tokens_each` the keys are those of a text's chunks, and the index holds what was sent to whom.
    /// `excluded` candidates are not chosen; what they have measured still counts. `every`: all scores are kept.
    #[pyo3(signature = (keys, candidates, *, now, tokens, block_size, needed_blocks, order = "cost", sent = Vec::new(),
        refuted = Vec::new(), paid = 0.0, paid_tokens = 0, tokens_each = None, excluded = Vec::new(),
        every = false))]
    #[expect(clippy::too_many_arguments, reason = "by keyword")]
    fn choose(
        &self,
        keys: &[u8],
        candidates: &Candidates,
        now: f64,
        tokens: u64,
        block_size: u64,
        needed_blocks: u64,
        order: &str,
        sent: Vec<(usize, u32)>,
        refuted: Vec<(usize, u32)>,
        paid: f64,
        paid_tokens: u64,
        tokens_each: Option<f64>,
        excluded: Vec<usize>,
        every: bool,
    ) -> PyResult<Option<Choice>> {
        if tokens > MOST_TOKENS || block_size > MOST_TOKENS {
            return Err(PyValueError::new_err("tokens: too many"));
        }
        if !(0.0..f64::INFINITY).contains(&paid) {
            return Err(PyValueError::new_err("paid: must be finite and at least 0"));
        }
        let count = candidates.names().len();
        if sent.iter().chain(&refuted).map(|(place, _)| place).chain(&excluded).any(|place| *place >= count) {
            return Err(PyValueError::new_err("sent, refuted, excluded: not of these candidates"));
        }
        let prompt = Prompt { tokens, block_size, needed_blocks: needed_blocks.min(MOST_TOKENS), paid, paid_tokens };
        let asked = Asked { keys: ints::packed_keys(keys, None)?, tokens_each, sent, refuted };
        let order = read_order(order)?;
        let cached = self.0.with(|state| state.cached(candidates, &asked, &prompt))?;
        let rows = without(excluded, cached);
        let order = if asked.keys.is_empty() { order.blind() } else { order };
        guard(|| Ok(candidates.board().choose(candidates.names(), &prompt, &rows, order, now, every)))
    }
}

/// What is cached on each candidate that is not excluded, with its index.
fn without(excluded: Vec<usize>, cached: Vec<Cached>) -> Vec<(usize, Cached)> {
    let mut allowed = vec![true; cached.len()];
    for place in excluded {
        allowed[place] = false;
    }
    cached.into_iter().enumerate().filter(|(place, _)| allowed[*place]).collect()
}

fn read_order(order: &str) -> PyResult<Order> {
    match order {
        "cost" => Ok(Order::Cost),
        "load" => Ok(Order::Load),
        "turn" => Ok(Order::Turn),
        _ => Err(PyValueError::new_err("order: one of cost, load, turn")),
    }
}

impl State {
    /// What of a prompt is cached on each candidate.
    fn cached<K: Key>(&mut self, candidates: &Candidates, asked: &Asked<K>, prompt: &Prompt) -> Vec<Cached> {
        if asked.keys.is_empty() {
            return vec![Cached::default(); candidates.names().len()];
        }
        let (known, rules) = (candidates.known(&self.index), candidates.rules());
        if let Some(each) = asked.tokens_each {
            let chunks = self.walk(&known, &[], asked.keys, Tier::Device, None);
            return chunks.map(|chunks| sent_text(chunks, each, prompt.block_size)).collect();
        }
        let usable = usize::try_from(prompt.usable_blocks()).unwrap_or(usize::MAX);
        let mut depths: Vec<u32> = self.walk(&known, rules, asked.keys, Tier::Device, Some(usable)).collect();
        for (place, most) in &asked.refuted {
            if *most < depths[*place] {
                depths[*place] = self.depth_within(known.slots[*place], rules.get(*place), asked.keys, *most);
            }
        }
        let below = self.loadable(&known, rules, &depths, &asked.keys[..asked.keys.len().min(usable)]);
        let loadable = below.into_iter().chain(std::iter::repeat(0));
        let blocks = depths.into_iter().zip(loadable);
        let mut cached: Vec<Cached> = blocks.map(|(matched, loadable)| Cached { matched, loadable, sent: 0 }).collect();
        asked.refuted.iter().for_each(|(place, _)| cached[*place].loadable = 0);
        asked.sent.iter().for_each(|(place, blocks)| cached[*place].sent = *blocks);
        cached
    }

    /// Blocks of a hit on one worker, of which more than `most` are held, where no more are counted on.
    fn depth_within<K: Key>(&mut self, slot: u32, rule: Option<&Rule>, keys: &[K], most: u32) -> u32 {
        let Some(rule) = rule.filter(|rule| !rule.plain()) else {
            return most;
        };
        let alone = Known::of(slot);
        self.walk(&alone, std::slice::from_ref(rule), keys, Tier::Device, Some(most as usize)).next().unwrap_or(0)
    }
}

/// The blocks in the first chunks of a text that was sent to a worker: they are expected there even while reports are
/// stale.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small counts"
)]
fn sent_text(chunks: u32, tokens_each: f64, block_size: u64) -> Cached {
    let blocks = if block_size == 0 { 0 } else { (f64::from(chunks) * tokens_each / block_size as f64) as u32 };
    Cached { matched: blocks, loadable: 0, sent: blocks }
}

impl Board {
    fn choose(
        &mut self,
        names: &[String],
        prompt: &Prompt,
        rows: &[(usize, Cached)],
        order: Order,
        now: f64,
        every: bool,
    ) -> Option<Choice> {
        self.learn();
        let Self { views, throughputs, scores, .. } = self;
        scores.clear();
        scores.extend(rows.iter().map(|(at, cached)| score(prompt, &views[*at], &throughputs[*at], *at, *cached, now)));
        let reported = rows.iter().any(|(place, cached)| !views[*place].stale(now) || cached.sent > 0);
        let order = if reported { order } else { order.blind() };
        let scored = Scored { scores, views, names };
        let made = scored.choose(order)?;
        let keep = |score: Score| {
            let (view, throughput) = (views[score.candidate], throughputs[score.candidate]);
            Kept { score, view, throughput }
        };
        let first = keep(made.first);
        Some(Choice {
            made,
            blind: order != Order::Cost,
            largest: rows.iter().filter_map(|(place, _)| views[*place].blocks_total).max().unwrap_or(0),
            queue_seconds: first.throughput.rate_seconds(first.view.waiting_tokens()),
            report_age: first.view.reported_at.map(|at| now - at),
            now,
            leading: scored.leading(&made).into_iter().map(keep).collect(),
            all: if every { scores.iter().copied().map(keep).collect() } else { Vec::new() },
        })
    }
}
