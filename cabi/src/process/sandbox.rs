//! Whether the program has taken system calls from itself (seccomp).
//!
//! A filter may end the process at a call that the program itself never makes,
//! so nothing is done then that can be left out. The filter of a container is
//! no such thing: all its processes have it. Cost: two small files are read; a
//! system call for [`any`], two for [`none_came`], and one for [`is_in_force_now`]
//! where there is no filter.

use std::sync::OnceLock;

use super::text_of;

/// Whether this thread has more filters than its container gave it.
pub(crate) fn is_in_force() -> bool {
    are_more_than_given(own_filters())
}

/// The same; no file is read where this thread has no filter.
pub(crate) fn is_in_force_now() -> bool {
    any() && are_more_than_given(own_filters())
}

/// How many filters this thread has. Where /proc is not there it cannot be known.
fn own_filters() -> u64 {
    filters("thread-self").unwrap_or(0)
}

/// The container's are those of its first process, which may be this one.
fn are_more_than_given(own: u64) -> bool {
    let given = || match std::process::id() {
        1 => 1,
        _ => filters("1").unwrap_or(0),
    };
    own > 0 && own > given()
}

/// Whether no filter came since this was asked first, as far as can be seen. One that adds
/// to the container's is seen by what a process without rights has to give up before
/// (`PR_SET_NO_NEW_PRIVS`). Where the container has done that too, nothing would be seen.
pub(crate) fn none_came() -> bool {
    static FIRST: OnceLock<(bool, bool)> = OnceLock::new();
    let now = (any(), has_given_up_privileges());
    now == *FIRST.get_or_init(|| now) && now != (true, true)
}

/// Whether the process can gain no privileges, as who filters its calls must say before.
pub(crate) fn has_given_up_privileges() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) > 0 }
}

/// Whether this thread has any filter.
pub(crate) fn any() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) > 0 }
}

/// How many filters a process has; nothing if that cannot be read.
fn filters(process: &str) -> Option<u64> {
    count(&text_of(&format!("/proc/{process}/status")).ok()?)
}

fn count(status: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse().ok()
    };
    match value("Seccomp:")? {
        0 => Some(0),
        // Kernels before 5.9 do not say how many.
        _ => Some(value("Seccomp_filters:").unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a copy of the process, which alone loses something by it.
    #[test]
    fn what_comes_before_a_filter_is_seen() {
        // SAFETY: the copy makes system calls alone, and ends at once.
        let status = unsafe {
            let copy = libc::fork();
            if copy == 0 {
                let before = none_came() == ((any(), has_given_up_privileges()) != (true, true));
                let had = has_given_up_privileges();
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::_exit(i32::from(!(before && (had || !none_came()))));
            }
            let mut status = 1;
            assert_eq!(libc::waitpid(copy, &raw mut status, 0), copy);
            status
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn filters_are_counted() {
        assert_eq!(
            count("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"),
            Some(0)
        );
        assert_eq!(count("Seccomp:\t2\nSeccomp_filters:\t3\n"), Some(3));
        assert_eq!(count("Seccomp:\t2\n"), Some(u64::MAX));
        assert_eq!(count("Name:\tx\n"), None);
        assert!(filters("thread-self").is_some());
    }
}
