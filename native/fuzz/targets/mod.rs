//! What is done with bytes from anywhere, whoever chooses them: `cargo fuzz`, or `tests/random_bytes.rs` on a stable compiler.
#![allow(dead_code, reason = "each program uses one of them")]

mod answers;
mod asks;
mod bodies;
mod events;
mod histories;
mod json_value;
mod model;
mod requests;
mod tape;

use cachefleet_native::frame::Frame;
use cachefleet_native::index::{Index, Limits, Seen, check};

const LIMITS: Limits = Limits { workers: 8, held: 4096, bytes: Limits::MOST_BYTES };

/// A frame is refused, or its operations are such as an index takes.
pub fn frame(data: &[u8]) {
    let mut seen = Seen::default();
    let Ok(frame) = Frame::decode(data, &mut seen) else {
        return;
    };
    let mut index = Index::new(LIMITS);
    for operation in &frame.operations {
        assert_eq!(check(operation, &mut seen), Ok(()));
        let _full = index.apply("worker", operation);
    }
    assert!(index.digest("worker") == 0 || index.stats().held.iter().any(|(_, blocks)| *blocks > 0));
}

/// A body is refused, or read as number by number.
pub fn json(data: &[u8]) {
    bodies::any(data);
    bodies::array(data);
}

/// A body of a request is refused, or made into a worker's body.
pub fn ask(data: &[u8]) {
    asks::any(data);
}

/// An index does with operations what sets do.
pub fn history(data: &[u8]) {
    histories::play(data);
}

/// A client makes of a worker's answer what is in it, however it is cut, and the next answer is that of the next request.
pub fn answer(data: &[u8]) {
    answers::answer(data);
}

/// A server answers requests with what is theirs, however they are cut, and survives whatever else is sent to it.
pub fn request(data: &[u8]) {
    requests::any(data);
    requests::sound(data);
}

/// Events are the same however their stream is cut, and of ordinary ones only token ids are changed.
pub fn events(data: &[u8]) {
    events::any(data);
    events::likely(data);
}
