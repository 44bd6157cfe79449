//! Risk: a limit of another device, a peak that is not of the time it is told for, a
//! block that is told as new and is not.

use vramalloc_tests::stage::{self, Kind, Run};

/// Files are read and pools made on the way, where a thread could be cancelled.
#[test]
fn a_call_is_no_place_where_a_thread_is_cancelled() {
    for kind in Kind::each() {
        for (call, more) in [
            ("pause", "resume: 0\n"),
            ("region", ""),
            ("pageable", ""),
            ("statistics", ""),
        ] {
            let run = Run::preloaded("api_cancelled", kind).arg(call);
            let outcome = run.conf("strategy:mapped").go();
            outcome.quiet(0).no_violations();
            let expected = format!("{call}: 0, cancelled: 1\n{more}");
            assert_eq!(outcome.stdout, expected, "{}", outcome.what);
        }
    }
}

#[test]
fn a_program_asks_by_name() {
    let library = stage::library().canonicalize().unwrap();
    for kind in Kind::each() {
        for stacks in ["all", "off"] {
            let run = Run::preloaded("api_control", kind)
                .arg(&library.to_string_lossy())
                .env("SIM_CUDA_STRICT", "1")
                .env("SIM_CUDA_DEVICES", "2")
                .conf(&format!("stacks:{stacks}"));
            let outcome = run.go();
            outcome.no_violations();
            let told = u8::from(stacks == "all");
            let expected = format!(
                "before: 0 devices\n\
                 devices: 2\n\
                 preloaded: 1\n\
                 a library: 1\n\
                 outer: the peak was 100 MiB\n\
                 inner: 60 MiB so far\n\
                 inner: the peak is 50 MiB\n\
                 outer: the peak is 60 MiB\n\
                 reserved: the peak was 102 MiB\n\
                 reserved: the peak is 0 MiB\n\
                 the limit of 0: -1\n\
                 set: 64 MiB\n\
                 0 has 48: 1, has 80: 0\n\
                 1 has 80: 1\n\
                 the option: [0:64MiB]\n\
                 the option: none\n\
                 of 1: 16 MiB, without its own: 32 MiB\n\
                 0 has 80: 1\n\
                 since the mark: 2 blocks, 12 MiB\n\
                 told: 1, with a stack: {told}\n\
                 in the end: 1\n\
                 of an old one: 0\n\
                 allocations: 1001, frees: 1000, bytes: 1001000\n"
            );
            assert_eq!(outcome.stdout, expected, "{}", outcome.what);
        }
    }
}
