//! The Python module `cachefleet_native`.
//!
//! All computation runs in `guard`, which turns panics into `InternalError`.

mod ask;
mod candidates;
mod choice;
mod client_request;
mod digest;
mod errors;
mod frames;
mod headers;
mod index;
pub mod ints;
mod json_bounds;
mod kept_bytes;
mod keyer;
mod outline;
mod picker;
mod plane;
mod prompts;
mod pure;
mod report_taps;
mod reuse;
mod server;
mod state;
mod stream_filter;
mod transport;
mod worker_call;

use crate::ask::understand::{MAX_CHOICES, MAX_INPUTS, MAX_SEQUENCES};
use pyo3::prelude::*;

/// Version of this module's interface; Python code written for another version does not use the module.
const API: u32 = 17;

#[pymodule]
fn cachefleet_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    errors::register(module)?;
    module.add_class::<keyer::Keyer>()?;
    module.add_class::<ask::Ask>()?;
    module.add_function(wrap_pyfunction!(ask::understand, module)?)?;
    module.add_class::<index::Index>()?;
    module.add_class::<candidates::Candidates>()?;
    module.add_class::<choice::Choice>()?;
    module.add_class::<choice::WorkerTable>()?;
    module.add_class::<plane::InFlightRequest>()?;
    module.add_class::<plane::Plane>()?;
    module.add_class::<plane::RecentKeys>()?;
    module.add_class::<plane::WorkerRow>()?;
    module.add_class::<digest::Digest>()?;
    module.add_class::<prompts::PromptMemory>()?;
    module.add_class::<prompts::PromptShape>()?;
    module.add_function(wrap_pyfunction!(prompts::volatile_words, module)?)?;
    module.add_class::<report_taps::RemovalHistory>()?;
    module.add_class::<report_taps::ReportTaps>()?;
    module.add_class::<report_taps::ReportTap>()?;
    module.add_class::<report_taps::LiveStream>()?;
    module.add_class::<reuse::ReuseDistances>()?;
    module.add_class::<outline::FleetLoad>()?;
    module.add_class::<transport::Transport>()?;
    module.add_class::<worker_call::WorkerClient>()?;
    module.add_class::<worker_call::WorkerCall>()?;
    module.add_class::<worker_call::Trust>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<picker::Pick>()?;
    module.add_class::<client_request::ClientRequest>()?;
    module.add_class::<stream_filter::StreamFilter>()?;
    module.add_class::<kept_bytes::KeptBytes>()?;
    module.add_function(wrap_pyfunction!(headers::permitted_headers, module)?)?;
    module.add_function(wrap_pyfunction!(headers::upstream_headers, module)?)?;
    module.add_function(wrap_pyfunction!(stream_filter::answer_usage, module)?)?;
    module.add_function(wrap_pyfunction!(stream_filter::event_digest, module)?)?;
    module.add_function(wrap_pyfunction!(stream_filter::without_token_ids, module)?)?;
    module.add_function(wrap_pyfunction!(stream_filter::without_zero_counts, module)?)?;
    module.add_function(wrap_pyfunction!(stream_filter::answer_with_model, module)?)?;
    module.add_function(wrap_pyfunction!(json_bounds::json_excess, module)?)?;
    module.add_function(wrap_pyfunction!(plane::shared_blocks, module)?)?;
    pure::register(module)?;
    module.add("MAX_CHOICES", MAX_CHOICES)?;
    module.add("MAX_SEQUENCES", MAX_SEQUENCES)?;
    module.add("MAX_INPUTS", MAX_INPUTS)?;
    module.add("API", API)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTS_READ_DIRECTLY", ints::layout(py).is_some())?;
    Ok(())
}
