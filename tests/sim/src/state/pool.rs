//! A pool of stream-ordered memory, as the driver knows it.

use std::collections::BTreeMap;

/// Where a pool's memory lies that belongs to another process.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Exporter {
    pub(crate) process: u32,
}

pub(crate) struct Pool {
    pub(crate) device: u32,
    pub(crate) memory: vramalloc_model::Pool,
    /// The most that it may reserve; 0: as much as there is.
    pub(crate) most: u64,
    /// The kinds of handles under which it can be exported, as bits.
    pub(crate) handle_types: u32,
    /// How much it keeps reserved when the host waits.
    pub(crate) threshold: u64,
    /// Whether it follows events, takes what happens to be free, and makes
    /// streams wait, to use memory again that another stream freed.
    pub(crate) reuse: [bool; 3],
    /// The access of devices other than its own, as flags.
    pub(crate) access: BTreeMap<u32, u32>,
    /// It lives on until its memory is freed.
    pub(crate) destroyed: bool,
    /// The process that it was imported from, if it was.
    pub(crate) imported: Option<Exporter>,
}

impl Pool {
    pub(crate) fn new(device: u32, grain: u64) -> Pool {
        Pool {
            device,
            memory: vramalloc_model::Pool::new(grain),
            most: 0,
            handle_types: 0,
            threshold: 0,
            reuse: [true; 3],
            access: BTreeMap::new(),
            destroyed: false,
            imported: None,
        }
    }

    /// The access of a device, as flags.
    pub(crate) fn access_of(&self, device: u32) -> u32 {
        const READ_WRITE: u32 = 3;
        if device == self.device {
            return READ_WRITE;
        }
        self.access.get(&device).copied().unwrap_or(0)
    }
}
