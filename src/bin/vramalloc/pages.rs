//! The processes of this user that run under the library, by their pages.
//!
//! Reads the user's folder, and removes what processes left there that were
//! killed. Invariant: nothing is followed, opened or believed that others than
//! the user could have put there; a page is removed only when no process has it
//! locked any more; no wait is without an end.

mod ids;
mod why;

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RawDir, fcntl_lock, flock, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};
use vramalloc_core::config::{self, Host};
use vramalloc_core::control::cells::Cells;
use vramalloc_core::control::record::Seen;
use vramalloc_core::control::{
    ControlPage, Figures, LAYOUT, LENGTH, PageOwner, folder_name, layout_of, user_outside,
};

/// The words of a page's file.
pub(super) struct FileCells(File);

impl Cells for FileCells {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; 8 * to.len()];
        self.0.read_exact_at(&mut bytes, 8 * place as u64)?;
        let (words, _) = bytes.as_chunks();
        for (to, from) in to.iter_mut().zip(words) {
            *to = u64::from_ne_bytes(*from);
        }
        Ok(())
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        step();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.0.write_all_at(&bytes, 8 * place as u64)
    }
}

/// A step of the work on another's page. A test kills the debug build at the
/// N-th: `CONTROL_KILLED_AT=N`.
pub(super) fn step() {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicU64, Ordering};
        static DONE: AtomicU64 = AtomicU64::new(0);
        let done = DONE.fetch_add(1, Ordering::Relaxed) + 1;
        let last = std::env::var("CONTROL_KILLED_AT").ok();
        if last.and_then(|last| last.parse().ok()) == Some(done) {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

/// A process and its page.
pub(super) struct Peer {
    pub(super) page: ControlPage<FileCells>,
    pub(super) owner: PageOwner,
    /// Its process id here. Nothing if it is in another container, and its id
    /// here cannot be known.
    pub(super) id: Option<u64>,
}

impl Peer {
    /// Its figures; nothing while they cannot be read.
    pub(super) fn figures(&self) -> Option<Figures> {
        self.page.figures().ok().and_then(Seen::whole)
    }

    /// Its process id here; if that is not known, the one that it has in its
    /// container.
    pub(super) fn shown_id(&self) -> u64 {
        self.id.unwrap_or(self.owner.pid)
    }

    /// Whether it has ended: nobody has the page's memory any more, or the
    /// process is gone while a child of it holds the file by chance.
    pub(super) fn has_ended(&self) -> bool {
        is_free(&self.page.cells().0) || self.id.is_some_and(|id| !ids::exists(id))
    }

    /// Keeps other senders away from its page, as long as this process runs and
    /// has the page. False if one is there.
    pub(super) fn lock(&self) -> bool {
        step();
        fcntl_lock(
            &self.page.cells().0,
            FlockOperation::NonBlockingLockExclusive,
        )
        .is_ok()
    }

    /// The process that keeps other senders away, if that can be seen from here.
    pub(super) fn sender(&self) -> Option<u64> {
        let lock = fcntl_getlk(&self.page.cells().0, &Flock::from(FlockType::WriteLock));
        let pid = lock.ok()??.pid?.as_raw_nonzero().get();
        u64::try_from(pid).ok()
    }
}

fn is_free(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Where this user's processes have their pages.
pub(super) fn parent() -> PathBuf {
    config::load(std::env::vars_os(), Host::default())
        .settings
        .ipc_dir
}

/// The name of this user's folder there.
fn own_folder() -> String {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    folder_name(user_outside(geteuid().as_raw(), &map))
}

/// What lies in the user's folder.
#[derive(Default)]
pub(super) struct Pages {
    /// The processes that have a page, by their ids.
    pub(super) peers: Vec<Peer>,
    /// Pages that cannot be read: of another version, or not as they should be.
    pub(super) unread: usize,
}

/// All processes of this user that have a page, by their ids.
///
/// # Errors
/// One line that says why the folder cannot be read or is not to be trusted.
pub(super) fn peers() -> Result<Vec<Peer>, String> {
    all().map(|pages| pages.peers)
}

/// All pages of this user.
///
/// # Errors
/// As `peers`.
pub(super) fn all() -> Result<Pages, String> {
    let path = parent().join(own_folder());
    let folder = match open_folder(&path) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Pages::default()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let names = names(&folder).map_err(|error| format!("{}: {error}", path.display()))?;
    let namespace = ids::own_namespace();
    let (mut peers, mut unread) = (Vec::new(), 0);
    for name in &names {
        match peer(&folder, name, namespace) {
            Found::Peer(peer) => peers.push(peer),
            Found::Unread => unread += 1,
            Found::Nobody => {}
        }
    }
    if peers.iter().any(|peer| peer.id.is_none()) {
        let others = ids::of_others();
        for peer in peers.iter_mut().filter(|peer| peer.id.is_none()) {
            let there = (peer.owner.namespace, peer.owner.pid);
            peer.id = others.get(&there).copied();
        }
    }
    // Of two with one id, that which began last is the living one.
    let began = |peer: &Peer| Reverse(peer.owner.started_ms);
    peers.sort_by_key(|peer| (peer.id.is_none(), peer.shown_id(), began(peer)));
    Ok(Pages { peers, unread })
}

/// What a file in the folder turns out to be.
enum Found {
    Peer(Peer),
    Unread,
    /// No page, or that of a process that is gone.
    Nobody,
}

/// The process with a page of this name. Removes the page of one that is gone.
fn peer(folder: &File, name: &str, namespace: Option<u64>) -> Found {
    let Some(layout) = layout_of(name) else {
        return Found::Nobody;
    };
    // Not blocking: a pipe may have that name.
    let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, how, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Found::Nobody,
        Err(_) => return Found::Unread,
    };
    if check(&file, |found| found.is_file() && found.nlink() == 1).is_err() {
        return Found::Unread;
    }
    if is_free(&file) {
        let _ = unlinkat(folder, name, AtFlags::empty());
        return Found::Nobody;
    }
    let is_whole = file.metadata().is_ok_and(|found| found.len() >= LENGTH);
    let page = ControlPage::new(FileCells(file));
    let is_known = layout == LAYOUT && is_whole;
    let owner = is_known.then(|| page.owner().ok()?.whole()).flatten();
    let Some(owner) = owner else {
        return Found::Unread;
    };
    // A namespace that is not known is no other's.
    let is_near = namespace.is_some_and(|own| owner.namespace == own);
    let id = is_near.then_some(owner.pid);
    if id.is_some_and(|id| !ids::exists(id)) {
        return Found::Nobody;
    }
    Found::Peer(Peer { page, owner, id })
}

fn open_folder(path: &Path) -> io::Result<File> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(openat(rustix::fs::CWD, path, how, Mode::empty())?);
    check(&folder, fs::Metadata::is_dir)?;
    Ok(folder)
}

/// Fails unless the file is the user's alone and of the expected kind.
fn check(file: &File, kind: impl FnOnce(&fs::Metadata) -> bool) -> io::Result<()> {
    let found = file.metadata()?;
    let why = if found.uid() != geteuid().as_raw() {
        "it belongs to somebody else"
    } else if found.mode() & 0o077 != 0 {
        "it is open to others"
    } else if !kind(&found) {
        "it is of another kind"
    } else {
        return Ok(());
    };
    Err(io::Error::other(why))
}

fn names(folder: &File) -> io::Result<Vec<String>> {
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(folder, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.push(name);
    }
    Ok(names)
}

/// The process with this id.
///
/// # Errors
/// One line that says why it cannot be reached.
pub(super) fn find(pid: u64) -> Result<Peer, String> {
    let mut peers = peers()?;
    if let Some(at) = peers.iter().position(|peer| peer.id == Some(pid)) {
        return Ok(peers.swap_remove(at));
    }
    peers.retain(|peer| peer.id.is_none() && peer.owner.pid == pid);
    if peers.len() > 1 {
        return Err(format!(
            "{} processes of other containers have the id {pid}",
            peers.len()
        ));
    }
    peers.pop().ok_or_else(|| why::why_not(pid))
}
