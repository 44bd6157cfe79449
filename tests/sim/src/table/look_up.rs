//! The look-up of functions by name and version.

use std::ffi::c_void;

use super::find;
use crate::entry::driver;
use crate::ffi::{NOT_FOUND, Out, Text};

driver! {
    bare fn cuGetProcAddress(symbol: Text, pfn: Out<*const c_void>, version: i32, flags: u64) {
        pfn.required()?;
        let (address, _) = find(&symbol.get()?, version, flags);
        pfn.maybe(address);
        if address.is_null() { Err(NOT_FOUND) } else { Ok(()) }
    }

    bare fn cuGetProcAddress_v2(
        symbol: Text,
        pfn: Out<*const c_void>,
        version: i32,
        flags: u64,
        status: Out<u32>,
    ) {
        pfn.required()?;
        let (address, found) = find(&symbol.get()?, version, flags);
        pfn.maybe(address);
        status.maybe(found);
        if address.is_null() { Err(NOT_FOUND) } else { Ok(()) }
    }
}
