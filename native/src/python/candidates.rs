//! `Candidates`: workers that are matched again and again.

use crate::index::{Asked, Index, Rule};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const MOST_CANDIDATES: usize = 1 << 20;

/// Workers by name, with their rules and their slots in an index, which are looked up anew when these have changed.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Candidates {
    names: Vec<String>,
    rules: Vec<Rule>,
    known: Mutex<Known>,
}

/// The candidates' slots at one version of an index.
#[derive(Default)]
pub struct Known {
    version: Option<u64>,
    /// Slot of each candidate; `NO_SLOT` for one that holds nothing.
    pub slots: Vec<u32>,
    pub asked: Asked,
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
    /// window; none where all are plain.
    #[new]
    #[pyo3(signature = (names, rules = Vec::new()))]
    pub fn new(names: Vec<String>, rules: Vec<(bool, Vec<u32>, u32)>) -> PyResult<Self> {
        if names.len() > MOST_CANDIDATES {
            return Err(PyValueError::new_err(format!("names: at most {MOST_CANDIDATES}")));
        }
        let rules = read_rules(rules, names.len())?;
        Ok(Self { names, rules, known: Mutex::default() })
    }

    fn __len__(&self) -> usize {
        self.names.len()
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
