//! The structure of `PyTorch`'s memory snapshots.
//!
//! Owns the names and the order of its keys, which are `PyTorch`'s. There is
//! one stream, since it is not known which stream uses a block, and one pool
//! id.

use vramalloc_core::config::{Host, find, load, variable};

use super::super::stacks::Stacks;
use super::read::{Action, Block, Event, Kind, Segment, State, Statistics};
use super::replay::Replayed;

/// Requests up to this size are `PyTorch`'s small ones.
const SMALL: u64 = 1 << 20;

/// The option for the steps between two powers of two.
const DIVISIONS: &str = "roundup_power2_divisions";

/// The writer of a structure. A dictionary is a sequence of keys, each followed
/// by its value.
pub(super) trait Sink {
    fn dictionary(&mut self, fill: impl FnOnce(&mut Self));
    fn key(&mut self, key: &str);
    fn list<T>(&mut self, entries: impl Iterator<Item = T>, write: impl FnMut(&mut Self, T));
    fn text(&mut self, text: &str);
    fn number(&mut self, number: i64);
    /// `number` is finite.
    fn real(&mut self, number: f64);
    fn flag(&mut self, flag: bool);
    fn pair(&mut self, first: i64, second: i64);

    /// A key with a number that is exact in floating point.
    fn size(&mut self, key: &str, size: u64) {
        self.key(key);
        self.number(i64::try_from(size).unwrap_or(i64::MAX));
    }

    /// A key with a text.
    fn word(&mut self, key: &str, word: &str) {
        self.key(key);
        self.text(word);
    }

    /// A key with a boolean.
    fn switch(&mut self, key: &str, on: bool) {
        self.key(key);
        self.flag(on);
    }
}

/// Writes a snapshot.
pub(super) fn write(
    statistics: &Statistics,
    replayed: &Replayed,
    stacks: &Stacks,
    out: &mut impl Sink,
) {
    out.dictionary(|out| {
        let devices = replayed.devices.iter().enumerate();
        let segments =
            devices.flat_map(|(number, device)| device.segments.iter().map(move |s| (number, s)));
        out.key("segments");
        out.list(segments, |out, (number, one)| {
            segment(number, one, stacks, out);
        });
        out.key("device_traces");
        out.list(replayed.devices.iter(), |out, device| {
            out.list(device.events.iter(), |out, (time, one)| {
                event(*time, one, stacks, out);
            });
        });
        out.key("allocator_settings");
        settings(statistics, out);
        out.key("external_annotations");
        out.list(std::iter::empty::<()>(), |_, ()| {});
    });
}

fn segment(device: usize, segment: &Segment, stacks: &Stacks, out: &mut impl Sink) {
    let sum = |state: &dyn Fn(State) -> bool, size: &dyn Fn(&Block) -> u64| -> u64 {
        let blocks = segment.blocks.iter().filter(|block| state(block.state));
        blocks.map(size).sum()
    };
    let active = |state| state != State::Inactive;
    let size = |block: &Block| block.size.get();
    // For a direct allocation the request decides which pool it would be in.
    let small = match segment.kind {
        Kind::Small => true,
        Kind::Large => false,
        Kind::Direct => segment.size.get() <= SMALL,
    };
    let only = match segment.blocks.as_slice() {
        [only] if segment.kind == Kind::Direct => only.stack,
        _ => None,
    };
    out.dictionary(|out| {
        out.size("device", device as u64);
        out.size("address", segment.address.get());
        out.size("total_size", segment.size.get());
        out.size(
            "allocated_size",
            sum(&|state| state == State::ActiveAllocated, &size),
        );
        out.size("active_size", sum(&active, &size));
        out.size(
            "requested_size",
            sum(&active, &|block| block.requested.get()),
        );
        out.size("stream", 0);
        out.word("segment_type", if small { "small" } else { "large" });
        out.key("segment_pool_id");
        out.pair(0, 0);
        out.switch("is_expandable", segment.mapped);
        out.key("frames");
        frames(only, stacks, out);
        out.key("blocks");
        out.list(segment.blocks.iter(), |out, one| block(one, stacks, out));
    });
}

