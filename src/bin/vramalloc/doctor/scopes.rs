//! Libraries that look past preloaded ones: a library that is opened with
//! RTLD_DEEPBIND, and those that it brings in, find their own functions first,
//! and libc's `dlsym`.
//!
//! glibc's loader can be asked to print in which order each object looks for
//! symbols, and when it ends them (`LD_DEBUG`). Cost: some kilobytes of text for each library of each
//! process of a trial.

use std::collections::BTreeSet;
use std::path::Path;

use super::image::Image;

/// What the loader is asked to print, and where it prints it.
pub(super) const WHAT: (&str, &str) = ("LD_DEBUG", "scopes,libs");
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
    let objects = lines(told).filter_map(object_of);
    objects.map(str::to_owned).collect()
}

/// A program that loaded CUDA.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cuda<'a> {
    pub(super) program: &'a str,
    /// The name of the first runtime or driver.
    pub(super) file: &'a str,
    pub(super) is_ours_there: bool,
}

/// From the loader's output for one process: its programs that loaded CUDA. The
/// file of our library has the name `ours`.
pub(super) fn cuda<'a>(told: &'a str, ours: &str) -> impl Iterator<Item = Cuda<'a>> {
    programs(told).filter_map(move |told| {
        let objects = || lines(told).filter_map(object_of).map(file_name);
        let is_cuda = |name: &&str| name.starts_with("libcudart") || name.starts_with("libcuda.so");
        Some(Cuda {
            program: lines(told).find_map(object_of)?,
            file: objects().find(is_cuda)?,
            is_ours_there: objects().any(|name| name == ours),
        })
    })
}

/// Programs that do some work and then become the one that they are told to start.
const BECOME_OTHERS: &[&str] = &["env", "nice", "nohup", "setsid", "taskset", "numactl"];

/// How the lines begin that the loader prints when a program ends by `exit`.
const ENDS: &str = "calling fini:";

/// From the loader's output for one process: the program that became another, of
/// which the loader told nothing.
pub(super) fn became(told: &str) -> Option<&str> {
    let last = programs(told).last()?;
    let program = lines(last).find_map(object_of).map(file_name)?;
    let has_ended = lines(last).any(|line| line.starts_with(ENDS));
    (BECOME_OTHERS.contains(&program) && !has_ended).then_some(program)
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The lines, without the process id with which each begins.
fn lines(told: &str) -> impl Iterator<Item = &str> {
    let lines = told.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(_, line)| line.trim_start())
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
    for line in lines(told) {
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

    #[test]
    fn what_came_without_us_is_told() {
        let program = |name: &str, others: &str| {
            format!("\n 7:\tInitial object scopes\n 7:\tobject={name} [0]\n{others}")
        };
        let cudas = "7:\tobject=/a/libcudart-1.so.12 [0]\n7:\tobject=/libcuda.so.1 [0]\n";
        let ours = "7:\tobject=/b/us.so [0]\n";
        let told = [
            program("/bin/env", ours),
            program("./with", &format!("{ours}{cudas}")),
            program("./without", cudas),
        ]
        .concat();
        let found = |program, is_ours_there| Cuda {
            program,
            file: "libcudart-1.so.12",
            is_ours_there,
        };
        let expected = [found("./with", true), found("./without", false)];
        assert!(cuda(&told, "us.so").eq(expected));

        assert_eq!(became(&told), None);
        assert_eq!(became(&program("/bin/env", ours)), Some("env"));
        let ended = format!("{ours}7:\t\n7:\tcalling fini:  [0]\n");
        assert_eq!(became(&program("/bin/env", &ended)), None);
        assert_eq!((became(&program("sh", ours)), became("")), (None, None));
    }
}
