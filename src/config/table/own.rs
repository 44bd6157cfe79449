//! Options of our own.

use super::super::names::{
    COUNTED, FREE_SYNCS, IMPORTS, LIMITED, ON_OFF, OOM_REPORTS, STACKS, STRATEGIES, WHEN_FULL,
    name_of, named,
};
use super::super::scheduler;
use super::super::value::{
    decay, folder, limit, millis, optional_share, optional_size, pattern, record_size, seconds,
    show_decay, show_optional_share, show_optional_size, show_pattern, show_thread_cache, size,
    size_meant, thread_cache, up_to,
};
use super::{BLANK, OptionRow, POOLED, RECORDED, Role, SHARE, set};
use crate::config::{DeviceShare, StackChoice, StatsTarget};

/// The most events of its history that an arena can be told to keep, a
/// gibibyte or so of them.
const MOST_EVENTS: u64 = 1 << 24;

pub(super) const ROWS: &[OptionRow] = &[
    OptionRow {
        key: "strategy",
        role: Role::Own(|s| name_of(STRATEGIES, &s.config.strategy)),
        kind: "choice",
        accepted: "naive_best_fit, auto_growth, mapped, passthrough",
        help: "When memory is taken from the driver and how much: a large chunk in advance; \
               what is needed when it is needed; the same in units that are mapped to wherever \
               memory is needed, so that little is lost in pieces; or every call by itself. \
               Where the device has no virtual memory, and with free_sync immediate, mapped is \
               auto_growth.",
        read: |s, text| set(&mut s.config.strategy, named(STRATEGIES, text)),
        ..BLANK
    },
    OptionRow {
        key: "limit",
        schedulers: scheduler::LIMITS,
        role: Role::Own(|s| show_optional_share(s.config.limit)),
        kind: "size or share",
        accepted: SHARE,
        help: "The most that this process may have of each device, whichever function of CUDA \
               gives it (not: what contexts, modules and NVIDIA's libraries take for \
               themselves); a request beyond it is out of memory, and CUDA and NVML tell of a \
               device that small.",
        meant: size_meant,
        by_default: "no limit is in force",
        idle: |s| {
            let is_all = s.config.limit == Some(DeviceShare::Fraction(1.0));
            is_all.then_some("1 is the whole device; a gibibyte is 1G")
        },
        read: |s, text| set(&mut s.config.limit, limit(text)),
        ..BLANK
    },
    OptionRow {
        key: "device_limits",
        schedulers: scheduler::DEVICE_LIMITS,
        role: Role::Own(|s| scheduler::show_device_limits(&s.config.device_limits)),
        kind: "list",
        accepted: "a list [device:limit,...] of CUDA's numbers, each with a size or a share, or \
                   none",
        help: "Limits of single devices, in place of limit.",
        read: |s, text| {
            let limits = scheduler::device_limits(text);
            set(&mut s.config.device_limits, limits)
        },
        ..BLANK
    },
    OptionRow {
        key: "managed",
        role: Role::Own(|s| name_of(COUNTED, &s.families.managed)),
        kind: "choice",
        accepted: "counted, uncounted",
        help: "Whether managed memory counts towards the limit, in whole on the device that is \
               current when it is asked for, although CUDA may keep it on the host.",
        read: |s, text| set(&mut s.families.managed, named(COUNTED, text)),
        ..BLANK
    },
    OptionRow {
        key: "nvml",
        role: Role::Own(|s| name_of(LIMITED, &s.families.nvml)),
        kind: "choice",
        accepted: "limited, off",
        help: "Whether NVML tells this process of a device as small as the limit says, where \
               there is one.",
        read: |s, text| set(&mut s.families.nvml, named(LIMITED, text)),
        ..BLANK
    },
    OptionRow {
        key: "room",
        role: Role::Own(|s| name_of(ON_OFF, &s.families.room)),
        kind: "choice",
        accepted: "on, off",
        help: "Whether idle memory goes back to the driver where a call of CUDA's, other than \
               a kernel's launch, finds none; the call is then made once more.",
        read: |s, text| set(&mut s.families.room, named(ON_OFF, text)),
        ..BLANK
    },
    OptionRow {
        key: "room_wait_ms",
        role: Role::Own(|s| s.families.room_wait.as_millis().to_string()),
        kind: "milliseconds",
        accepted: "a whole number from 0 to 86400000",
        help: "How long such a call waits for the device, whose work may still use the idle \
               memory, before it fails.",
        read: |s, text| set(&mut s.families.room_wait, millis(text)),
        ..BLANK
    },
    OptionRow {
        key: "free_sync",
        role: Role::Own(|s| name_of(FREE_SYNCS, &s.config.free_sync)),
        kind: "choice",
        accepted: "deferred, strict, immediate",
        help: "When freed memory may be handed out again: when the device is done with it, \
               without or with waiting inside the free, or at once. The last is unsafe where \
               more than one stream is used.",
        read: |s, text| set(&mut s.config.free_sync, named(FREE_SYNCS, text)),
        ..BLANK
    },
    OptionRow {
        key: "thread_cache",
        role: Role::Own(|s| show_thread_cache(s.config.thread_cache)),
        kind: "size",
        accepted: "auto, a size such as 4M, or 0",
        help: "The most that a thread keeps of the blocks that it freed, for its own next requests, \
               which then take no lock; auto: up to 32M, less where the chunks for small requests \
               are few, and under auto_growth 512K where more than a quarter of the device is \
               taken; below 4K: nothing. A block is kept if it has at most 64 KiB and at most an \
               eighth of this size. What is kept comes back before memory is short.",
        idle: POOLED,
        read: |s, text| set(&mut s.config.thread_cache, thread_cache(text)),
        ..BLANK
    },
    OptionRow {
        key: "dedicated_min",
        role: Role::Own(|s| show_optional_size(s.config.dedicated_min)),
        kind: "size",
        accepted: "a size such as 16G or 512MiB, or none",
        help: "Requests of at least this size get a driver allocation of their own.",
        idle: POOLED,
        read: |s, text| set(&mut s.config.dedicated_min, optional_size(text)),
        ..BLANK
    },
    OptionRow {
        key: "limbo_budget",
        role: Role::Own(|s| show_optional_share(s.config.limbo_budget)),
        kind: "size or share",
        accepted: SHARE,
        help: "The most freed memory that may wait for the device before an allocation waits \
               rather than takes more from the driver, and a free waits while a stream captures; \
               none: chosen from what is reserved.",
        read: |s, text| set(&mut s.config.limbo_budget, optional_share(text)),
        ..BLANK
    },
    OptionRow {
        key: "decay_ms",
        role: Role::Own(|s| show_decay(s.config.decay)),
        kind: "milliseconds",
        accepted: "a whole number from 0 to 86400000, or -1",
        help: "How long an idle chunk is kept; an older one goes back to the driver when an \
               allocation misses, a batch of freed memory is closed, or the program asks what is \
               free; -1: it is kept for good.",
        idle: POOLED,
        read: |s, text| set(&mut s.config.decay, decay(text)),
        ..BLANK
    },
    OptionRow {
        key: "stats",
        role: Role::Own(|s| s.stats.to_string()),
        kind: "file pattern",
        accepted: "a file name in which %e is the program, %p the process id, %h the host, %r \
                   the rank and %% a percent sign (a file whose whole name is 1, on or - is ./1); \
                   stderr; or off",
        help: "Where the statistics go at exit.",
        read: |s, text| set(&mut s.stats, StatsTarget::read(text)),
        ..BLANK
    },
    OptionRow {
        key: "stats_interval_s",
        role: Role::Own(|s| s.stats_interval.as_secs().to_string()),
        kind: "seconds",
        accepted: "a whole number from 0 to 86400",
        help: "How often the statistics are also written before the end, by a thread that \
               sleeps meanwhile, so that they are there after a kill or an _exit: first after a \
               second, then after twice as long each time, up to this; 0: never. Only where they \
               go to a file. vramalloc run sets 10 where nothing else is given.",
        idle: |s| {
            let is_file = matches!(s.stats, StatsTarget::File(_));
            (!is_file).then_some("the statistics go to no file")
        },
        read: |s, text| set(&mut s.stats_interval, seconds(text)),
        ..BLANK
    },
    OptionRow {
        key: "owners",
        role: Role::Own(|s| name_of(ON_OFF, &s.owners)),
        kind: "choice",
        accepted: "on, off",
        help: "Whether the statistics tell which library of the program, or which package of \
               its Python code, has how much, by the calls that ask for memory; x86-64 only.",
        read: |s, text| set(&mut s.owners, named(ON_OFF, text)),
        ..BLANK
    },
    OptionRow {
        key: "oom_report",
        role: Role::Own(|s| name_of(OOM_REPORTS, &s.oom_report)),
        kind: "choice",
        accepted: "off, summary, full",
        help: "What is told when a request fails for want of memory: nothing; a line on \
               standard error and an entry in the statistics; or the same with the call stacks \
               of the live blocks, which are then taken at every allocation.",
        read: |s, text| set(&mut s.oom_report, named(OOM_REPORTS, text)),
        ..BLANK
    },
    OptionRow {
        key: "stacks",
        role: Role::Own(|s| name_of(STACKS, &s.stacks)),
        kind: "choice",
        accepted: "off, sampled, all",
        help: "Whether the call stacks of requests are taken, of Python too, and the statistics \
               say which of them hold how much, now, at the peak and of what failed: of none, of \
               a sample whose sums are estimates, or of each.",
        read: |s, text| set(&mut s.stacks, named(STACKS, text)),
        ..BLANK
    },
    OptionRow {
        key: "stack_distance",
        role: Role::Own(|s| s.stack_distance.to_string()),
        kind: "size",
        accepted: "a size such as 512K",
        help: "With stacks:sampled, how many bytes of requests lie between two of the sample, on \
               the average: a request of that size is in it two times in three.",
        idle: |s| {
            let samples = s.stacks == StackChoice::Sampled;
            (!samples).then_some("only stacks:sampled takes a sample")
        },
        read: |s, text| set(&mut s.stack_distance, size(text)),
        ..BLANK
    },
    OptionRow {
        key: "trace",
        role: Role::Own(|s| s.trace_events.to_string()),
        kind: "number of events",
        accepted: "a whole number from 0 to 16777216",
        help: "How many events of each device's history are kept, the newest, for a snapshot; \
               0: none.",
        read: |s, text| {
            let events = up_to(MOST_EVENTS, text).and_then(|n| usize::try_from(n).ok());
            set(&mut s.trace_events, events)
        },
        ..BLANK
    },
    OptionRow {
        key: "record",
        role: Role::Own(|s| show_pattern(s.record.file.as_deref())),
        kind: "file pattern",
        accepted: "a file name in which %e is the program, %p the process id, %h the host, %r \
                   the rank and %% a percent sign (a file whose whole name is 1, on or - is ./1); \
                   or off",
        help: "Where every event of all memory that is served here is recorded, some five bytes \
               each. The file is whole up to the last event however the process ends; one that \
               is there already stays, and the new one gets a name beside it. Threads keep \
               nothing meanwhile.",
        read: |s, text| set(&mut s.record.file, pattern(text)),
        ..BLANK
    },
    OptionRow {
        key: "record_size",
        role: Role::Own(|s| show_optional_size(Some(s.record.most))),
        kind: "size",
        accepted: "a size from 1M to 1T, such as 4G",
        help: "The most bytes of the recording.",
        idle: RECORDED,
        read: |s, text| set(&mut s.record.most, record_size(text)),
        ..BLANK
    },
    OptionRow {
        key: "record_full",
        role: Role::Own(|s| name_of(WHEN_FULL, &s.record.ring)),
        kind: "choice",
        accepted: "stop, ring",
        help: "What happens when the recording is that large: nothing more is recorded, or the \
               oldest events make room for new ones.",
        idle: RECORDED,
        read: |s, text| set(&mut s.record.ring, named(WHEN_FULL, text)),
        ..BLANK
    },
    OptionRow {
        key: "ipc_dir",
        role: Role::Own(|s| s.ipc_dir.display().to_string()),
        kind: "folder",
        accepted: "the path of a folder, from the root",
        help: "Where what CUDA's memory handles cannot carry is left for the other process, and \
               the page of the option control, in a folder that only the user can enter. All \
               processes that share memory need the same.",
        read: |s, text| set(&mut s.ipc_dir, folder(text)),
        ..BLANK
    },
    OptionRow {
        key: "control",
        role: Role::Own(|s| name_of(ON_OFF, &s.control)),
        kind: "choice",
        accepted: "on, off",
        help: "Whether a process that uses CUDA memory has a small file in the folder of \
               ipc_dir, by which the user's vramalloc status, dump, trim and limit reach it \
               while it runs. One that has sandboxed itself (seccomp) gets none.",
        read: |s, text| set(&mut s.control, named(ON_OFF, text)),
        ..BLANK
    },
    OptionRow {
        key: "import",
        role: Role::Own(|s| name_of(IMPORTS, &s.import)),
        kind: "choice",
        accepted: "auto, always, never",
        help: "Whether the variables of frameworks and schedulers are read; auto: not those \
               that the program itself obeys.",
        read: |s, text| set(&mut s.import, named(IMPORTS, text)),
        ..BLANK
    },
];
