//! Memory of the keys: pages of 16, handed out in extents of adjacent pages, each owned by one run.
//!
//! The first page of a run is its head. Heads have the numbers of their runs and lie apart, so that a block's number
//! alone tells where its run is.
//!
//! An extent has a power of two of pages and begins at a multiple of its size, so that two halves can be joined again
//! (buddies). Free extents of a size are a doubly linked list within their own first pages.

use super::chunked::Chunked;
use super::prefetch::prefetch;

pub const PAGE: u32 = 16;
/// Sizes of extents: 1, 2, 4 and so on up to 32 pages.
pub const CLASSES: usize = 6;
const EMPTY_PAGE: Page = [0; PAGE as usize];
/// No page, in lists of free extents.
const NONE: u32 = u32::MAX;
/// The run of a free extent's first page; its number is the extent's class.
const FREE: u32 = u32::MAX;
/// The run of an extent's first page until keys are in it.
const TAKEN: u32 = u32::MAX - 1;
/// Bit of the pages that are heads of runs; the rest of their number is the run's. Block numbers have 32 bits.
pub const HEAD: u32 = 1 << 27;
/// Bytes of a run's head.
pub const HEAD_BYTES: usize = size_of::<Page>();

type Page = [u64; PAGE as usize];

/// A block's number: its page and its offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(pub u32);

impl BlockId {
    #[inline]
    pub fn new(page: u32, offset: u32) -> Self {
        Self(page * PAGE + offset % PAGE)
    }

    #[inline]
    fn page(self) -> u32 {
        self.0 / PAGE
    }

    /// Its run, where it lies in the run's head.
    #[inline]
    pub fn headed(self) -> Option<u32> {
        (self.page() & HEAD != 0).then_some(self.page() ^ HEAD)
    }
}

/// The run that owns a page, and the page's number in that run.
#[derive(Clone, Copy, Debug)]
struct Owner {
    run: u32,
    number: u32,
}

/// A block's place in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub run: u32,
    pub offset: u32,
}

#[derive(Debug)]
pub struct Arena {
    heads: Chunked<Page>,
    pages: Chunked<Page>,
    owners: Chunked<Owner>,
    /// First pages of the first free extents, by class.
    free: [u32; CLASSES],
    /// Pages of all free extents.
    free_pages: u32,
}

impl Arena {
    pub fn new() -> Self {
        Self {
            heads: Chunked::new(),
            pages: Chunked::new(),
            owners: Chunked::new(),
            free: [NONE; CLASSES],
            free_pages: 0,
        }
    }

    /// Takes an extent of `1 << class` pages; returns its first page.
    pub fn take(&mut self, class: usize) -> u32 {
        let Some(larger) = (class..CLASSES).find(|class| self.free[*class] != NONE) else {
            return self.extend(class);
        };
        let page = self.free[larger];
        self.unlink(page, larger);
        for half in (class..larger).rev() {
            self.link(page + (1 << half), half);
        }
        self.owners[page] = Owner { run: TAKEN, number: 0 };
        page
    }

    /// Gives an extent back, and joins it with its other half where that is free.
    pub fn give_back(&mut self, page: u32, class: usize) {
        let (mut page, mut class) = (page, class);
        while class + 1 < CLASSES && self.is_free(page ^ 1 << class, class) {
            self.unlink(page ^ 1 << class, class);
            page &= !(1 << class);
            class += 1;
        }
        self.link(page, class);
    }

    /// The empty head of a run, its first page.
    pub fn head(&mut self, run: u32) -> u32 {
        while self.heads.len() <= run {
            self.heads.push(EMPTY_PAGE);
        }
        self.heads[run] = EMPTY_PAGE;
        HEAD | run
    }

    /// Makes a page of an extent the empty page `number` of a run.
    #[inline]
    pub fn begin(&mut self, page: u32, run: u32, number: u32) {
        self.pages[page] = EMPTY_PAGE;
        self.owners[page] = Owner { run, number };
    }

    #[inline]
    pub fn key(&self, id: BlockId) -> u64 {
        self.keys(id.page(), 1)[(id.0 % PAGE) as usize]
    }

    #[inline]
    pub fn set_key(&mut self, id: BlockId, key: u64) {
        let page = id.page();
        let page = if page & HEAD == 0 { &mut self.pages[page] } else { &mut self.heads[page ^ HEAD] };
        page[(id.0 % PAGE) as usize] = key;
    }

