//! Requests huge memory pages, so that random access to a gigabyte has fewer TLB misses.

/// Size of a huge page; smaller allocations are left alone.
#[cfg(target_os = "linux")]
const PAGE: usize = 1 << 21;

/// Advises the kernel to back a vector's memory with huge pages; without effect where it has none.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "measured: prompts of 2,048 blocks among ten million in a fifth less; proof within")]
pub fn advise<T>(room: &mut Vec<T>) {
    use std::ffi::{c_int, c_void};
    const MADV_HUGEPAGE: c_int = 14;
    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    let bytes = room.capacity() * size_of::<T>();
    let start: *mut u8 = room.as_mut_ptr().cast();
    let before = start.align_offset(PAGE);
    let whole = bytes.saturating_sub(before) / PAGE * PAGE;
    if whole > 0 {
        // SAFETY: `before + whole` is at most the room's bytes, so the address is within this vector's own allocation,
        // and so is everything up to `whole` bytes later; it is a multiple of the system's page size, as 2 MiB is. The
        // advice says how memory is to be backed: neither contents nor access change, whether it is taken or refused.
        unsafe { madvise(start.add(before).cast(), whole, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub fn advise<T>(_room: &mut Vec<T>) {}
