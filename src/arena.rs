//! All chunks and indexes of one device context (first sketch: every call
//! goes to the driver).

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::config::Config;
use crate::driver::{Driver, MemInfo};
use crate::error::{AllocError, Code, FreeError};
use crate::page_map::{ArenaId, PageMap};
use crate::quota::Quota;
use crate::stats::{ArenaStats, DriverCalls};

/// The memory of one device context.
pub struct Arena<D: Driver> {
    id: ArenaId,
    driver: D,
    map: Arc<PageMap>,
    quota: Arc<Quota>,
}

impl<D: Driver> Arena<D> {
    /// An arena that holds nothing yet. Makes no driver call.
    #[must_use]
    pub fn new(
        id: ArenaId,
        driver: D,
        _config: &Config,
        map: Arc<PageMap>,
        quota: Arc<Quota>,
    ) -> Arena<D> {
        Arena {
            id,
            driver,
            map,
            quota,
        }
    }

    /// The driver below.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Memory for a request of `request` bytes (above 0).
    ///
    /// # Errors
    /// [`AllocError`], after the whole out-of-memory ladder.
    pub fn allocate(&self, request: Bytes) -> Result<Address, AllocError> {
        if !self.quota.take(request) {
            return Err(AllocError::Limit);
        }
        let address = self.driver.alloc(request).map_err(|code| {
            self.quota.put_back(request);
            AllocError::Driver(code)
        })?;
        self.map.insert(self.id, address, request);
        Ok(address)
    }

    /// Takes over memory that the real function handed to the program after
    /// `allocate` had failed, so that it is counted and found when freed.
    pub fn adopt(&self, address: Address, size: Bytes) {
        self.map.insert(self.id, address, size);
    }

    /// Frees the live block at `address`.
    ///
    /// # Errors
    /// [`FreeError`]; nothing is changed then.
    pub fn free(&self, address: Address) -> Result<(), FreeError> {
        let size = self.map.remove(address).ok_or(FreeError::NotLive)?;
        self.quota.put_back(size);
        self.driver.free(address).map_err(FreeError::Driver)
    }

    /// Free and total memory as the program should see them.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn mem_info(&self) -> Result<MemInfo, Code> {
        self.driver.mem_info()
    }

    /// Closes the open epoch and hands back what the device is done with,
    /// waiting for nothing.
    pub fn flush(&self) {}

    /// Gives every idle chunk back to the driver, after waiting for limbo;
    /// returns how many bytes that were.
    pub fn trim(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Forgets everything without a driver call: the context is gone and its
    /// memory with it.
    pub fn retire(&self) {}

    /// A consistent picture of the arena.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        ArenaStats::default()
    }

    /// Calls made to the driver so far.
    #[must_use]
    pub fn driver_calls(&self) -> DriverCalls {
        DriverCalls::default()
    }
}
