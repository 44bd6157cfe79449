//! What all arenas of a device share: its name, its size, its limit.
//!
//! Owns the record of each device, from the first arena on it until the process
//! ends. Its lock is taken alone and spans no driver call. Cost: a few driver
//! calls for the first arena of a device.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::SystemTime;

use spin::mutex::SpinMutex;
use vramalloc_core::busy::Busy;
use vramalloc_core::families::Families;
use vramalloc_core::patience::Brief;
use vramalloc_core::quota::Quota;
use vramalloc_core::stats::ElsewhereReport;
use vramalloc_core::{Bytes, MemInfo};

use crate::driver::mapping::Ability;
use crate::driver::partition::{self, Partition};
use crate::process::say::{Once, warn_once};
use crate::types::CUdevice;
use crate::{process, real};

static DEVICES: SpinMutex<Vec<&'static Device>, Brief> = SpinMutex::new(Vec::new());

/// See [`is_sole`]. Relaxed: it stands for itself.
static IS_SOLE: AtomicBool = AtomicBool::new(false);

/// What is known of a device.
pub(crate) struct Device {
    pub(crate) handle: CUdevice,
    pub(crate) name: Option<String>,
    /// The driver's number for it among all devices; 0 if it does not say.
    pub(crate) uuid: u128,
    pub(crate) total: Option<Bytes>,
    /// NVIDIA's own limits for the process's control group.
    pub(crate) partition: Option<Partition>,
    pub(crate) quota: Arc<Quota>,
    /// What the program takes past our pools.
    pub(crate) families: Families,
    /// Of which of them the recording was told, a bit each.
    pub(crate) told: AtomicU8,
    /// What its virtual memory can do.
    pub(super) ability: Ability,
    /// Whether a thread pauses memory of it, or ends a pause.
    pub(crate) pausing: Busy,
    /// The least that its peaks are, whatever its arenas say: in bytes, those of
    /// [`Peak`] in their order.
    ///
    /// [`Peak`]: vramalloc_core::arena::Peak
    pub(crate) least_peaks: SpinMutex<[Bytes; 2], Brief>,
    /// How many pages that its contexts keep back are free in the driver now, to be taken
    /// again.
    pub(super) lent: AtomicUsize,
    /// Whether the program knows how much of it is free.
    pub(super) has_told_free: AtomicBool,
    /// What was in use that the process has not, when the driver was last asked.
    elsewhere: SpinMutex<Option<(Bytes, SystemTime)>, Brief>,
}

impl Device {
    /// The program is told how much is free: from now on nothing of that is kept back.
    pub(crate) fn tells_free(&self) {
        // Relaxed: it stands for itself.
        self.has_told_free.store(true, Ordering::Relaxed);
    }

    /// The driver said how much is free, and how much there is in all.
    pub(super) fn was_told(&self, info: MemInfo) {
        let used = info.total.saturating_sub(info.free);
        let elsewhere = used.saturating_sub(self.quota.reserved());
        *self.elsewhere.lock() = Some((elsewhere, SystemTime::now()));
    }

    /// Puts the limit in force that the options say now.
    fn obey_limit(&self) {
        /// Held from the reading of the options on: the newest stay in force.
        static TURN: SpinMutex<(), Brief> = SpinMutex::new(());
        let _turn = TURN.lock();
        let limit = limit(self.handle, self.total, self.partition);
        self.quota.set_limit(limit);
    }

    /// Whose the limit is that is in force, in words.
    pub(crate) fn limits_name(&self) -> &'static str {
        let hard = self.partition.and_then(|partition| partition.hard);
        if hard.is_some_and(|hard| hard < option_limit(self.handle, self.total)) {
            "NVIDIA's limit for this control group"
        } else if has_own_limit(self.handle) {
            "the option device_limits"
        } else {
            "the option limit"
        }
    }

    /// Whether the driver refuses `size` bytes because of NVIDIA's limit, and
    /// not because the device has no more: what the group's contexts and other
    /// processes have is in no book of ours.
    pub(crate) fn is_beyond_partition(&self, size: Bytes) -> bool {
        let now = self.partition.and_then(|_| partition::of(self.uuid));
        now.is_some_and(|now| {
            let hard = now.hard.unwrap_or(Bytes::MAX);
            now.used.saturating_add(size) > hard
        })
    }
}

