//! A path that `LD_PRELOAD` can hold: a link to a library whose own path holds a blank,
//! a colon or a dollar sign.
//!
//! Invariant: the link lies in a folder that is the user's alone, made or checked each
//! time, whose own place nobody else can change. The Python package makes the same
//! links. Cost: a few system calls. The link stays, since processes that run start
//! others by it; once its library is gone, one that is made later takes it away.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process};

use rustix::process::geteuid;

/// What separates the entries of `LD_PRELOAD`, and what begins a word that the loader
/// replaces in them (`$LIB`, `$ORIGIN`, `$PLATFORM`).
const UNFIT: &[u8] = b" :$";

/// How the name of a link begins.
const STEM: &str = "libvramalloc-";

/// How old a link is before it is taken away: during an upgrade its library is missing
/// for a moment.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether `LD_PRELOAD` cannot hold a path.
fn is_unfit(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().any(|byte| UNFIT.contains(byte))
}

/// The path, or a link to it that `LD_PRELOAD` can hold.
///
/// # Errors
/// Why there can be no link.
pub(super) fn loadable(path: PathBuf) -> Result<PathBuf, String> {
    if !is_unfit(&path) {
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
        if is_unfit(&parent) {
            continue;
        }
        let folder = parent.join(format!("vramalloc-preload-{}", geteuid().as_raw()));
        match private(&parent, &folder).and_then(|()| linked(&folder, &path)) {
            Ok(link) => return Ok(link),
            Err(error) => tried.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(format!(
        "the path holds a space, a colon or a dollar sign, which LD_PRELOAD cannot hold, and no \
         link to it could be made ({})",
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
    let link = folder.join(format!("{STEM}{:016x}.so", number_of(path)));
    if fs::read_link(&link).is_ok_and(|to| to == path) {
        return Ok(link);
    }
    let new = link.with_extension(format!("so.{}", process::id()));
    // Left by a process with this id.
    let _ = fs::remove_file(&new);
    symlink(path, &new)?;
    fs::rename(&new, &link)?;
    sweep(folder);
    Ok(link)
}

/// Takes away old links to libraries that are gone. What cannot be looked at stays.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_bytes().starts_with(STEM.as_bytes());
        let is_old = entry
            .metadata()
            .and_then(|link| link.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > OLD));
        let is_lost = || {
            let found = fs::metadata(entry.path());
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if is_ours && is_old && is_lost() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// FNV-1a of a path.
fn number_of(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |number, &byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
