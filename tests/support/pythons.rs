//! The interpreters of Python on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every CPython of these versions that is here: on the path, and of pyenv.
pub fn interpreters() -> Vec<(u32, PathBuf)> {
    let said = |command: &mut Command| {
        let output = command
            .output()
            .ok()
            .filter(|output| output.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut found = BTreeSet::new();
    for minor in 9..=13 {
        let mut places = vec![PathBuf::from(format!("python3.{minor}"))];
        let root = said(Command::new("pyenv").arg("root")).unwrap_or_default();
        let versions = fs::read_dir(Path::new(&root).join("versions"));
        places.extend(versions.into_iter().flatten().filter_map(|version| {
            let name = version.as_ref().ok()?.file_name().into_string().ok()?;
            let is_it = name.starts_with(&format!("3.{minor}."));
            is_it.then(|| version.unwrap().path().join("bin/python3"))
        }));
        let own = "import os, sys; print(os.path.realpath(sys.executable))";
        let real = places
            .iter()
            .filter_map(|place| said(Command::new(place).args(["-c", own])));
        found.extend(real.map(|path| (minor, PathBuf::from(path))));
    }
    found.into_iter().collect()
}
