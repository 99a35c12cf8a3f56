//! `WorkerTable.choose`: matching, scoring and choice in one call.

use super::candidates::{Candidates, Known};
use super::errors::guard;
use super::index::Index;
use super::ints;
use super::plane::{Plane, Slot, WorkerRow, one_plane};
use super::state::State;
use crate::digest::Tier;
use crate::index::Rule;
use crate::plane::account::{Own, rank, record};
use crate::plane::choose::{Order, Reason};
use crate::plane::table::{Chosen, Kept, Member, Request, Table};
use crate::reader::Key;
use crate::score::{Cached, Prompt};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MOST_TOKENS: u64 = 1 << 40;

/// The best candidate for a prompt, and what explains it.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Choice {
    chosen: Chosen,
    now: f64,
}

#[pymethods]
impl Choice {
    /// Index of the chosen candidate; where there is no room, of the least loaded one.
    #[getter]
    fn first(&self) -> usize {
        self.chosen.first.member as usize
    }

    /// Value of `Reason` in `controlplane/cachefleet_controlplane/routing/decision.py`.
    #[getter]
    fn reason(&self) -> &'static str {
        match self.chosen.choice.reason {
            Reason::LongestPrefix => "longest_prefix",
            Reason::LoadOverPrefix => "load_over_prefix",
            Reason::Cold => "cold",
            Reason::Load => "load_only",
            Reason::Turn => "round_robin",
            Reason::NoRoom => "no_room",
            Reason::TooLarge => "too_large",
        }
    }

    /// Indices of those that are next in order, of the same pool.
    #[getter]
    fn next(&self) -> Vec<usize> {
        self.chosen.next.iter().map(|(_, kept)| kept.member as usize).collect()
    }

    /// The choice of the one that is next in this place. `IndexError` where there is none.
    fn at(&self, place: usize) -> PyResult<Self> {
        let chosen = self.chosen.at(place).ok_or_else(|| PyIndexError::new_err("place: there are fewer"))?;
        Ok(Self { chosen, now: self.now })
    }

    /// Whether caches were not looked at: nothing is known of the prompt, or of what workers hold.
    #[getter]
    fn blind(&self) -> bool {
        self.chosen.blind
    }

    /// The most tokens of the prompt that any candidate is expected to hold.
    #[getter]
    fn longest(&self) -> u64 {
        self.chosen.choice.longest
    }

    /// Seconds by which the chosen one's queue is longer than the shortest, where it holds the most.
    #[getter]
    fn excess(&self) -> f64 {
        self.chosen.choice.excess
    }

    /// Tokens of the prompt predicted from the chosen one's cache.
    #[getter]
    fn predicted_tokens(&self) -> u64 {
        self.chosen.first.score.predicted_tokens
    }

    /// Tokens forecast from the chosen one's cache: those predicted, and those of requests there ahead of this one.
    #[getter]
    fn forecast_tokens(&self) -> u64 {
        self.chosen.first.forecast_tokens
    }

    /// Of the expected ones, those to be loaded from below the device.
    #[getter]
    fn loaded_tokens(&self) -> u64 {
        self.chosen.first.score.loaded_tokens
    }

    #[getter]
    fn uncached_tokens(&self) -> u64 {
        self.chosen.first.score.uncached_tokens
    }

    /// Blocks that the index says the chosen one holds.
    #[getter]
    fn matched_blocks(&self) -> u32 {
        self.chosen.first.score.matched_blocks
    }

    /// Tokens predicted from the chosen one's cache, with the blocks of prompts just sent there.
    #[getter]
    fn expected_tokens(&self) -> u64 {
        self.chosen.first.score.expected_tokens
    }

    /// What the request costs on the chosen one.
    #[getter]
    fn seconds(&self) -> f64 {
        self.chosen.first.score.seconds
    }

    /// Seconds since the chosen one's last report; None where its blocks are not known.
    #[getter]
    fn report_age(&self) -> Option<f64> {
        self.chosen.first.view.reported_at.map(|at| self.now - at)
    }

    /// The chosen one's queue: tokens to be computed before, over its rate.
    #[getter]
    fn queue_seconds(&self) -> f64 {
        let first = &self.chosen.first;
        first.throughput.rate_seconds(first.view.waiting_tokens())
    }

    /// Blocks of the largest candidate; 0 where none tells.
    #[getter]
    fn largest(&self) -> u64 {
        self.chosen.largest
    }

    /// How many candidates there were.
    #[getter]
    fn candidates(&self) -> usize {
        self.chosen.candidates
    }

    /// The most blocks that another leading candidate holds.
    #[getter]
    fn elsewhere_blocks(&self) -> u32 {
        self.chosen.others().map(|score| score.matched_blocks).max().unwrap_or(0)
    }

    /// The most tokens that another leading candidate is expected to hold.
    #[getter]
    fn elsewhere_tokens(&self) -> u64 {
        self.chosen.others().map(|score| score.expected_tokens).max().unwrap_or(0)
    }

    #[getter]
    fn leading_count(&self) -> usize {
        self.chosen.leading.len()
    }

    /// The leading candidates: index and numbers of each, by the names of `CandidateScore`.
    fn leading<'py>(&self, py: Python<'py>) -> PyResult<Vec<(usize, Bound<'py, PyDict>)>> {
        self.chosen.leading.iter().map(|kept| kept.numbers(py, self.now)).collect()
    }

    /// Their records as JSON, each an array in the order of `CandidateRecord`; `workers` have the members' names.
    fn leading_records<'py>(
        &self,
        py: Python<'py>,
        workers: &Bound<'py, PyAny>,
        block_size: u64,
        chosen: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let records: PyResult<Vec<Value>> = self
            .chosen
            .leading
            .iter()
            .map(|kept| {
                let worker = workers.get_item(kept.member as usize)?;
                let text = |name: &Bound<'py, PyString>| worker.getattr(name)?.extract::<String>();
                let (id, name, pool) =
                    (text(intern!(py, "id"))?, text(intern!(py, "name"))?, text(intern!(py, "pool"))?);
                let own = Own { rank: rank(&id), chosen: id == chosen, block_size };
                Ok(record(kept, &name, &pool, self.now, &own))
            })
            .collect();
        Ok(PyBytes::new(py, Value::Array(records?).to_string().as_bytes()))
    }

    /// The same of all candidates; none where not all were to be kept.
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Vec<(usize, Bound<'py, PyDict>)>> {
        self.chosen.all.iter().map(|kept| kept.numbers(py, self.now)).collect()
    }
}

