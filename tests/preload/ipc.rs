//! Risk: another process reads other memory than it was given, or somebody
//! who is not the user gets a hand in it.

use std::fs;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::{Path, PathBuf};

use vramalloc_tests::stage::{Kind, Outcome, Run, SHARED, fresh_folder, library};

/// Blocks that `ipc` shares; each is opened twice over.
const BLOCKS: u32 = 9;
const ALL: [u32; 5] = [BLOCKS, 0, 2 * BLOCKS, 0, 0];
const SIGKILL: i32 = 9;

/// The strategies that cut blocks from chunks.
const POOLS: [&str; 2] = ["naive_best_fit", "auto_growth"];

/// A run of `ipc` with a folder of its own to leave records in.
fn run(kind: Kind, strategy: &str, how: &str) -> (Run, PathBuf) {
    let parent = fresh_folder();
    let run = within(&parent, Run::preloaded("ipc", kind), strategy, how);
    (run, parent)
}

fn within(parent: &Path, run: Run, strategy: &str, how: &str) -> Run {
    run.arg(how)
        .conf(&format!("strategy:{strategy}"))
        .env("VRAMALLOC_IPC_DIR", &parent.to_string_lossy())
}

/// Handles, failed, opened, refused, wrong.
#[track_caller]
fn counts(outcome: &Outcome) -> [u32; 5] {
    let words: Vec<&str> = outcome.stdout.split_whitespace().collect();
    let names = ["handles", "failed", "opened", "refused", "wrong"];
    assert_eq!(words.len(), 10, "{}: {}", outcome.what, outcome.stderr);
    std::array::from_fn(|i| {
        assert_eq!(words[2 * i], names[i], "{}", outcome.what);
        words[2 * i + 1].parse().unwrap()
    })
}

/// The folder that the processes share, and what is in it.
fn private(parent: &Path) -> PathBuf {
    parent.join(format!(
        "vramalloc-{}",
        fs::metadata("/proc/self").unwrap().uid()
    ))
}

fn left_in(parent: &Path) -> usize {
    fs::read_dir(private(parent)).map_or(0, Iterator::count)
}

/// Nothing wrong was read; some handle was refused, and every handle was
/// opened or refused.
#[track_caller]
fn refused(outcome: &Outcome) {
    let [handles, failed, opened, refused, wrong] = counts(outcome);
    assert_eq!((outcome.code(), wrong), (0, 0), "{}", outcome.what);
    assert_eq!(handles + failed, BLOCKS, "{}", outcome.what);
    assert_eq!(opened + refused, 2 * handles, "{}", outcome.what);
    assert!(failed + refused > BLOCKS / 2, "{}", outcome.stdout);
}

#[track_caller]
fn violations_said(outcome: &Outcome) -> bool {
    outcome.stderr.contains("violation")
}

#[test]
fn blocks_are_shared_in_all_kinds_and_strategies() {
    for kind in Kind::each() {
        for how in ["share", "ranges"] {
            let bare = Run::bare("ipc", kind).arg(how).go();
            assert_eq!(counts(bare.quiet(0)), ALL, "{}", bare.what);
            for strategy in SHARED {
                let (run, parent) = run(kind, strategy, how);
                let outcome = run.go();
                assert_eq!(counts(outcome.quiet(0)), ALL, "{}", outcome.what);
                assert!(!violations_said(&outcome), "{}", outcome.stderr);
                assert_eq!(
                    fs::read_dir(&parent).unwrap().count(),
                    0,
                    "{}",
                    outcome.what
                );
            }
        }
    }
}

/// Other hardware is given whole pages of the host alone, where the driver's own
/// allocations of that size start.
#[test]
fn a_block_between_pages_is_refused_with_a_line() {
    let asked = |run: Run| run.arg("hand_out").go();
    let bare = asked(Run::bare("ranges", Kind::Driver));
    assert_eq!(bare.quiet(0).stdout, "handle: 0\n");
    let pool = |more| {
        let options = format!("strategy:naive_best_fit,initial_gpu_memory_in_mb:256{more}");
        asked(Run::preloaded("ranges", Kind::Driver).conf(&options))
    };
    let between = pool("");
    assert_eq!(between.stdout, "handle: 1\n");
    let [said] = between.said()[..] else {
        panic!("{}", between.stderr);
    };
    assert!(said.contains("dedicated_min:1M"), "{said}");
    assert_eq!(pool(",dedicated_min:1M").quiet(0).stdout, "handle: 0\n");
}

