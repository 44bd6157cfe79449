//! A path that `LD_PRELOAD` can hold: a link to a library whose own path holds a blank
//! or a colon.
//!
//! Invariant: the link lies in a folder that is the user's alone, made or checked each
//! time, whose own place nobody else can change. The Python package makes the same
//! links. Cost: a few system calls; the link stays.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::{env, process};

use rustix::process::geteuid;

/// What separates the entries of `LD_PRELOAD`.
const SEPARATORS: &[u8] = b" :";

/// Whether `LD_PRELOAD` cannot hold a path.
fn is_split(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().any(|byte| SEPARATORS.contains(byte))
}

/// The path, or a link to it that `LD_PRELOAD` can hold.
///
/// # Errors
/// Why there can be no link.
pub(super) fn loadable(path: PathBuf) -> Result<PathBuf, String> {
    if !is_split(&path) {
        return Ok(path);
    }
    let own = env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
    let parents = [
        Some(PathBuf::from("/dev/shm")),
        own.map(PathBuf::from),
        Some(PathBuf::from("/tmp")),
    ];
    let mut tried = Vec::new();
    for parent in parents.into_iter().flatten() {
        if is_split(&parent) {
            continue;
        }
        let folder = parent.join(format!("vramalloc-preload-{}", geteuid().as_raw()));
        match private(&parent, &folder).and_then(|()| linked(&folder, &path)) {
            Ok(link) => return Ok(link),
            Err(error) => tried.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(format!(
        "the path holds a space or a colon, which LD_PRELOAD cannot hold, and no link to it could \
         be made ({})",
        tried.join("; ")
    ))
}

/// Makes a folder of the user's alone in `parent`, or checks the one that is there.
fn private(parent: &Path, folder: &Path) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    const OTHERS: u32 = 0o077;
    let above = fs::metadata(parent)?.mode();
    if above & OTHERS_WRITE != 0 && above & STICKY == 0 {
        return Err(io::Error::other("anybody may rename what lies beside it"));
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        // The umask may have taken rights that we need.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o700))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // A link in its place is looked at itself, and not what it leads to.
    let found = fs::symlink_metadata(folder)?;
    let wrong = if !Metadata::is_dir(&found) {
        "it is no folder"
    } else if found.uid() != geteuid().as_raw() {
        "it belongs to somebody else"
    } else if found.mode() & OTHERS != 0 {
        "it is open to others"
    } else {
        return Ok(());
    };
    Err(io::Error::other(wrong))
}

/// A link in `folder` to a path, by a name of its own.
fn linked(folder: &Path, path: &Path) -> io::Result<PathBuf> {
    let link = folder.join(format!("libvramalloc-{:016x}.so", number_of(path)));
    if fs::read_link(&link).is_ok_and(|to| to == path) {
        return Ok(link);
    }
    let new = link.with_extension(format!("so.{}", process::id()));
    // Left by a process with this id.
    let _ = fs::remove_file(&new);
    symlink(path, &new)?;
    fs::rename(&new, &link)?;
    Ok(link)
}

/// FNV-1a of a path.
fn number_of(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |number, &byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
