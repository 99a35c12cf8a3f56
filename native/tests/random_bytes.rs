//! The fuzz targets on a stable compiler: saved inputs, changed ones and random ones, from a fixed seed, for a bounded time.
//! `CACHEFLEET_FUZZ_SECONDS` makes it longer.

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use cachefleet_native::mixing::splitmix64;
use std::path::Path;
use std::time::{Duration, Instant};

struct Chance(u64);

impl Chance {
    fn number(&mut self) -> u64 {
        self.0 += 1;
        splitmix64(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() % bound as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let small = self.below(2) == 0;
        (0..self.below(most)).map(|_| self.byte() >> if small { 3 } else { 0 }).collect()
    }

    /// The same with some bytes other, gone, or twice there.
    fn changed(&mut self, mut data: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len().max(1));
            let until = (at + self.below(16)).min(data.len());
            match self.below(4) {
                0 if at < data.len() => data[at] = self.byte(),
                1 if at < data.len() => data[at] ^= 1 << self.below(8),
                2 => data.splice(at.min(until)..until, []).for_each(drop),
                _ => data.extend_from_within(at.min(until)..until),
            }
        }
        data
    }
}

fn play(name: &str, target: fn(&[u8]), most: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the saved inputs").map(|file| file.unwrap().path()).collect();
    files.sort();
    let saved: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for data in &saved {
        target(data);
    }
    let seconds = std::env::var("CACHEFLEET_FUZZ_SECONDS").map_or(1, |text| text.parse().expect("seconds"));
    let (start, mut chance, mut runs) = (Instant::now(), Chance(1), 0_u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        let data = if chance.below(3) == 0 {
            chance.bytes(most)
        } else {
            let one = saved[chance.below(saved.len())].clone();
            chance.changed(one)
        };
        let outcome = std::panic::catch_unwind(|| target(&data));
        assert!(outcome.is_ok(), "{name}: {data:?}");
        runs += 1;
    }
    println!("{name}: {runs} inputs");
}

#[test]
fn frames() {
    play("frame", targets::frame, 400);
}

#[test]
fn bodies() {
    play("json", targets::json, 400);
}

#[test]
fn asks() {
    play("ask", targets::ask, 400);
}

#[test]
fn histories() {
    play("history", targets::history, 2000);
}

#[test]
fn answers() {
    play("answer", targets::answer, 400);
}

#[test]
fn requests() {
    play("request", targets::request, 400);
}

#[test]
fn events() {
    play("events", targets::events, 400);
}
