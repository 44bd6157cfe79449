//! What a preloaded run must have in common with the bare one.

use serde_json::Value;

use vramalloc_tests::stage::Outcome;

/// A preloaded run beside its bare one.
pub(crate) struct Seen<'a> {
    pub(crate) bare: &'a Outcome,
    pub(crate) with: &'a Outcome,
    /// The library is ours, so there are statistics.
    pub(crate) ours: bool,
    /// Statistics files that it must leave.
    pub(crate) files: usize,
}

impl Seen<'_> {
    /// The statistics, each sane in itself, as many as there must be.
    #[track_caller]
    fn files(&self) -> Vec<Value> {
        let with = self.with;
        let names: Vec<_> = with.written.keys().collect();
        assert_eq!(names.len(), self.files, "{}: {names:?}", with.what);
        let read = |(name, text): (&String, &String)| -> Value {
            assert!(name.ends_with(".json"), "{}: {name}", with.what);
            let stats: Value = serde_json::from_str(text).unwrap();
            assert_eq!(stats["schema"], 1, "{}: {name}", with.what);
            stats
        };
        with.written.iter().map(read).collect()
    }

    /// Looks into the one file that there is.
    #[track_caller]
    fn stats(&self) -> Option<Value> {
        let mut files = self.ours.then(|| self.files())?;
        (files.len() == 1).then(|| files.remove(0))
    }
}

/// It prints, says, returns and violates the same as bare, and its statistics
/// are there and sane.
#[track_caller]
pub(crate) fn same(seen: &Seen<'_>) {
    same_end(seen);
    assert_eq!(seen.with.stdout, seen.bare.stdout, "{}", seen.with.what);
}

/// As [`same`], and the bare run itself must be without a violation.
#[track_caller]
pub(crate) fn same_and_clean(seen: &Seen<'_>) {
    seen.bare.quiet(0).no_violations();
    same(seen);
    seen.with.no_violations();
}

#[track_caller]
fn same_end(seen: &Seen<'_>) {
    let (with, bare) = (seen.with, seen.bare);
    assert_eq!(with.said(), bare.said(), "{}", with.what);
    assert_eq!(with.code(), bare.code(), "{}: {}", with.what, with.stdout);
    assert_eq!(with.has_report(), bare.has_report(), "{}", with.what);
    if bare.has_report() {
        with.no_more_violations(bare);
    }
    if seen.ours {
        seen.files();
    }
}

/// As [`same_and_clean`], without the lines that begin with "info", which
/// hold amounts.
#[track_caller]
pub(crate) fn same_but_amounts(seen: &Seen<'_>) {
    seen.bare.quiet(0).no_violations();
    same_end(seen);
    let [with, bare] = [seen.with, seen.bare].map(|outcome| {
        let lines = outcome.stdout.lines();
        let kept: Vec<_> = lines.filter(|line| !line.starts_with("info ")).collect();
        kept.join("\n")
    });
    assert_eq!(with, bare, "{}", seen.with.what);
}

/// As [`same_but_amounts`], and it could have as much as bare.
#[track_caller]
pub(crate) fn as_much_as_bare(seen: &Seen<'_>) {
    same_but_amounts(seen);
    let (got, could) = (amount(seen.with, "got"), amount(seen.bare, "got"));
    assert!(got + 8 >= could, "{}: {got} of {could}", seen.with.what);
}

/// A number of the first "info" line, in MiB.
#[track_caller]
fn amount(outcome: &Outcome, key: &str) -> u64 {
    let line = outcome.stdout.lines().find(|l| l.starts_with("info "));
    let mut words = line.unwrap().split(' ');
    let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap().parse().unwrap()
}

/// A cap of 1 GiB is the whole device, in every number.
#[track_caller]
pub(crate) fn within_the_cap(seen: &Seen<'_>) {
    let with = seen.with;
    with.quiet(0).no_violations();
    let [total, free, got] = ["total", "free", "got"].map(|key| amount(with, key));
    assert_eq!(total, 1024, "{}", with.what);
    assert!(free <= total, "{}: {free}", with.what);
    assert!((1000..=1024).contains(&got), "{}: {got}", with.what);
    seen.stats();
}

/// The kernel's memory stays its own; the text holds times and is not
/// compared.
#[track_caller]
pub(crate) fn safe(seen: &Seen<'_>) {
    seen.bare.quiet(0).no_violations();
    seen.with.quiet(0).no_violations();
    seen.stats();
}

/// As [`same_and_clean`], and the program's requests went through us.
#[track_caller]
pub(crate) fn served(seen: &Seen<'_>) {
    same_and_clean(seen);
    if let Some(stats) = seen.stats() {
        let totals = &stats["totals"];
        assert!(totals["allocations"].as_u64() > Some(0), "{totals}");
        assert_eq!(totals["bad_frees"], 0, "{}", seen.with.what);
    }
}

/// As [`same`], but frees that came past us may be refused by the driver, which
/// knows no such allocation.
#[track_caller]
pub(crate) fn refused_at_most(seen: &Seen<'_>) {
    let (with, bare) = (seen.with, seen.bare);
    bare.quiet(0).no_violations();
    assert_eq!(with.code(), 0, "{}: {}", with.what, with.stderr);
    assert_eq!(with.stdout, bare.stdout, "{}", with.what);
    let refused = |found: &String| found.contains("free of") && found.contains("no allocation");
    let found = with.violations();
    assert!(found.iter().all(refused), "{}: {found:?}", with.what);
    seen.stats();
}

/// As [`served`]; in the passthrough strategy each request is one of the
/// driver's, so that tools see every one.
#[track_caller]
pub(crate) fn one_to_one(seen: &Seen<'_>) {
    served(seen);
    let [with, bare] = [seen.with, seen.bare].map(|o| o.driver_calls("cuMemAlloc_v2"));
    assert_eq!(with, bare, "{}", seen.with.what);
}

/// The same end and the same text as bare; nothing of the rest is settled
/// where a process is cut off.
#[track_caller]
pub(crate) fn cut_off(seen: &Seen<'_>) {
    let (with, bare) = (seen.with, seen.bare);
    assert_eq!(with.code(), bare.code(), "{}: {}", with.what, with.stderr);
    assert_eq!(with.stdout, bare.stdout, "{}", with.what);
    assert_eq!(with.said(), bare.said(), "{}", with.what);
    if seen.ours {
        seen.files();
    }
}

/// Handles were refused, which one line says, or led to the right bytes.
#[track_caller]
pub(crate) fn refused_with_a_word(seen: &Seen<'_>) {
    let with = seen.with;
    let said = with.said();
    assert_eq!(
        (with.code(), said.len()),
        (0, 1),
        "{}: {said:#?}",
        with.what
    );
    assert!(said[0].contains("strategy:auto_growth"), "{}", said[0]);
    assert!(
        with.stdout.ends_with(" wrong 0\n") && !with.stdout.contains("failed 0 "),
        "{}: {}",
        with.what,
        with.stdout
    );
    with.no_violations();
    seen.files();
}

/// What another process read was the block's, or it was refused.
#[track_caller]
pub(crate) fn never_other_bytes(seen: &Seen<'_>) {
    let with = seen.with;
    with.quiet(0);
    assert!(
        with.stdout.ends_with(" wrong 0\n"),
        "{}: {}",
        with.what,
        with.stdout
    );
    seen.stats();
}
