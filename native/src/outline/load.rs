//! Requests to play, with the blocks of their prompts and answers as small numbers; what was recorded, and the load that
//! it makes.

use crate::reader::Key;
use std::collections::HashMap;

/// Blocks of all prompts and answers together: what is played takes some 50 MiB for as long as it is made.
pub const MOST_BLOCKS: usize = 1 << 21;
/// Requests: each takes some 64 bytes beside its blocks.
pub const MOST_REQUESTS: usize = 1 << 17;

/// A request that came `at` so many seconds; prompt and answer are in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub at: f64,
    pub tokens: u64,
    pub outputs: u64,
    first: usize,
    prompt: usize,
    all: usize,
}

impl Request {
    /// Blocks that a cache can serve: of a prompt's last token an engine computes the answer's first.
    #[must_use]
    pub fn usable(&self, block_size: u64) -> usize {
        usize::try_from((self.tokens - 1) / block_size).unwrap_or(usize::MAX).min(self.prompt)
    }
}

/// An answered request by the keys of its blocks; of its answer's those that are known.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a, K> {
    pub at: f64,
    pub prompt_tokens: u64,
    pub outputs: u64,
    /// Tokens of its prompt that came from cache; what earlier answers had filled is told by these.
    pub served_tokens: u64,
    pub keys: &'a [K],
    pub answer: &'a [K],
}

/// Why no more requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// One of a `Recording`: its blocks begin at `first`, those of its answer that are known at `answer`.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    at: f64,
    tokens: u64,
    outputs: u64,
    served: usize,
    first: usize,
    prompt: usize,
    answer: usize,
    answered: usize,
}

/// Requests as they are told, in any order.
#[derive(Debug)]
pub struct Recording {
    block_size: u64,
    requests: Vec<Recorded>,
    blocks: Vec<u32>,
    numbers: HashMap<u64, u32>,
    /// Blocks of all prompts and answers, known or not.
    all: usize,
}

impl Recording {
    /// Without requests; blocks have so many tokens, 1 or more.
    #[must_use]
    pub fn new(block_size: u64) -> Self {
        Self { block_size, requests: Vec::new(), blocks: Vec::new(), numbers: HashMap::new(), all: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Another request.
    ///
    /// # Errors
    /// Where there are too many; nothing changes.
    pub fn add<K: Key>(&mut self, request: &Answered<'_, K>) -> Result<(), Full> {
        let (tokens, outputs) = (request.prompt_tokens.max(1), request.outputs.max(1));
        let full = usize::try_from(tokens / self.block_size).unwrap_or(usize::MAX);
        let keys = &request.keys[..full.min(request.keys.len())];
        let whole = usize::try_from((tokens + outputs) / self.block_size).unwrap_or(usize::MAX);
        let all = whole.max(keys.len() + request.answer.len());
        if self.requests.len() >= MOST_REQUESTS || all > MOST_BLOCKS - self.all {
            return Err(Full);
        }
        self.all += all;
        let first = self.blocks.len();
        for key in keys.iter().chain(request.answer) {
            self.number(key.key());
        }
        self.requests.push(Recorded {
            at: request.at,
            tokens,
            outputs,
            served: usize::try_from(request.served_tokens / self.block_size).unwrap_or(usize::MAX),
            first,
            prompt: keys.len(),
            answer: first + keys.len(),
            answered: request.answer.len(),
        });
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "MOST_BLOCKS are far fewer")]
    fn number(&mut self, key: u64) {
        let next = self.numbers.len() as u32;
        self.blocks.push(*self.numbers.entry(key).or_insert(next));
    }

    /// The load of what was told, by arrival.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "MOST_BLOCKS are far fewer")]
    pub fn load(mut self) -> Load {
        let mut next = std::mem::take(&mut self.numbers).len() as u32;
        self.requests.sort_by(|one, other| one.at.total_cmp(&other.at));
        self.find_answers();
        let mut load = Load { block_size: self.block_size, requests: Vec::new(), blocks: Vec::with_capacity(self.all) };
        let began = self.requests.first().map_or(0.0, |request| request.at);
        for one in &self.requests {
            let first = load.blocks.len();
            load.blocks.extend(&self.blocks[one.first..one.first + one.prompt]);
            load.blocks.extend(&self.blocks[one.answer..one.answer + one.answered]);
            let whole = usize::try_from((one.tokens + one.outputs) / self.block_size).unwrap_or(usize::MAX);
            let unknown = whole.saturating_sub(one.prompt + one.answered) as u32;
            load.blocks.extend(next..next + unknown);
            next += unknown;
            let all = load.blocks.len() - first;
            let Recorded { at, tokens, outputs, prompt, .. } = *one;
            load.requests.push(Request { at: at - began, tokens, outputs, first, prompt, all });
        }
        load
    }

    /// Where a later prompt goes on after an earlier one's, and was served further than that reached, the blocks between
    /// are what the earlier answer had filled.
    fn find_answers(&mut self) {
        let mut ends: HashMap<u32, usize> = HashMap::new();
        for number in 0..self.requests.len() {
            let Recorded { first, prompt, served, .. } = self.requests[number];
            let blocks = &self.blocks[first..first + prompt];
            let reached = served.min(prompt);
            let earlier = (0..reached).rev().find_map(|place| Some((place + 1, *ends.get(&blocks[place])?)));
            if let Some((end, earlier)) = earlier {
                let before = &mut self.requests[earlier];
                let whole = usize::try_from((before.tokens + before.outputs) / self.block_size).unwrap_or(usize::MAX);
                let found = reached.min(whole).saturating_sub(end);
                if found > before.answered {
                    (before.answer, before.answered) = (first + end, found);
                }
            }
            if let Some(last) = blocks.last() {
                ends.insert(*last, number);
            }
        }
    }
}

/// Requests in the order of their arrival, in seconds after the first one's.
#[derive(Debug)]
pub struct Load {
    pub block_size: u64,
    pub requests: Vec<Request>,
    blocks: Vec<u32>,
}

impl Load {
    /// Full blocks of a request's prompt.
    #[must_use]
    pub fn prompt(&self, request: &Request) -> &[u32] {
        &self.blocks[request.first..request.first + request.prompt]
    }