    /// The keys of adjacent pages of one extent.
    #[inline]
    pub fn keys(&self, page: u32, pages: u32) -> &[u64] {
        let of = if page & HEAD == 0 { &self.pages } else { &self.heads };
        of.slice(page & !HEAD, pages).as_flattened()
    }

    #[inline]
    pub fn place(&self, id: BlockId) -> Place {
        if let Some(run) = id.headed() {
            return Place { run, offset: id.0 % PAGE };
        }
        let owner = self.owners[id.page()];
        Place { run: owner.run, offset: owner.number * PAGE + id.0 % PAGE }
    }

    /// Prefetches a block's page, and the page's owner where it has one.
    #[inline]
    pub fn prefetch_owner(&self, id: BlockId) {
        if id.headed().is_none() {
            prefetch(&self.owners[id.page()]);
        }
        self.prefetch_keys(id.page(), 1);
    }

    /// Prefetches adjacent pages.
    #[inline]
    pub fn prefetch_keys(&self, page: u32, pages: u32) {
        for line in self.keys(page, pages).as_chunks::<{ PAGE as usize / 2 }>().0 {
            prefetch(line);
        }
    }

    pub fn bytes(&self) -> usize {
        self.heads.bytes() + self.pages.bytes() + self.owners.bytes()
    }

    /// Bytes that will be used again.
    pub fn free_bytes(&self) -> usize {
        self.free_pages as usize * (size_of::<Page>() + size_of::<Owner>())
    }

    /// Adds an extent at the end; what is skipped for its alignment is free.
    #[cold]
    fn extend(&mut self, class: usize) -> u32 {
        let size = 1 << class;
        while !self.pages.len().is_multiple_of(size) {
            let skipped = self.push();
            self.give_back(skipped, 0);
        }
        let first = self.push();
        (1..size).for_each(|_| _ = self.push());
        first
    }

    fn push(&mut self) -> u32 {
        assert!(self.pages.len() < HEAD, "so many pages hold more than an index may");
        self.owners.push(Owner { run: TAKEN, number: 0 });
        self.pages.push(EMPTY_PAGE)
    }

    fn is_free(&self, page: u32, class: usize) -> bool {
        page < self.pages.len() && {
            let owner = self.owners[page];
            owner.run == FREE && owner.number as usize == class
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a class is less than CLASSES")]
    fn link(&mut self, page: u32, class: usize) {
        self.free_pages += 1 << class;
        let next = self.free[class];
        self.owners[page] = Owner { run: FREE, number: class as u32 };
        self.set_neighbours(page, NONE, next);
        if next != NONE {
            self.pages[next][0] = u64::from(page);
        }
        self.free[class] = page;
    }

    fn unlink(&mut self, page: u32, class: usize) {
        self.free_pages -= 1 << class;
        let (before, next) = self.neighbours(page);
        if before == NONE {
            self.free[class] = next;
        } else {
            self.pages[before][1] = u64::from(next);
        }
        if next != NONE {
            self.pages[next][0] = u64::from(before);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "link wrote page numbers")]
    fn neighbours(&self, page: u32) -> (u32, u32) {
        let page = &self.pages[page];
        (page[0] as u32, page[1] as u32)
    }

    fn set_neighbours(&mut self, page: u32, before: u32, next: u32) {
        let page = &mut self.pages[page];
        (page[0], page[1]) = (before.into(), next.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extents of random sizes, taken and given back at random: none overlap, and in the end all is one free piece.
    #[test]
    fn extents_are_apart_and_join_again() {
        let mut arena = Arena::new();
        let mut held: Vec<(u32, usize)> = Vec::new();
        let mut used = std::collections::HashSet::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (class, choice) = ((random >> 33) as usize % CLASSES, (random >> 40) as usize);
            if (random >> 60) < 9 && held.len() < 200 {
                let page = arena.take(class);
                assert_eq!(page % (1 << class), 0);
                assert!((page..page + (1 << class)).all(|page| used.insert(page)), "two extents overlap");
                (page..page + (1 << class)).for_each(|page| arena.begin(page, 7, 0));
                held.push((page, class));
            } else if !held.is_empty() {
                let (page, class) = held.swap_remove(choice % held.len());
                (page..page + (1 << class)).for_each(|page| _ = used.remove(&page));
                arena.give_back(page, class);
            }
        }
        for (page, class) in held {
            arena.give_back(page, class);
        }
        let pages = arena.pages.len();
        (0..pages >> (CLASSES - 1)).for_each(|_| _ = arena.take(CLASSES - 1));
        assert_eq!(arena.pages.len(), pages, "what was given back was not joined");
    }
}
