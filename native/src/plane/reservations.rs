//! Blocks that this replica's requests in flight will fill on one worker, shared blocks counted once.
//!
//! A worker's report shows what its requests use now; what they will still fill, and what was sent too late to be seen,
//! only this replica knows. For each request it is known how many blocks it needs and which of them, by their keys, may
//! be shared. A request shares only blocks that are certainly there when it arrives: those that the index says are held,
//! and those of a request that has its first token. All others it has alone: two equal prompts computed at the same time
//! fill their blocks twice.
//!
//! Keys commit to all before them, so among sorted chains each lies beside those it shares most with, and the number of
//! distinct blocks is the sum of their lengths less what each has in common with the one before it.

use std::sync::Arc;

/// The first `length` keys of a prompt.
#[derive(Clone, Debug)]
pub struct Chain {
    keys: Arc<[u64]>,
    length: usize,
}

impl Chain {
    #[must_use]
    pub fn new(keys: &Arc<[u64]>, length: usize) -> Self {
        Self { keys: Arc::clone(keys), length: length.min(keys.len()) }
    }

    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys[..self.length]
    }
}

/// One request's blocks: those of `chain`, which others may share, and `alone` others.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub chain: Chain,
    pub alone: i64,
}

/// All reservations on one worker; each change takes a few comparisons of chains, however long they are.
#[derive(Debug, Default)]
pub struct Reservations {
    chains: Vec<Chain>,
    common: i64,
    alone: i64,
}

#[expect(clippy::cast_possible_wrap, reason = "blocks are far fewer than 2**62")]
impl Reservations {
    /// Distinct blocks that all reservations need.
    #[must_use]
    pub fn blocks(&self) -> i64 {
        self.common + self.alone
    }

    /// Reserves `blocks`; others may share those of `keys`, of which the first `held` are there already.
    pub fn take(&mut self, keys: &Chain, blocks: u64, held: u64) -> Reservation {
        let shared = held.max(self.longest_shared(keys.keys()) as u64).min(blocks);
        let chain = Chain {
            keys: Arc::clone(&keys.keys),
            length: keys.length.min(usize::try_from(shared).unwrap_or(usize::MAX)),
        };
        let reservation = Reservation { alone: blocks as i64 - chain.length as i64, chain };
        self.alone += reservation.alone;
        self.insert(reservation.chain.clone());
        reservation
    }

    /// All of `keys`, as given to `take`, are in the cache now: others may share them.
    pub fn computed(&mut self, reservation: &mut Reservation, keys: &Chain) {
        if keys.length == 0 {
            return;
        }
        let new = keys.length as i64 - self.longest_shared(keys.keys()) as i64;
        self.remove(&reservation.chain);
        *reservation = Reservation { chain: keys.clone(), alone: reservation.alone - new };
        self.alone -= new;
        self.insert(keys.clone());
    }

    /// Ends a reservation: its request is over.
    pub fn drop(&mut self, reservation: &Reservation) {
        self.alone -= reservation.alone;
        self.remove(&reservation.chain);
    }

    fn place(&self, keys: &[u64]) -> usize {
        self.chains.partition_point(|chain| chain.keys() < keys)
    }

    /// The longest prefix, in blocks, that `keys` share with any chain.
    fn longest_shared(&self, keys: &[u64]) -> usize {
        if keys.is_empty() {
            return 0;
        }
        let place = self.place(keys);
        let near = [place.checked_sub(1), Some(place)];
        let chains = near.into_iter().flatten().filter_map(|at| self.chains.get(at));
        chains.fold(0, |most, chain| shared_blocks(keys, chain.keys(), most))
    }

    fn insert(&mut self, chain: Chain) {
        if chain.length > 0 {
            let place = self.place(chain.keys());
            self.chains.insert(place, chain);
            self.common += self.distinct(place);
        }
    }

    fn remove(&mut self, chain: &Chain) {
        if chain.length > 0 {
            let place = self.place(chain.keys());
            self.common -= self.distinct(place);
            self.chains.remove(place);
        }
    }

    /// Blocks that only the chain at `place` has: sorted, it shares most with one of its neighbours.
    fn distinct(&self, place: usize) -> i64 {
        let chain = self.chains[place].keys();
        let near = [place.checked_sub(1), Some(place + 1)];
        let others = near.into_iter().flatten().filter_map(|at| self.chains.get(at));
        chain.len() as i64 - others.fold(0, |most, other| shared_blocks(chain, other.keys(), most)) as i64
    }
}

/// Length of the common prefix of two chains, or `at_least` where it is not longer.
///
/// A key commits to all before it: equal keys at a position mean equal keys before it, so the last is looked at first.
#[must_use]
pub fn shared_blocks<K: PartialEq>(a: &[K], b: &[K], at_least: usize) -> usize {
    let (mut low, mut high) = (at_least, a.len().min(b.len()));
    if low >= high {
        return low;
    }
    let mut middle = high - 1;
    while low < high {
        if a[middle] == b[middle] {
            low = middle + 1;
        } else {
            high = middle;
        }
        middle = usize::midpoint(low, high);
    }
    low
}
