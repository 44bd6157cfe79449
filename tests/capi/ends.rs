//! Risk: what an end leaves behind in the books of others: a block that waits for ever for
//! a stream of a context that is gone, an address that is another's by then, a context
//! made anew that counts as the old one.

use crate::Comes;
use vramalloc_tests::stage::{Kind, Outcome, Run};

fn case(comes: Comes, what: &'static str, conf: &str) -> Run {
    let run = comes.run("api_ends", Kind::Driver).arg(what).conf(conf);
    run.env("SIM_CUDA_STRICT", "1")
}

/// A case of the program ends well, and says this.
#[track_caller]
fn says(what: &'static str, conf: &str, lines: &str) {
    let outcome: Outcome = case(Comes::First, what, conf).go();
    outcome.quiet(0).no_violations();
    assert_eq!(outcome.stdout, lines, "{}", outcome.what);
}

#[test]
fn a_block_waits_for_no_stream_of_a_context_that_is_gone() {
    let lines = "after, its own block at once: 1\nfreed before, its own block at once: 1\n";
    says("streams", "", lines);
}

#[test]
fn a_device_that_was_reset_is_reset_again() {
    says("reset", "", "its own block at once: 1\n");
}

#[test]
fn a_stream_ends_after_the_mark_that_a_free_makes_on_it() {
    let line = "while the other uses it: 0, after that: 1\n";
    says("mark", "", line);
}

#[test]
fn what_is_freed_in_the_background_is_what_was_in_the_scope() {
    let conf = "eager_delete_scope:False,dedicated_min:16M";
    let line = "the address came back: 1, its block is there: 1\n";
    says("queue", conf, line);
}

#[test]
fn a_primary_context_that_is_made_anew_is_not_the_old_one() {
    says("primary", "", "it has memory of the new context\n");
}

/// Lanes of streams that have ended change hands; they may have changed hands meanwhile.
#[test]
fn a_lane_is_taken_for_a_stream_when_the_work_of_the_last_one_is_done() {
    says("lanes", "", "all streams are gone\n");
}

/// What an error has ended in another context uses nothing any more.
#[test]
fn memory_is_had_again_beside_a_context_that_is_broken() {
    let run = case(Comes::First, "broken", "").env("SIM_CUDA_MEMORY", "128M");
    let outcome = run
        .env("SIM_CUDA_FAULT", "cuCtxSynchronize:1:700:sticky")
        .go();
    let line = "the other context: 700, as many again: 1\n";
    assert_eq!(outcome.stdout, line, "{}", outcome.what);
}

#[test]
fn captures_end_with_the_work_of_their_own_context() {
    let run = case(Comes::First, "capturing", "");
    let outcome = run
        .env("SIM_CUDA_FAULT", "cuCtxGetCacheConfig:1:700:sticky")
        .go();
    outcome.no_violations();
    let line = "broken: 700, its streams: 700 700, the other one: 700, and there: 0\n";
    assert_eq!(outcome.stdout, line, "{}", outcome.what);
    let peak = outcome.report()["devices"][0]["peak_bytes"].as_u64();
    assert!(peak < Some(256 << 20), "{}", outcome.what);
}

#[test]
fn a_stream_of_a_green_context_is_one_of_the_device() {
    says("green", "", "its own block at once: 1\n");
}

/// Where the library does not stand in front it hears of no context that is made.
#[test]
fn a_context_that_asked_for_nothing_uses_a_block() {
    says("unseen", "", "its own block at once: 1\n");
    let outcome = case(Comes::Late, "unseen", "").go();
    outcome.quiet(0).no_violations();
    let line = "its own block at once: 1\n";
    assert_eq!(outcome.stdout, line, "{}", outcome.what);
}

#[test]
fn a_limit_that_changes_while_a_device_is_seen_holds_there() {
    says("limit", "", "within the limit: 0, beyond it: 2\n");
}
