//! Bytes as choices; zeros when they have run out.

pub struct Tape<'a>(pub &'a [u8]);

impl Tape<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }
}
