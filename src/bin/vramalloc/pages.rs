//! The processes of this user that run under the library, by their pages.
//!
//! Reads the user's folder, and removes what processes left there that were
//! killed. Invariant: nothing is followed, opened or believed that others than
//! the user could have put there; no wait is without an end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RawDir, fcntl_lock, flock, openat, unlinkat,
};
use rustix::process::{Pid, geteuid, test_kill_process};
use vramalloc_core::config::{self, Host};
use vramalloc_core::control::cells::Cells;
use vramalloc_core::control::record::Seen;
use vramalloc_core::control::{
    ControlPage, Figures, LAYOUT, LENGTH, PageOwner, folder_name, layout_of,
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
    /// Whether its process id means here what it means to itself.
    pub(super) is_near: bool,
}

impl Peer {
    /// Its figures; nothing while they cannot be read.
    pub(super) fn figures(&self) -> Option<Figures> {
        self.page.figures().ok().and_then(Seen::whole)
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(&self.page.cells().0, &self.owner, self.is_near)
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
}

/// Whether nobody has the page's memory any more, or its process is gone while a
/// child of it holds the file by chance.
fn has_ended(file: &File, owner: &PageOwner, is_near: bool) -> bool {
    is_free(file) || (is_near && !exists(owner.pid))
}

fn is_free(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Whether there is a process with this id.
pub(super) fn exists(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Where this user's processes have their pages.
pub(super) fn parent() -> PathBuf {
    config::load(std::env::vars_os(), Host::default())
        .settings
        .ipc_dir
}

/// All processes of this user that have a page, by their ids.
///
/// # Errors
/// One line that says why the folder cannot be read or is not to be trusted.
pub(super) fn peers() -> Result<Vec<Peer>, String> {
    let path = parent().join(folder_name(geteuid().as_raw()));
    let folder = match open_folder(&path) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let names = names(&folder).map_err(|error| format!("{}: {error}", path.display()))?;
    let namespace = namespace("self");
    let mut peers: Vec<Peer> = names
        .iter()
        .filter_map(|name| peer(&folder, name, namespace))
        .collect();
    peers.sort_by_key(|peer| (!peer.is_near, peer.owner.pid));
    Ok(peers)
}

/// The process with a page of this name. Removes the page of one that is gone.
fn peer(folder: &File, name: &str, namespace: Option<u64>) -> Option<Peer> {
    let layout = layout_of(name)?;
    // Not blocking: a pipe may have that name.
    let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder, name, how, Mode::empty()).ok()?);
    check(&file, |found| found.is_file() && found.nlink() == 1).ok()?;
    let remove = || _ = unlinkat(folder, name, AtFlags::empty());
    if is_free(&file) {
        remove();
        return None;
    }
    if layout != LAYOUT || file.metadata().ok()?.len() < LENGTH {
        return None;
    }
    let page = ControlPage::new(FileCells(file));
    let owner = page.owner().ok()?.whole()?;
    let is_near = namespace.is_none_or(|own| owner.namespace == own);
    if has_ended(&page.cells().0, &owner, is_near) {
        remove();
        return None;
    }
    Some(Peer {
        page,
        owner,
        is_near,
    })
}

/// The number of a process's namespace of ids.
fn namespace(process: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{process}/ns/pid")).ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
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
    peers.retain(|peer| peer.owner.pid == pid);
    // The first are those whose ids mean the same here.
    let near = peers.iter().filter(|peer| peer.is_near).count();
    if near == 0 && peers.len() > 1 {
        return Err(format!(
            "{} processes of other containers have the id {pid}",
            peers.len()
        ));
    }
    peers.into_iter().next().ok_or_else(|| why_not(pid))
}

/// Why a process has no page.
fn why_not(pid: u64) -> String {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    if !exists(pid) {
        return format!("there is no process {pid}");
    }
    if fs::metadata(&proc).is_ok_and(|found| found.uid() != geteuid().as_raw()) {
        return format!("process {pid} belongs to another user, who alone can reach it");
    }
    let maps = fs::read_to_string(proc.join("maps"));
    if maps.is_ok_and(|maps| !maps.contains("libvramalloc")) {
        return format!("process {pid} does not run under vramalloc");
    }
    let settings = config::load(environment(&proc), Host::default()).settings;
    if !settings.control {
        return format!("the option control is off in process {pid}");
    }
    if settings.ipc_dir != parent() {
        return format!(
            "process {pid} has its page in {}: set VRAMALLOC_IPC_DIR to that",
            settings.ipc_dir.display()
        );
    }
    format!(
        "process {pid} has no page: it has taken no CUDA memory so far, or could not make one \
         (its statistics say why, under control)"
    )
}

/// What a process was started with.
fn environment(proc: &Path) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    use std::os::unix::ffi::OsStringExt as _;
    let all = fs::read(proc.join("environ")).unwrap_or_default();
    let variables = all.split(|&byte| byte == 0).filter_map(|variable| {
        let at = variable.iter().position(|&byte| byte == b'=')?;
        let (name, value) = variable.split_at_checked(at)?;
        let text = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_owned());
        Some((text(name), text(value.get(1..)?)))
    });
    variables.collect()
}
