//! A user's private folder, in which records wait for other processes.
//!
//! Invariant: the folder belongs to the user whose name it has, no other user
//! can enter it, and everything in it is opened by a plain name in that very
//! folder. A symbolic link, another user's file, one that others can read, or a
//! file under two names is refused. So another user can at worst keep us from
//! using it. Cost: a few system calls each time: nothing is kept open, because
//! programs close what they did not open.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vramalloc_core::control::{folder_name, user_outside};

use crate::process::outside::quietly;
use crate::process::text_of;

/// The permissions that others must not have on a file.
const OTHERS: u32 = 0o077;

/// The user that a folder belongs to. A process may change its user.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    number: libc::uid_t,
    /// The number outside of the process's namespace.
    outside: u32,
}

impl User {
    /// The user whose rights the process has now.
    pub(crate) fn now() -> User {
        // SAFETY: has no conditions.
        let number = unsafe { libc::geteuid() };
        let outside = user_outside(number, &text_of("/proc/self/uid_map").unwrap_or_default());
        User { number, outside }
    }

    /// The name of the user's folder.
    fn folder(self) -> io::Result<CString> {
        c_text(folder_name(self.outside).as_bytes())
    }
}

/// See the module.
pub(crate) struct Folder {
    file: File,
    user: User,
}

impl Folder {
    /// The user's folder inside `parent`.
    ///
    /// # Errors
    /// What the system returns, or that the folder is not the user's alone.
    pub(crate) fn open(parent: &Path, user: User) -> io::Result<Folder> {
        let above = c_text(parent.as_os_str().as_bytes())?;
        let above = open_at(libc::AT_FDCWD, &above, FOLDER)?;
        Folder::inside(&above, user)
    }

    fn inside(above: &File, user: User) -> io::Result<Folder> {
        let how = FOLDER | libc::O_NOFOLLOW;
        let file = open_at(above.as_raw_fd(), &user.folder()?, how)?;
        check(&file, libc::S_IFDIR, user)?;
        Ok(Folder { file, user })
    }

    /// Opens the user's folder inside `parent`, and makes it if there is none.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn make(parent: &Path, user: User) -> io::Result<Folder> {
        const TRIES: usize = 64;
        let above = c_text(parent.as_os_str().as_bytes())?;
        let above = open_at(libc::AT_FDCWD, &above, FOLDER)?;
        let name = user.folder()?;
        // Another process may remove the empty folder before it is opened.
        let mut made = Err(io::ErrorKind::NotFound.into());
        for _ in 0..TRIES {
            // SAFETY: an open folder and a name that ends in zero. If something
            // of that name exists, `inside` decides whether it will do.
            if unsafe { libc::mkdirat(above.as_raw_fd(), name.as_ptr(), 0o700) } == 0 {
                // The program's umask may have taken rights that we need.
                // SAFETY: as above.
                unsafe { libc::fchmodat(above.as_raw_fd(), name.as_ptr(), 0o700, 0) };
            }
            made = Folder::inside(&above, user);
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        made
    }

    /// Removes the user's folder from `parent`, if nothing is in it.
    pub(crate) fn remove_empty(parent: &Path, user: User) {
        let remove = || {
            let above = c_text(parent.as_os_str().as_bytes())?;
            let above = open_at(libc::AT_FDCWD, &above, FOLDER)?;
            let name = user.folder()?;
            // SAFETY: an open folder and a name that ends in zero.
            unsafe { libc::unlinkat(above.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) };
            io::Result::Ok(())
        };
        // Best effort: an empty folder harms nobody.
        let _ = remove();
    }

    /// Makes a file that was not there and writes it.
    ///
    /// # Errors
    /// What the system returns.
    pub(crate) fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        let how = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let mut file = open_at(self.file.as_raw_fd(), &c_text(name.as_bytes())?, how)?;
        // SAFETY: an open file. The program's umask may have taken rights.
        unsafe { libc::fchmod(file.as_raw_fd(), 0o600) };
        match quietly(|| file.write_all(bytes)) {
            Ok(()) => Ok(file),
            Err(error) => {
                self.remove(name);
                Err(error)
            }
        }
    }

    /// Opens a file of ours.
    ///
    /// # Errors
    /// What the system returns, or that the file is not the user's alone.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        // Not blocking: a pipe may have that name.
        let how = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = open_at(self.file.as_raw_fd(), &c_text(name.as_bytes())?, how)?;
        check(&file, libc::S_IFREG, self.user)?;
        Ok(file)
    }

    /// The first `most` bytes of a file of ours, and one more if there is one.
    ///
    /// # Errors
    /// As `open_file`.
    pub(crate) fn read(&self, name: &str, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        self.open_file(name)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Removes a file; returns whether it is gone. One that cannot be removed
    /// stays until the next process sweeps.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let Ok(name) = c_text(name.as_bytes()) else {
            return false;
        };
        // SAFETY: an open folder and a name that ends in zero.
        let removed = unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) };
        removed == 0 || io::Error::last_os_error().kind() == io::ErrorKind::NotFound
    }

    /// The names of everything in the folder.
    ///
    /// # Errors
    /// What the system returns.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let again = open_at(self.file.as_raw_fd(), c".", FOLDER)?;
        // SAFETY: an open folder, which the stream takes over on success.
        let stream = unsafe { libc::fdopendir(again.as_raw_fd()) };
        if stream.is_null() {
            return Err(io::Error::last_os_error());
        }
        let _taken_over = std::os::fd::IntoRawFd::into_raw_fd(again);
        let mut names = Vec::new();
        loop {
            // SAFETY: the stream is open and this thread's own.
            let entry = unsafe { libc::readdir(stream) };
            if entry.is_null() {
                break;
            }
            // SAFETY: the entry is valid until the next read, and its name
            // ends in zero.
            let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) };
            names.push(name.to_string_lossy().into_owned());
        }
        // SAFETY: opened above, and used no more.
        unsafe { libc::closedir(stream) };
        Ok(names)
    }
}