#[test]
fn the_old_name_and_another_device_are_the_same() {
    for kind in Kind::each() {
        for (name, value) in [("IPC_OLD", "1"), ("IPC_DEVICE", "1")] {
            let (run, _) = run(kind, "auto_growth", "ranges");
            let outcome = run.env(name, value).go();
            assert_eq!(counts(outcome.quiet(0)), ALL, "{}", outcome.what);
        }
    }
}

/// Without us the receiver opens what has an allocation to itself, and is
/// refused everything else.
#[test]
fn a_receiver_without_us_gets_an_error_and_never_other_bytes() {
    for kind in Kind::each() {
        for how in ["share", "ranges"] {
            for strategy in POOLS {
                let outcome = run(kind, strategy, how).0.env("IPC_PEER_PRELOAD", "").go();
                refused(&outcome);
            }
            let whole = [("passthrough", "none"), ("auto_growth", "512")];
            for (strategy, dedicated) in whole {
                let run = run(kind, strategy, how).0.env("IPC_PEER_PRELOAD", "");
                let outcome = run.env("VRAMALLOC_DEDICATED_MIN", dedicated).go();
                assert_eq!(counts(outcome.quiet(0)), ALL, "{}", outcome.what);
            }
        }
    }
}

#[test]
fn an_exporter_without_us_is_read_as_bare() {
    let library = library();
    for kind in Kind::each() {
        for how in ["share", "ranges"] {
            let run = within(&fresh_folder(), Run::bare("ipc", kind), "auto_growth", how);
            let outcome = run.env("IPC_PEER_PRELOAD", &library.to_string_lossy()).go();
            assert_eq!(counts(outcome.quiet(0)), ALL, "{}", outcome.what);
        }
    }
}

/// What the other process opens is in its statistics.
#[test]
fn what_is_opened_is_listed() {
    for kind in Kind::each() {
        let outcome = run(kind, "auto_growth", "share").0.go();
        let files = outcome.written.values();
        let imports = files.filter_map(|text| {
            let stats: serde_json::Value = serde_json::from_str(text).ok()?;
            let import = stats["imports"].get(0)?.clone();
            (import["way"] == "ipc").then_some(import["count"].as_u64()?)
        });
        assert!(imports.sum::<u64>() > 0, "{}", outcome.what);
    }
}

/// The blocks inside chunks; what starts a chunk has the driver's own handle.
#[test]
fn what_was_freed_opens_no_more() {
    for kind in Kind::each() {
        for strategy in POOLS {
            for how in ["freed", "reset"] {
                let (run, parent) = run(kind, strategy, how);
                let outcome = run.go();
                let [handles, _, _, refused, _] = counts(&outcome);
                assert_eq!(handles, BLOCKS, "{}", outcome.what);
                assert!(refused > BLOCKS, "{}: {}", outcome.what, outcome.stdout);
                assert_eq!(left_in(&parent), 0, "{}", outcome.what);
            }
        }
    }
}

/// A process that gave up its user cannot remove its files; what it frees is
/// opened by nobody all the same, and the next process cleans up.
#[test]
fn what_was_freed_after_a_change_of_user_opens_no_more() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    for strategy in POOLS {
        let (run, parent) = run(Kind::Dynamic, strategy, "dropped");
        let outcome = run.env("VRAMALLOC_STATS", "off").go();
        let [handles, _, _, refused, wrong] = counts(&outcome);
        assert_eq!((handles, wrong), (BLOCKS, 0), "{}", outcome.what);
        assert!(refused > BLOCKS, "{}: {}", outcome.what, outcome.stdout);
        let next = within(
            &parent,
            Run::preloaded("ipc", Kind::Dynamic),
            strategy,
            "share",
        )
        .go();
        assert_eq!(counts(next.quiet(0)), ALL, "{}", next.what);
        assert_eq!(left_in(&parent), 0, "{}", next.what);
    }
}

/// In a process that may write no files a handle is refused, and nobody is
/// ended by a signal: neither where a record is made, nor where a block ends
/// whose file cannot be removed.
#[test]
fn a_process_that_may_write_no_files_is_refused_a_handle() {
    let no_files = |how| {
        let run = run(Kind::Dynamic, "auto_growth", how).0;
        let run = run.env("VRAMALLOC_STATS", "off");
        run.env("IPC_NO_FILES", "1").go()
    };
    let outcome = no_files("share");
    refused(&outcome);
    assert!(counts(&outcome)[1] > BLOCKS / 2, "{}", outcome.stdout);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        let outcome = no_files("dropped");
        assert_eq!(counts(&outcome)[0], BLOCKS, "{}", outcome.what);
        assert!(outcome.code() >= 0, "{}", outcome.what);
    }
}

