//! Risk: memory that is mapped behaves in another way than plain memory, is used where
//! it cannot be, or stays when its context has ended.

use vramalloc_tests::stage::{Kind, Outcome, Run};

const MAPPED: &str = "strategy:mapped";

fn run(kind: Kind, how: &str) -> Run {
    Run::preloaded("mapped", kind).arg(how).conf(MAPPED)
}

/// The same as without the library.
#[track_caller]
fn is_as_bare(kind: Kind, how: &str, outcome: &Outcome) {
    let bare = Run::bare("mapped", kind).arg(how).go();
    assert_eq!(bare.quiet(0).stdout, outcome.stdout, "{}", outcome.what);
}

/// What the driver has of mapped memory in the end: units, mappings, reservations.
fn mapped(outcome: &Outcome) -> [u64; 3] {
    let mapped = &outcome.report()["mapped"];
    ["units", "mappings", "reservations"].map(|what| mapped[what].as_u64().unwrap())
}

#[test]
fn blocks_are_mapped_and_hold_what_is_written() {
    for kind in Kind::each() {
        for how in ["fill", "ended"] {
            let outcome = run(kind, how).go();
            outcome.quiet(0).no_violations();
            is_as_bare(kind, how, &outcome);
            let [units, mappings, _] = mapped(&outcome);
            assert_eq!(units > 0, how == "fill", "{}", outcome.what);
            assert_eq!(mappings, units, "{}", outcome.what);
        }
    }
}

/// Units are larger on a large device, and lie at multiples of their size.
#[test]
fn blocks_are_mapped_on_a_device_with_large_units() {
    for (kind, memory) in Kind::ALL.into_iter().zip(["64G", "100G", "200G", "400G"]) {
        let outcome = run(kind, "fill").env("SIM_CUDA_MEMORY", memory).go();
        outcome.quiet(0).no_violations();
        is_as_bare(kind, "fill", &outcome);
    }
}

/// What cannot be unmapped during a capture is unmapped after it.
#[test]
fn memory_of_a_context_that_ends_during_a_capture_goes_back() {
    for kind in Kind::each() {
        let outcome = run(kind, "beside").go();
        outcome.quiet(0).no_violations();
        is_as_bare(kind, "beside", &outcome);
        let used = outcome.report()["devices"][1]["used_bytes"].as_u64();
        assert_eq!(used, Some(0), "{}", outcome.what);
        let alone = run(kind, "fill").go();
        assert_eq!(mapped(&outcome), mapped(&alone), "{}", outcome.what);
    }
}

#[test]
fn other_devices_reach_mapped_memory_once_they_are_let_in() {
    for kind in Kind::each() {
        let outcome = run(kind, "peers").go();
        outcome.quiet(0).no_violations();
        is_as_bare(kind, "peers", &outcome);
    }
}

/// Where the driver refuses that, it is asked again, unit by unit. Where it refuses again,
/// the program hears of it and nothing is let in, then and later.
#[test]
fn a_refusal_to_let_another_device_in_is_told() {
    for kind in Kind::each() {
        // Those of the trial and for the blocks come before.
        let before = run(kind, "asked").go().driver_calls("cuMemSetAccess");
        let refused = |calls: u64, code: u32| {
            let faults = (1..=calls).map(|n| format!("cuMemSetAccess:{}:{code}", before + n));
            let faults: Vec<String> = faults.collect();
            let run = run(kind, "peers").env("SIM_CUDA_FAULT", &faults.join(","));
            let outcome = run.go();
            outcome.quiet(0).no_violations();
            outcome
        };
        for code in [2, 999] {
            is_as_bare(kind, "peers", &refused(1, code));
            let outcome = refused(2, code);
            let told = format!("let in: {code}, later: 0\n");
            assert_eq!(outcome.stdout, told, "{}", outcome.what);
        }
    }
}

#[test]
fn a_mapped_block_is_an_allocation_to_who_asks() {
    for kind in Kind::each() {
        for how in ["asked", "misused"] {
            let outcome = run(kind, how).go();
            outcome.quiet(0).no_violations();
            is_as_bare(kind, how, &outcome);
        }
    }
}

/// CUDA has no handle to mapped memory for other processes; from then on there is
/// memory of which it has.
#[test]
fn a_handle_for_another_process_is_refused_once() {
    for kind in Kind::each() {
        let outcome = run(kind, "given").go();
        outcome.no_violations();
        let told = "memory: 0 0, addresses: 0, process: 801, freed: 1 1, later: 0\n";
        assert_eq!(outcome.stdout, told, "{}", outcome.what);
        let said = outcome.said();
        assert_eq!(said.len(), 1, "{}: {said:#?}", outcome.what);
        for word in ["dedicated_min", "strategy:auto_growth"] {
            assert!(said[0].contains(word), "{}", said[0]);
        }
        let mapping = &outcome.stats()["arenas"][0]["mapping"];
        assert_eq!(mapping, "off: an IPC handle was asked for");
    }
}

