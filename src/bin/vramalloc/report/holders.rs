//! Who held memory, by call stack.
//!
//! Stacks that are shown alike count as one: what differs between them lies in
//! the places that are left out.

use std::collections::HashMap;

use super::super::lines::Lines;
use super::super::output::plain;
use super::super::stacks::{At, Stacks, Weight};
use super::super::units::{bytes, count, share};
use super::ooms::Group;

/// How many stacks are shown of each moment.
const MOST: usize = 10;

/// The share of what was held from which on a pool is spoken of, as one in so
/// many.
const POOLED: u64 = 2;

/// Describes the peak, the end and what failed, if call stacks were taken.
pub(super) fn tell(stacks: &Stacks, out: &mut Lines) {
    let Some(said) = stacks.said() else {
        return;
    };
    out.exact("");
    out.heading("who held memory, by call stack");
    if said.sample_bytes > 0 {
        out.item(format_args!(
            "Estimates: of every {} about one request was looked at.",
            bytes(said.sample_bytes)
        ));
    }
    let are_alike = stacks.held(At::Now) == stacks.held(At::Peak);
    let peak = if are_alike {
        "at the peak, and in the end"
    } else {
        "at the peak"
    };
    moment(stacks, At::Peak, peak, out);
    if !are_alike {
        moment(stacks, At::Now, "in the end", out);
    }
    moment(stacks, At::Failed, "requests that failed", out);
    remarks(stacks, out);
}

/// What each stack held at one moment.
fn moment(stacks: &Stacks, at: At, name: &str, out: &mut Lines) {
    let held = stacks.held(at);
    let (blocks, sum) = sums(held.iter());
    if blocks == 0 {
        if at != At::Failed {
            out.exact(format_args!("  {name}: nothing"));
        }
        return;
    }
    let what = match at {
        At::Failed => "request",
        _ => "block",
    };
    out.wrapped(
        format_args!(
            "  {name}: {} in {}{}",
            bytes(sum),
            count(blocks, what),
            by_python(stacks, held, sum)
        ),
        2,
    );
    let alike = alike(stacks, held);
    let line = |out: &mut Lines, sum, blocks, text: &str| {
        let name = format!("{:>10}  {:>12}  ", bytes(sum), count(blocks, what));
        out.fact(&name, text);
    };
    let (shown, rest) = alike.split_at(alike.len().min(MOST));
    for (text, blocks, sum) in shown {
        line(out, *sum, *blocks, text);
    }
    if !rest.is_empty() {
        let (blocks, sum) = rest.iter().fold((0, 0), |(blocks, sum), one| {
            add((blocks, sum), one.1, one.2)
        });
        let others = count(rest.len() as u64, "other stack");
        line(out, sum, blocks, &others);
    }
}

fn add((blocks, sum): (u64, u64), more: u64, bytes: u64) -> (u64, u64) {
    (blocks.saturating_add(more), sum.saturating_add(bytes))
}

fn sums<'a>(held: impl Iterator<Item = &'a Weight>) -> (u64, u64) {
    held.fold((0, 0), |sums, one| add(sums, one.count, one.bytes))
}

/// The stacks that are shown alike, with blocks and bytes, the largest first.
fn alike(stacks: &Stacks, held: &[Weight]) -> Vec<(String, u64, u64)> {
    let mut numbers = HashMap::new();
    let mut alike: Vec<(String, u64, u64)> = Vec::new();
    for one in held {
        let text = stacks.in_words(one.stack);
        let number = *numbers.entry(text).or_insert_with_key(|text| {
            alike.push((text.clone(), 0, 0));
            alike.len() - 1
        });
        if let Some((_, blocks, sum)) = alike.get_mut(number) {
            (*blocks, *sum) = add((*blocks, *sum), one.count, one.bytes);
        }
    }
    alike.sort_by(|one, other| (other.2, &one.0).cmp(&(one.2, &other.0)));
    alike
}

/// Which part threads with Python frames asked for, if there are any.
fn by_python(stacks: &Stacks, held: &[Weight], sum: u64) -> String {
    let is_python = |one: &&Weight| {
        one.stack
            .is_some_and(|stack| stacks.python(stack).is_some())
    };
    let (blocks, python) = sums(held.iter().filter(is_python));
    if blocks == 0 {
        return String::new();
    }
    let others = sum.saturating_sub(python);
    if others == 0 {
        return ", asked for by Python code".to_owned();
    }
    format!(
        "; {} ({}) asked for by Python code, {} by threads without Python",
        bytes(python),
        share(python, sum),
        bytes(others),
    )
}

fn remarks(stacks: &Stacks, out: &mut Lines) {
    let held = [At::Peak, At::Now].map(|at| stacks.held(at));
    let is_pooled = held.iter().any(|held| {
        let of_pool = |one: &&Weight| one.stack.is_some_and(|stack| stacks.is_of_a_pool(stack));
        let (_, pooled) = sums(held.iter().filter(of_pool));
        let (_, sum) = sums(held.iter());
        pooled > 0 && pooled.saturating_mul(POOLED) >= sum
    });
    if is_pooled {
        out.item(
            "PyTorch's own cache is on: these are the places that made its pool grow, not those \
             that hold it.",
        );
    }
    let Some(said) = stacks.said() else { return };
    if let Some(reason) = &said.python.reason {
        let version = said.python.version.as_deref();
        let version = version.map_or_else(String::new, |version| format!(" {version}"));
        out.item(format_args!("No lines of Python{version}: {reason}"));
    }
    if said.cut > 0 {
        out.item(format_args!(
            "{} of {} ended early, at code that says nothing of its callers.",
            said.cut,
            count(said.taken, "stack")
        ));
    }
    if said.untaken > 0 {
        out.item(format_args!(
            "{} without a call stack, made on a stack of the program's own, such as a \
             coroutine's.",
            count(said.untaken, "request")
        ));
    }
    if said.dropped > 0 {
        out.item(format_args!(
            "{} without a call stack, because there were too many different ones.",
            count(said.dropped, "request")
        ));
    }
}

/// The Python line whose blocks held most, and how much, if there is one.
pub(super) fn most_by_python(stacks: &Stacks, groups: &[Group]) -> Option<(String, u64)> {
    let mut sums: HashMap<String, u64> = HashMap::new();
    for group in groups {
        if let Some(place) = stacks.python(group.key) {
            let sum = sums.entry(place.text()).or_default();
            *sum = sum.saturating_add(group.bytes);
        }
    }
    let largest =
        |one: &(String, u64), other: &(String, u64)| (one.1, &other.0).cmp(&(other.1, &one.0));
    sums.into_iter().max_by(largest)
}

/// What is to be said about files without names, below all reports.
pub(super) fn notes(notes: &[String], out: &mut Lines) {
    if !notes.is_empty() {
        out.exact("");
    }
    notes.iter().for_each(|note| out.item(plain(note)));
}
