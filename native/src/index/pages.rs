//! The pages of a run: their numbers in order.

/// Most runs get consecutive pages, which need no list: a lookup then waits for one read less.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    first: u32,
    len: u32,
    #[expect(clippy::box_collection, reason = "a run is small because most have no list")]
    listed: Option<Box<Vec<u32>>>,
}

impl Pages {
    #[inline]
    pub fn get(&self, number: u32) -> u32 {
        match &self.listed {
            None => self.first + number,
            Some(listed) => listed[number as usize],
        }
    }

    pub fn push(&mut self, page: u32) {
        match &mut self.listed {
            Some(listed) => listed.push(page),
            None if self.len == 0 => self.first = page,
            None if page == self.first + self.len => {}
            None => {
                let listed = (self.first..self.first + self.len).chain([page]).collect();
                self.listed = Some(Box::new(listed));
            }
        }
        self.len += 1;
    }

    /// Removes the last page, if there are more than `most`.
    pub fn pop_beyond(&mut self, most: u32) -> Option<u32> {
        if self.len <= most {
            return None;
        }
        self.len -= 1;
        let page = self.get(self.len);
        if let Some(listed) = &mut self.listed {
            listed.pop();
            if listed.is_empty() {
                self.listed = None;
            } else if listed.capacity() > 4 * listed.len() + 4 {
                listed.shrink_to(2 * listed.len());
            }
        }
        Some(page)
    }

    /// Bytes of the list.
    pub fn bytes(&self) -> usize {
        self.listed.as_ref().map_or(0, |listed| size_of::<Vec<u32>>() + listed.capacity() * size_of::<u32>())
    }
}
