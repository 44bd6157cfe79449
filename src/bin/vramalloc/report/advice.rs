//! Which option would have helped, and the figure that shows it.
//!
//! Each piece of advice has a rule. A rule uses the numbers of the file alone
//! and gives no advice unless what it finds cost memory, time or a request; so
//! most runs get none. It names an option of this library with a value that the
//! option accepts.

mod space;
#[cfg(test)]
mod tests;
mod time;

use serde_json::{Value, json};

use super::super::lines::Lines;
use super::super::units::bytes;
use super::file::{Arena, File, Memory};

/// A change that would have helped.
pub(super) struct Advice {
    pub(super) option: &'static str,
    pub(super) value: String,
    pub(super) why: String,
}

/// The input of the rules.
struct Case<'a> {
    file: &'a File,
    arena: &'a Arena,
    memory: &'a Memory,
}

/// In the order in which advice is given: what failed, what was held, what took
/// time.
const RULES: &[fn(&Case<'_>) -> Option<Advice>] = &[
    space::limit,
    space::fail_at_limit,
    space::map_memory,
    space::collect_before_the_limit,
    space::naive_chunk,
    space::keep_large_blocks_whole,
    space::give_back_what_does_not_fit,
    space::round_alike,
    space::round_less,
    space::smaller_limbo,
    space::give_idle_back,
    time::larger_limbo,
    time::do_not_wait_in_free,
    time::cache,
    time::fewer_dedicated,
    time::larger_chunks,
];

impl Case<'_> {
    fn option(&self, key: &str) -> Option<&str> {
        self.file.option(key)
    }

    /// Whether the library has this option, and it was not set.
    fn is_unset(&self, key: &str) -> bool {
        self.option(key) == Some("none")
    }

    /// The limit of the device, in bytes.
    fn limit(&self) -> Option<u64> {
        self.file
            .limit_on(self.arena.device, self.arena.device_total)
    }

    fn strategy(&self) -> &str {
        self.option("strategy").unwrap_or_default()
    }

    /// Whether this time is worth advice: a twentieth of the run, and at least
    /// 0.1 s.
    fn took(&self, ns: u64) -> bool {
        ns >= 100_000_000 && ns.saturating_mul(20) >= self.file.ran_ns()
    }
}

/// Whether `part` is above 0 and at least one in `parts` of `whole`.
fn is_part(part: u64, whole: u64, parts: u64) -> bool {
    part > 0 && part.saturating_mul(parts) >= whole
}

/// A size in the form of an option, rounded up to whole MiB.
fn size(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20).max(1);
    if mib.is_multiple_of(1024) {
        format!("{}G", mib / 1024)
    } else {
        format!("{mib}M")
    }
}

fn advice(file: &File, arena: &Arena, memory: &Memory) -> Vec<Advice> {
    let case = Case {
        file,
        arena,
        memory,
    };
    RULES.iter().filter_map(|rule| rule(&case)).collect()
}

/// The advice for an arena, as JSON.
pub(super) fn as_json(file: &File, arena: &Arena, memory: &Memory) -> Vec<Value> {
    let advice = advice(file, arena, memory).into_iter();
    let all = advice.map(|Advice { option, value, why }| {
        json!({ "device": arena.device, "option": option, "value": value, "why": why })
    });
    all.collect()
}

/// Why there is no advice, or what helps if no option does.
fn without(arena: &Arena) -> String {
    let Some(oom) = arena.oom_events.last() else {
        return "Nothing: no number here asks for another option.".to_owned();
    };
    let (live, request) = (bytes(oom.after.live), bytes(oom.request));
    if oom.fragmented {
        return format!(
            "No option that these numbers point to: free memory lay between the live blocks \
             ({live}) when {request} were asked for. What lives long is best allocated before \
             what comes and goes."
        );
    }
    format!(
        "No option: the program held {live} and asked for {request} more, which were not to be \
         had. It needs less memory, or a device on which there is more."
    )
}

/// Writes the advice for an arena.
pub(super) fn tell(file: &File, arena: &Arena, memory: &Memory, out: &mut Lines) {
    let advice = advice(file, arena, memory);
    if advice.is_empty() {
        out.item(without(arena));
        return;
    }
    for Advice { option, value, why } in &advice {
        out.item(format_args!("{option}:{value}. {why}"));
    }
    out.wrapped("  (to be given as VRAMALLOC_CONF=\"option:value,...\")", 2);
}
