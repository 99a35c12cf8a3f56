//! Counts the frames of a client of HTTP/2 that ask for nothing and have to be answered or kept: a flood of them is work
//! for nothing, which no bound on requests ends.

use std::time::{Duration, Instant};

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const HEAD: usize = 9;
const ACK: u8 = 1;
/// Such frames at once, at most. A client that measures its connection by pings sends one a round trip, as a rule.
const BURST: u32 = 1000;
/// Time that makes room for another one.
const EACH: Duration = Duration::from_millis(20);

/// What has been read of a connection.
pub struct Frames {
    /// Bytes of the preface, or of a frame's payload, that are still to come.
    skipped: usize,
    head: [u8; HEAD],
    filled: usize,
    idle: u32,
    since: Instant,
}

impl Frames {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { skipped: PREFACE, head: [0; HEAD], filled: 0, idle: 0, since: now }
    }

    /// Notes what was read; false where too many frames have come that ask for nothing.
    pub fn note(&mut self, mut data: &[u8], now: Instant) -> bool {
        while !data.is_empty() {
            let passed = self.skipped.min(data.len());
            self.skipped -= passed;
            data = &data[passed..];
            let taken = (HEAD - self.filled).min(data.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&data[..taken]);
            self.filled += taken;
            data = &data[taken..];
            if self.filled == HEAD {
                self.begin(now);
            }
        }
        self.idle <= BURST
    }

    fn begin(&mut self, now: Instant) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skipped = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.filled = 0;
        // PRIORITY, SETTINGS and PING, and what no standard knows.
        if kind == 2 || matches!(kind, 4 | 6) && flags & ACK == 0 || kind > 9 {
            let room = now.duration_since(self.since).as_millis() / EACH.as_millis();
            if room > 0 {
                self.idle = self.idle.saturating_sub(u32::try_from(room).unwrap_or(u32::MAX));
                self.since = now;
            }
            self.idle += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let size = u8::try_from(payload).unwrap();
        [vec![0, 0, size, kind, flags, 0, 0, 0, 0], vec![6; payload]].concat()
    }

    fn begun(now: Instant) -> Frames {
        let mut frames = Frames::new(now);
        assert!(frames.note(&[b'P'; PREFACE], now));
        frames
    }

    #[test]
    fn a_flood_of_pings_is_seen_however_it_is_cut() {
        let now = Instant::now();
        for piece in [1, 7, 17, 4096] {
            let (mut frames, flood) = (begun(now), frame(6, 0, 8).repeat(BURST as usize + 1));
            let mut seen = flood.chunks(piece).map(|data| frames.note(data, now));
            assert!(!seen.all(|fine| fine), "{piece}");
        }
    }

    #[test]
    fn what_asks_for_something_or_comes_slowly_is_none() {
        let now = Instant::now();
        for kind in [0, 1, 3, 8, 9] {
            assert!(begun(now).note(&frame(kind, 0, 20).repeat(5000), now), "{kind}");
        }
        assert!(begun(now).note(&[frame(6, ACK, 8), frame(4, ACK, 0)].concat().repeat(5000), now));
        let mut frames = begun(now);
        assert!((0..5000_u32).all(|number| frames.note(&frame(6, 0, 8), now + EACH * number)));
    }
}
