//! The module `cachefleet_native`: what Python sees of this crate.
//!
//! No panic gets through: what computes passes `guard`, which turns one into `InternalError`.

mod candidates;
mod choice;
mod digest;
mod errors;
mod frames;
mod index;
mod ints;
mod keyer;
mod loads;
mod state;

use pyo3::prelude::*;

/// Of this module's interface; Python code written for another does without it.
const API: u32 = 1;

#[pymodule]
fn cachefleet_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    errors::register(module)?;
    module.add_class::<keyer::Keyer>()?;
    module.add_class::<index::Index>()?;
    module.add_class::<candidates::Candidates>()?;
    module.add_class::<loads::Loads>()?;
    module.add_class::<choice::Choice>()?;
    module.add_class::<digest::Digest>()?;
    module.add("API", API)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTS_READ_DIRECTLY", ints::layout(py).is_some())?;
    Ok(())
}
