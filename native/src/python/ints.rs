//! Reads numbers from Python lists and buffers.
//!
//! A prompt of 8,192 tokens is a list of as many ints; asking the C API for each costs several times what hashing them
//! does. So they are read from the objects' memory where this interpreter lays out lists and ints as `CPython` 3.11 to
//! 3.14 do, which is tested once before the first use. Everything else goes through the API.
#![expect(unsafe_code, reason = "measured: 8,192 ints in about a fifth of the time; each use has its proof")]

use crate::reader::Key;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};

/// Bits of a digit of an int.
const DIGIT: u32 = 30;

/// The beginning of an int object: number of digits and sign, then the digits.
#[repr(C)]
struct IntObject {
    head: ffi::PyObject,
    size: usize,
    digits: [u32; 1],
}

#[repr(C)]
struct ListObject {
    head: ffi::PyObject,
    len: isize,
    items: *const *mut ffi::PyObject,
}

/// How an int object stores its number of digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A signed count, negative for negative numbers: 3.11.
    Count,
    /// Three bits of flags below the count, of which two are the sign (0: positive): 3.12 and later.
    Tagged,
}

/// This interpreter's layout; None where it is unknown.
pub fn layout(py: Python<'_>) -> Option<Layout> {
    static LAYOUT: PyOnceLock<Option<Layout>> = PyOnceLock::new();
    *LAYOUT.get_or_init(py, || probe(py))
}

fn probe(py: Python<'_>) -> Option<Layout> {
    let version = py.version_info();
    let layout = match (version.major, version.minor) {
        (3, 11) => Layout::Count,
        (3, 12..=14) => Layout::Tagged,
        _ => return None,
    };
    let numbers = [0, 1, 255, (1 << 30) - 1, 1 << 30, u64::from(u32::MAX), 1 << 60, (1 << 60) + 7, u64::MAX];
    let list = PyList::new(py, numbers).ok()?;
    let strange = PyList::empty(py);
    strange.append(-1).ok()?;
    strange.append(1_u128 << 64).ok()?;
    strange.append(1_u128 << 90).ok()?;
    strange.append(true).ok()?;
    let implementation = py.import("sys").and_then(|sys| sys.getattr("implementation")?.getattr("name")).ok()?;
    let right = implementation.eq("cpython").ok()?
        && items(&list).len() == numbers.len()
        && items(&list).iter().zip(numbers).all(|(item, number)| value(*item, layout) == Some(number))
        && items(&strange).iter().all(|item| value(*item, layout).is_none());
    right.then_some(layout)
}

/// The items of a list, valid until Python code runs.
fn items<'a>(list: &'a Bound<'_, PyList>) -> &'a [*mut ffi::PyObject] {
    let object: *const ListObject = list.as_ptr().cast();
    // SAFETY: `probe` admits CPython 3.11 to 3.14 alone, in which a list object begins as `ListObject` does, and its
    // `items` point to `len` objects (to none where it is empty, which is not dereferenced). The list is borrowed and
    // the GIL is held (a `Bound` proves it), and no caller lets Python code run while it has the slice, so nothing
    // changes it.
    unsafe {
        match (*object).len {
            len @ 1.. => std::slice::from_raw_parts((*object).items, len.unsigned_abs()),
            _ => &[],
        }
    }
}

/// The value of an object that is an int from 0 to 2**64 - 1; None for everything else.
#[inline]
fn value(item: *mut ffi::PyObject, layout: Layout) -> Option<u64> {
    // SAFETY: `item` comes from `items`, so it is a live object. Its type says that it is an int and no subclass's
    // instance; then it begins as `IntObject` does (`layout` comes from `probe`), and has as many digits as it says, of
    // which no other is read.
    unsafe {
        if (*item).ob_type != &raw mut ffi::PyLong_Type {
            return None;
        }
        let int: *const IntObject = item.cast();
        let digits = match layout {
            Layout::Count => (*int).size,
            Layout::Tagged if (*int).size & 0b11 == 2 => return None,
            Layout::Tagged => (*int).size >> 3,
        };
        let digit: *const u32 = (&raw const (*int).digits).cast();
        let digit = |number: u8| u64::from(digit.add(number.into()).read()) << (DIGIT * u32::from(number));
        match digits {
            0 => Some(0),
            1 => Some(digit(0)),
            2 => Some(digit(0) | digit(1)),
            3 if (*(&raw const (*int).digits).cast::<u32>().add(2)) < 16 => Some(digit(0) | digit(1) | digit(2)),
            _ => None,
        }
    }
}

