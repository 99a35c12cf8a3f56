//! `PromptMemory`: shapes of the latest prompts, and how a new one differs from its nearest earlier relative.

use super::ask::Ask;
use super::errors::guard;
use super::ints;
use crate::prompts::relation::Ended;
use crate::prompts::volatile::{Volatile, volatile};
use crate::prompts::words::Class;
use crate::prompts::{self, Relation, Shape, keyed_digest};
use crate::reader::Key;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a body's members from which on it has no shape.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// A prompt without its text.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct PromptShape(Arc<Shape>);

#[pymethods]
impl PromptShape {
    /// Bytes of the prompt's text.
    #[getter]
    fn text_bytes(&self) -> u64 {
        self.0.text_bytes()
    }

    /// Whether the request has members that change what a template makes of the same parts.
    #[getter]
    fn parameters(&self) -> bool {
        self.0.parameters != 0
    }

    /// Its parts in their order: kind, role, number of the message or place among the tools, bytes.
    #[getter]
    fn parts(&self) -> Vec<(u8, u8, u32, u32)> {
        self.0.parts.iter().map(|part| (part.kind as u8, part.role as u8, part.index, part.bytes)).collect()
    }
}

/// A `Volatile`: kind and role of its part, the part's number; whether it is a time, and sure to change; characters of
/// the part and bytes of the prompt before it.
type Likely = ((u8, u8, u32), (bool, bool), (u32, u64));

/// Times and ids in a request's prompt that are likely to be others in the next one; none of one without a shape.
#[pyfunction]
pub fn volatile_words(ask: &Ask) -> PyResult<Vec<Likely>> {
    guard(|| Ok(volatile(&ask.members).unwrap_or_default().iter().map(likely).collect()))
}

fn likely(found: &Volatile) -> Likely {
    let part = (found.kind as u8, found.role as u8, found.index);
    (part, (found.class == Class::Time, found.sure), (found.characters, found.bytes_before))
}

/// Shapes of the latest prompts, in bounded memory.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct PromptMemory {
    secret: u64,
    least: usize,
    kept: Mutex<prompts::PromptMemory>,
}

/// A `Relation`: the earlier prompt, the difference and where it is, bytes of text; a part's kind is 0 where it is none.
type Facts = ((usize, u32, u64, bool, bool, bool), (u8, u8, u8, u32), (u64, u64, u64, u64));

#[pymethods]
impl PromptMemory {
    /// In at most so many bytes; first-seen tokens of a prompt are looked at from `least_tokens` on.
    #[new]
    fn new(secret: u64, most_bytes: usize, least_tokens: usize) -> Self {
        Self { secret, least: least_tokens, kept: Mutex::new(prompts::PromptMemory::new(secret, most_bytes)) }
    }

    /// The shape of a request's prompt under a salt; None for one that is too large, or has no parts.
    fn shape(&self, ask: &Ask, salt: &str) -> PyResult<Option<PromptShape>> {
        let fields = &ask.members;
        if fields.0.iter().map(|(_, value)| value.len()).sum::<usize>() > MOST_BYTES {
            return Ok(None);
        }
        guard(|| Ok(self.kept().shape(fields, salt.as_bytes()).map(|shape| PromptShape(Arc::new(shape)))))
    }

    /// How a prompt of a line differs from its nearest earlier one; None where none has anything in common with it.
    fn nearest(&self, line: &str, shape: &PromptShape, keys: &[u8]) -> PyResult<Option<Facts>> {
        let keys = read(keys)?;
        guard(|| Ok(self.kept().nearest(self.line(line), &shape.0, &keys).map(|found| facts(&found))))
    }

    /// Keep a prompt of a line, and drop the oldest beyond the bounds.
    fn keep(&self, line: &str, shape: &PromptShape, keys: &[u8], tokens: u32) -> PyResult<()> {
        let keys = read(keys)?.into_boxed_slice();
        guard(|| {
            self.kept().keep(self.line(line), shape.0.clone(), keys, tokens);
            Ok(())
        })
    }

    /// As `nearest`, and then as `keep`; None, too, where all first-seen tokens are new, or are too few to be looked at.
    ///
    /// `prompt` are its tokens, those first seen, those that can be served, and those of a block.
    fn ended(
        &self,
        line: &str,
        shape: &PromptShape,
        keys: &[u8],
        prompt: (u32, usize, usize, usize),
    ) -> PyResult<Option<Facts>> {
        let (tokens, first_seen, servable, block_size) = prompt;
        let prompt = Ended { tokens, first_seen, servable, block_size };
        let keys = read(keys)?.into_boxed_slice();
        guard(|| {
            let found = self.kept().ended(self.line(line), shape.0.clone(), keys, tokens, first_seen >= self.least);
            Ok(found.filter(|found| !found.served(&prompt, self.least)).map(|found| facts(&found)))
        })
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.kept().bytes()
    }

    fn __len__(&self) -> usize {
        self.kept().len()
    }
}

impl PromptMemory {
    fn kept(&self) -> std::sync::MutexGuard<'_, prompts::PromptMemory> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, name: &str) -> u64 {
        keyed_digest(name.as_bytes(), self.secret)
    }
}

fn read(keys: &[u8]) -> PyResult<Vec<u64>> {
    Ok(ints::packed_keys(keys, None)?.iter().map(Key::key).collect())
}

fn facts(found: &Relation) -> Facts {
    let kind = found.kind.map_or(0, |kind| kind as u8);
    (
        (found.blocks, found.tokens, found.bytes, found.salt, found.parameters, found.reasoned),
        (found.difference as u8, kind, found.role as u8, found.index),
        (found.bytes_before, found.bytes_after, found.bytes_same, found.bytes_reach),
    )
}
