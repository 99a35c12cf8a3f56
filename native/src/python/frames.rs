//! Decodes whole frames and applies them to an index, in one call each.

use super::errors::{FrameError, guard};
use super::index::Index;
use crate::frame::{Frame, Kind};
use crate::index::{Operation, Seen};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Frames of at least so many bytes are applied without the GIL.
const LARGE: usize = 8 * 1024;

#[pymethods]
impl Index {
    /// Applies a Delta frame's bytes, all or nothing; returns rank, sequence and number of keys.
    fn ingest(&self, py: Python<'_>, worker: &str, data: &[u8]) -> PyResult<(u64, u64, usize)> {
        let large = data.len() >= LARGE;
        let act = || guard(|| self.take_delta(worker, data, large));
        if large { py.detach(act) } else { act() }
    }

    /// Replaces a worker's blocks by those of a snapshot's parts, all or nothing; returns rank, sequence and number of
    /// keys.
    fn replace(&self, py: Python<'_>, worker: &str, parts: &Bound<'_, PyList>) -> PyResult<(u64, u64, usize)> {
        let parts = parts.iter().map(|part| Ok(part.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
        let parts: Vec<&[u8]> = parts.iter().map(PyBytesMethods::as_bytes).collect();
        py.detach(|| guard(|| self.take_snapshot(worker, &parts)))
    }
}

impl Index {
    fn take_delta(&self, worker: &str, data: &[u8], shared: bool) -> PyResult<(u64, u64, usize)> {
        let mut turn = self.0.writer();
        let frame = Frame::decode(data, &mut turn)?;
        if frame.kind != Kind::Delta {
            return Err(FrameError::new_err("type: not a delta"));
        }
        let operations: Vec<&Operation> = frame.operations.iter().collect();
        self.0.apply(&turn, worker, &operations, false, shared)?;
        Ok((frame.rank, frame.sequence, frame.keys()))
    }

    fn take_snapshot(&self, worker: &str, parts: &[&[u8]]) -> PyResult<(u64, u64, usize)> {
        let mut turn = self.0.writer();
        let frames = snapshot(parts, &mut turn)?;
        let operations: Vec<&Operation> = frames.iter().flat_map(|frame| &frame.operations).collect();
        self.0.apply(&turn, worker, &operations, true, true)?;
        Ok((frames[0].rank, frames[0].sequence, frames.iter().map(Frame::keys).sum()))
    }
}

/// Decodes the parts of one whole snapshot, which are in order.
fn snapshot(parts: &[&[u8]], seen: &mut Seen) -> PyResult<Vec<Frame>> {
    let frames = parts.iter().map(|part| Frame::decode(part, seen)).collect::<Result<Vec<_>, _>>()?;
    let whole = (0..).zip(&frames).all(|(number, frame)| {
        let last = number + 1 == frames.len() as u64;
        frame.kind == Kind::Snapshot { part: number, last }
            && (frame.rank, frame.sequence) == (frames[0].rank, frames[0].sequence)
    });
    if frames.is_empty() || !whole {
        Err(FrameError::new_err("part: not the parts of one snapshot"))
    } else {
        Ok(frames)
    }
}