/// The device with this handle; the first call asks the driver about it.
pub(crate) fn device(handle: CUdevice) -> &'static Device {
    find(handle).unwrap_or_else(|| make(handle, size(handle)))
}

/// The device with a handle that the program named, if the driver knows one:
/// before it was initialised it knows none.
pub(crate) fn named(handle: CUdevice) -> Option<&'static Device> {
    find(handle).or_else(|| Some(make(handle, Some(size(handle)?))))
}

/// The device with this handle, if there is or was something on it.
pub(crate) fn find(handle: CUdevice) -> Option<&'static Device> {
    let devices = DEVICES.lock();
    let device = devices.iter().find(|device| device.handle == handle);
    device.copied()
}

/// Whether a limit is in force on any device.
pub(crate) fn any_limited() -> bool {
    let devices = DEVICES.lock();
    (devices.iter()).any(|device| device.quota.limit().is_some())
}

/// How much memory a device has, if the driver says.
fn size(handle: CUdevice) -> Option<Bytes> {
    let mut total = 0_usize;
    // SAFETY: writes the answer to a local.
    let told = unsafe { real::cuDeviceTotalMem_v2(&raw mut total, handle) } == 0;
    told.then(|| Bytes::new(total as u64))
}

/// Asks the driver about a device, and keeps what it says.
fn make(handle: CUdevice, total: Option<Bytes>) -> &'static Device {
    let uuid = uuid(handle);
    let partition = partition::of(uuid);
    let quota = Quota::new(limit(handle, total, partition));
    if let Some(Partition {
        soft: Some(soft),
        used,
        ..
    }) = partition
    {
        // What others of the group and contexts have is not in our books.
        quota.set_soft(soft.saturating_sub(used));
    }
    let device = Device {
        handle,
        name: name(handle),
        uuid,
        total,
        partition,
        quota: Arc::new(quota),
        families: Families::new(),
        told: AtomicU8::new(0),
        ability: Ability::new(),
        pausing: Busy::new(),
        least_peaks: SpinMutex::new([Bytes::ZERO; 2]),
        lent: AtomicUsize::new(0),
        has_told_free: AtomicBool::new(false),
        elsewhere: SpinMutex::new(None),
    };
    let mut devices = DEVICES.lock();
    if let Some(device) = devices.iter().find(|known| known.handle == handle) {
        return device;
    }
    let device: &'static Device = Box::leak(Box::new(device));
    devices.push(device);
    drop(devices);
    // It may have been changed meanwhile, by a thread that did not see the device.
    device.obey_limit();
    tell_of_missing();
    device
}

/// Says which limits are for devices that are not there.
fn tell_of_missing() {
    let numbers = process::options(|loaded| {
        let limits = loaded.settings.config.device_limits.iter();
        limits.map(|(number, _)| *number).collect::<Vec<_>>()
    });
    let count = count();
    let is_missing = |number: &&u32| i32::try_from(**number).map_or(true, |number| number >= count);
    let missing = numbers.iter().filter(is_missing).map(u32::to_string);
    let missing = missing.collect::<Vec<_>>().join(", ");
    if count > 0 && !missing.is_empty() {
        let text = format!(
            "device_limits: no device {missing}; CUDA numbers those of this process from 0 to {}",
            count - 1
        );
        warn_once(Once::NoDevice, &text);
    }
}

/// All devices on which there is or was something.
pub(crate) fn known() -> Vec<&'static Device> {
    DEVICES.lock().clone()
}

/// What was in use of each device that the process has not, as far as the driver was
/// asked.
pub(crate) fn elsewhere() -> Vec<ElsewhereReport> {
    let of = |device: &Device| {
        let (bytes, at) = (*device.elsewhere.lock())?;
        Some(ElsewhereReport {
            device: u32::try_from(device.handle).unwrap_or(0),
            bytes,
            at,
        })
    };
    known().into_iter().filter_map(of).collect()
}

/// The limit for a device of this size: the lesser of the option and NVIDIA's.
fn limit(handle: CUdevice, total: Option<Bytes>, partition: Option<Partition>) -> Bytes {
    let hard = partition.and_then(|partition| partition.hard);
    option_limit(handle, total).min(hard.unwrap_or(Bytes::MAX))
}