impl Kept {
    fn numbers<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(usize, Bound<'py, PyDict>)> {
        let Self { member, score, view, throughput, .. } = self;
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
        numbers.set_item("adapter_seconds", score.adapter_seconds)?;
        Ok((*member as usize, numbers))
    }
}

/// What is asked of the workers' blocks.
struct Asked<'a> {
    keys: &'a [u64],
    /// Tokens in each of the keys' chunks, where they are those of a text.
    tokens_each: Option<f64>,
    /// Members of which only the first blocks are counted on, and how many.
    refuted: Vec<(usize, u32)>,
}

/// The workers of one fleet that may do one duty, among which is chosen.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct WorkerTable {
    plane: Plane,
    /// Kept, as the table refers to them.
    _slots: Vec<Arc<Slot>>,
    matched: Candidates,
    /// The adapter that workers must not lack; "" for none.
    needed: String,
    table: Mutex<Table>,
}

impl WorkerTable {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adapter(&self, name: &str) -> Option<u64> {
        (!name.is_empty()).then(|| self.plane.lock().adapter(name))
    }
}

#[pymethods]
impl WorkerTable {
    /// Of workers by row, id, full name and number of their pool. `rules` has one for each, as whether all blocks from
    /// the first on are needed, and the blocks of each window; none where all are plain. With `needed`, an adapter,
    /// workers that lack it are no candidates.
    #[new]
    #[pyo3(signature = (plane, workers, rules = Vec::new(), needed = String::new()))]
    fn new(
        plane: &Plane,
        workers: Vec<(PyRef<'_, WorkerRow>, String, String, usize)>,
        rules: Vec<(bool, Vec<u32>, u32)>,
        needed: String,
    ) -> PyResult<Self> {
        if workers.iter().any(|(.., pool)| *pool >= workers.len()) {
            return Err(PyValueError::new_err("workers: pools are counted from 0"));
        }
        one_plane(workers.iter().map(|(row, ..)| &**row), plane)?;
        let matched = Candidates::new(workers.iter().map(|(_, id, ..)| id.clone()).collect(), rules)?;
        let slots = workers.iter().map(|(row, ..)| Arc::clone(&row.0)).collect();
        let members: Vec<Member> = workers
            .into_iter()
            .map(|(row, id, full_name, pool)| Member { slot: row.0.number, id, full_name, pool })
            .collect();
        let table = Mutex::new(Table::new(&members, matched.rules().to_vec()));
        Ok(Self { plane: plane.clone(), _slots: slots, matched, needed, table })
    }

    fn __len__(&self) -> usize {
        self.table().len()
    }

    /// Numbers of the workers that may be chosen now.
    fn preferred(&self, now: f64) -> PyResult<Vec<u32>> {
        let needed = self.adapter(&self.needed);
        guard(|| Ok(self.table().preferred(&mut self.plane.lock(), needed, now).to_vec()))
    }

    /// The same, at most `count`: those with the fewest requests, by id where these are equal.
    fn least_busy(&self, count: usize, now: f64) -> PyResult<Vec<u32>> {
        let needed = self.adapter(&self.needed);
        guard(|| Ok(self.table().least_busy(&mut self.plane.lock(), needed, count, now)))
    }

    /// The best worker for a prompt, by "cost", by "load" or in "turn"; None where none may be chosen.
    ///
    /// `excluded` workers, by full name or id, are not chosen; what they have measured still counts. `adapter` is the
    /// one asked for. `refuted` are those of which only the first blocks are counted on, by id, and how many. `paid` is
    /// waiting that has paid for a copy of the first `paid_tokens` tokens. With `tokens_each` the keys are those of a
    /// text's chunks, the index holds what was sent to whom, and costs for others do not count. `every`: all scores are
    /// kept. `more`: so many of the chosen one's pool are named after it.
    #[pyo3(signature = (index, keys, now, tokens, block_size, needed_blocks, order, excluded = Vec::new(), adapter = "",
        *, refuted = Vec::new(), paid = 0.0, paid_tokens = 0, tokens_each = None, every = false,
        more = 0))]
    #[expect(clippy::too_many_arguments, reason = "what a request is")]
    fn choose(
        &self,
        index: &Index,
        keys: &[u8],
        now: f64,
        tokens: u64,
        block_size: u64,
        needed_blocks: u64,
        order: &str,
        excluded: Vec<String>,
        adapter: &str,
        refuted: Vec<(String, u32)>,
        paid: f64,
        paid_tokens: u64,
        tokens_each: Option<f64>,
        every: bool,
        more: usize,
    ) -> PyResult<Option<Choice>> {
        if tokens > MOST_TOKENS || block_size > MOST_TOKENS {
            return Err(PyValueError::new_err("tokens: too many"));
        }
        if !(0.0..f64::INFINITY).contains(&paid) {
            return Err(PyValueError::new_err("paid: must be finite and at least 0"));
        }
        let keys: Vec<u64> = ints::packed_keys(keys, None)?.iter().map(Key::key).collect();
        let (needed_blocks, weighed) = (needed_blocks.min(MOST_TOKENS), tokens_each.is_none());
        let usable_blocks = tokens.saturating_sub(1).checked_div(block_size).unwrap_or(0);
        let order = read_order(order)?;
        let order = if keys.is_empty() { order.blind() } else { order };
        let request = Request {
            prompt: Prompt { tokens, block_size, usable_blocks, needed_blocks, paid, paid_tokens, weighed },
            order,
            needed: self.adapter(&self.needed),
            adapter: self.adapter(adapter),
            excluded,
            more,
            now,
        };
        guard(|| {
            let mut table = self.table();
            let number = |(id, most): (String, u32)| Some((table.number(&id)?, most));
            let asked = Asked { keys: &keys, tokens_each, refuted: refuted.into_iter().filter_map(number).collect() };
            let cached = |table: &Table, _: &[u32]| {
                if asked.keys.is_empty() {
                    return Ok(vec![Cached::default(); table.len()]);
                }
                index.0.with(|state| state.cached(&self.matched, &asked, &request.prompt))
            };
            let sent = if weighed { keys.as_slice() } else { &[] };
            let chosen = table.choose(&mut self.plane.lock(), &request, every, cached, sent)?;
            Ok(chosen.map(|chosen| Choice { chosen, now }))
        })
    }
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
    fn cached(&mut self, candidates: &Candidates, asked: &Asked, prompt: &Prompt) -> Vec<Cached> {
        let (known, rules) = (candidates.known(&self.index), candidates.rules());
        if let Some(each) = asked.tokens_each {
            let chunks = self.walk(&known, &[], asked.keys, Tier::Device, None);
            return chunks.map(|chunks| sent_text(chunks, each, prompt.block_size)).collect();
        }
        let usable = usize::try_from(prompt.usable_blocks).unwrap_or(usize::MAX);
        let mut depths: Vec<u32> = self.walk(&known, rules, asked.keys, Tier::Device, Some(usable)).collect();
        for (place, most) in &asked.refuted {
            if *most < depths[*place] {
                depths[*place] = self.depth_within(known.slots[*place], rules.get(*place), asked.keys, *most);
            }
        }
        let below = self.loadable(&known, rules, &depths, &asked.keys[..asked.keys.len().min(usable)]);
        let loadable = below.into_iter().chain(std::iter::repeat(0));
        let blocks = depths.into_iter().zip(loadable);
        let mut cached: Vec<Cached> =
            blocks.map(|(matched, loadable)| Cached { matched, loadable, ..Cached::default() }).collect();
        asked.refuted.iter().for_each(|(place, _)| cached[*place].loadable = 0);
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
    Cached { matched: blocks, sent: blocks, ..Cached::default() }
}
