//! Copies to and from arrays by their offset in bytes. Those by rows are
//! `copy`'s.
//!
//! Invariant: an offset counts the bytes of an array row by row.

use vramalloc_core::Code;

use crate::entry::{Call, driver};
use crate::ffi::{Handle, INVALID_HANDLE};

impl Call<'_> {
    /// The address of `size` bytes at an offset in an array.
    fn in_array(&self, array: Handle, offset: u64, size: u64) -> Result<u64, Code> {
        let array = self.array(array)?;
        let end = offset.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        if end > array.shape.bytes().unwrap_or(0) {
            return Err(Code::INVALID_VALUE);
        }
        match array.base {
            0 => Err(INVALID_HANDLE),
            base => Ok(base + offset),
        }
    }
}

driver! {
    fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds(
        call, to: Handle, offset: u64, from: u64, size: u64,
    ) {
        let to = call.in_array(to, offset, size)?;
        call.copy_bytes_now(to, from, size)
    }

    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds(
        call, to: u64, from: Handle, offset: u64, size: u64,
    ) {
        let from = call.in_array(from, offset, size)?;
        call.copy_bytes_now(to, from, size)
    }

    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds(
        call, to: Handle, offset: u64, from: u64, size: u64,
    ) {
        let to = call.in_array(to, offset, size)?;
        call.copy_bytes_now(to, from, size)
    }

    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds(
        call, to: u64, from: Handle, offset: u64, size: u64,
    ) {
        let from = call.in_array(from, offset, size)?;
        call.copy_bytes_now(to, from, size)
    }

    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds(
        call, to: Handle, to_offset: u64, from: Handle, from_offset: u64, size: u64,
    ) {
        let to = call.in_array(to, to_offset, size)?;
        let from = call.in_array(from, from_offset, size)?;
        call.copy_bytes_now(to, from, size)
    }

    fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz(
        call, to: Handle, offset: u64, from: u64, size: u64, stream: Handle,
    ) {
        let to = call.in_array(to, offset, size)?;
        call.copy_bytes_later(to, from, size, stream)
    }

    fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz(
        call, to: u64, from: Handle, offset: u64, size: u64, stream: Handle,
    ) {
        let from = call.in_array(from, offset, size)?;
        call.copy_bytes_later(to, from, size, stream)
    }
}
