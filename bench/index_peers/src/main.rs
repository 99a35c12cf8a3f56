//! Prompts and reports through the block index and its published rivals, one after another on one corpus.
//!
//!     index-peers [--workers 8,64,256] [--blocks 1000000,10000000,32000000] [--holes none,holes] [--sides NAME,NAME]
//!
//! Answers are checked before anything is timed. Bytes are what the process grew by for each held block; storing and
//! evicting are nanoseconds of CPU a block; prompts of so many blocks are microseconds that the caller waits. After
//! the sides comes what the first has of the least of the others: less than 1 is better.

mod corpus;
mod sides;

use corpus::{Corpus, Event, corpus};
use sides::{Chains, Ours, Radix, Side};
use std::hint::black_box;
use std::time::Instant;

const LENGTHS: [usize; 3] = [64, 512, 2048];
const ASKED: usize = 2000;
/// Prompts whose answers are checked, of each length.
const CHECKED: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let of = |name: &str, else_: &str| {
        let at = arguments.iter().position(|one| one == name);
        at.and_then(|at| arguments.get(at + 1)).map_or(else_.to_owned(), String::clone)
    };
    if let [row, side, workers, held, holes] = &arguments[..]
        && row == "row"
    {
        return println!("{}", row_of(side, number(workers), number(held), holes == "holes"));
    }
    println!("side\tworkers\tblocks\tholes\t{HEADINGS}");
    for held in of("--blocks", "1000000,10000000,32000000").split(',') {
        for workers in of("--workers", "8,64,256").split(',') {
            for holes in of("--holes", "none,holes").split(',') {
                let sides = of("--sides", "cachefleet,kv-index,smg-radix-tree");
                let rows: Vec<Vec<f64>> =
                    sides.split(',').map(|side| row_in_a_process(side, workers, held, holes)).collect();
                if let [first, others @ ..] = &rows[..]
                    && !others.is_empty()
                {
                    println!("of the best\t{workers}\t{held}\t{holes}\t{}", of_the_best(first, others));
                }
            }
        }
    }
}

const HEADINGS: &str = "bytes\tstore_ns\tevict_ns\tp50_64\tp99_64\tp50_512\tp99_512\tp50_2048\tp99_2048\twrong";

/// Each row in a process of its own, so that no side meets the memory of another; prints it, and returns its figures
/// but for the number of wrong answers.
fn row_in_a_process(side: &str, workers: &str, held: &str, holes: &str) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program");
    let ended = std::process::Command::new(program).args(["row", side, workers, held, holes]).output();
    let row = ended.ok().filter(|ended| ended.status.success()).expect("a row failed").stdout;
    let row = String::from_utf8(row).expect("figures");
    print!("{side}\t{workers}\t{held}\t{holes}\t{row}");
    let mut figures: Vec<f64> = row.split_whitespace().map(|figure| figure.parse().expect("a figure")).collect();
    figures.pop();
    figures
}

/// Each figure of a row over the least of the others'.
fn of_the_best(first: &[f64], others: &[Vec<f64>]) -> String {
    let best = |column: usize| others.iter().map(|row| row[column]).fold(f64::INFINITY, f64::min);
    let ratios = first.iter().enumerate().map(|(column, figure)| format!("{:.2}", figure / best(column)));
    ratios.collect::<Vec<_>>().join("\t")
}

fn row_of(side: &str, workers: usize, held: usize, holes: bool) -> String {
    let many = u32::try_from(workers).expect("a number of workers");
    let corpus = corpus(many, held, holes, &LENGTHS, ASKED);
    let row = match side {
        Ours::NAME => run::<Ours>(&corpus),
        Chains::NAME => run::<Chains>(&corpus),
        Radix::NAME => run::<Radix>(&corpus),
        other => panic!("there is no side {other}"),
    };
    row.text()
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

struct Row {
    bytes: f64,
    store: f64,
    evict: f64,
    asks: Vec<[f64; 2]>,
    wrong: usize,
}

impl Row {
    fn text(&self) -> String {
        let asks: Vec<String> = self.asks.iter().map(|[p50, p99]| format!("{p50:.2}\t{p99:.2}")).collect();
        format!("{:.1}\t{:.1}\t{:.1}\t{}\t{}", self.bytes, self.store, self.evict, asks.join("\t"), self.wrong)
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn run<S: Side>(corpus: &Corpus) -> Row {
    let before = resident();
    let mut side = S::new(corpus.workers);
    let store = applied(&mut side, &corpus.stores);
    let held: usize = corpus.stores.iter().map(|event| event.keys().len()).sum();
    let bytes = (resident() - before) / held as f64;
    applied(&mut side, &corpus.evictions);
    let wrong = corpus
        .queries
        .iter()
        .flat_map(|some| &some[..CHECKED])
        .filter(|one| side.depths(&one.keys) != one.depths)
        .count();
    let asks = corpus.queries.iter().map(|some| timed(&mut side, some)).collect();
    let evict = applied(&mut side, &corpus.tails);
    Row { bytes, store, evict, asks, wrong }
}

/// Nanoseconds of CPU a key.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn applied<S: Side>(side: &mut S, events: &[Event]) -> f64 {
    let begun = cpu();
    for event in events {
        match event {
            Event::Stored { worker, parent, keys } => side.store(*worker, *parent, keys),
            Event::Removed { worker, keys } => side.remove(*worker, keys),
        }
    }
    let keys: usize = events.iter().map(|event| event.keys().len()).sum();
    (cpu() - begun) / keys.max(1) as f64
}

/// Median and 99th percentile in microseconds.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn timed<S: Side>(side: &mut S, queries: &[corpus::Query]) -> [f64; 2] {
    let mut took: Vec<u64> = Vec::with_capacity(queries.len());
    let mut keys: Vec<u64> = Vec::new();
    for query in queries {
        // In the cache, as they are for a router, which has just computed them.
        keys.clone_from(&query.keys);
        let begun = Instant::now();
        black_box(side.ask(black_box(&keys)));
        took.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    took.sort_unstable();
    [took.len() / 2, took.len() * 99 / 100].map(|place| took[place] as f64 / 1000.0)
}

/// Nanoseconds of CPU that this thread took so far.
fn cpu() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    schedstat.split(' ').next().and_then(|text| text.parse().ok()).expect("a number")
}

/// Bytes of memory that the process has.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a number");
    (pages * 4096) as f64
}
