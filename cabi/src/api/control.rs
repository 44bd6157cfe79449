//! What a program may ask of the library and set.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use super::memory::{Place, vramalloc_place};
use super::{
    Failure, VRAMALLOC_BROKEN, VRAMALLOC_INVALID_ARGUMENT, VRAMALLOC_INVALID_VALUE, VRAMALLOC_IO,
    VRAMALLOC_READ_ONLY, VRAMALLOC_TOO_SMALL, VRAMALLOC_UNKNOWN_NAME, answer, given,
    vramalloc_result,
};
use crate::pools::{background, device, host_memory, pageable, places};
use crate::report::control::{self, Refused};
use crate::report::dump;
use crate::types::put;

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        Failure(match refused {
            Refused::Unknown => VRAMALLOC_UNKNOWN_NAME,
            Refused::ReadOnly => VRAMALLOC_READ_ONLY,
            Refused::Unreadable => VRAMALLOC_INVALID_VALUE,
            Refused::File(error) => {
                if let Some(number) = error.raw_os_error() {
                    // SAFETY: the calling thread's own place.
                    unsafe { *libc::__errno_location() = number };
                }
                VRAMALLOC_IO
            }
        })
    }
}

/// Gives cached memory at `place` in which no block lies back to CUDA (or to
/// the system), and writes how many bytes that was to `*released`, if that is
/// not null. On a device it first waits until all memory that was freed there
/// is out of use, in all contexts of this process.
///
/// May be called before CUDA is initialised (0 bytes, and nothing is
/// initialised), by any thread, and during a capture, which it does not
/// disturb; not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for an unknown place.
///
/// The caller promises that `released`, if it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_empty_cache(
    place: vramalloc_place,
    released: *mut u64,
) -> vramalloc_result {
    answer(|| {
        let place = Place::read(place)?;
        background::finish();
        let bytes = match place {
            Place::Device(device) => {
                let device = device.or_else(places::current_device);
                device::pools_on(device.unwrap_or(-1))
                    .iter()
                    .map(|pool| pool.trim().get())
                    .sum()
            }
            Place::Pinned => host_memory::trim().get(),
            Place::Pageable => pageable::trim().get(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(released, bytes) };
        Ok(())
    })
}

/// Writes the statistics of this process as they are now to `*text`: the JSON
/// that docs/statistics.md explains, with a zero at its end, "final" false and
/// without the snapshot, which `vramalloc_dump` writes. The caller owns the
/// text until `vramalloc_free_text`.
///
/// May be called before CUDA is initialised, by any thread, and during a
/// capture; no CUDA function is called. Not in a forked child and not from a
/// signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `text`; `*text` is null
/// after any error.
///
/// The caller promises that `text`, if it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_statistics(text: *mut *mut c_char) -> vramalloc_result {
    answer(|| {
        let text = given(text)?;
        // SAFETY: the caller's promise.
        unsafe { *text = ptr::null_mut() };
        let owned = CString::new(dump::text()).map_err(|_| Failure(VRAMALLOC_BROKEN))?;
        // SAFETY: as above.
        unsafe { *text = owned.into_raw() };
        Ok(())
    })
}

/// Frees a text that `vramalloc_statistics` wrote; for null it does nothing.
/// May be called at any time but from a signal handler.
///
/// The caller promises that it is such a text, and frees it once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise; it was made by `into_raw`.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Writes the statistics of this process as they are now to the file that
/// `pattern` names, as the option `stats` does ("%e" program, "%p" process,
/// "%h" host, "%r" rank, "%%" a percent sign; also "stderr" and "off"). If it
/// is null, they go to where that option says. The file appears under its name
/// when it is whole.
///
/// May be called when `vramalloc_statistics` may.
///
/// Errors: `VRAMALLOC_INVALID_VALUE` for a pattern that cannot be read,
/// `VRAMALLOC_IO`.
///
/// The caller promises that `pattern`, if it is not null, ends in zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_dump(pattern: *const c_char) -> vramalloc_result {
    answer(|| {
        // SAFETY: the caller's promise.
        let pattern = unsafe { text_of(pattern) }?;
        Ok(control::dump(pattern)?)
    })
}