/// The same by the options alone.
fn option_limit(handle: CUdevice, total: Option<Bytes>) -> Bytes {
    let number = u32::try_from(handle).ok();
    let limit = process::options(|loaded| loaded.settings.config.limit_of(number));
    limit.map_or(Bytes::MAX, |limit| limit.of(total.unwrap_or(Bytes::MAX)))
}

/// Whether the options name a limit for this device alone.
fn has_own_limit(handle: CUdevice) -> bool {
    let number = u32::try_from(handle).ok();
    process::options(|loaded| {
        let mut own = loaded.settings.config.device_limits.iter();
        own.any(|(device, _)| Some(*device) == number)
    })
}

/// Puts a changed limit in force. Returns the devices that are beyond it.
pub(crate) fn obey_limit() -> Vec<&'static Device> {
    let mut devices = known();
    devices.retain(|device| {
        device.obey_limit();
        device.quota.is_beyond_limit()
    });
    devices
}

/// The device with this number of the driver's, if memory was asked for on it.
pub(crate) fn with_uuid(uuid: u128) -> Option<&'static Device> {
    let devices = DEVICES.lock();
    (devices.iter().find(|device| device.uuid == uuid)).copied()
}

/// The limit of the options for a device that is not used so far.
pub(crate) fn limit_unused(number: u128, total: Bytes) -> Option<Bytes> {
    let is_by_device =
        process::options_unbegun(|loaded| !loaded.settings.config.device_limits.is_empty());
    let device = is_by_device.then(|| numbered(number)).flatten();
    let limit = process::options_unbegun(|loaded| loaded.settings.config.limit_of(device));
    limit.map(|limit| limit.of(total))
}

/// How many devices CUDA has; none before the process has initialised it.
pub(crate) fn count() -> c_int {
    let mut count = 0;
    // SAFETY: writes the answer to a local.
    let told = unsafe { real::cuDeviceGetCount(&raw mut count) } == 0;
    if told { count.max(0) } else { 0 }
}

/// Whether the runtime need not be asked which device is current: CUDA has a single one,
/// and the runtime has answered the question once.
#[inline(always)]
pub(crate) fn is_sole() -> bool {
    IS_SOLE.load(Ordering::Relaxed)
}

/// The runtime has said which device is current.
pub(crate) fn runtime_answered() {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    // Relaxed: how many there are stays so, and to count them twice is harmless.
    if !IS_COUNTED.load(Ordering::Relaxed) {
        IS_SOLE.store(count() == 1, Ordering::Relaxed);
        IS_COUNTED.store(true, Ordering::Relaxed);
    }
}

/// CUDA's number of a device; `None` before the process has initialised CUDA.
fn numbered(number: u128) -> Option<u32> {
    (0..count())
        .find(|&handle| uuid(handle) == number)
        .and_then(|handle| u32::try_from(handle).ok())
}

fn uuid(device: CUdevice) -> u128 {
    let mut uuid = [0; 16];
    let to = &raw mut uuid;
    // SAFETY: writes the answer to a local. Only the newer function tells parts
    // of a device apart.
    let told = unsafe {
        real::cuDeviceGetUuid_v2(to, device) == 0 || real::cuDeviceGetUuid(to, device) == 0
    };
    if told { u128::from_be_bytes(uuid) } else { 0 }
}

fn name(device: CUdevice) -> Option<String> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the buffer has room for that many bytes; its last stays zero.
    let told = unsafe { real::cuDeviceGetName(name.as_mut_ptr(), 255, device) } == 0;
    if !told {
        return None;
    }
    // SAFETY: the text ends in zero at the latest in its last byte.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// The limit for a device, if the options set one.
pub(crate) fn limit_for(handle: CUdevice) -> Option<Bytes> {
    let number = u32::try_from(handle).ok();
    let is_set = process::options(|loaded| loaded.settings.config.limit_of(number).is_some());
    if !is_set {
        return limit_on(handle);
    }
    device(handle).quota.limit()
}

/// The limit in force on a device, if there is one.
pub(crate) fn limit_on(device: CUdevice) -> Option<Bytes> {
    find(device)?.quota.limit()
}
