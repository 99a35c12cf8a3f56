//! Keys in the order in which they were used last, at most so many.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

/// A key between the one used before it and the one used after it.
#[derive(Clone, Copy, Debug)]
struct Link {
    key: u64,
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub struct RecentKeys {
    places: HashMap<u64, u32>,
    links: Vec<Link>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl Default for RecentKeys {
    fn default() -> Self {
        Self { places: HashMap::new(), links: Vec::new(), free: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl RecentKeys {
    /// Uses keys, the first of them last; whether any is new, and the oldest keys, which are dropped where there are more
    /// than `most`.
    pub fn use_all(&mut self, keys: &[u64], most: usize) -> (bool, Vec<u64>) {
        let mut new = false;
        for key in keys.iter().rev() {
            new |= self.use_one(*key);
        }
        let excess = self.places.len().saturating_sub(most);
        (new, (0..excess).map(|_| self.drop_oldest()).collect())
    }

    fn use_one(&mut self, key: u64) -> bool {
        let known = self.places.get(&key).copied();
        let place = known.unwrap_or_else(|| self.place(key));
        if known.is_some() {
            self.unlink(place);
        }
        let before = std::mem::replace(&mut self.newest, place);
        self.links[place as usize] = Link { key, older: before, newer: NONE };
        match self.links.get_mut(before as usize) {
            Some(link) => link.newer = place,
            None => self.oldest = place,
        }
        known.is_none()
    }

    #[expect(clippy::cast_possible_truncation, reason = "callers keep far fewer")]
    fn place(&mut self, key: u64) -> u32 {
        let link = Link { key, older: NONE, newer: NONE };
        let place = self.free.pop().unwrap_or_else(|| {
            self.links.push(link);
            self.links.len() as u32 - 1
        });
        self.places.insert(key, place);
        place
    }

    fn drop_oldest(&mut self) -> u64 {
        let place = self.oldest;
        let key = self.links[place as usize].key;
        self.unlink(place);
        self.places.remove(&key);
        self.free.push(place);
        key
    }

    fn unlink(&mut self, place: u32) {
        let Link { older, newer, .. } = self.links[place as usize];
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
    }
}
