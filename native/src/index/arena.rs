//! Memory of the keys: pages of 16, each owned by one run.

use super::chunked::Chunked;

pub const PAGE: u32 = 16;
const EMPTY_PAGE: [u64; PAGE as usize] = [0; PAGE as usize];

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
    pages: Chunked<[u64; PAGE as usize]>,
    owners: Chunked<Owner>,
    free: Vec<u32>,
}

impl Arena {
    pub fn new() -> Self {
        Self { pages: Chunked::new(), owners: Chunked::new(), free: Vec::new() }
    }

    /// A page of zeros for a run.
    pub fn take(&mut self, run: u32, number: u32) -> u32 {
        let owner = Owner { run, number };
        if let Some(page) = self.free.pop() {
            self.pages[page] = EMPTY_PAGE;
            self.owners[page] = owner;
            return page;
        }
        self.owners.push(owner);
        self.pages.push(EMPTY_PAGE)
    }

    pub fn give_back(&mut self, page: u32) {
        self.free.push(page);
    }

    #[inline]
    pub fn key(&self, id: BlockId) -> u64 {
        self.page(id.page())[(id.0 % PAGE) as usize]
    }

    #[inline]
    pub fn set_key(&mut self, id: BlockId, key: u64) {
        self.pages[id.page()][(id.0 % PAGE) as usize] = key;
    }

    #[inline]
    pub fn page(&self, page: u32) -> &[u64; PAGE as usize] {
        &self.pages[page]
    }

    #[inline]
    pub fn place(&self, id: BlockId) -> Place {
        let owner = self.owners[id.page()];
        Place { run: owner.run, offset: owner.number * PAGE + id.0 % PAGE }
    }

    pub fn bytes(&self) -> usize {
        self.pages.bytes() + self.owners.bytes() + self.free.capacity() * size_of::<u32>()
    }
}