/// Takes the lock of an open file, which ends with the process however that
/// ends. Returns false if it is taken.
pub(crate) fn lock(file: &File) -> bool {
    // SAFETY: an open file.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

const FOLDER: i32 = libc::O_RDONLY | libc::O_DIRECTORY;

fn c_text(text: &[u8]) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn open_at(folder: RawFd, name: &CStr, how: i32) -> io::Result<File> {
    // Numbers that the program has closed are taken meanwhile: what it prints
    // there must not land in this file.
    let _taken = StandardTaken::now()?;
    open_plainly(folder, name, how)
}

fn open_plainly(folder: RawFd, name: &CStr, how: i32) -> io::Result<File> {
    let how = how | libc::O_CLOEXEC;
    // SAFETY: the name ends in zero; the mode is given in case a file is made.
    let file = unsafe { libc::openat(folder, name.as_ptr(), how, 0o600) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Until it is dropped, numbers 0 to 2 are open: those that were not stand for
/// a folder that nothing can be read from or written to.
pub(crate) struct StandardTaken {
    _files: [Option<File>; 3],
}

impl StandardTaken {
    pub(crate) fn now() -> io::Result<StandardTaken> {
        let mut files = [None, None, None];
        for taken in &mut files {
            let file = open_plainly(libc::AT_FDCWD, c"/", libc::O_PATH)?;
            if file.as_raw_fd() > libc::STDERR_FILENO {
                break;
            }
            *taken = Some(file);
        }
        Ok(StandardTaken { _files: files })
    }
}

/// Fails unless the file is of this type and the user's alone.
fn check(file: &File, kind: libc::mode_t, user: User) -> io::Result<()> {
    let found = file.metadata()?;
    let wrong = if found.mode() & libc::S_IFMT != kind {
        "is of another type"
    } else if found.uid() != user.number {
        "belongs to somebody else"
    } else if found.mode() & OTHERS != 0 {
        "is open to others"
    } else if kind == libc::S_IFREG && found.nlink() > 1 {
        "has a second name"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, wrong))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A parent of its own for each test.
    struct Parent(PathBuf);

    impl Parent {
        fn new(test: &str) -> Parent {
            let path = std::env::temp_dir()
                .join(format!("vramalloc.folder.{test}.{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Parent(path)
        }

        /// Where our folder is, or would be.
        fn inside(&self) -> PathBuf {
            self.0.join(User::now().folder().unwrap().to_str().unwrap())
        }

        #[track_caller]
        fn refused(&self, why: &str) {
            for tried in [
                Folder::make(&self.0, User::now()),
                Folder::open(&self.0, User::now()),
            ] {
                let error = tried.err().expect("opened").to_string();
                assert!(error.contains(why), "{error}");
            }
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_is_made_private_used_and_removed() {
        let parent = Parent::new("use");
        assert!(Folder::open(&parent.0, User::now()).is_err());
        let folder = Folder::make(&parent.0, User::now()).unwrap();
        let mode = fs::metadata(parent.inside()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        folder.write_new("a", b"text").unwrap();
        let mode = fs::metadata(parent.inside().join("a")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(folder.write_new("a", b"other").is_err());
        assert_eq!(
            Folder::open(&parent.0, User::now())
                .unwrap()
                .read("a", 9)
                .unwrap(),
            b"text"
        );
        assert_eq!(folder.read("a", 2).unwrap(), b"tex");
        assert!(folder.names().unwrap().contains(&"a".to_owned()));
        Folder::remove_empty(&parent.0, User::now());
        folder.remove("a");
        Folder::remove_empty(&parent.0, User::now());
        assert!(!parent.inside().exists());
        assert!(folder.write_new("a", b"text").is_err());
    }

    #[test]
    fn a_planted_folder_is_refused() {
        let parent = Parent::new("planted");
        let elsewhere = parent.0.join("elsewhere");
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&elsewhere)
            .unwrap();
        symlink(&elsewhere, parent.inside()).unwrap();
        parent.refused("");
        fs::remove_file(parent.inside()).unwrap();
        symlink("nowhere", parent.inside()).unwrap();
        parent.refused("");
        fs::remove_file(parent.inside()).unwrap();
        fs::write(parent.inside(), "").unwrap();
        parent.refused("");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_the_user_s_alone_is_refused() {
        let parent = Parent::new("open");
        Folder::make(&parent.0, User::now()).unwrap();
        for mode in [0o701, 0o710, 0o704, 0o777] {
            fs::set_permissions(parent.inside(), fs::Permissions::from_mode(mode)).unwrap();
            parent.refused("is open to others");
        }
        fs::set_permissions(parent.inside(), fs::Permissions::from_mode(0o700)).unwrap();
        Folder::open(&parent.0, User::now()).unwrap();
        // Only root can give a folder away.
        if chown(parent.inside(), Some(12_345), None).is_ok() {
            parent.refused("belongs to somebody else");
        }
    }

    #[test]
    fn a_planted_file_is_refused() {
        let parent = Parent::new("files");
        let folder = Folder::make(&parent.0, User::now()).unwrap();
        let path = |name: &str| parent.inside().join(name);
        fs::write(parent.0.join("outside"), "text").unwrap();
        symlink(parent.0.join("outside"), path("link")).unwrap();
        assert!(folder.read("link", 9).is_err());
        assert!(folder.write_new("link", b"x").is_err());
        folder.write_new("file", b"text").unwrap();
        fs::hard_link(path("file"), path("twin")).unwrap();
        assert!(folder.read("file", 9).is_err());
        fs::remove_file(path("twin")).unwrap();
        assert!(folder.read("file", 9).is_ok());
        fs::set_permissions(path("file"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(folder.read("file", 9).is_err());
        fs::create_dir(path("folder")).unwrap();
        assert!(folder.read("folder", 9).is_err());
        assert_eq!(fs::read(parent.0.join("outside")).unwrap(), b"text");
    }

    #[test]
    fn a_lock_is_held_once() {
        let parent = Parent::new("lock");
        let folder = Folder::make(&parent.0, User::now()).unwrap();
        let held = folder.write_new("a", b"").unwrap();
        assert!(lock(&held));
        assert!(!lock(&folder.open_file("a").unwrap()));
        drop(held);
        assert!(lock(&folder.open_file("a").unwrap()));
    }

    /// What a child says that may change what belongs to a whole process.
    fn in_child(says: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs `says`, which takes no lock of the test's, and
        // ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: has no conditions.
            unsafe { libc::_exit(i32::from(!says())) };
        }
        let mut status = -1;
        // SAFETY: a local, and a child of ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        status == 0
    }

    #[test]
    fn standard_numbers_are_not_used() {
        let parent = Parent::new("numbers");
        assert!(in_child(|| {
            for number in 0..=libc::STDERR_FILENO {
                // SAFETY: the child's own, which it uses no more.
                unsafe { libc::close(number) };
            }
            let folder = Folder::make(&parent.0, User::now()).unwrap();
            let file = folder.write_new("a", b"").unwrap();
            let is_above = |file: &File| file.as_raw_fd() > libc::STDERR_FILENO;
            // SAFETY: asks for a number's flags.
            let are_closed = (0..3).all(|n| unsafe { libc::fcntl(n, libc::F_GETFD) } < 0);
            is_above(&file) && is_above(&folder.file) && are_closed
        }));
    }

    #[test]
    fn a_umask_takes_nothing_away() {
        let parent = Parent::new("umask");
        for mask in [0o777, 0o400] {
            assert!(in_child(|| {
                // SAFETY: has no conditions.
                unsafe { libc::umask(mask) };
                let folder = Folder::make(&parent.0, User::now()).unwrap();
                folder.write_new("a", b"").unwrap();
                true
            }));
            let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!(mode(parent.inside()), 0o700);
            assert_eq!(mode(parent.inside().join("a")), 0o600);
            fs::remove_dir_all(parent.inside()).unwrap();
        }
    }

    /// Others remove the empty folder at any time, if not all the time: where making
    /// one is slow, they would else always wait for it in turn.
    #[test]
    fn a_folder_is_made_while_another_process_removes_it() {
        let parent = Parent::new("race");
        let over = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for time in (0..1000)
                    .step_by(50)
                    .cycle()
                    .take_while(|_| !over.load(order))
                {
                    Folder::remove_empty(&parent.0, User::now());
                    std::thread::sleep(std::time::Duration::from_micros(time));
                }
            });
            let made = (0..20_000).map(|_| Folder::make(&parent.0, User::now()).map(drop));
            let failed: Vec<io::Error> = made.filter_map(Result::err).collect();
            over.store(true, order);
            assert!(failed.is_empty(), "{failed:?}");
        });
    }
}
