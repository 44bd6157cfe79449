//! The table of PyTorch's `memory_summary()`, line by line.

use vramalloc_core::stats::{Metric, Stat};

use crate::{arena, one_process, report_of};

fn stat([current, peak, allocated, freed]: [u64; 4]) -> Stat {
    Stat {
        current,
        peak,
        allocated,
        freed,
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The table in the report of an arena with some numbers: on both sides of
/// each change of a unit, and rows that are shown in the unit of another.
fn table() -> Vec<String> {
    let mut told = arena();
    told.device = 3;
    let memory = &mut told.stats.memory;
    memory.num_ooms = 12;
    memory.num_alloc_retries = 345;
    for (metric, all, large, small) in [
        (
            Metric::AllocatedBytes,
            [768 * KIB - 1, 768 * KIB, 768 * MIB - 1, 768 * MIB],
            [1000, 700 * KIB + 1023, 767 * MIB, 700 * MIB],
            [999_999, 68 * KIB, MIB - 1, 68 * MIB],
        ),
        (
            Metric::ReservedBytes,
            [768 * GIB - 1, 768 * GIB, 768 << 40, 5 << 50],
            [767 * GIB, GIB - 1, 1 << 40, 1 << 50],
            [512, GIB, 0, 4 << 50],
        ),
        // Which floating point rounds up to where the next unit begins.
        (
            Metric::InactiveSplitBytes,
            [(768 << 50) - 1, 0, 0, 0],
            [0; 4],
            [0; 4],
        ),
        (
            Metric::Allocation,
            [749_999, 750_000, 749_999_999, 750_000_000],
            [749_999, 749_999, 749_000_000, 749_000_000],
            [0, 1, 999_999, 1_000_000],
        ),
    ] {
        memory.all[metric] = stat(all);
        memory.large_pool[metric] = stat(large);
        memory.small_pool[metric] = stat(small);
    }
    memory.oversize_allocations = stat([1, 2, 750_000, 749_999]);
    memory.oversize_segments = stat([0, 0, 9_999_999, 1_000_000_000]);
    let out = report_of(&one_process(&[told]).to_string());
    let table = out.lines().filter(|line| line.starts_with('|'));
    table.map(str::to_owned).collect()
}

const EMPTY_SIZES: &str = "|      0 B   |      0 B   |      0 B   |      0 B   |";
const EMPTY_COUNTS: &str = "|       0    |       0    |       0    |       0    |";

#[test]
fn every_line_is_as_pytorch_writes_it() {
    let double = format!("|{}|", "=".repeat(75));
    let single = format!("|{}|", "-".repeat(75));
    let rows = |name: &str, values: &str| {
        [
            format!("| {name:<21} {values}"),
            format!("|       from large pool {values}"),
            format!("|       from small pool {values}"),
            single.clone(),
        ]
    };
    let mut expected = vec![
        double.clone(),
        "|                  PyTorch CUDA memory summary, device ID 3                 |".to_owned(),
        single.clone(),
        "|            CUDA OOMs: 12           |        cudaMalloc retries: 345       |".to_owned(),
        double.clone(),
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |".to_owned(),
        single.clone(),
        "| Allocated memory      | 786431 B   |    768 KiB | 786431 KiB |    768 MiB |".to_owned(),
        "|       from large pool |   1000 B   |    700 KiB | 785408 KiB |    700 MiB |".to_owned(),
        "|       from small pool | 999999 B   |     68 KiB |   1023 KiB |     68 MiB |".to_owned(),
        single.clone(),
    ];
    expected.extend(rows("Active memory", EMPTY_SIZES));
    expected.extend(rows("Requested memory", EMPTY_SIZES));
    expected.extend([
        "| GPU reserved memory   | 786431 MiB |    768 GiB |    768 TiB |   5120 TiB |".to_owned(),
        "|       from large pool | 785408 MiB |      0 GiB |      1 TiB |   1024 TiB |".to_owned(),
        "|       from small pool |      0 MiB |      1 GiB |      0 TiB |   4096 TiB |".to_owned(),
        single.clone(),
    ]);
    let rounded = "|    767 PiB |      0 B   |      0 B   |      0 B   |";
    let empty = "|      0 PiB |      0 B   |      0 B   |      0 B   |";
    expected.extend(rows("Non-releasable memory", empty));
    let at = expected.len() - 4;
    expected[at] = format!("| Non-releasable memory {rounded}");
    expected.extend([
        "| Allocations           |  749999    |     750 K  |  749999 K  |     750 M  |".to_owned(),
        "|       from large pool |  749999    |     749 K  |  749000 K  |     749 M  |".to_owned(),
        "|       from small pool |       0    |       0 K  |     999 K  |       1 M  |".to_owned(),
        single.clone(),
    ]);
    for name in [
        "Active allocs",
        "GPU reserved segments",
        "Non-releasable allocs",
    ] {
        expected.extend(rows(name, EMPTY_COUNTS));
    }
    expected.extend([
        "| Oversize allocations  |       1    |       2    |     750 K  |  749999    |".to_owned(),
        single,
        "| Oversize GPU segments |       0    |       0    |    9999 K  |    1000 M  |".to_owned(),
        double,
    ]);
    let table = table();
    for (i, (line, expected)) in table.iter().zip(&expected).enumerate() {
        assert_eq!(line, expected, "line {i}");
    }
    assert_eq!(table.len(), expected.len());
    assert!(table.iter().all(|line| line.chars().count() == 77));
}