/// The driver synchronises contexts, where it does not do so for mapped memory.
#[test]
fn calls_about_a_mapped_block_wait_where_the_program_asks_for_it() {
    for kind in Kind::each() {
        let outcome = run(kind, "waits").go();
        outcome.quiet(0).no_violations();
        let told = "in step: 0, set: 0, in step: 1, context: 80\nanother context: 80\n";
        assert_eq!(outcome.stdout, told, "{}", outcome.what);
        // Before CUDA 12.1 contexts have no such flag.
        let old = run(kind, "waits")
            .env("SIM_CUDA_FAULT", "cuCtxSetFlags:1:1")
            .go();
        let told = "in step: 0, set: 801, in step: 0, context: 0\n";
        assert!(old.stdout.starts_with(told), "{}: {}", old.what, old.stdout);
    }
}

/// Each driver call of the trial fails in turn, or the device has no such memory: one
/// line says so, and plain memory serves.
#[test]
fn where_nothing_can_be_mapped_plain_memory_serves() {
    let fails = |call: &str| format!("{call}:1:999,{call}:2:999,{call}:3:999,{call}:4:999");
    let calls = [
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuStreamCreate",
        "cuMemsetD8Async",
    ];
    let cases = calls.map(|call| ("SIM_CUDA_FAULT", fails(call), call));
    let absent = ("SIM_CUDA_NO_VMM", "1".to_owned(), "no virtual memory");
    for (turn, (name, value, told)) in cases.into_iter().chain([absent]).enumerate() {
        let kind = Kind::ALL[turn % Kind::ALL.len()];
        let outcome = run(kind, "fill").env(name, &value).go();
        outcome.no_violations();
        is_as_bare(kind, "fill", &outcome);
        let said = outcome.said();
        assert_eq!(said.len(), 1, "{}: {said:#?}", outcome.what);
        for word in ["strategy:mapped", told, "strategy:auto_growth"] {
            assert!(said[0].contains(word), "{}: {}", outcome.what, said[0]);
        }
        assert_eq!(mapped(&outcome), [0; 3], "{}", outcome.what);
        let mapping = &outcome.stats()["arenas"][0]["mapping"];
        assert_eq!(mapping, "off: the device", "{}", outcome.what);
    }
}

/// A device that is too busy for a trial is not tried again, before a capture either.
#[test]
fn a_device_that_is_busy_is_tried_once() {
    let outcome = run(Kind::Driver, "first")
        .env("SIM_CUDA_SLOW", "cuStreamQuery:3000000000")
        .env("SIM_CUDA_FAULT", "cuStreamQuery:1:600,cuStreamQuery:2:600")
        .go();
    outcome.no_violations();
    let said = outcome.said();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(
        said[0].contains("did not end the work of a trial"),
        "{}",
        said[0]
    );
    assert_eq!(outcome.driver_calls("cuMemAddressReserve"), 1);
}

/// It is tried out before a capture begins; on a device that is new then, after it.
#[test]
fn nothing_is_tried_out_during_a_capture() {
    for kind in Kind::each() {
        let outcome = run(kind, "first").go();
        outcome.quiet(0).no_violations();
        is_as_bare(kind, "first", &outcome);
        assert!(mapped(&outcome)[0] > 0, "{}", outcome.what);
        let outcome = run(kind, "closed").go();
        outcome.quiet(0).no_violations();
        assert_eq!(outcome.stdout, "hold: 6\n", "{}", outcome.what);
        let outcome = run(kind, "newcomer").go();
        outcome.quiet(0).no_violations();
        is_as_bare(kind, "newcomer", &outcome);
        assert!(mapped(&outcome)[0] > 0, "{}", outcome.what);
    }
}

/// Drivers that differ in what they allow.
#[test]
fn memory_is_mapped_as_the_driver_allows() {
    for (turn, name) in ["SIM_CUDA_WSL", "SIM_CUDA_UNMAP_ONE", "SIM_CUDA_MAP_OFFSETS"]
        .into_iter()
        .enumerate()
    {
        let kind = Kind::ALL[turn];
        for how in ["fill", "ended"] {
            let outcome = run(kind, how).env(name, "1").go();
            outcome.quiet(0).no_violations();
            is_as_bare(kind, how, &outcome);
            assert_eq!(mapped(&outcome)[0] > 0, how == "fill", "{}", outcome.what);
        }
    }
}

/// A driver that has no more mappings is out of memory: plain memory is not tried.
#[test]
fn mappings_that_run_out_leave_what_is_there() {
    let outcome = run(Kind::Driver, "fill").env("SIM_CUDA_MAPPINGS", "8").go();
    outcome.no_violations();
    assert!(mapped(&outcome)[1] <= 8, "{}", outcome.what);
}
