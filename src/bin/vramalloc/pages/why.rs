//! Why a process cannot be reached, as far as the system tells.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use vramalloc_core::config::{self, Host};
use vramalloc_core::control::{LAYOUT, layout_of};

use super::{ids, own_folder, parent};

/// Why no page of this process was found.
pub(super) fn why_not(pid: u64) -> String {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    if !ids::exists(pid) {
        return format!("there is no process {pid}");
    }
    let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
    if user(&status).is_some_and(|user| user != geteuid().as_raw()) {
        return format!("process {pid} belongs to another user, who alone can reach it");
    }
    let Ok(maps) = fs::read(proc.join("maps")) else {
        return format!(
            "process {pid} has no page here, and why cannot be seen: the system does not let \
             others look into it"
        );
    };
    // Its parent has not taken note of its end.
    if maps.is_empty() {
        return format!("process {pid} has ended");
    }
    if let Some(page) = mapped(&maps) {
        return page.why(pid);
    }
    if memchr::memmem::find(&maps, b"libvramalloc").is_none() {
        return format!("process {pid} does not run under vramalloc");
    }
    if !config::load(environment(&proc), Host::default())
        .settings
        .control
    {
        return format!("the option control is off in process {pid}");
    }
    format!(
        "process {pid} has no page: it has not asked for CUDA memory so far, nor what is free, \
         or could not make one (its statistics say why, under control)"
    )
}

/// The user whose rights a process has, by its `status`. (The owner of its
/// folder in `/proc` is root where others may not look into it.)
fn user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The file of a page that a process has mapped.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    /// Where the user's folder lies.
    parent: PathBuf,
    /// The user's folder.
    folder: OsString,
    layout: u32,
    is_removed: bool,
}

/// The page among what a process has mapped.
fn mapped(maps: &[u8]) -> Option<Mapped> {
    let lines = maps.split(|&byte| byte == b'\n');
    lines.into_iter().find_map(|line| {
        let path = line.get(memchr::memchr(b'/', line)?..)?;
        let kept = path.strip_suffix(b" (deleted)");
        let path = Path::new(std::ffi::OsStr::from_bytes(kept.unwrap_or(path)));
        let layout = layout_of(path.file_name()?.to_str()?)?;
        let folder = path.parent()?;
        let name = folder.file_name()?;
        name.as_bytes()
            .starts_with(b"vramalloc-")
            .then_some(Mapped {
                parent: folder.parent()?.to_owned(),
                folder: name.to_owned(),
                layout,
                is_removed: kept.is_some(),
            })
    })
}

impl Mapped {
    /// Why the process with this page was not found.
    fn why(&self, pid: u64) -> String {
        if self.is_removed {
            return format!("the page of process {pid} was removed by somebody");
        }
        if self.folder != *own_folder() {
            let folder = self.folder.display();
            return format!(
                "process {pid} made its page as another user, who alone can reach it ({folder})"
            );
        }
        let own = parent();
        if self.parent != own && Some(&self.parent) != fs::canonicalize(own).ok().as_ref() {
            let parent = self.parent.display();
            return format!(
                "process {pid} has its page in {parent}: set VRAMALLOC_IPC_DIR to that"
            );
        }
        if self.layout != LAYOUT {
            return format!(
                "process {pid} runs another version of vramalloc: its page is of version {}, and \
                 this command reads version {LAYOUT}",
                self.layout
            );
        }
        let parent = self.parent.display();
        format!(
            "the page of process {pid} cannot be read: it is not as it should be, or lies in a \
             container (try VRAMALLOC_IPC_DIR=/proc/{pid}/root{parent})"
        )
    }
}

/// What a process was started with.
fn environment(proc: &Path) -> Vec<(OsString, OsString)> {
    let all = fs::read(proc.join("environ")).unwrap_or_default();
    let variables = all.split(|&byte| byte == 0).filter_map(|variable| {
        let at = variable.iter().position(|&byte| byte == b'=')?;
        let (name, value) = variable.split_at_checked(at)?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_owned());
        Some((text(name), text(value.get(1..)?)))
    });
    variables.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_page_is_found_by_its_name() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 12  /lib/libvramalloc.so\n\
                    7f02-7f04 rw-s 00000000 00:1a 42  /a b/vramalloc-7/page.2.key (deleted)\n";
        let page = Mapped {
            parent: "/a b".into(),
            folder: "vramalloc-7".into(),
            layout: 2,
            is_removed: true,
        };
        assert_eq!(mapped(maps.as_bytes()), Some(page));
        assert_eq!(mapped(b"7f00 r-xp 0 0 0  /a/b/page.1.key\n\xff\n"), None);
    }

    #[test]
    fn whose_a_process_is_is_its_effective_user() {
        assert_eq!(user("Name:\ta\nUid:\t1\t2\t3\t4\n"), Some(2));
        assert_eq!(user("Name:\ta\n"), None);
    }
}
