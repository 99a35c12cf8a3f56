//! By what earlier prompts are found again: block keys, runs of parts, and single parts.

use super::joined;
use super::shape::{PartKind, Shape};

/// Runs of parts by which a prompt is found, from its end.
const RUNS: usize = 48;
/// Parts at a prompt's end by which it is found, each by itself.
const LAST_PARTS: usize = 6;
/// Numbers of blocks in each doubling at which a key is an anchor.
const A_DOUBLING: usize = 4;

/// The anchors of a prompt, the best ones first; `line` tells prompts apart that have nothing in common.
#[must_use]
pub fn anchors(shape: &Shape, keys: &[u64], line: u64) -> Vec<u64> {
    let mut found = Vec::with_capacity(64);
    found.extend(keys.last());
    found.extend(places(keys.len()).into_iter().rev().map(|place| keys[place - 1]));
    found.extend(runs(shape));
    found.extend(single(shape));
    for anchor in &mut found {
        *anchor = joined(*anchor, line);
    }
    found
}

/// Digests of the first parts, up to each part from the last one backwards.
fn runs(shape: &Shape) -> Vec<u64> {
    let mut run = joined(shape.parameters, shape.salt);
    let mut found = Vec::with_capacity(shape.parts.len());
    for part in &shape.parts {
        run = joined(run, part.digest);
        found.push(run);
    }
    found.into_iter().rev().take(RUNS).collect()
}

/// Digests of what is likely to be the same though the beginning is not.
fn single(shape: &Shape) -> Vec<u64> {
    let texts = shape.parts.iter().filter(|part| part.kind != PartKind::Tool);
    let said = |part: &&&super::shape::Part| !matches!(part.kind, PartKind::System);
    let mut found: Vec<u64> = Vec::with_capacity(LAST_PARTS + 4);
    found.extend(texts.clone().filter(|part| said(&part)).take(2).map(|part| part.digest));
    found.extend(texts.clone().rev().filter(|part| said(&part)).take(LAST_PARTS).map(|part| part.digest));
    found.extend(texts.clone().take(2).map(|part| part.details.normal));
    let tools = shape.parts.iter().filter(|part| part.kind == PartKind::Tool).map(|part| part.name);
    found.extend(tools.reduce(u64::wrapping_add));
    found
}

/// Numbers of blocks up to `most`: each up to `A_DOUBLING`, then as many in each doubling.
fn places(most: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 1;
    while at <= most {
        found.push(at);
        let doubling = (at + 1).next_power_of_two() / 2;
        at += (doubling / A_DOUBLING).max(1);
    }
    found
}
