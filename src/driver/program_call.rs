//! The program's call that a thread is in: what it did with the driver, and how long it
//! has waited.
//!
//! Owns one word for each thread. Invariant: what is part of another call, also on
//! another arena, counts there. Cost: a look at the thread's word.

use std::cell::Cell;

/// How long a call of the program waited for the device.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waited {
    pub(crate) ns: u64,
    /// Of that, because more was in limbo than its budget allows.
    pub(crate) budget_ns: u64,
    pub(crate) for_budget: bool,
}

/// What a call of the program has done with the driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// Nothing but making fences and asking for them: what is reserved is as it was.
    Fenced,
    /// It took memory or gave some back, or its caller asks how much there is.
    Moved,
}

/// The program's call that this thread is in.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Call {
    None,
    /// It has waited for nothing so far.
    Running(CallEnd),
    Waited(CallEnd, Waited),
}

thread_local! {
    static CALL: Cell<Call> = const { Cell::new(Call::None) };
}

/// Ends the call also where something unwinds.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        CALL.set(Call::None);
    }
}

/// Runs a call of the program and says that it has `ended`, what it did, and how
/// long it waited, if it did. What is part of another call, also on another arena,
/// counts there and is no end.
#[inline]
pub(crate) fn call<R>(work: impl FnOnce() -> R, ended: impl FnOnce(CallEnd, Option<Waited>)) -> R {
    if CALL.get() != Call::None {
        return work();
    }
    let ending = Ending;
    CALL.set(Call::Running(CallEnd::Fenced));
    let result = work();
    let (end, waited) = match CALL.get() {
        Call::Waited(end, waited) => (end, Some(waited)),
        Call::Running(end) => (end, None),
        Call::None => (CallEnd::Moved, None),
    };
    drop(ending);
    ended(end, waited);
    result
}

/// The call takes memory from the driver or gives some back, or its caller asks how
/// much there is.
pub(crate) fn call_moves() {
    match CALL.get() {
        Call::None => {}
        Call::Running(_) => CALL.set(Call::Running(CallEnd::Moved)),
        Call::Waited(_, waited) => CALL.set(Call::Waited(CallEnd::Moved, waited)),
    }
}

/// The call has waited so long.
pub(super) fn add_to_call(ns: u64) {
    let (end, before) = match CALL.get() {
        Call::None => return,
        Call::Running(end) => (end, Waited::default()),
        Call::Waited(end, waited) => (end, waited),
    };
    let waited = Waited {
        ns: before.ns.saturating_add(ns),
        ..before
    };
    CALL.set(Call::Waited(end, waited));
}

/// What `wait` waits, it does for the limbo budget.
pub(crate) fn for_budget<R>(wait: impl FnOnce() -> R) -> R {
    let ns = || match CALL.get() {
        Call::Waited(_, waited) => waited.ns,
        Call::None | Call::Running(_) => 0,
    };
    let before = ns();
    let result = wait();
    if let Call::Waited(end, waited) = CALL.get() {
        let more = waited.ns.saturating_sub(before);
        let waited = Waited {
            budget_ns: waited.budget_ns.saturating_add(more),
            for_budget: true,
            ..waited
        };
        CALL.set(Call::Waited(end, waited));
    }
    result
}
