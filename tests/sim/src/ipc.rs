//! Memory and events shared between processes.
//!
//! Invariant: a handle names a whole allocation, so the handles of all its
//! addresses are the same. A handle that is opened twice in a context is mapped
//! once, and counted. The bytes are really shared, by the device's file. An
//! event of another process is one that was reached. Cost: two mappings per
//! opened handle of memory.

use std::fs::File;
use std::os::fd::AsRawFd;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Allocation, Holds};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, Out};
use crate::state::{Kind, MemHandle, Opened};

/// The contents of the 64 bytes of an event handle.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct EventHandle {
    mark: u64,
    process: u32,
    rest: [u32; 13],
}

const EVENT_MARK: u64 = 0x6576_656e_7473_696d;
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
        // Whole pages: a mapping cannot begin inside one.
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
        // A context that ended has closed what was opened in it.
        let kinds = &self.sim.kinds;
        (self.sim.opened).retain(|o| kinds.get(&o.address) == Some(&Kind::Foreign));
        let same = |o: &&mut Opened| o.context == context && o.handle == handle;
        if let Some(opened) = self.sim.opened.iter_mut().find(same) {
            opened.count += 1;
            return to.set(opened.address);
        }
        let path = format!("/proc/{}/fd/{}", handle.process, handle.file);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|_| INVALID_HANDLE)?;
        let page = self.sim.model.settings().page;
        let file = file.as_raw_fd();
        let address = (self.sim.backing).map_inside(file, handle.offset, handle.size, page)?;
        self.sim.model.place(Allocation {
            base: Address::new(address),
            size: Bytes::new(handle.size),
            device: self.sim.model.device_of(context).unwrap_or(0),
            context: Some(context),
            holds: Holds::Nothing,
        });
        self.sim.kinds.insert(address, Kind::Foreign);
        self.sim.opened.push(Opened {
            context,
            handle,
            address,
            count: 1,
        });
        to.set(address)
    }

    /// Waits for the event: every process has a clock of its own, so the event
    /// must be reached before another process learns of it.
    fn export_event(&mut self, to: &Out<EventHandle>, event: Handle) -> Done {
        to.required()?;
        self.reach_shared_event(event)?;
        to.set(EventHandle {
            mark: EVENT_MARK,
            process: std::process::id(),
            rest: [0; 13],
        })
    }

    fn close(&mut self, address: u64) -> Done {
        if self.sim.kinds.get(&address) != Some(&Kind::Foreign) {
            return Err(Code::INVALID_VALUE);
        }
        let context = self.model_context()?;
        if let Some(i) = self.sim.opened.iter().position(|o| o.address == address) {
            let opened = &mut self.sim.opened[i];
            opened.count -= 1;
            if opened.count > 0 {
                return Ok(());
            }
            self.sim.opened.swap_remove(i);
        }
        self.sim.wait(&self.sim.model.context_mark(context));
        self.sim.release(address);
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

    fn cuIpcGetEventHandle(call, to: Out<EventHandle>, event: Handle) {
        call.export_event(&to, event)
    }

    fn cuIpcOpenEventHandle(call, to: Out<Handle>, handle: EventHandle) {
        to.required()?;
        if handle.mark != EVENT_MARK {
            return Err(INVALID_HANDLE);
        }
        if handle.process == std::process::id() {
            return Err(Code::INVALID_CONTEXT);
        }
        let event = call.shared_event()?;
        to.set(event)
    }
}
