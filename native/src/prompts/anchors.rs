//! By what earlier prompts are found again: block keys, runs of parts, and single parts.

use super::joined;
use super::shape::{Part, PartKind, Shape};
use std::ops::Range;

/// Runs of parts by which a prompt is found, from its end.
const RUNS: usize = 48;
/// Parts at a prompt's end by which it is found, each by itself.
const LAST_PARTS: usize = 6;
/// Numbers of blocks in each doubling at which a key is an anchor.
const A_DOUBLING: usize = 4;

/// The anchors of a prompt.
pub struct Anchors {
    /// The best ones first.
    pub all: Vec<u64>,
    runs: Range<usize>,
}

impl Anchors {
    /// Of a prompt of a line; lines tell prompts apart that have nothing in common.
    #[must_use]
    pub fn of(shape: &Shape, keys: &[u64], line: u64, secret: u64) -> Self {
        let mut all = Vec::with_capacity(96);
        all.extend(keys.last());
        numbers(keys, &mut all);
        let before = all.len();
        runs(shape, &mut all);
        let runs = before..all.len();
        single(shape, secret, &mut all);
        for anchor in &mut all {
            *anchor = joined(*anchor, line);
        }
        Self { all, runs }
    }

    /// Those of its first parts, of the most parts first.
    #[must_use]
    pub fn runs(&self) -> &[u64] {
        &self.all[self.runs.clone()]
    }
}

/// Digests of the first parts, up to each part from the last one backwards.
fn runs(shape: &Shape, found: &mut Vec<u64>) {
    let begin = found.len();
    let mut run = joined(shape.parameters, shape.salt);
    found.extend(shape.parts.iter().map(|part| {
        run = joined(run, part.digest);
        run
    }));
    found[begin..].reverse();
    found.truncate(begin + RUNS);
}

/// Digests of what is likely to be the same though the beginning is not.
fn single(shape: &Shape, secret: u64, found: &mut Vec<u64>) {
    let texts = shape.parts.iter().filter(|part| part.kind != PartKind::Tool);
    let said = |part: &&&Part| !matches!(part.kind, PartKind::System);
    found.extend(texts.clone().filter(|part| said(&part)).take(2).map(|part| part.digest));
    found.extend(texts.clone().rev().filter(|part| said(&part)).take(LAST_PARTS).map(|part| part.digest));
    found.extend(texts.take(2).map(|part| shape.details(part).normal(secret)));
    let tools = shape.parts.iter().filter(|part| part.kind == PartKind::Tool).map(|part| part.name);
    found.extend(tools.reduce(u64::wrapping_add));
}

/// Keys at numbers of blocks, the last first: each up to `A_DOUBLING`, then as many in each doubling.
fn numbers(keys: &[u64], found: &mut Vec<u64>) {
    let begin = found.len();
    let mut at = 1;
    while let Some(key) = keys.get(at - 1) {
        found.push(*key);
        let doubling = (at + 1).next_power_of_two() / 2;
        at += (doubling / A_DOUBLING).max(1);
    }
    found[begin..].reverse();
}