/// Asks the library for a value by name, runs an action, or sets an option.
///
/// | name | without a value | with one |
/// |---|---|---|
/// | `version` | the library's version | |
/// | `library.path` | where the library was loaded from | |
/// | `preloaded` | 1 if it stands in front of CUDA's functions, else 0 | |
/// | `statistics` | the JSON of `vramalloc_statistics` | |
/// | `option.<key>` | the option's value in force | sets it |
/// | `device.count` | CUDA's devices; 0 before it is initialised | |
/// | `device.<n>.live` | bytes in blocks that are held | |
/// | `device.<n>.cached` | bytes that could be handed out again | |
/// | `device.<n>.limbo` | freed bytes that may be in use still | |
/// | `device.<n>.idle` | bytes that `trim` would give back, if out of use | |
/// | `device.<n>.reserved` | bytes that CUDA gave | |
/// | `device.<n>.past_pool` | bytes that CUDA gave past the pool | |
/// | `device.<n>.counted` | bytes that count towards the limit | |
/// | `device.<n>.limit` | the limit in bytes, or `none` | sets it for this device: a size, a share, or `none` |
/// | `device.<n>.live_peak` | the most that was live | `reset`: begins it anew; bytes: raises it to these. The answer is what it was. |
/// | `device.<n>.reserved_peak` | the most that was reserved | the same |
/// | `device.<n>.allocations` | blocks handed out since the start | |
/// | `device.<n>.frees` | blocks freed since then | |
/// | `device.<n>.requested` | bytes asked for since then | |
/// | `mark` | sets a mark; its number | |
/// | `mark.<m>.blocks` | blocks that are live and were not at the mark | |
/// | `mark.<m>.bytes` | their bytes | |
/// | `mark.<m>.report` | the same as JSON, with where they were asked for | |
/// | `mark.<m>.end` | forgets the mark | |
/// | `flush` | makes available what is out of use; does not wait | |
/// | `trim` | `vramalloc_empty_cache` at all places; the bytes given back | |
/// | `dump` | `vramalloc_dump` | with this pattern |
///
/// Keys of options are those of docs/options.md, or the frameworks' names for
/// them. Before memory was first asked for, each that has an effect can be
/// set; afterwards `limit` and `device_limits` (idle memory beyond a lower one is
/// given back), `stats`, `fuse_parameter_groups_size`,
/// `fuse_parameter_memory_size` and `eager_delete_scope`.
///
/// A peak that is begun anew starts with what there is; the statistics' own peaks do
/// not change. One that is measured inside another keeps the answer of `reset`, and
/// raises the peak to it in the end. Where several arenas of a device had memory, a
/// peak is the sum of theirs, which may have been at different times. Of marks the
/// newest 64 are known; a block at an address that was in use at the mark counts as
/// there already.
///
/// The answer is a text (a number in decimal, or nothing). It is written to
/// `buffer` with a zero at its end, and its length with the zero to `*length`.
/// Each of the two may be null if it is not wanted.
///
/// May be called before CUDA is initialised, by any thread, and during a
/// capture; not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `name`,
/// `VRAMALLOC_UNKNOWN_NAME`, `VRAMALLOC_READ_ONLY`, `VRAMALLOC_INVALID_VALUE`,
/// `VRAMALLOC_IO`; `VRAMALLOC_TOO_SMALL` if the answer does not fit into
/// `capacity` bytes: what was asked for is done then, and the length written.
///
/// The caller promises that texts end in zero, that `buffer` has room for
/// `capacity` bytes and that `length` may be written to, if they are not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_ctl(
    name: *const c_char,
    value: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> vramalloc_result {
    answer(|| {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text_of(name)?, text_of(value)?) };
        let name = name.ok_or(Failure(VRAMALLOC_INVALID_ARGUMENT))?;
        let answer = control::control(name, value)?;
        // SAFETY: as above.
        unsafe { write_text(&answer, buffer, capacity, length) }
    })
}

/// The caller's text; `None` for null.
///
/// # Safety
/// It ends in zero, if it is not null, and is not changed meanwhile.
unsafe fn text_of<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Failure(VRAMALLOC_INVALID_VALUE))
}

