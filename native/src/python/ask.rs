//! `understand` and `Ask`: a client's body in, a worker's body out.

use super::errors::guard;
use super::ints;
use super::keyer::Keyer;
use crate::ask::upstream::{Additions, upstream};
use crate::ask::{Endpoint, Members, media, resumable, text, understand as understood};
use bytes::Bytes;
use memchr::memmem::find;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PySlice, PyType};

/// Bytes from which on others may run meanwhile.
const LARGE: usize = 256 * 1024;
/// Bytes from which on a value is a view of the body.
const LONG: usize = 1024;

/// The members of a request's body that a worker may see.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Ask {
    pub(super) members: Members,
    /// The body that values are part of.
    body: Option<Py<PyBytes>>,
    fields: PyOnceLock<Py<PyDict>>,
}

/// What a body gives of Python's `RequestInfo`, in its order: what comes before the bypass, whether there are media, the rest.
type Facts =
    ((String, usize, bool, bool, bool, bool, bool, i64), bool, (Option<f64>, usize, usize, String, bool, bool));

/// What a body of that endpoint says. `AskError` for one that is refused.
#[pyfunction]
pub fn understand(py: Python<'_>, body: Bound<'_, PyBytes>, endpoint: &str, trusted: bool) -> PyResult<(Ask, Facts)> {
    let endpoint = endpoint_of(endpoint)?;
    let source = Some(body.clone().unbind());
    let body = Bytes::from_owner(PyBackedBytes::from(body));
    let read = || understood::understand(&body, endpoint, trusted);
    let (members, facts) = guard(|| Ok(if body.len() > LARGE { py.detach(read) } else { read() }?))?;
    let answer = (facts.usage_asked, facts.ids_asked, facts.ids_wanted, facts.single);
    let first = (facts.model, facts.size, facts.stream, answer.0, answer.1, answer.2, answer.3, facts.max_tokens);
    let rest = (facts.threshold, facts.choices, facts.prompts, facts.cache_key, facts.reads_cache, facts.echo);
    let told = (first, facts.media, rest);
    Ok((Ask { members, body: source, fields: PyOnceLock::new() }, told))
}

#[pymethods]
impl Ask {
    /// Of members as `msgspec.Raw`.
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = fields.py();
        let (as_bytes, as_raw) = (py.get_type::<PyBytes>(), raw_type(py)?);
        let (mut members, own) = (Members(Vec::with_capacity(fields.len())), PyDict::new(py));
        for (name, raw) in fields {
            let value = as_bytes.call1((raw,))?;
            own.set_item(&name, as_raw.call1((&value,))?)?;
            members.0.push((name.extract()?, Bytes::from_owner(value.extract::<PyBackedBytes>()?)));
        }
        let made = Self { members, body: None, fields: PyOnceLock::new() };
        made.fields.get_or_init(py, || own.unbind());
        Ok(made)
    }

    /// The members as `msgspec.Raw`, the same object each time.
    #[getter]
    fn fields(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let made = self.fields.get_or_try_init(py, || {
            let fields = PyDict::new(py);
            for (name, value) in &self.members.0 {
                fields.set_item(name, self.raw(py, value)?)?;
            }
            PyResult::Ok(fields.unbind())
        })?;
        Ok(made.clone_ref(py))
    }

    /// A member as `msgspec.Raw`; None where it is absent.
    fn member<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.members.get(name).map(|value| self.raw(py, value)).transpose()
    }

    /// Whether a member is there and not null.
    fn gives(&self, name: &str) -> bool {
        self.members.given(name).is_some()
    }

    /// Whether a text is in any member's value.
    fn mentions(&self, text: &[u8]) -> bool {
        self.members.0.iter().any(|(_, value)| find(value, text).is_some())
    }

    /// Whether messages, input items or what is scored may name media by `uuid`.
    #[getter]
    fn may_name_media(&self) -> bool {
        media::may_name_media(&self.members)
    }

    /// Whether another worker can go on from an answer's tokens alone; `gated`: the threshold does not matter.
    fn is_plain(&self, gated: bool) -> bool {
        resumable::is_plain(&self.members, gated)
    }

    /// The body for a worker, and its number of members; see `Additions`.
    #[pyo3(signature = (endpoint, *, model, salt, threshold, ids, usage))]
    #[expect(clippy::too_many_arguments, reason = "each by its name")]
    fn upstream<'py>(
        &self,
        py: Python<'py>,
        endpoint: &str,
        model: &str,
        salt: &str,
        threshold: bool,
        ids: bool,
        usage: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let additions = Additions { model, salt, threshold, ids, usage };
        let endpoint = endpoint_of(endpoint)?;
        let (body, members) = guard(|| {
            let fields = upstream(&self.members, endpoint, &additions);
            Ok((fields.encode(), fields.0.len()))
        })?;
        Ok((PyBytes::new(py, &body), members))
    }

    /// The size of the prompt's text, and packed keys of the chunks of its first `most` bytes.
    fn text_keys<'py>(&self, py: Python<'py>, keyer: &Keyer, most: usize) -> PyResult<(usize, Bound<'py, PyBytes>)> {
        let (size, keys) = guard(|| {
            let (size, text) = text::visible(&self.members, most);
            Ok((size, text::keys(&text, &keyer.0)))
        })?;
        Ok((size, ints::packed(py, &keys)?))
    }

    /// The prompt's text.
    fn visible<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (_, text) = guard(|| Ok(text::visible(&self.members, usize::MAX)))?;
        Ok(PyBytes::new(py, &text))
    }
}

pub(super) fn endpoint_of(path: &str) -> PyResult<Endpoint> {
    Endpoint::from_path(path).ok_or_else(|| PyValueError::new_err(format!("no endpoint {path}")))
}

fn raw_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static RAW: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    RAW.import(py, "msgspec", "Raw")
}

impl Ask {
    /// A value as `msgspec.Raw`; a long one is not copied from the body.
    fn raw<'py>(&self, py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let raw = raw_type(py)?;
        match self.body.as_ref().map(|body| body.bind(py)) {
            Some(body) if value.len() > LONG && body.as_bytes().as_ptr_range().contains(&value.as_ptr()) => {
                let at = value.as_ptr() as usize - body.as_bytes().as_ptr() as usize;
                let part = PySlice::new(py, at.cast_signed(), (at + value.len()).cast_signed(), 1);
                raw.call1((PyMemoryView::from(body)?.get_item(part)?,))
            }
            _ => raw.call1((PyBytes::new(py, value),)),
        }
    }
}
