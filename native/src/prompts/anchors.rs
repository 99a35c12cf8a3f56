//! By what earlier prompts are found again: block keys, runs of parts, and single parts.

use super::joined;
use super::shape::{Part, PartKind, Shape};

/// Runs of parts by which a prompt is found, from its end.
const RUNS: usize = 48;
/// Parts at a prompt's end by which it is found, each by itself.
const LAST_PARTS: usize = 6;
/// Numbers of blocks in each doubling at which a key is an anchor.
const A_DOUBLING: usize = 4;

/// Anchors of a prompt's first parts, up to each of its last ones.
pub struct Runs {
    line: u64,
    /// Of the most parts first.
    anchors: Vec<u64>,
}

impl Runs {
    /// Of a prompt of a line; lines tell prompts apart that have nothing in common.
    #[must_use]
    pub fn of(shape: &Shape, line: u64) -> Self {
        let mut anchors = Vec::with_capacity(RUNS.min(shape.parts.len()));
        let first = shape.parts.len().saturating_sub(RUNS);
        let mut run = joined(shape.parameters, shape.salt);
        for (at, part) in shape.parts.iter().enumerate() {
            run = joined(run, part.identity());
            if at >= first {
                anchors.push(joined(run, line));
            }
        }
        anchors.reverse();
        Self { line, anchors }
    }

    /// Those of its first parts, of the most parts first.
    #[must_use]
    pub fn anchors(&self) -> &[u64] {
        &self.anchors
    }

    /// The anchor of all its parts: whose run of as many parts has it begins with them.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.anchors.first().copied().unwrap_or_default()
    }
}

/// How much of a prompt's beginning is an earlier one, whose anchors need not be noted again.
#[derive(Clone, Copy, Default)]
pub struct Begun {
    pub parts: usize,
    pub keys: usize,
}

/// The anchors of a prompt but for those of its beginning, the best ones first.
#[must_use]
pub fn anchors(shape: &Shape, runs: &Runs, keys: &[u64], secret: u64, begun: Begun) -> Vec<u64> {
    let mut all = Vec::with_capacity(if begun.parts == 0 { 96 } else { 24 });
    all.extend(keys.last());
    numbers(keys, begun.keys, &mut all);
    let before = all.len();
    all.extend(runs.anchors.iter().take(shape.parts.len() - begun.parts));
    let after = all.len();
    single(shape, begun.parts, secret, &mut all);
    for anchor in &mut all[..before] {
        *anchor = joined(*anchor, runs.line);
    }
    for anchor in &mut all[after..] {
        *anchor = joined(*anchor, runs.line);
    }
    all
}

/// Digests of what is likely to be the same though the beginning is not, of the parts from one on.
fn single(shape: &Shape, since: usize, secret: u64, found: &mut Vec<u64>) {
    let texts = shape.parts.iter().enumerate().filter(|(_, part)| part.kind != PartKind::Tool);
    let said = |(_, part): &(usize, &Part)| !matches!(part.kind, PartKind::System);
    let new = |(at, _): &(usize, &Part)| *at >= since;
    let digest = |(_, part): (usize, &Part)| part.digest;
    found.extend(texts.clone().filter(said).take(2).filter(new).map(digest));
    found.extend(texts.clone().rev().filter(said).take(LAST_PARTS).filter(new).map(digest));
    found.extend(texts.take(2).filter(new).map(|(_, part)| shape.details(part).normal(secret)));
    if since == 0 {
        let tools = shape.parts.iter().filter(|part| part.kind == PartKind::Tool).map(|part| part.name);
        found.extend(tools.reduce(u64::wrapping_add));
    }
}

/// Keys at numbers of blocks above one, the last first: each up to `A_DOUBLING`, then as many in each doubling.
fn numbers(keys: &[u64], above: usize, found: &mut Vec<u64>) {
    let begin = found.len();
    let mut at = 1;
    while let Some(key) = keys.get(at - 1) {
        if at > above {
            found.push(*key);
        }
        let doubling = (at + 1).next_power_of_two() / 2;
        at += (doubling / A_DOUBLING).max(1);
    }
    found[begin..].reverse();
}
