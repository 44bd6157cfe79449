//! Risk: a block is said to be another's, or a buffer of the program overflows.

use vramalloc_tests::stage::{Kind, Run};

#[test]
fn a_block_is_told_with_the_calls_that_asked_for_it() {
    for kind in Kind::each() {
        for (conf, what) in [("stacks:all", "stacks"), ("stacks:off", "none")] {
            let run = Run::preloaded("api_whose", kind).conf(conf);
            let outcome = run.arg(what).go();
            outcome.quiet(0).no_violations();
        }
    }
}
