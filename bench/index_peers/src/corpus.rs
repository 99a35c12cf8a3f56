//! Agents' traffic: conversations over shared system prompts that grow turn by turn, interleaved, and are evicted in part.

use std::collections::HashMap;

/// Shared system prompts, and the blocks of each.
const SYSTEMS: usize = 64;
const SYSTEM_BLOCKS: usize = 48;
/// Blocks that a turn adds, from and to.
const TURN: (u64, u64) = (8, 40);
/// Conversations that grow at the same time: at most so many for each worker, and one for so many held blocks.
const OPEN: usize = 32;
const OPEN_BLOCKS: usize = 4096;

/// One report: a worker stores keys after a parent (0: none), or no longer holds keys.
pub enum Event {
    Stored { worker: u32, parent: u64, keys: Vec<u64> },
    Removed { worker: u32, keys: Vec<u64> },
}

/// A prompt's keys, and how many of its first blocks each worker holds; workers that hold none are left out.
pub struct Query {
    pub keys: Vec<u64>,
    pub depths: HashMap<u32, u32>,
}

pub struct Corpus {
    pub workers: u32,
    pub stores: Vec<Event>,
    /// A block in fifty from within conversations; empty where holes were not asked for.
    pub evictions: Vec<Event>,
    /// All tails, last blocks first, as engines evict.
    pub tails: Vec<Event>,
    pub queries: Vec<Vec<Query>>,
}

struct Conversation {
    worker: u32,
    length: usize,
    keys: Vec<u64>,
}

/// A xorshift generator: seeded, so that every run is of the same corpus.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

/// About `blocks` holdings on `workers` workers, and `asked` prompts of each of `lengths`.
pub fn corpus(workers: u32, blocks: usize, holes: bool, lengths: &[usize], asked: usize) -> Corpus {
    let mut chance = Chance::new(7);
    let systems: Vec<Vec<u64>> = (0..SYSTEMS).map(|_| fresh(&mut chance, SYSTEM_BLOCKS)).collect();
    let mut stores = Vec::new();
    let mut ended = Vec::new();
    let mut open: Vec<Conversation> = Vec::new();
    let mut held = 0;
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let together = (OPEN * workers as usize).min(blocks / OPEN_BLOCKS).max(1);
    while held < blocks {
        while open.len() < together {
            let worker = u32::try_from(chance.below(u64::from(workers))).unwrap_or(0);
            let system = &systems[usize::try_from(chance.below(SYSTEMS as u64)).unwrap_or(0)];
            let most = 1 << (6 + chance.below(7));
            let length = 64 + usize::try_from(chance.below(most)).unwrap_or(0);
            let length = if chance.below(4) == 0 { length.max(longest + 16) } else { length };
            stores.push(Event::Stored { worker, parent: 0, keys: system.clone() });
            held += SYSTEM_BLOCKS;
            open.push(Conversation { worker, length, keys: system.clone() });
        }
        let place = usize::try_from(chance.below(open.len() as u64)).unwrap_or(0);
        let turn = usize::try_from(TURN.0 + chance.below(TURN.1 - TURN.0)).unwrap_or(1);
        let grown = &mut open[place];
        let keys = fresh(&mut chance, turn);
        let parent = grown.keys.last().copied().unwrap_or(0);
        grown.keys.extend(&keys);
        held += keys.len();
        stores.push(Event::Stored { worker: grown.worker, parent, keys });
        if grown.keys.len() >= grown.length {
            ended.push(open.swap_remove(place));
        }
    }
    ended.append(&mut open);
    finished(workers, stores, &ended, holes, lengths, asked, &mut chance)
}

fn finished(
    workers: u32,
    stores: Vec<Event>,
    ended: &[Conversation],
    holes: bool,
    lengths: &[usize],
    asked: usize,
    chance: &mut Chance,
) -> Corpus {
    let mut holders: HashMap<u64, Vec<u32>> = HashMap::new();
    for one in ended {
        for key in &one.keys[..SYSTEM_BLOCKS] {
            let known = holders.entry(*key).or_default();
            if !known.contains(&one.worker) {
                known.push(one.worker);
            }
        }
    }
    let evictions: Vec<Event> =
        if holes { ended.iter().filter_map(|one| evicted(one, chance)).collect() } else { Vec::new() };
    let gone: std::collections::HashSet<u64> = evictions.iter().flat_map(|event| event.keys().to_vec()).collect();
    let tails = ended.iter().map(|one| tail(one, &gone)).filter(|event| !event.keys().is_empty()).collect();
    let queries = lengths.iter().map(|length| queries(ended, *length, asked, &holders, &gone, chance)).collect();
    Corpus { workers, stores, evictions, tails, queries }
}

impl Event {
    pub fn keys(&self) -> &[u64] {
        match self {
            Self::Stored { keys, .. } | Self::Removed { keys, .. } => keys,
        }
    }
}

fn fresh(chance: &mut Chance, blocks: usize) -> Vec<u64> {
    (0..blocks).map(|_| chance.next() | 1).collect()
}

fn evicted(one: &Conversation, chance: &mut Chance) -> Option<Event> {
    let inner = one.keys.iter().skip(SYSTEM_BLOCKS);
    let keys: Vec<u64> = inner.filter(|_| chance.below(50) == 0).copied().collect();
    (!keys.is_empty()).then_some(Event::Removed { worker: one.worker, keys })
}

fn tail(one: &Conversation, gone: &std::collections::HashSet<u64>) -> Event {
    let keys = one.keys[SYSTEM_BLOCKS..].iter().rev().filter(|key| !gone.contains(key)).copied().collect();
    Event::Removed { worker: one.worker, keys }
}

fn queries(
    ended: &[Conversation],
    length: usize,
    asked: usize,
    holders: &HashMap<u64, Vec<u32>>,
    gone: &std::collections::HashSet<u64>,
    chance: &mut Chance,
) -> Vec<Query> {
    let long: Vec<&Conversation> = ended.iter().filter(|one| one.keys.len() >= length).collect();
    let pick = |chance: &mut Chance| long[usize::try_from(chance.below(long.len() as u64)).unwrap_or(0)];
    (0..asked).map(|_| query(pick(chance), length, holders, gone)).collect()
}

/// What a plain walk over the sets says.
fn query(
    one: &Conversation,
    length: usize,
    holders: &HashMap<u64, Vec<u32>>,
    gone: &std::collections::HashSet<u64>,
) -> Query {
    let keys = one.keys[..length].to_vec();
    let system = u32::try_from(SYSTEM_BLOCKS.min(length)).unwrap_or(0);
    let mut depths: HashMap<u32, u32> = holders[&keys[0]].iter().map(|worker| (*worker, system)).collect();
    let own = keys.iter().take_while(|key| !gone.contains(key)).count();
    depths.insert(one.worker, u32::try_from(own).unwrap_or(0));
    Query { keys, depths }
}