fn block(block: &Block, stacks: &Stacks, out: &mut impl Sink) {
    out.dictionary(|out| {
        out.size("address", block.address.get());
        out.size("size", block.size.get());
        out.size("requested_size", block.requested.get());
        out.word(
            "state",
            match block.state {
                State::ActiveAllocated => "active_allocated",
                State::ActivePendingFree => "active_pending_free",
                State::Inactive => "inactive",
            },
        );
        out.key("frames");
        frames(block.stack, stacks, out);
    });
}

fn event(time_us: u64, event: &Event, stacks: &Stacks, out: &mut impl Sink) {
    let word = match event.action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::Oom => "oom",
    };
    out.dictionary(|out| {
        out.word("action", word);
        match event.action {
            Action::Oom => out.size("device_free", event.device_free.get()),
            _ => out.size("addr", event.address.get()),
        }
        out.size("size", event.size.get());
        out.size("stream", 0);
        out.size("time_us", time_us);
        if event.stack.is_some_and(|stack| stacks.has(stack.into())) {
            out.key("frames");
            frames(event.stack, stacks, out);
        }
        out.word("compile_context", "N/A");
        out.word("user_metadata", "");
        out.key("pool_id");
        out.pair(0, 0);
    });
}

fn frames(stack: Option<u32>, stacks: &Stacks, out: &mut impl Sink) {
    let places = stack.map(|stack| stacks.places(stack.into()));
    out.list(places.into_iter().flatten(), |out, place| {
        out.dictionary(|out| {
            out.word("filename", &place.file);
            out.size("line", place.line.into());
            out.word("name", &place.name());
        });
    });
}

/// The divisions of each size, as the library itself reads the option; if the
/// file has no value that it reads, nothing is rounded.
fn divisions(value: Option<&String>) -> [u32; 16] {
    let given = find(DIVISIONS).zip(value);
    let given = given.map(|(row, value)| (variable(row).into(), value.into()));
    let loaded = load(given, Host::default());
    loaded.settings.config.rounding.divisions
}

/// The settings that `PyTorch` names, with the values of our options.
fn settings(statistics: &Statistics, out: &mut impl Sink) {
    let option = |key: &str| statistics.options.get(key).map(|option| &option.value);
    let number = |key: &str| option(key).and_then(|value| value.parse::<f64>().ok());
    let is = |key: &str, value: &str| option(key).is_some_and(|given| given == value);
    let given: Vec<String> = (statistics.options.iter())
        .filter(|(_, option)| option.origin != "default")
        .map(|(key, option)| format!("{key}:{}", option.value))
        .collect();
    let megabytes = option("max_split_size_mb").and_then(|value| value.parse::<i64>().ok());
    let max_split = megabytes.and_then(|n| n.checked_mul(1 << 20));
    let threshold = number("garbage_collection_threshold").filter(|n| n.is_finite());
    out.dictionary(|out| {
        out.word("PYTORCH_CUDA_ALLOC_CONF", &given.join(","));
        out.key("max_split_size");
        out.number(max_split.filter(|&size| size > 0).unwrap_or(-1));
        out.key("garbage_collection_threshold");
        out.real(threshold.unwrap_or(0.0));
        out.switch("expandable_segments", is("strategy", "mapped"));
        out.size("pinned_num_register_threads", 1);
        out.switch(
            "release_lock_on_cudamalloc",
            !is("release_lock_on_cudamalloc", "false"),
        );
        out.switch(
            "pinned_use_cuda_host_register",
            is("pinned_use_cuda_host_register", "true"),
        );
        out.switch("graph_capture_record_stream_reuse", false);
        out.key(DIVISIONS);
        out.dictionary(|out| {
            // Each entry under the MiB from which it applies.
            for (slot, divisions) in divisions(option(DIVISIONS)).into_iter().enumerate() {
                out.size(&(1u64 << slot).to_string(), divisions.into());
            }
        });
    });
}
