//! Matching and scoring in one call.

use super::candidates::Candidates;
use super::errors::guard;
use super::index::Index;
use super::ints;
use super::loads::Loads;
use crate::digest::Tier;
use crate::reader::Key;
use crate::score::{self, Prompt, Reason, Score, choose, score};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const MOST_TOKENS: u64 = 1 << 40;

/// The best candidate for a prompt, the second best where there is one, and what explains them.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Choice {
    made: score::Choice,
    depths: Vec<u32>,
    loadable: Vec<u32>,
}

#[pymethods]
impl Choice {
    /// Index of the chosen candidate.
    #[getter]
    fn first(&self) -> usize {
        self.made.first.candidate
    }

    #[getter]
    fn second(&self) -> Option<usize> {
        self.made.second.map(|score| score.candidate)
    }

    /// Matched blocks of each candidate, in their order, as packed little-endian u32.
    #[getter]
    fn depths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        ints::packed_u32(py, &self.depths)
    }

    /// Blocks of each candidate below the device that follow the matched ones, packed as these are; empty where
    /// nobody has any.
    #[getter]
    fn loadable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        ints::packed_u32(py, &self.loadable)
    }

    /// Value of `Reason` in `controlplane/cachefleet_controlplane/routing/decision.py`.
    #[getter]
    fn reason(&self) -> &'static str {
        match self.made.reason {
            Reason::LongestPrefix => "longest_prefix",
            Reason::LoadOverPrefix => "load_over_prefix",
            Reason::Cold => "cold",
            Reason::LoadOnly => "load_only",
            Reason::NoFit => "no_fit",
        }
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

    /// Matched blocks, expected tokens, evicted tokens, seconds and fit of the chosen one.
    #[getter]
    fn first_score(&self) -> (u32, u64, u64, f64, bool) {
        parts(&self.made.first)
    }

    /// The same of the second best.
    #[getter]
    fn second_score(&self) -> Option<(u32, u64, u64, f64, bool)> {
        self.made.second.as_ref().map(parts)
    }
}

fn parts(score: &Score) -> (u32, u64, u64, f64, bool) {
    (score.matched_blocks, score.expected_tokens, score.evicted_tokens, score.seconds, score.fits)
}

#[pymethods]
impl Index {
    /// The candidate with the least cost for a prompt, and the next; `loads` has a row for each candidate, and `sent`
    /// maps candidates' indexes to blocks just sent there, and `paid` is waiting that has paid for a copy of
    /// the first `paid_tokens` tokens. None without candidates.
    #[pyo3(signature = (keys, candidates, loads, *, tokens, block_size, needed_blocks, sent = Vec::new(), paid = 0.0, paid_tokens = 0))]
    #[expect(clippy::too_many_arguments, reason = "by keyword")]
    fn match_and_score(
        &self,
        keys: &Bound<'_, PyAny>,
        candidates: &Candidates,
        loads: &Loads,
        tokens: u64,
        block_size: u64,
        needed_blocks: u64,
        sent: Vec<(usize, u32)>,
        paid: f64,
        paid_tokens: u64,
    ) -> PyResult<Option<Choice>> {
        if tokens > MOST_TOKENS || block_size > MOST_TOKENS {
            return Err(PyValueError::new_err("tokens: too many"));
        }
        if !(0.0..f64::INFINITY).contains(&paid) {
            return Err(PyValueError::new_err("paid: must be finite and at least 0"));
        }
        let prompt = Prompt { tokens, block_size, needed_blocks: needed_blocks.min(MOST_TOKENS), paid, paid_tokens };
        let names = candidates.names();
        let (known, (depths, loadable)) = if let Ok(packed) = keys.cast::<PyBytes>() {
            let keys = ints::packed_keys(packed.as_bytes(), None)?;
            (!keys.is_empty(), self.depths(keys, candidates, &prompt)?)
        } else {
            let keys = guard(|| ints::keys(keys, None))?;
            (!keys.is_empty(), self.depths(&keys, candidates, &prompt)?)
        };
        // Not before the keys are read: that may run Python code, which may want these rows.
        let loads = loads.rows();
        if loads.len() != names.len() || sent.iter().any(|(place, _)| *place >= names.len()) {
            return Err(PyValueError::new_err("loads: not of these candidates"));
        }
        guard(|| {
            let mut just_sent = vec![0; names.len()];
            for (place, blocks) in sent {
                just_sent[place] = blocks;
            }
            let rows = loads.iter().zip(&just_sent).enumerate();
            let scores: Vec<Score> = rows
                .map(|(place, (load, sent))| {
                    let below = loadable.get(place).copied().unwrap_or(0);
                    score(&prompt, load, place, depths[place], below, *sent)
                })
                .collect();
            let reported = loads.iter().zip(&just_sent).any(|(load, sent)| !load.stale || *sent > 0);
            let choice = choose(&scores, &loads, names, !known || !reported);
            Ok(choice.map(|choice| Choice { made: choice, depths, loadable }))
        })
    }
}

impl Index {
    fn depths<K: Key>(&self, keys: &[K], candidates: &Candidates, prompt: &Prompt) -> PyResult<(Vec<u32>, Vec<u32>)> {
        self.0.with(|state| {
            let known = candidates.known(&state.index);
            let usable = prompt.usable_blocks();
            let depths: Vec<u32> = state.walk(&known, candidates.rules(), keys, Tier::Device, Some(usable)).collect();
            let loadable = state.loadable(&known, candidates.rules(), &depths, &keys[..keys.len().min(usable)]);
            (depths, loadable)
        })
    }
}
