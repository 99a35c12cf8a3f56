//! Prefetches memory before it is read.

/// Prefetches the cache line of a value into the second-level cache: a long run must not displace the prompt.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "measured: storing is a quarter faster than with plain reads ahead; proof within")]
pub fn prefetch<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch is a hint. It changes no register or memory and never faults, whatever the address; this one
    // is that of a live value besides.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(value).cast()) }
}

/// On other machines nothing: the reads that follow do not depend on each other, so they overlap by themselves.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch<T>(_: &T) {}