    /// Those of prompt and answer.
    #[must_use]
    pub fn all(&self, request: &Request) -> &[u32] {
        &self.blocks[request.first..request.first + request.all]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Answered, Full, Load, MOST_BLOCKS, Recording};

    /// Requests by arrival, tokens, outputs and keys.
    pub(crate) fn load(block_size: u64, requests: &[(f64, u64, u64, &[u64])]) -> Load {
        let mut recording = Recording::new(block_size);
        for (at, tokens, outputs, keys) in requests {
            recording.add(&answered(*at, *tokens, *outputs, keys)).expect("room");
        }
        recording.load()
    }

    fn answered(at: f64, prompt_tokens: u64, outputs: u64, keys: &[u64]) -> Answered<'_, u64> {
        Answered { at, prompt_tokens, outputs, served_tokens: 0, keys, answer: &[] }
    }

    #[test]
    fn equal_keys_are_equal_blocks_and_unknown_blocks_of_answers_are_like_no_others() {
        let mut recording = Recording::new(4);
        recording.add(&answered(9.0, 13, 1, &[7, 8, 9])).expect("room");
        recording.add(&Answered { answer: &[9], ..answered(8.0, 9, 8, &[7, 8, 5]) }).expect("room");
        let load = recording.load();
        let [first, second] = [0, 1].map(|place| load.requests[place]);
        assert_eq!((load.all(&first), load.prompt(&first)), (&[0, 1, 2, 3][..], &[0, 1][..]));
        assert_eq!((load.all(&second), second.usable(4), second.at), (&[0, 1, 2][..], 3, 1.0));
    }

    #[test]
    fn what_was_served_beyond_an_earlier_prompt_is_its_answer() {
        let mut recording = Recording::new(4);
        recording.add(&Answered { served_tokens: 16, ..answered(2.0, 20, 1, &[1, 2, 3, 4, 5]) }).expect("room");
        recording.add(&answered(1.0, 8, 7, &[1, 2])).expect("room");
        let load = recording.load();
        assert_eq!(load.all(&load.requests[0]), &[0, 1, 2], "as far as the answer reached");
    }

    #[test]
    fn one_that_has_no_room_is_refused_and_changes_nothing() {
        let mut recording = Recording::new(1);
        recording.add(&answered(0.0, 1, MOST_BLOCKS as u64 - 3, &[])).expect("room");
        assert_eq!(recording.add(&answered(1.0, 2, 1, &[1, 2])), Err(Full));
        assert_eq!(recording.len(), 1);
        recording.add(&answered(1.0, 1, 1, &[1])).expect("room for two more");
    }
}
