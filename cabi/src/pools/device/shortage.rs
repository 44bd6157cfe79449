//! When memory runs out: what else there is on the device, and the line that is
//! printed.

use std::sync::OnceLock;

use vramalloc_core::Bytes;
use vramalloc_core::config::{OomReport, StrategyKind};
use vramalloc_core::stats::{Family, OomEvent};

use super::{DeviceArena, pool_with};
use crate::driver::devices::Device;
use crate::process::options;
use crate::process::say::{Once, first, warn};
use crate::stacks;
use crate::types::CUdevice;

/// What the program has on a device past our pools.
#[derive(Copy, Clone)]
pub(crate) struct Elsewhere {
    /// Gives back what CUDA keeps there and the program does not use; whether
    /// anything went.
    pub(crate) give_back: fn(CUdevice) -> bool,
    /// How many bytes the program holds, at least.
    pub(crate) held: fn(CUdevice) -> Bytes,
    /// Counts what changed there without a call that we follow.
    pub(crate) look: fn(CUdevice),
}

static ELSEWHERE: OnceLock<Elsewhere> = OnceLock::new();

/// Registers what there is past our pools.
pub(crate) fn join(elsewhere: Elsewhere) {
    let _again = ELSEWHERE.set(elsewhere);
}

/// Makes CUDA give back what it keeps on a device past our pools; whether
/// anything went.
pub(crate) fn give_back_elsewhere(device: CUdevice) -> bool {
    (ELSEWHERE.get()).is_some_and(|elsewhere| (elsewhere.give_back)(device))
}

/// How many bytes of a device the program holds past our pools, at least.
pub(super) fn held_elsewhere(device: CUdevice) -> Bytes {
    (ELSEWHERE.get()).map_or(Bytes::ZERO, |elsewhere| (elsewhere.held)(device))
}

/// Counts what the program has there now, past our pools.
pub(super) fn look_elsewhere(device: CUdevice) {
    if let Some(elsewhere) = ELSEWHERE.get() {
        (elsewhere.look)(device);
    }
}

/// Prints once that a call of CUDA's was refused because of the limit.
pub(crate) fn of_family(family: Family, size: Bytes, device: &Device) {
    let wanted = options(|loaded| loaded.settings.oom_report != OomReport::Off);
    let limit = device.quota.limit().unwrap_or(Bytes::MAX);
    if wanted && first(Once::OutOfMemory) {
        let also = match family {
            Family::Managed => " (managed:uncounted leaves managed memory out of the limit)",
            _ => "",
        };
        warn(&format!(
            "out of memory: {size} needed for {}, and {} ({limit}) leaves less{also}; said once, \
             the statistics tell the rest",
            family.name(),
            device.limits_name(),
        ));
    }
}

/// Who refused a request of an arena.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Refuser {
    /// A limit: the option's or NVIDIA's, whichever is less.
    Limit,
    /// The memory is paused.
    Pause,
    Driver,
}

/// Who refused, in words.
fn why(arena: &DeviceArena, request: Bytes, refuser: Refuser) -> String {
    let device = pool_with(arena.id()).map(|pool| pool.device);
    let of_nvidia = |device: &&Device| device.is_beyond_partition(request);
    match (refuser, device) {
        (Refuser::Limit, Some(device)) => format!("{} was reached", device.limits_name()),
        (Refuser::Pause, _) => "the memory is paused".to_owned(),
        (Refuser::Limit, None) => "the option limit was reached".to_owned(),
        (Refuser::Driver, device) if device.as_ref().is_some_and(of_nvidia) => {
            "NVIDIA's limit for this control group leaves less".to_owned()
        }
        (Refuser::Driver, _) => "the device has no more".to_owned(),
    }
}

/// Prints once that memory ran out, why, and how the arena stood, unless
/// `oom_report` is off.
pub(crate) fn out_of_memory(arena: &DeviceArena, request: Bytes, refuser: Refuser) {
    let wanted = options(|loaded| loaded.settings.oom_report != OomReport::Off);
    if !wanted || !first(Once::OutOfMemory) {
        return;
    }
    let why = why(arena, request, refuser);
    let ooms = arena.ooms();
    let event = ooms.events().rev().find(|event| event.request == request);
    let stood = event.map_or_else(String::new, stood);
    let holder = stacks::largest_of_python().map_or_else(String::new, |(place, bytes)| {
        format!("; {place} holds most, {bytes}")
    });
    warn(&format!(
        "out of memory: {request} asked for and {why}{stood}{holder}; said once, the statistics \
         tell the rest"
    ));
}

/// What memory there was, which could not serve the request.
fn stood(event: &OomEvent) -> String {
    let before = &event.before;
    let (free, enough) = (event.free_in_sum(), event.is_fragmented());
    let strategy = options(|loaded| loaded.settings.config.strategy);
    let stacked = enough && strategy == StrategyKind::NaiveBestFit;
    format!(
        "; {} reserved when it was asked for, of it {} live, {} cached (largest block {}), {} \
         still in use by the GPU; {free} free in the end, {}{}",
        before.reserved,
        before.live,
        before.cached,
        before.largest_cached,
        before.limbo,
        if enough {
            "enough but not in one piece"
        } else {
            "too little"
        },
        if stacked {
            " (naive_best_fit holds most of the device in one chunk, and a second pool of that \
             kind, the program's own, does not fit into it: set strategy:auto_growth)"
        } else {
            ""
        },
    )
}