/// Writes an answer into the caller's buffer.
///
/// # Safety
/// The buffer has that capacity and the length may be written to, if they are
/// not null.
unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    let needed = text.len() + 1;
    // SAFETY: the caller's promise.
    unsafe { put(length, needed) };
    if buffer.is_null() {
        return Ok(());
    }
    if needed > capacity {
        return Err(Failure(VRAMALLOC_TOO_SMALL));
    }
    // SAFETY: as many bytes fit, and two buffers do not overlap.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        *buffer.add(text.len()) = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::VRAMALLOC_SUCCESS;
    use crate::process::guard;

    /// The answer, with room for this many bytes, and the length written.
    fn ctl(name: &CStr, value: Option<&CStr>, room: usize) -> (vramalloc_result, String, usize) {
        let mut buffer = vec![0_u8; room];
        let mut length = 0;
        let value = value.map_or(ptr::null(), CStr::as_ptr);
        let buffer_at = buffer.as_mut_ptr().cast();
        // SAFETY: texts and a buffer of this function.
        let result =
            unsafe { vramalloc_ctl(name.as_ptr(), value, buffer_at, room, &raw mut length) };
        let text = CStr::from_bytes_until_nul(&buffer).map_or("", |text| text.to_str().unwrap());
        (result, text.to_owned(), length)
    }

    #[test]
    fn answers_fit_or_are_told_too_long() {
        let _turn = guard::turn();
        let version = env!("CARGO_PKG_VERSION");
        let fits = version.len() + 1;
        let all = (VRAMALLOC_SUCCESS, version.to_owned(), fits);
        assert_eq!(ctl(c"version", None, fits), all);
        let none = (VRAMALLOC_TOO_SMALL, String::new(), fits);
        assert_eq!(ctl(c"version", None, fits - 1), none);
        let mut length = 0;
        // SAFETY: a name and a place for the length.
        let asked = unsafe {
            let version = c"version".as_ptr();
            vramalloc_ctl(version, ptr::null(), ptr::null_mut(), 0, &raw mut length)
        };
        assert_eq!((asked, length), (VRAMALLOC_SUCCESS, fits));
    }

    #[test]
    fn what_is_not_there_or_cannot_be_set_is_told() {
        let _turn = guard::turn();
        let result = |name, value| ctl(name, value, 100).0;
        for name in [
            c"",
            c"versions",
            c"option",
            c"option.colour",
            c"device.0",
            c"device.0.colour",
            c"device.x.live",
            c"device..live",
            c"device.live_peak",
            c"device.0.peak",
            c"mark.",
            c"mark.x.blocks",
            c"mark.1",
            c"device.+1.limit",
            c"device.-1.live",
            c"device.4294967296.live",
            c"preload",
        ] {
            assert_eq!(result(name, None), VRAMALLOC_UNKNOWN_NAME, "{name:?}");
            assert_eq!(result(name, Some(c"1")), VRAMALLOC_UNKNOWN_NAME, "{name:?}");
        }
        for name in [
            c"version",
            c"flush",
            c"device.0.live",
            c"device.0.counted",
            c"device.count",
            c"preloaded",
            c"mark",
            c"option.pinned_free_catch_all",
        ] {
            assert_eq!(result(name, Some(c"1")), VRAMALLOC_READ_ONLY, "{name:?}");
        }
        // No mark has this number.
        assert_eq!(result(c"mark.0.end", None), VRAMALLOC_UNKNOWN_NAME);
        let unreadable = VRAMALLOC_INVALID_VALUE;
        assert_eq!(result(c"option.limit", Some(c"12Q")), unreadable);
        assert_eq!(result(c"device.0.limit", Some(c"12Q")), unreadable);
        assert_eq!(result(c"device.0.limit", Some(c"")), unreadable);
        assert_eq!(result(c"device.0.live_peak", Some(c"")), unreadable);
        assert_eq!(result(c"device.0.live_peak", Some(c"anew")), unreadable);
        let negative = result(c"device.-1.limit", Some(c"1G"));
        assert_eq!(negative, VRAMALLOC_UNKNOWN_NAME);
        assert_eq!(result(c"dump", Some(c"%q")), unreadable);
        assert_eq!(result(c"dump", Some(c"/nowhere/at/all")), VRAMALLOC_IO);
        // SAFETY: null is allowed.
        let none = unsafe {
            vramalloc_ctl(
                ptr::null(),
                ptr::null(),
                ptr::null_mut(),
                0,
                ptr::null_mut(),
            )
        };
        assert_eq!(none, VRAMALLOC_INVALID_ARGUMENT);
    }

    #[test]
    fn numbers_of_devices_that_nobody_uses_are_zero() {
        let _turn = guard::turn();
        let zero = (VRAMALLOC_SUCCESS, "0".to_owned(), 2);
        assert_eq!(ctl(c"device.0.reserved", None, 2), zero);
        assert_eq!(ctl(c"device.7.live", None, 2), zero);
        let none = (VRAMALLOC_SUCCESS, "none".to_owned(), 5);
        assert_eq!(ctl(c"device.0.limit", None, 5), none);
        for name in [c"device.count", c"device.3.past_pool", c"device.3.counted"] {
            assert_eq!(ctl(name, None, 2), zero, "{name:?}");
        }
        for name in [c"device.3.live_peak", c"device.3.reserved_peak"] {
            assert_eq!(ctl(name, Some(c"reset"), 2), zero, "{name:?}");
            assert_eq!(ctl(name, Some(c"4096"), 2), zero, "{name:?}");
            assert_eq!(ctl(name, None, 2), zero, "{name:?}");
        }
        // It is the library in a test's own process.
        assert_eq!(ctl(c"preloaded", None, 2).0, VRAMALLOC_SUCCESS);
        let (found, path, _) = ctl(c"library.path", None, 4096);
        assert!(
            found == VRAMALLOC_SUCCESS && path.starts_with('/'),
            "{path}"
        );
    }

    #[test]
    fn the_statistics_are_a_json() {
        let _turn = guard::turn();
        let mut text = ptr::null_mut();
        // SAFETY: a place for the text, which is freed once.
        unsafe {
            assert_eq!(vramalloc_statistics(&raw mut text), VRAMALLOC_SUCCESS);
            let json = CStr::from_ptr(text).to_str().unwrap();
            assert!(json.starts_with('{') && json.contains("\"final\": false"));
            vramalloc_free_text(text);
            vramalloc_free_text(ptr::null_mut());
            let nowhere = vramalloc_statistics(ptr::null_mut());
            assert_eq!(nowhere, VRAMALLOC_INVALID_ARGUMENT);
        }
    }
}
