//! `Candidates`: workers among which is chosen again and again.

use super::errors::guard;
use crate::index::{Asked, Index, Rule};
use crate::score::{Score, View};
use crate::throughput::{self, Throughput};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

const MOST_CANDIDATES: usize = 1 << 20;

/// Workers by name, with their rules, their slots in an index (looked up anew when these have changed) and their load.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Candidates {
    names: Vec<String>,
    rules: Vec<Rule>,
    known: Mutex<Known>,
    board: Mutex<Board>,
}

/// The candidates' slots at one version of an index.
#[derive(Default)]
pub struct Known {
    version: Option<u64>,
    /// Slot of each candidate; `NO_SLOT` for one that holds nothing.
    pub slots: Vec<u32>,
    pub asked: Asked,
}

/// The candidates' loads, kept between decisions; one that was not set is a worker of which nothing is known.
pub struct Board {
    pub views: Vec<View>,
    /// Of each candidate the number of its pool.
    pools: Vec<usize>,
    /// Learnt of all views; none where a measurement has changed since.
    pub throughputs: Vec<Throughput>,
    /// Of the last decision.
    pub scores: Vec<Score>,
}

impl Board {
    fn new(pools: Vec<usize>) -> Self {
        Self { views: vec![View::UNKNOWN; pools.len()], pools, throughputs: Vec::new(), scores: Vec::new() }
    }

    fn set(&mut self, place: usize, view: View) -> PyResult<()> {
        let before = std::mem::replace(self.view(place)?, view);
        if measured(&before) != measured(&view) {
            self.throughputs.clear();
        }
        Ok(())
    }

    fn view(&mut self, place: usize) -> PyResult<&mut View> {
        self.views.get_mut(place).ok_or_else(|| PyIndexError::new_err("candidate: no such row"))
    }

    /// Has `throughputs` be those that the views now give.
    pub fn learn(&mut self) {
        if self.throughputs.len() != self.views.len() {
            self.throughputs = throughput::learn(&self.views, &self.pools);
        }
    }
}

fn measured(view: &View) -> (Option<f64>, Option<f64>, Option<f64>, u64) {
    (view.tokens_per_second, view.inter_token_seconds, view.loaded_per_second, view.batched_tokens)
}

/// No slot: larger than any.
pub const NO_SLOT: u32 = u32::MAX;

impl Known {
    pub fn new<'a>(index: &Index, names: impl Iterator<Item = &'a str>) -> Self {
        let slots: Vec<u32> = names.map(|name| index.slot(name).unwrap_or(NO_SLOT)).collect();
        let asked = Asked::new(slots.iter().copied().filter(|slot| *slot != NO_SLOT));
        Self { version: Some(index.version()), slots, asked }
    }

    /// One worker alone.
    pub fn of(slot: u32) -> Self {
        Self { version: None, slots: vec![slot], asked: Asked::new(std::iter::once(slot)) }
    }
}

#[pymethods]
impl Candidates {
    /// `rules` has one for each name, as whether all blocks from the first on are needed, and the blocks of each
    /// window; none where all are plain. `pools` has the number of each one's pool; none where all are of one.
    #[new]
    #[pyo3(signature = (names, rules = Vec::new(), pools = Vec::new()))]
    fn new(names: Vec<String>, rules: Vec<(bool, Vec<u32>, u32)>, pools: Vec<usize>) -> PyResult<Self> {
        if names.len() > MOST_CANDIDATES {
            return Err(PyValueError::new_err(format!("names: at most {MOST_CANDIDATES}")));
        }
        let pools = if pools.is_empty() { vec![0; names.len()] } else { pools };
        if pools.len() != names.len() || pools.iter().any(|pool| *pool >= names.len()) {
            return Err(PyValueError::new_err("pools: one for each candidate, counted from 0, or none"));
        }
        let rules = read_rules(rules, names.len())?;
        Ok(Self { names, rules, known: Mutex::default(), board: Mutex::new(Board::new(pools)) })
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }

    /// Indices of at most `count` candidates: those with the fewest requests, by name where these are equal.
    fn least_busy(&self, count: usize) -> Vec<usize> {
        let board = self.board();
        let order = |a: &usize, b: &usize| {
            let requests = |place: &usize| board.views[*place].requests;
            requests(a).cmp(&requests(b)).then_with(|| self.names[*a].cmp(&self.names[*b]))
        };
        let mut places: Vec<usize> = (0..board.views.len()).collect();
        if count < places.len() {
            places.select_nth_unstable_by(count, order);
            places.truncate(count);
        }
        places.sort_unstable_by(order);
        places
    }

    /// Sets a candidate's load: the attributes of a `CandidateView`.
    fn set(&self, candidate: usize, view: View) -> PyResult<()> {
        guard(|| self.board().set(candidate, view))
    }

    /// Sets what requests in flight change of a candidate's load, and nothing else.
    #[pyo3(signature = (candidate, *, inflight_tokens, blocks_free, blocks_idle, blocks_blank, requests, last_used))]
    #[expect(clippy::too_many_arguments, reason = "by keyword")]
    fn set_in_flight(
        &self,
        candidate: usize,
        inflight_tokens: u64,
        blocks_free: Option<u64>,
        blocks_idle: u64,
        blocks_blank: Option<u64>,
        requests: u64,
        last_used: u64,
    ) -> PyResult<()> {
        let mut board = self.board();
        let view = board.view(candidate)?;
        *view = View { inflight_tokens, blocks_free, blocks_idle, blocks_blank, requests, last_used, ..*view };
        Ok(())
    }
}

impl Candidates {
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// One for each name; none where all are plain.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their slots in the present version of the index.
    pub fn known(&self, index: &Index) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.version != Some(index.version()) {
            *known = Known::new(index, self.names.iter().map(String::as_str));
        }
        known
    }
}

/// Rules of `names` candidates. `ValueError` for another number of them, or a window of no blocks.
pub fn read_rules(rules: Vec<(bool, Vec<u32>, u32)>, names: usize) -> PyResult<Vec<Rule>> {
    if !rules.is_empty() && rules.len() != names {
        return Err(PyValueError::new_err("rules: one for each candidate, or none"));
    }
    let rules: Option<Vec<Rule>> =
        rules.into_iter().map(|(full, windows, dropped)| Rule::new(full, &windows, dropped)).collect();
    let rules = rules.ok_or_else(|| PyValueError::new_err("rules: up to four windows, of at least one block"))?;
    Ok(if rules.iter().all(Rule::plain) { Vec::new() } else { rules })
}
