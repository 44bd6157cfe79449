//! Memory and events shared between processes.
//!
//! Owns nothing. Invariant: a handle names a whole allocation, so that of an
//! address inside one is the same; the bytes are shared in truth, by the
//! device's file. Cost: two mappings per opened handle.

use std::fs::File;
use std::os::fd::AsRawFd;

use vramalloc::{Address, Bytes, Code};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, Out};
use crate::memory::Kind;

/// What stands in the 64 bytes of a memory handle.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct MemHandle {
    mark: u64,
    process: u32,
    file: i32,
    offset: u64,
    size: u64,
    base: u64,
    rest: [u64; 3],
}

const MARK: u64 = 0x7369_6d75_6c61_7465;
const LAZY_PEER_ACCESS: u32 = 1;

impl Call<'_> {
    fn export(&mut self, to: &Out<MemHandle>, address: u64) -> Done {
        to.required()?;
        self.context()?;
        let found = self.sim.model.find(Address::new(address));
        let a = found.ok_or(Code::INVALID_VALUE)?;
        let base = a.base.get();
        if self.sim.kinds.contains_key(&base) {
            return Err(Code::INVALID_VALUE);
        }
        // The whole pages: a mapping cannot begin inside one.
        let (file, offset) = self.sim.backing.file_at(base).ok_or(Code::INVALID_VALUE)?;
        to.set(MemHandle {
            mark: MARK,
            process: std::process::id(),
            file,
            offset,
            size: a.size.get(),
            base,
            rest: [0; 3],
        })
    }

    fn open(&mut self, to: &Out<u64>, handle: MemHandle, flags: u32) -> Done {
        to.required()?;
        let context = self.model_context()?;
        if handle.mark != MARK || flags != LAZY_PEER_ACCESS {
            return Err(Code::INVALID_VALUE);
        }
        if handle.process == std::process::id() {
            return Err(Code::INVALID_CONTEXT);
        }
        let path = format!("/proc/{}/fd/{}", handle.process, handle.file);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|_| INVALID_HANDLE)?;
        let page = self.sim.model.settings().page;
        let first = Bytes::new(handle.offset).round_down(page).get();
        let inside = handle.offset - first;
        let size = Bytes::new(inside + handle.size).round_up(page);
        let size = size.ok_or(Code::INVALID_VALUE)?.get();
        let start = self
            .sim
            .backing
            .map_foreign(file.as_raw_fd(), first, size)?;
        let address = start + inside;
        (self.sim.model).adopt(context, Address::new(address), Bytes::new(handle.size));
        self.sim.kinds.insert(address, Kind::Foreign);
        to.set(address)
    }

    fn close(&mut self, address: u64) -> Done {
        if self.sim.kinds.get(&address) != Some(&Kind::Foreign) {
            return Err(Code::INVALID_VALUE);
        }
        let context = self.model_context()?;
        self.sim.wait(&self.sim.model.context_mark(context));
        self.sim.release(address);
        let start = self.sim.backing.foreign_start(address);
        self.sim.backing.unmap_foreign(start);
        Ok(())
    }
}

driver! {
    fn cuIpcGetMemHandle(call, to: Out<MemHandle>, address: u64) {
        call.export(&to, address)
    }

    fn cuIpcOpenMemHandle(call, to: Out<u64>, handle: MemHandle, flags: u32) {
        call.open(&to, handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(call, to: Out<u64>, handle: MemHandle, flags: u32) {
        call.open(&to, handle, flags)
    }

    fn cuIpcCloseMemHandle(call, address: u64) {
        call.close(address)
    }

    fn cuIpcGetEventHandle(_, _to: Out<MemHandle>, _event: Handle) {
        Err(Code::NOT_SUPPORTED)
    }
}