/// The numbers of a list as far as they can be read directly, at most `most`.
fn read_directly<T>(list: &Bound<'_, PyList>, most: usize, convert: impl Fn(u64) -> Option<T>) -> Vec<T> {
    let Some(layout) = layout(list.py()) else {
        return Vec::new();
    };
    let items = items(list);
    items[..most.min(items.len())].iter().map_while(|item| value(*item, layout).and_then(&convert)).collect()
}

/// The first `most` token ids of a sequence, or what is wrong with one of them.
fn tokens(sequence: &Bound<'_, PyAny>, most: usize) -> PyResult<Vec<u32>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        let mut read = read_directly(list, most, |number| u32::try_from(number).ok());
        for place in read.len()..most {
            read.push(list.get_item(place)?.extract()?);
        }
        return Ok(read);
    }
    if let Ok(buffer) = PyBuffer::<u32>::get(sequence)
        && buffer.dimensions() == 1
    {
        let mut read = buffer.to_vec(sequence.py())?;
        read.truncate(most);
        return Ok(read);
    }
    (0..most).map(|place| sequence.get_item(place)?.extract()).collect()
}

/// The same with an error that names what token ids are.
pub fn token_ids(sequence: &Bound<'_, PyAny>, most: usize) -> PyResult<Vec<u32>> {
    tokens(sequence, most)
        .map_err(|error| PyValueError::new_err(format!("token ids must be integers from 0 to 4294967295: {error}")))
}

/// Block keys from packed bytes, or from a sequence of ints, which ends before the first that can be no key.
pub fn keys(sequence: &Bound<'_, PyAny>, most: Option<isize>) -> PyResult<Vec<u64>> {
    if let Ok(packed) = sequence.cast::<PyBytes>() {
        return Ok(packed_keys(packed.as_bytes(), most)?.iter().map(Key::key).collect());
    }
    let most = first(sequence.len()?, most);
    let mut read = match sequence.cast_exact::<PyList>() {
        Ok(list) => read_directly(list, most, Some),
        Err(_) => Vec::new(),
    };
    for place in read.len()..most {
        match sequence.get_item(place)?.extract() {
            Ok(key) => read.push(key),
            Err(_) => break,
        }
    }
    Ok(read)
}

/// Block keys from packed bytes, or from any collection of ints, each of which must be one.
pub fn all_keys(collection: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if let Ok(packed) = collection.cast::<PyBytes>() {
        return Ok(packed_keys(packed.as_bytes(), None)?.iter().map(Key::key).collect());
    }
    if let Ok(list) = collection.cast_exact::<PyList>() {
        let read = read_directly(list, list.len(), Some);
        if read.len() == list.len() {
            return Ok(read);
        }
    }
    collection.try_iter()?.map(|key| key?.extract()).collect()
}

/// Block keys from packed bytes.
pub fn bytes_of_keys(packed: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    Ok(packed_keys(packed.cast::<PyBytes>()?.as_bytes(), None)?.iter().map(Key::key).collect())
}

/// The first keys of packed ones, without a copy.
pub fn packed_keys(packed: &[u8], most: Option<isize>) -> PyResult<&[[u8; 8]]> {
    let (keys, rest) = packed.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(super::errors::OperationError::new_err("keys: packed keys must be a multiple of 8 bytes"));
    }
    Ok(&keys[..first(keys.len(), most)])
}

/// How many items a slice `[:most]` has.
fn first(len: usize, most: Option<isize>) -> usize {
    match most {
        None => len,
        Some(most @ 0..) => len.min(most.unsigned_abs()),
        Some(most) => len.saturating_sub(most.unsigned_abs()),
    }
}

/// Numbers as a Python list.
pub fn list<'py>(py: Python<'py>, numbers: &[u64]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, numbers)
}

/// Numbers as packed little-endian bytes.
pub fn packed<'py>(py: Python<'py>, keys: &[u64]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, 8 * keys.len(), |out| {
        for (to, key) in out.as_chunks_mut::<8>().0.iter_mut().zip(keys) {
            *to = key.to_le_bytes();
        }
        Ok(())
    })
}

/// Bound on counts, so that no sum overflows.
const MOST: u64 = 1 << 48;

/// A count, at most MOST; 0 for one below.
pub fn bounded(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    match number.extract::<u64>() {
        Ok(count) => Ok(count.min(MOST)),
        Err(error) if error.is_instance_of::<PyOverflowError>(number.py()) => Ok(if number.lt(0)? { 0 } else { MOST }),
        Err(error) => Err(error),
    }
}

/// The same of one that may not be known.
pub fn bounded_or_none(number: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if number.is_none() { Ok(None) } else { bounded(number).map(Some) }
}
