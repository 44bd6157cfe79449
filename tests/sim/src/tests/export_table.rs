//! The tables of NVIDIA's runtime, read as it reads them, by slot.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const CONTEXTS: u128 = 0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9;
const STORAGE: u128 = 0xc693_336e_1121_df11_a8c3_68f3_55d8_9593;

type Primary = extern "C" fn(*mut Handle, i32) -> u32;
type Load = extern "C" fn(*mut Handle, *const c_void) -> u32;
type Put = extern "C" fn(Handle, u64, u64, extern "C" fn(Handle, u64, u64)) -> u32;
type Delete = extern "C" fn(Handle, u64) -> u32;
type Get = extern "C" fn(*mut u64, Handle, u64) -> u32;

/// The word in a slot of a table.
fn slot(id: u128, index: usize) -> *const c_void {
    let id = id.to_be_bytes();
    let mut table = std::ptr::null();
    assert_eq!(cuGetExportTable(out(&mut table), In(&raw const id)), 0);
    In(table.cast::<*const c_void>()).at(index).unwrap()
}

/// A slot as a function of this type.
macro_rules! function {
    ($type:ty, $id:expr, $slot:expr) => {
        // SAFETY: the slot holds a function of this type.
        unsafe { std::mem::transmute::<*const c_void, $type>(slot($id, $slot)) }
    };
}

static FREED: AtomicU64 = AtomicU64::new(0);
static BLOCK: AtomicU64 = AtomicU64::new(0);

/// A destructor that frees memory, as the runtime's own may.
extern "C" fn give_back(_context: Handle, key: u64, value: u64) {
    assert_eq!((key, value), (7, 70));
    let code = cuMemFree_v2(BLOCK.load(Ordering::SeqCst));
    FREED.fetch_add(1 + u64::from(code), Ordering::SeqCst);
}

#[test]
fn a_primary_context_has_a_handle_before_it_is_made() {
    let _program = Program::new();
    let primary = function!(Primary, CONTEXTS, 2);
    let mut handle = 0;
    assert_eq!(primary(&raw mut handle, 1), 0);
    let active = made(|to| cuDevicePrimaryCtxGetState(1, out(&mut 0), to));
    assert_eq!(active, 0);
    assert_eq!(primary(&raw mut handle, 99), 101);
    assert_eq!(slot(CONTEXTS, 0).addr(), 128);
}

#[test]
fn a_fat_binary_is_a_module() {
    let _program = Program::new();
    let wrapper = 0x4662_43b1_u32;
    for index in [1, 6, 8] {
        let mut module = 0;
        let load = function!(Load, CONTEXTS, index);
        assert_eq!(load(&raw mut module, (&raw const wrapper).cast()), 0);
        let _: Handle = made(|to| cuModuleGetFunction(to, module, text(c"kernel")));
        assert_eq!(cuModuleUnload(module), 0);
    }
}

#[test]
fn what_a_context_keeps_is_given_up_before_its_end() {
    let program = Program::new();
    let put = function!(Put, STORAGE, 0);
    let delete = function!(Delete, STORAGE, 1);
    let get = function!(Get, STORAGE, 2);
    let mut value = 0;
    assert_eq!(get(&raw mut value, 0, 7), 500);
    assert_eq!(put(0, 7, 70, give_back), 0);
    assert_eq!(get(&raw mut value, program.context, 7), 0);
    assert_eq!(value, 70);
    assert_eq!(delete(0, 7), 0);
    assert_eq!(delete(0, 7), 500);

    let primary: Handle = made(|to| cuDevicePrimaryCtxRetain(to, 1));
    assert_eq!(cuCtxPushCurrent_v2(primary), 0);
    assert_eq!(cuDevicePrimaryCtxRetain(out(&mut 0), 1), 0);
    assert_eq!(put(primary, 7, 70, give_back), 0);
    BLOCK.store(alloc(512), Ordering::SeqCst);
    let freed = || FREED.load(Ordering::SeqCst);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(1), 0);
    assert_eq!(freed(), 0);
    assert_eq!(cuDevicePrimaryCtxReset_v2(1), 0);
    assert_eq!(freed(), 1);
    assert_eq!(cuDevicePrimaryCtxReset_v2(1), 0);
    assert_eq!(freed(), 1);
    assert_eq!(cuCtxPopCurrent_v2(none()), 0);
}

#[test]
fn a_table_that_is_not_there_is_refused() {
    let id = [1; 16];
    let mut table = std::ptr::null();
    assert_eq!(cuGetExportTable(out(&mut table), In(&raw const id)), 801);
    assert!(table.is_null());
}
