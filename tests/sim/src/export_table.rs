//! The tables of functions that NVIDIA's own runtime asks the driver for,
//! beside the public interface.
//!
//! They have what runtimes up to 11.6 need: the handle of a primary context
//! that is not made yet, modules from the fat binaries that compilers leave in
//! a program, and values that belong to a context, whose destructors run when
//! it ends. Later runtimes also ask who the driver is; that table is not here.
//!
//! Invariant: a destructor runs once, outside the machine's lock and before the
//! context's end, and finds it alive. Cost: O(log n).

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

use vramalloc_core::Code;

use crate::entry::{Call, Site, driver, enter};
use crate::env;
use crate::ffi::{Done, Handle, In, NOT_FOUND, Out};
use crate::state::{Destructor, Storage};

impl Call<'_> {
    /// The storage of a context; 0 is the current one.
    fn storage(&mut self, context: Handle) -> Result<&mut Storage, Code> {
        let context = match context {
            0 => self.context()?,
            given => given,
        };
        let found = self.sim.contexts.get_mut(context);
        Ok(&mut found.ok_or(Code::INVALID_CONTEXT)?.storage)
    }

    /// Stores a value, and forgets the one before it.
    fn keep(&mut self, context: Handle, key: u64, value: u64, end: Option<Destructor>) -> Done {
        self.storage(context)?.insert(key, (value, end));
        Ok(())
    }
}

/// Defines functions that are only found in a table.
macro_rules! hidden {
    ($(fn $name:ident ($call:pat $(, $arg:ident : $ty:ty)* $(,)?) $body:block)*) => {
        $(extern "C" fn $name($($arg: $ty),*) -> u32 {
            static SITE: Site = Site::new(stringify!($name));
            enter(&SITE, false, |$call| $body)
        })*
    };
}

hidden! {
    fn hidden_primary_context(call, to: Out<Handle>, device: i32) {
        to.set(call.primary_handle(device)?)
    }

    fn hidden_load(call, to: Out<Handle>, image: *const c_void) {
        call.load_module(&to, image)
    }

    fn hidden_put(call, context: Handle, key: u64, value: u64, end: Option<Destructor>) {
        call.keep(context, key, value, end)
    }

    fn hidden_delete(call, context: Handle, key: u64) {
        call.storage(context)?.remove(&key).map(|_| ()).ok_or(NOT_FOUND)
    }

    fn hidden_get(call, value: Out<u64>, context: Handle, key: u64) {
        let kept = call.storage(context)?.get(&key).copied();
        value.set(kept.ok_or(NOT_FOUND)?.0)
    }
}

/// The function in slots that need none.
extern "C" fn hidden_nothing() -> u32 {
    0
}

/// Answers that there is no tool.
extern "C" fn hidden_no_tool(to: Out<u32>) -> u32 {
    to.maybe(0);
    0
}

/// Where the runtime reads the addresses of its tools' callbacks: there are
/// none.
static CALLBACKS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static MORE_CALLBACKS: [AtomicU64; 14] = [const { AtomicU64::new(0) }; 14];

fn hand_out(room: &'static [AtomicU64], to: &Out<*const AtomicU64>, count: &Out<usize>) -> u32 {
    to.maybe(room.as_ptr());
    count.maybe(room.len());
    0
}

extern "C" fn hidden_callbacks(to: Out<*const AtomicU64>, count: Out<usize>) -> u32 {
    hand_out(&CALLBACKS, &to, &count)
}

extern "C" fn hidden_more_callbacks(to: Out<*const AtomicU64>, count: Out<usize>) -> u32 {
    hand_out(&MORE_CALLBACKS, &to, &count)
}

/// A table as the runtime reads it: functions, in some tables after the table's
/// own size in bytes.
struct Table {
    id: [u8; 16],
    slots: &'static [Slot],
}

/// One word of a table.
#[repr(transparent)]
struct Slot(*const c_void);

// SAFETY: a slot is a number or the address of a function; nobody writes to it.
unsafe impl Sync for Slot {}

const fn size(slots: usize) -> Slot {
    Slot(std::ptr::without_provenance(slots * size_of::<Slot>()))
}

macro_rules! slots {
    ($([$size:literal])? $($function:ident)*) => {
        &[$(size($size),)? $(Slot($function as *const c_void)),*]
    };
}

static TABLES: &[Table] = &[
    Table {
        id: 0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9_u128.to_be_bytes(),
        slots: slots![
            [16]
            hidden_load hidden_primary_context hidden_nothing hidden_nothing hidden_nothing
            hidden_load hidden_nothing hidden_load hidden_nothing hidden_nothing
            hidden_nothing hidden_nothing hidden_nothing hidden_nothing hidden_nothing
        ],
    },
    Table {
        id: 0xa094_798c_2e74_2e74_93f2_0800_200c_0a66_u128.to_be_bytes(),
        slots: slots![
            [7]
            hidden_nothing hidden_callbacks hidden_nothing hidden_nothing hidden_nothing
            hidden_more_callbacks
        ],
    },
    Table {
        id: 0xc693_336e_1121_df11_a8c3_68f3_55d8_9593_u128.to_be_bytes(),
        slots: slots![hidden_put hidden_delete hidden_get hidden_nothing],
    },
    Table {
        id: 0x42d8_5a81_23f6_cb47_8298_f6e7_8a3a_ecdc_u128.to_be_bytes(),
        slots: slots![[4] hidden_nothing hidden_nothing hidden_nothing],
    },
    Table {
        id: 0x263e_8860_7cd2_6143_92f6_bbd5_006d_fa7e_u128.to_be_bytes(),
        slots: slots![[4] hidden_nothing hidden_no_tool hidden_nothing],
    },
];

driver! {
    bare fn cuGetExportTable(to: Out<*const c_void>, id: In<[u8; 16]>) {
        to.required()?;
        let id = id.get()?;
        let Some(table) = TABLES.iter().find(|t| t.id == id) else {
            if env::flag("SIM_CUDA_VERBOSE") {
                eprintln!("simulated CUDA: the table {id:02x?} is not there");
            }
            to.maybe(std::ptr::null());
            return Err(Code::NOT_SUPPORTED);
        };
        to.set(table.slots.as_ptr().cast())
    }
}
