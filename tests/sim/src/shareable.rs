//! Handles to device memory for other processes and other hardware.
//!
//! Invariant: a descriptor names whole physical memory, or addresses inside one
//! allocation; only memory that was made for it is given away. Cost: a file each.

use std::os::fd::IntoRawFd;

use vramalloc_core::{Address, Code};

use crate::descriptor::{self, Notice, POSIX};
use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, Out};
use crate::state::{AllocationProps, Location, ON_DEVICE, ON_HOST_NODE, PAGE, PINNED, Physical};

/// What a descriptor of physical memory says that it is.
const MEMORY: u64 = 2;

/// The kind of a handle to addresses: a descriptor of `dma-buf`.
const DMA_BUFFER: u32 = 1;

impl Call<'_> {
    fn export_physical(&mut self, to: &Out<i32>, handle: Handle, sort: u32, flags: u64) -> Done {
        to.required()?;
        let memory = self.physical(handle)?;
        if sort != POSIX || memory.props.handles & sort == 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let notice = Notice {
            what: MEMORY,
            process: u64::from(std::process::id()),
            file: descriptor::word(&memory.file),
            offset: memory.offset,
            size: memory.size,
            device: memory.device.map_or(u64::MAX, u64::from),
            handle,
        };
        to.set(notice.issue()?)
    }

    /// A descriptor for other hardware of addresses that lie in one allocation.
    fn export_addresses(
        &self,
        to: &Out<i32>,
        start: u64,
        size: u64,
        sort: u32,
        flags: u64,
    ) -> Done {
        to.required()?;
        let whole = |n: u64| n.is_multiple_of(PAGE);
        if sort != DMA_BUFFER || flags != 0 || size == 0 || !whole(start) || !whole(size) {
            return Err(Code::INVALID_VALUE);
        }
        let found = self.sim.model.find(Address::new(start));
        let found = found.ok_or(Code::INVALID_VALUE)?;
        let end = start.saturating_add(size);
        if end > found.base.get() + found.size.get() {
            return Err(Code::INVALID_VALUE);
        }
        let file = match self.sim.mapping_at(start) {
            Some((at, _)) if !self.sim.is_for_rdma(at) => return Err(Code::NOT_SUPPORTED),
            Some((_, mapping)) => self.sim.physicals.get(mapping.memory).map(|m| m.file),
            None => self.sim.backing.file_at(start).map(|(file, _)| file),
        };
        let file = file.ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the file of a device, or of a memory; the copy is the caller's.
        let copy = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        to.set(copy)
    }

    fn import_physical(&mut self, to: &Out<Handle>, handle: u64, sort: u32) -> Done {
        to.required()?;
        if sort != POSIX {
            return Err(Code::INVALID_VALUE);
        }
        let notice = Notice::read(descriptor::from_argument(handle)?);
        let notice = notice.filter(|n| n.what == MEMORY);
        let notice = notice.ok_or(Code::INVALID_VALUE)?;
        if notice.process == u64::from(std::process::id()) {
            self.physical(notice.handle)?.references += 1;
            return to.set(notice.handle);
        }
        let device = u32::try_from(notice.device).ok();
        let location = Location {
            kind: device.map_or(ON_HOST_NODE, |_| ON_DEVICE),
            id: device.and_then(|d| i32::try_from(d).ok()).unwrap_or(0),
        };
        self.location(location)?;
        let file = notice.open().ok_or(Code::INVALID_VALUE)?;
        to.set(self.sim.physicals.insert(Physical {
            size: notice.size,
            props: AllocationProps {
                kind: PINNED,
                handles: POSIX,
                location,
                security: 0,
                flags: [0; 8],
            },
            device,
            file: file.into_raw_fd(),
            offset: notice.offset,
            span: None,
            references: 1,
            mappings: 0,
        }))
    }
}

driver! {
    fn cuMemGetHandleForAddressRange(
        call, to: Out<i32>, start: u64, size: u64, sort: u32, flags: u64,
    ) {
        call.export_addresses(&to, start, size, sort, flags)
    }

    fn cuMemExportToShareableHandle(
        call, to: Out<i32>, handle: Handle, sort: u32, flags: u64,
    ) {
        call.export_physical(&to, handle, sort, flags)
    }

    fn cuMemImportFromShareableHandle(call, to: Out<Handle>, handle: u64, sort: u32) {
        call.import_physical(&to, handle, sort)
    }
}
