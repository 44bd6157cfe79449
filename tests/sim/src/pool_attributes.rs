//! The attributes of pools, who may access them, and pools of other processes.
//!
//! Invariant: memory that is imported belongs to the exporter and is counted
//! nowhere else; the exporter has to keep it.

use std::os::fd::AsRawFd;

use vramalloc_core::{Address, Bytes, Code};
use vramalloc_model::{Allocation, Holds};

use crate::descriptor::{self, Notice, POSIX};
use crate::entry::{Call, driver};
use crate::env;
use crate::ffi::{Done, Handle, In, Out};
use crate::state::{Access, Exporter, Kind, Location, ON_DEVICE, PINNED, Pool};

/// What a descriptor of a pool says that it is.
const POOL: u64 = 1;

/// The version from which on a pool's properties can be asked for.
const WITH_PROPERTIES: i32 = 13_000;

/// The contents of the 64 bytes of an exported pointer.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct PointerData {
    mark: u64,
    process: u64,
    file: u64,
    offset: u64,
    size: u64,
    rest: [u64; 3],
}

const POINTER: u64 = 0x706f_6f6c_5f70_7472;

impl Call<'_> {
    fn read_attribute(&mut self, handle: Handle, attribute: u32, value: &Out<u64>) -> Done {
        let pool = self.pool(handle)?;
        let int = |number: u32| value.cast::<u32>().set(number);
        match attribute {
            1..=3 => int(u32::from(pool.reuse[attribute as usize - 1])),
            4 => value.set(pool.threshold),
            5 => value.set(pool.memory.reserved().0),
            6 => value.set(pool.memory.reserved().1),
            7 => value.set(pool.memory.used().0),
            8 => value.set(pool.memory.used().1),
            _ if env::version() < WITH_PROPERTIES => Err(Code::INVALID_VALUE),
            9 => int(PINNED),
            10 => int(pool.handle_types),
            11 => int(pool.device),
            12 => int(ON_DEVICE),
            13 => value.set(pool.most),
            14 => int(0),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn write_attribute(&mut self, handle: Handle, attribute: u32, value: &Out<u64>) -> Done {
        let pool = self.pool(handle)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<u32>().get()? != 0,
            4 => pool.threshold = value.get()?,
            6 | 8 if value.get()? != 0 => return Err(Code::INVALID_VALUE),
            6 => pool.memory.reset_reserved(),
            8 => pool.memory.reset_used(),
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn set_pool_access(&mut self, handle: Handle, list: &In<Access>, count: u64) -> Done {
        let own = self.pool(handle)?.device;
        let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
        let mut wanted = Vec::new();
        for i in 0..count {
            let access = list.at(i)?;
            if access.location.kind != ON_DEVICE || ![0, 1, 3].contains(&access.flags) {
                return Err(Code::INVALID_VALUE);
            }
            let device = self.device(access.location.id)?;
            if device == own && access.flags != 3 {
                return Err(Code::INVALID_VALUE);
            }
            wanted.push((device, access.flags));
        }
        self.pool(handle)?.access.extend(wanted);
        Ok(())
    }

    fn export_pool(&mut self, to: &Out<i32>, handle: Handle, sort: u32, flags: u64) -> Done {
        to.required()?;
        let pool = self.pool(handle)?;
        if sort != POSIX || pool.handle_types & sort == 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let notice = Notice {
            what: POOL,
            process: u64::from(std::process::id()),
            file: 0,
            offset: 0,
            size: 0,
            device: u64::from(pool.device),
            handle,
        };
        to.set(notice.issue()?)
    }

    fn import_pool(&mut self, to: &Out<Handle>, handle: u64, sort: u32, flags: u64) -> Done {
        to.required()?;
        if sort != POSIX || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let notice = Notice::read(descriptor::from_argument(handle)?);
        let notice = notice.filter(|n| n.what == POOL);
        let notice = notice.ok_or(Code::INVALID_VALUE)?;
        let device = i32::try_from(notice.device).map_err(|_| Code::INVALID_VALUE)?;
        let grain = self.sim.environment.pool_grain.get();
        let mut pool = Pool::new(self.device(device)?, grain);
        pool.imported = Some(Exporter {
            process: u32::try_from(notice.process).map_err(|_| Code::INVALID_VALUE)?,
        });
        to.set(self.sim.pools.insert(pool))
    }

    fn export_pointer(&mut self, to: &Out<PointerData>, address: u64) -> Done {
        to.required()?;
        let found = self.sim.model.find(Address::new(address));
        let a = found.ok_or(Code::INVALID_VALUE)?;
        let base = a.base.get();
        let Some(Kind::Pool(pool)) = self.sim.kinds.get(&base).copied() else {
            return Err(Code::INVALID_VALUE);
        };
        if self.sim.pools.get(pool).is_none_or(|p| p.handle_types == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let (file, offset) = self.sim.backing.file_at(base).ok_or(Code::INVALID_VALUE)?;
        to.set(PointerData {
            mark: POINTER,
            process: u64::from(std::process::id()),
            file: descriptor::word(&file),
            offset,
            size: a.size.get(),
            rest: [0; 3],
        })
    }

    fn import_pointer(&mut self, to: &Out<u64>, handle: Handle, data: &In<PointerData>) -> Done {
        to.required()?;
        let context = self.model_context()?;
        let data = data.get()?;
        let pool = self.pool(handle)?;
        let device = pool.device;
        let from = pool.imported.map(|exporter| u64::from(exporter.process));
        if data.mark != POINTER || from != Some(data.process) {
            return Err(Code::INVALID_VALUE);
        }
        let notice = Notice {
            what: POOL,
            process: data.process,
            file: data.file,
            offset: data.offset,
            size: data.size,
            device: u64::from(device),
            handle,
        };
        let file = notice.open().ok_or(Code::INVALID_VALUE)?;
        let page = self.sim.model.settings().page;
        let address =
            (self.sim.backing).map_inside(file.as_raw_fd(), data.offset, data.size, page)?;
        self.sim.model.place(Allocation {
            base: Address::new(address),
            size: Bytes::new(data.size),
            device,
            context: Some(context),
            holds: Holds::Nothing,
        });
        self.sim.kinds.insert(address, Kind::Imported);
        to.set(address)
    }
}

driver! {
    fn cuMemPoolGetAttribute(call, pool: Handle, attribute: u32, value: Out<u64>) {
        call.read_attribute(pool, attribute, &value)
    }

    fn cuMemPoolSetAttribute(call, pool: Handle, attribute: u32, value: Out<u64>) {
        call.write_attribute(pool, attribute, &value)
    }

    fn cuMemPoolSetAccess(call, pool: Handle, list: In<Access>, count: u64) {
        call.set_pool_access(pool, &list, count)
    }

    fn cuMemPoolGetAccess(call, flags: Out<u32>, pool: Handle, location: In<Location>) {
        flags.required()?;
        let location = location.get()?;
        if location.kind != ON_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        let device = call.device(location.id)?;
        flags.set(call.pool(pool)?.access_of(device))
    }

    fn cuMemPoolExportToShareableHandle(
        call, to: Out<i32>, pool: Handle, sort: u32, flags: u64,
    ) {
        call.export_pool(&to, pool, sort, flags)
    }

    fn cuMemPoolImportFromShareableHandle(
        call, to: Out<Handle>, handle: u64, sort: u32, flags: u64,
    ) {
        call.import_pool(&to, handle, sort, flags)
    }

    fn cuMemPoolExportPointer(call, to: Out<PointerData>, address: u64) {
        call.export_pointer(&to, address)
    }

    fn cuMemPoolImportPointer(call, to: Out<u64>, pool: Handle, data: In<PointerData>) {
        call.import_pointer(&to, pool, &data)
    }
}
