//! Libraries that look past preloaded ones: a library that is opened with
//! RTLD_DEEPBIND, and those that it brings in, find their own functions first,
//! and libc's `dlsym`.
//!
//! glibc's loader can be asked to print in which order each object looks for
//! symbols (`LD_DEBUG`). Cost: some kilobytes of text for each library of each
//! process of a trial.

use std::collections::BTreeSet;
use std::path::Path;

use super::image::Image;

/// What the loader is asked to print, and where it prints it.
pub(super) const WHAT: (&str, &str) = ("LD_DEBUG", "scopes");
pub(super) const WHERE: &str = "LD_DEBUG_OUTPUT";

/// The line with which the output for a program begins.
const BEGINS: &str = "Initial object scopes";

/// From the loader's output for one process, what it said of each program: an
/// exec goes on in the same file.
fn programs(told: &str) -> impl Iterator<Item = &str> {
    told.split(BEGINS).skip(1)
}

/// From the loader's output for one process: the runtimes, and the libraries
/// with a runtime linked in, that look past preloads.
pub(super) fn runtimes_past_us(told: &str) -> BTreeSet<String> {
    let mut objects: BTreeSet<String> = programs(told).flat_map(deep).collect();
    objects.retain(|path| {
        Image::open(Path::new(path)).is_ok_and(|image| image.is_runtime() || image.runtime_inside)
    });
    objects
}

/// From the same: what was loaded.
pub(super) fn objects(told: &str) -> BTreeSet<String> {
    let lines = told.lines().filter_map(|line| line.split_once('\t'));
    let objects = lines.filter_map(|(_, line)| object_of(line.trim_start()));
    objects.map(str::to_owned).collect()
}

/// The object that a line is about.
fn object_of(line: &str) -> Option<&str> {
    let name = line.strip_prefix("object=")?;
    Some(name.rsplit_once(" [").map_or(name, |(name, _)| name))
}

/// The objects of one program that look into other objects than themselves
/// before the global scope, which begins with the program.
fn deep(told: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut program: Option<&str> = None;
    let mut object = None;
    let mut before = false;
    // Each line begins with the process id.
    for line in told.lines().filter_map(|line| line.split_once('\t')) {
        let line = line.1.trim_start();
        if let Some(name) = object_of(line) {
            program.get_or_insert(name);
            (object, before) = (Some(name), true);
        } else if let (Some((_, list)), Some(program), Some(name)) = (
            line.strip_prefix("scope ").and_then(|l| l.split_once(": ")),
            program,
            object,
        ) {
            before &= !list.starts_with(program);
            // A library that binds its own symbols to itself has a scope of
            // itself in front.
            if before && list.trim_end() != name {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_elsewhere_first_is_told() {
        let told = "\
      7:\tInitial object scopes\n      7:\tobject=nice [0]\n\
      7:\t scope 0: nice /us.so /libc.so.6\n      7:\t\n\
      7:\tInitial object scopes\n      7:\tobject=./program [0]\n\
      7:\t scope 0: ./program /us.so /libc.so.6\n      7:\t\n\
      7:\tobject=/ld.so [0]\n      7:\t no scope\n      7:\t\n\
      7:\tobject=/itself.so [0]\n      7:\t scope 0: /itself.so\n\
      7:\t scope 1: ./program /us.so /libc.so.6\n      7:\t scope 2: /itself.so /libc.so.6\n\
      7:\tobject=/usual.so [0]\n      7:\t scope 0: ./program /us.so /libc.so.6\n\
      7:\t scope 1: /usual.so /libc.so.6\n\
      7:\tobject=/deep.so [0]\n      7:\t scope 0: /deep.so /runtime.so /libc.so.6\n\
      7:\t scope 1: ./program /us.so /libc.so.6\n";
        // After an exec, the second program is the first of its own scope.
        let found: Vec<_> = programs(told).map(deep).collect();
        let expected = BTreeSet::from(["/deep.so".to_owned()]);
        assert_eq!(found, [BTreeSet::new(), expected]);
        assert!(deep("").is_empty() && deep("no\tsense: scope 0: at all").is_empty());
        assert!(runtimes_past_us(told).is_empty());
        let all = [
            "./program",
            "/deep.so",
            "/itself.so",
            "/ld.so",
            "/usual.so",
            "nice",
        ];
        assert_eq!(objects(told).into_iter().collect::<Vec<_>>(), all);
    }
}