#[test]
fn handles_that_cuda_refuses_are_refused() {
    for kind in Kind::each() {
        for how in ["own", "garbage"] {
            let bare = Run::bare("ipc", kind).arg(how).go();
            for strategy in SHARED {
                let outcome = run(kind, strategy, how).0.go();
                assert_eq!(outcome.code(), 0, "{}", outcome.what);
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            }
        }
    }
}

/// What a killed process leaves behind is gone after the next one that shares.
#[test]
fn a_crash_is_cleaned_up() {
    for kind in [Kind::Dynamic, Kind::Driver] {
        let (crash, parent) = run(kind, "auto_growth", "crash");
        let outcome = crash.go();
        assert_eq!(outcome.code(), -SIGKILL, "{}", outcome.what);
        assert!(left_in(&parent) > 1, "{}", outcome.what);
        // Files of others in our folder are none of our business.
        fs::write(private(&parent).join("kept"), "").unwrap();
        let next = within(&parent, Run::preloaded("ipc", kind), "auto_growth", "share").go();
        assert_eq!(counts(next.quiet(0)), ALL, "{}", next.what);
        assert_eq!(left_in(&parent), 1, "{}", next.what);
    }
}

/// Somebody was there before us.
#[test]
fn a_planted_folder_is_not_used() {
    let elsewhere = fresh_folder();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    let make = |path: &Path, mode: u32| {
        fs::DirBuilder::new().mode(0o700).create(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let plants: [&dyn Fn(&Path); 5] = [
        &|path| symlink(&elsewhere, path).unwrap(),
        &|path| symlink("/nowhere/at/all", path).unwrap(),
        &|path| make(path, 0o755),
        &|path| fs::write(path, "").unwrap(),
        // Only root can give a folder away; anybody else sees it open.
        &|path| {
            make(path, 0o700);
            if chown(path, Some(12_345), None).is_err() {
                fs::set_permissions(path, fs::Permissions::from_mode(0o707)).unwrap();
            }
        },
    ];
    for plant in plants {
        let (run, parent) = run(Kind::Dynamic, "auto_growth", "share");
        plant(&private(&parent));
        let outcome = run.go();
        refused(&outcome);
        assert!(counts(&outcome)[1] > 0, "{}", outcome.what);
        let said = outcome.said();
        assert_eq!(said.len(), 1, "{}: {said:#?}", outcome.what);
        let folder = parent.to_string_lossy();
        assert!(said[0].contains(&*folder), "{}", said[0]);
        let mut found = fs::read_dir(&elsewhere).unwrap();
        assert!(found.next().is_none(), "{}", outcome.what);
    }
}

/// Somebody changes what the records hold while they wait.
#[test]
fn a_broken_record_is_an_error() {
    let hands = [
        "truncate -s 10 \"$f\"",
        ": >\"$f\"",
        "echo x >>\"$f\"",
        "head -c 112 /dev/zero >\"$f\"",
        "head -c 112 /dev/urandom >\"$f\"",
        // The offset, then the size.
        "printf '\\377\\377\\377\\377\\377\\377\\377\\377' | dd of=\"$f\" bs=1 seek=96 conv=notrunc",
        "printf '\\000\\000\\000\\000\\001' | dd of=\"$f\" bs=1 seek=96 conv=notrunc",
        "printf '\\000\\000\\000\\000\\001' | dd of=\"$f\" bs=1 seek=104 conv=notrunc",
        // The driver's handle.
        "printf 'x' | dd of=\"$f\" bs=1 seek=32 conv=notrunc",
        "chmod 640 \"$f\"",
        "ln \"$f\" \"$f.twin\"",
        "mv \"$f\" \"$f.x\"; ln -s \"$f.x\" \"$f\"",
        "rm \"$f\"; mkfifo -m 600 \"$f\"",
        "rm \"$f\"; mkdir -m 700 \"$f\"",
        "rm \"$f\"",
        "chmod 755 \"$(dirname \"$f\")\"",
        // Another block's record.
        "[ -n \"$last\" ] && cp \"$f\" \"$last\"; last=$f",
    ];
    for hand in hands {
        let (run, _) = run(Kind::Dynamic, "auto_growth", "share");
        let command =
            format!("for f in \"$VRAMALLOC_IPC_DIR\"/vramalloc-*/*.*; do {hand}; done 2>/dev/null");
        let outcome = run.env("IPC_BETWEEN", &format!("{command}; true")).go();
        refused(&outcome);
        assert_eq!(counts(&outcome)[0], BLOCKS, "{hand}");
        let said = outcome.said().join("\n");
        assert!(
            said.contains("a memory handle cannot be opened") || said.is_empty(),
            "{said}"
        );
    }
}
