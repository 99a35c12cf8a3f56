//! `cachefleet_native.pure`: pure functions and values that only tests call by themselves.

use super::plane::{WorkerRow, read_keys};
use crate::plane::reservations::{Chain, Reservation, Reservations};
use crate::plane::workers::{KEY_RETRY_SECONDS, Report, Room};
use crate::score::View;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let pure = PyModule::new(module.py(), "pure")?;
    pure.add_class::<BlockReservations>()?;
    pure.add_class::<BlockReservation>()?;
    pure.add_function(wrap_pyfunction!(room, &pure)?)?;
    pure.add_function(wrap_pyfunction!(hold, &pure)?)?;
    pure.add_function(wrap_pyfunction!(expected, &pure)?)?;
    pure.add_function(wrap_pyfunction!(coming, &pure)?)?;
    pure.add("KEY_RETRY_SECONDS", KEY_RETRY_SECONDS)?;
    module.add_submodule(&pure)
}

/// Blocks for a new request: in all, free, reserved, idle and used; None where a report does not tell them.
#[pyfunction]
#[pyo3(signature = (report, *, sent, ended, reserved, percent))]
fn room(report: Report, sent: u64, ended: u64, reserved: i64, percent: u64) -> Option<(u64, u64, u64, u64, u64)> {
    let room = Room::of(&report, sent, ended, reserved, percent)?;
    Some((room.total, room.free, room.reserve, room.idle, room.used))
}

/// Holds a worker's load to be this, whatever its events and the time tell.
#[pyfunction]
fn hold(row: &WorkerRow, view: View) {
    row.plane().lock().hold(row.0.number, view);
}

/// The longest prefix of packed keys, in blocks, that is expected on a worker of prompts just sent.
#[pyfunction]
fn expected(row: &WorkerRow, keys: &[u8], now: f64) -> PyResult<u32> {
    let keys = read_keys(keys)?;
    row.write(|row| row.expected(&keys, now, false))
}

/// The longest prefix of packed keys, in blocks, that will be on a worker before a request that is sent now.
#[pyfunction]
fn coming(row: &WorkerRow, keys: &[u8], now: f64) -> PyResult<u32> {
    let keys = read_keys(keys)?;
    row.write(|row| row.coming(&keys, now, false))
}

/// All reservations on one worker.
#[pyclass(module = "cachefleet_native.pure")]
#[derive(Default)]
struct BlockReservations(Reservations);

#[pyclass(module = "cachefleet_native.pure")]
struct BlockReservation(Reservation);

#[pymethods]
impl BlockReservation {
    /// The packed keys that others may share.
    #[getter]
    fn chain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        super::ints::packed(py, self.0.chain.keys())
    }

    #[getter]
    fn alone(&self) -> i64 {
        self.0.alone
    }
}

#[pymethods]
impl BlockReservations {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn blocks(&self) -> i64 {
        self.0.blocks()
    }

    #[pyo3(signature = (keys, *, blocks, held))]
    fn take(&mut self, keys: &[u8], blocks: u64, held: u64) -> PyResult<BlockReservation> {
        Ok(BlockReservation(self.0.take(&chain(keys)?, blocks, held)))
    }

    fn computed(&mut self, reservation: &mut BlockReservation, keys: &[u8]) -> PyResult<()> {
        self.0.computed(&mut reservation.0, &chain(keys)?);
        Ok(())
    }

    fn drop(&mut self, reservation: &BlockReservation) {
        self.0.drop(&reservation.0);
    }
}

fn chain(keys: &[u8]) -> PyResult<Chain> {
    let keys = read_keys(keys)?;
    Ok(Chain::new(&keys.into(), usize::MAX))
}
