//! Memory that went past the pool, and memory from elsewhere.

use vramalloc_core::Bytes;
use vramalloc_core::stats::{Family, FamilyReport, FamilyStats, ImportReport, Process};

use crate::{arena, directory, flat, one_process, report, report_of, statistics_past};

/// What a family held in MiB, at its peak and at the end, on device 0.
fn took(family: Family, [peak, end]: [u64; 2], refused: u64) -> FamilyReport {
    let mut stats = FamilyStats::default();
    stats.bytes.add(Bytes::mib(peak));
    stats.bytes.sub(Bytes::mib(peak - end));
    stats.calls = 12;
    stats.refused = refused;
    let device = 0;
    FamilyReport {
        device,
        family,
        stats,
    }
}

fn process(rank: u32) -> Process {
    Process {
        pid: 42 + rank,
        host: "node0".to_owned(),
        rank: rank.to_string(),
        ..Process::default()
    }
}

fn imported(way: &'static str, count: u64, mib: u64) -> ImportReport {
    let bytes = Bytes::mib(mib);
    ImportReport { way, count, bytes }
}

#[test]
fn what_went_past_the_pool_is_told_by_function() {
    let past = [
        took(Family::AsyncPools, [1536, 0], 3),
        took(Family::Virtual, [512, 256], 0),
        took(Family::Managed, [64, 64], 1),
    ];
    let imports = [
        imported("ipc", 3, 0),
        imported("external", 1, 16),
        imported("virtual", 2, 0),
    ];
    let out = report_of(&statistics_past(process(0), &[arena()], &past, &imports).to_string());
    let flat = flat(&out);
    for part in [
        "past the pool: at most 2.1 GiB (1.5 GiB by cudaMallocAsync, 512.0 MiB by cuMemCreate, \
         64.0 MiB by cudaMallocManaged)",
        "device 0: memory past the pool at the end peak served refused \
         cudaMallocAsync 0 B 1.5 GiB 12 3 \
         cuMemCreate 256.0 MiB 512.0 MiB 12 0 \
         cudaMallocManaged 64.0 MiB 64.0 MiB 12 1",
        "4 requests were refused because of the limit (8GiB): 3 by cudaMallocAsync, 1 by \
         cudaMallocManaged.",
        "what CUDA's memory pools have reserved",
        "managed:uncounted leaves it out",
        "What CUDA takes for contexts, modules and its libraries is not counted.",
        "- From other processes: 3 by cuIpcOpenMemHandle, 2 by cuMemImportFromShareableHandle.",
        "- From other interfaces: 1 by cuImportExternalMemory (16.0 MiB).",
        // The pool's own part stands as ever.
        "live 1.5 GiB 1.5 GiB",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

/// A program that uses the pool for nothing has used memory all the same.
#[test]
fn a_program_that_only_goes_past_the_pool_is_not_one_without_memory() {
    let past = [took(Family::Virtual, [512, 0], 0)];
    let value = statistics_past(process(0), &[], &past, &[]);
    let out = report_of(&value.to_string());
    let flat = flat(&out);
    assert!(!flat.contains("no device memory"), "{out}");
    let told = "all device memory went past the pool: at most 512.0 MiB (512.0 MiB by cuMemCreate)";
    assert!(flat.contains(told), "{out}");
    for part in ["refused because", "managed", "have reserved", "imported"] {
        assert!(!flat.contains(part), "{part} is in\n{out}");
    }
}

/// Nothing was had where all was refused, and that is told.
#[test]
fn a_program_that_was_refused_everything_is_told_why() {
    let past = [took(Family::Graphs, [0, 0], 1)];
    let value = statistics_past(process(0), &[], &past, &[]);
    let flat = flat(&report_of(&value.to_string()));
    assert!(flat.contains("no device memory was allocated"), "{flat}");
    let told = "One request was refused because of the limit (8GiB): 1 by graphs.";
    assert!(flat.contains(told), "{flat}");
    for (device, told) in [(0, "device_limits ([0:1GiB])"), (1, "the limit (8GiB)")] {
        let mut value = value.clone();
        value["options"]["device_limits"] = serde_json::json!({
            "value": format!("[{device}:1GiB]"), "origin": "VRAMALLOC_CONF",
        });
        let out = report_of(&value.to_string());
        assert!(out.contains(&format!("because of {told}")), "{out}");
    }
}

/// Files of older libraries have none of these keys; those of newer ones may
/// have families that are not known here.
#[test]
fn older_and_newer_files_are_read() {
    let mut old = one_process(&[arena()]);
    for key in ["families", "imports"] {
        assert!(old.as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    let out = report_of(&old.to_string());
    assert!(!out.contains("past the pool"), "{out}");

    let past = [took(Family::Arrays, [2, 0], 0)];
    let mut newer = statistics_past(process(0), &[], &past, &[imported("ipc", 1, 0)]);
    newer["families"][0]["family"] = "tensors".into();
    newer["imports"][0]["way"] = "fabric".into();
    let flat = flat(&report_of(&newer.to_string()));
    for part in ["2.0 MiB by tensors", "1 by fabric"] {
        assert!(flat.contains(part), "{part} is not in\n{flat}");
    }
}

#[test]
fn ranks_have_a_table_of_what_went_past_the_pool() {
    let of_rank = |rank, arenas: &[_], past: &[_]| {
        statistics_past(process(rank), arenas, past, &[]).to_string()
    };
    let files = [
        ("a.json", of_rank(0, &[arena()], &[])),
        (
            "b.json",
            of_rank(1, &[], &[took(Family::AsyncPools, [1536, 1024], 2)]),
        ),
        (
            "c.json",
            of_rank(2, &[], &[took(Family::Virtual, [512, 0], 0)]),
        ),
    ];
    let merged = |files: &[(&str, String)]| {
        let texts: Vec<(&str, &str)> = (files.iter())
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let mut arguments = vec!["--merge"];
        arguments.extend(files.iter().map(|(name, _)| *name));
        let answer = report(&directory(&texts), &arguments);
        assert_eq!((answer.code, answer.errors.as_str()), (Some(0), ""));
        answer.out
    };
    let out = merged(&files);
    let from = out.find("memory past the pool").unwrap();
    let lines = out[from..].split("\n\nwords\n").next().unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        lines,
        [
            "memory past the pool",
            "rank  host   dev       peak  at the end  refused",
            "   1  node0    0    1.5 GiB     1.0 GiB        2",
            "   2  node0    0  512.0 MiB         0 B        0",
            " sum                2.0 GiB     1.0 GiB        2",
            "",
            "  - Past the pool went at most 1.5 GiB by cudaMallocAsync, 512.0 MiB by",
            "    cuMemCreate.",
            "  - Because of the limit, 2 requests past the pool were refused: 2 by",
            "    cudaMallocAsync.",
        ]
    );
    // Ranks that have nothing else are ranks with memory.
    let out = merged(&files[1..]);
    assert!(!out.contains("no device memory"), "{out}");
    let out = merged(&files[..1]);
    assert!(!out.contains("past the pool"), "{out}");
}
