//! `vramalloc-probe DRIVER`: asks the driver in the file DRIVER which devices
//! there are, for `vramalloc doctor`.
//!
//! A process of its own, since a driver is foreign code that may crash or
//! hang. Prints lines of a word and its values: `version` (1000 times the
//! major and 10 times the minor version of CUDA), `device` (bytes, name) for
//! each, `failed` (function, code or reason) where the driver does not
//! answer. Makes no context. Cost: the driver's start.
//!
//! `vramalloc-probe --memory`: for each line of its input, asks NVML how much of each
//! device is in use, by whomever, for `vramalloc top`. Prints `memory` (the device's
//! UUID, its bytes, those in use) for each device and then `end`; `failed` where NVML does
//! not answer, and ends. Cost: NVML's start, and then little.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::{env, ptr};

/// A function of the driver that failed, and why.
type Failure = (&'static str, String);

fn main() -> ExitCode {
    let driver = env::args_os().nth(1).map(OsString::into_vec);
    let Some(driver) = driver.and_then(|path| CString::new(path).ok()) else {
        // If standard error is closed, nothing can be printed.
        let _ = writeln!(io::stderr(), "usage: vramalloc-probe DRIVER | --memory");
        return ExitCode::from(2);
    };
    if driver.as_bytes() == b"--memory" {
        return watch();
    }
    let mut text = String::new();
    if let Err((function, why)) = Driver::open(&driver).and_then(|driver| driver.tell(&mut text)) {
        text.push_str(&format!("failed {function} {why}\n"));
    }
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Says for each line of the input what of each device is in use.
fn watch() -> ExitCode {
    let nvml = Driver::open(c"libnvidia-ml.so.1").and_then(Nvml::begin);
    for _line in io::stdin().lock().lines().map_while(Result::ok) {
        let mut text = String::new();
        let told = match &nvml {
            Ok(nvml) => nvml.tell(&mut text),
            Err(failure) => Err(failure.clone()),
        };
        let last = match &told {
            Ok(()) => "end\n".to_owned(),
            Err((function, why)) => format!("failed {function} {why}\n"),
        };
        text.push_str(&last);
        if told.is_err() | io::stdout().write_all(text.as_bytes()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// NVML, initialised to the end of the process.
struct Nvml {
    count: unsafe extern "C" fn(*mut c_uint) -> c_uint,
    at: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_uint,
    uuid: unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_uint,
    memory: unsafe extern "C" fn(*mut c_void, *mut [u64; 3]) -> c_uint,
}

impl Nvml {
    fn begin(library: Driver) -> Result<Nvml, Failure> {
        // SAFETY: the prototypes that NVML documents for these names; its memory
        // information is three numbers of 64 bits.
        unsafe {
            let init: unsafe extern "C" fn() -> c_uint = library.function(c"nvmlInit_v2")?;
            answered("nvmlInit_v2", init())?;
            Ok(Nvml {
                count: library.function(c"nvmlDeviceGetCount_v2")?,
                at: library.function(c"nvmlDeviceGetHandleByIndex_v2")?,
                uuid: library.function(c"nvmlDeviceGetUUID")?,
                memory: library.function(c"nvmlDeviceGetMemoryInfo")?,
            })
        }
    }

    /// Writes its answers; a device that it says nothing of is left out.
    fn tell(&self, text: &mut String) -> Result<(), Failure> {
        let mut devices = 0;
        // SAFETY: a place for the answer.
        answered("nvmlDeviceGetCount_v2", unsafe {
            (self.count)(&raw mut devices)
        })?;
        for index in 0..devices {
            let (mut device, mut letters, mut memory) = (ptr::null_mut(), [0; 96], [0; 3]);
            // SAFETY: places for the answers, of the sizes that are named; the handle
            // is one that NVML gave, since nothing is asked where it gave none.
            let told = unsafe {
                (self.at)(index, &raw mut device) == 0
                    && (self.uuid)(device, letters.as_mut_ptr(), 95) == 0
                    && (self.memory)(device, &raw mut memory) == 0
            };
            if told {
                // SAFETY: the last byte stayed zero.
                let uuid = unsafe { CStr::from_ptr(letters.as_ptr()) }.to_string_lossy();
                let [total, _free, used] = memory;
                text.push_str(&format!("memory {uuid} {total} {used}\n"));
            }
        }
        Ok(())
    }
}

/// A driver library, open to the end of the process.
struct Driver(*mut c_void);

impl Driver {
    fn open(path: &CStr) -> Result<Driver, Failure> {
        // SAFETY: the path ends in zero.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if !handle.is_null() {
            return Ok(Driver(handle));
        }
        // SAFETY: dlerror returns null or a string ending in zero that lives
        // until the next call of its kind.
        let why = unsafe {
            let text = libc::dlerror();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(("dlopen", why.unwrap_or_default()))
    }

    /// Writes the driver's answers.
    fn tell(&self, text: &mut String) -> Result<(), Failure> {
        // SAFETY: the prototypes that CUDA documents for these names, and in
        // each call places for the answers, of the sizes that are named.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> c_uint = self.function(c"cuInit")?;
            let version: unsafe extern "C" fn(*mut c_int) -> c_uint =
                self.function(c"cuDriverGetVersion")?;
            let count: unsafe extern "C" fn(*mut c_int) -> c_uint =
                self.function(c"cuDeviceGetCount")?;
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_uint =
                self.function(c"cuDeviceGet")?;
            let name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_uint =
                self.function(c"cuDeviceGetName")?;
            let total: unsafe extern "C" fn(*mut usize, c_int) -> c_uint =
                self.function(c"cuDeviceTotalMem_v2")?;

            let mut number = 0;
            answered("cuDriverGetVersion", version(&raw mut number))?;
            text.push_str(&format!("version {number}\n"));
            answered("cuInit", init(0))?;
            let mut devices = 0;
            answered("cuDeviceGetCount", count(&raw mut devices))?;
            for ordinal in 0..devices {
                let (mut device, mut bytes, mut letters) = (0, 0, [0; 256]);
                answered("cuDeviceGet", get(&raw mut device, ordinal))?;
                answered("cuDeviceTotalMem_v2", total(&raw mut bytes, device))?;
                // The last byte stays zero.
                answered("cuDeviceGetName", name(letters.as_mut_ptr(), 255, device))?;
                let name = CStr::from_ptr(letters.as_ptr()).to_string_lossy();
                text.push_str(&format!("device {bytes} {name}\n"));
            }
        }
        Ok(())
    }

    /// A function of the driver.
    ///
    /// # Safety
    /// `F` is a function pointer of the prototype that the name has.
    unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Result<F, Failure> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: an open handle and a name ending in zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if ptr::eq(found, ptr::null()) {
            return Err((name.to_str().unwrap_or_default(), "is missing".to_owned()));
        }
        // SAFETY: F is a function pointer of one word, and the address is
        // that of a function of its prototype, by the caller's promise.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }
}

fn answered(function: &'static str, code: c_uint) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err((function, code.to_string())),
    }
}
