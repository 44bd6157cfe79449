//! Risk: a call ends the program, or misleads who looks at it, by what its thread
//! has around it: a small stack, or a walk of the stack in the middle of the call.

use vramalloc_tests::stage::{Kind, Run};

/// Runtimes of many threads give each a small stack.
#[test]
fn a_thread_with_a_small_stack_is_served() {
    for kind in Kind::each() {
        for way in ["first", "later", "full", "exit"] {
            let run = |run: Run| run.args(["64", way]).conf("oom_report:off").go();
            let bare = run(Run::bare("small_stack", kind));
            bare.quiet(0);
            let outcome = run(Run::preloaded("small_stack", kind));
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
        }
    }
}

/// A profiler's signal comes at any instruction, also at the first of a door.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_stack_that_is_walked_in_a_door_is_whole() {
    for kind in [Kind::Dynamic, Kind::Driver, Kind::Resolver] {
        let outcome = Run::preloaded("walked", kind).go();
        outcome.quiet(0);
        assert_eq!(
            outcome.stdout, "walks: some, cut short: 0\n",
            "{}",
            outcome.what
        );
    }
}
