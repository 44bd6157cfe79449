//! The report at exit, and what a test can ask at any time.
//!
//! Invariant: the report is written once, by the process that initialised the
//! driver, after all other code of the process is done. The bytes are the
//! driver's own: what `cuMemGetInfo` falls by.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use vramalloc_core::Bytes;
use vramalloc_model::Family;

use crate::entry::{counts, is_forked};
use crate::machine::{self, Machine};

/// Runs at the end of the library, after the exit handlers.
extern "C" fn at_the_end() {
    let Ok(path) = std::env::var("SIM_CUDA_REPORT") else {
        return;
    };
    if is_forked() || path.is_empty() {
        return;
    }
    let path = path.replace("%p", &std::process::id().to_string());
    let mut lock = machine::last_lock();
    if let Some(sim) = lock.as_mut().and_then(|lock| lock.as_mut()) {
        sim.check_units();
    }
    if let Some(lock) = lock
        && let Some(sim) = lock.as_ref()
        && let Err(error) = write(Path::new(&path), &report(sim))
    {
        eprintln!("simulated CUDA: the report {path} cannot be written: {error}");
    }
}

/// By none of the numbers of the standard streams: a program that closed one
/// may still print to it, which would end up in the report.
fn write(path: &Path, report: &str) -> io::Result<()> {
    let mut held = Vec::new();
    loop {
        // Nothing can be written to it, and it needs no file.
        let place = UnixDatagram::unbound()?;
        if place.as_raw_fd() > libc::STDERR_FILENO {
            break;
        }
        held.push(place);
    }
    std::fs::write(path, report)
}

// SAFETY: the loader calls what stands in this section, without arguments that
// we read.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_THE_END: extern "C" fn() = at_the_end;

fn report(sim: &Machine) -> String {
    let mut calls = String::new();
    for (name, n) in counts() {
        let comma = if calls.is_empty() { "" } else { "," };
        let _ = write!(calls, "{comma}\n    \"{name}\": {n}");
    }
    let texts: Vec<String> = (sim.model.violations().iter())
        .map(|v| format!("\n    \"{}\"", escape(&v.to_string())))
        .collect();
    let devices: Vec<String> = (0..sim.environment.devices)
        .map(|d| {
            let (used, peak) = sim.model.used_and_peak(d);
            let families = Family::ALL.map(|f| {
                let (used, peak) = sim.model.family(d, f);
                format!("\"{}\": {}", f.name(), amounts(used, peak))
            });
            let all = amounts(used, peak);
            let all = all.trim_end_matches('}');
            format!("\n    {all}, \"families\": {{{}}}}}", families.join(", "))
        })
        .collect();
    let taken: Vec<String> = sim.taken.iter().map(i64::to_string).collect();
    format!(
        "{{\n  \"simulated_ns\": {},\n  \"live_allocations\": {},\n  \"devices\": [{}\n  ],\n  \
         \"host\": {{\"blocks\": {}, \"used_bytes\": {}, \"peak_bytes\": {}}},\n  \
         \"mapped\": {{\"units\": {}, \"mappings\": {}, \"reservations\": {}}},\n  \
         \"taken\": [{}],\n  \"violations\": [{}\n  ],\n  \"calls\": {{{calls}\n  }}\n}}\n",
        sim.model.now(),
        sim.model.live_count(),
        devices.join(","),
        sim.host.count(),
        sim.host.used(),
        sim.host.peak(),
        sim.physicals.values().count(),
        sim.mappings.len(),
        sim.backing.range_count(),
        taken.join(", "),
        texts.join(","),
    )
}

fn amounts(used: Bytes, peak: Bytes) -> String {
    let (used, peak) = (used.get(), peak.get());
    format!("{{\"used_bytes\": {used}, \"peak_bytes\": {peak}}}")
}

/// The bytes in use and the most so far, of a family by its name in the report
/// or of all (`NULL`), on a device or on all (-1); 0 where there is no driver.
fn bytes_of(family: *const c_char, device: i32) -> (u64, u64) {
    if is_forked() {
        return (0, 0);
    }
    let mut lock = machine::lock();
    let Some(sim) = lock.as_mut() else {
        return (0, 0);
    };
    sim.settle();
    let name = (!family.is_null()).then(|| {
        // SAFETY: the caller's text is NUL-terminated.
        unsafe { CStr::from_ptr(family) }.to_bytes()
    });
    let device = u32::try_from(device).ok();
    let devices = (0..sim.environment.devices).filter(|d| device.is_none_or(|one| one == *d));
    let amounts = devices.map(|d| match name {
        None => sim.model.used_and_peak(d),
        Some(name) => (Family::ALL.into_iter())
            .find(|f| f.name().as_bytes() == name)
            .map_or((Bytes::ZERO, Bytes::ZERO), |f| sim.model.family(d, f)),
    });
    amounts.fold((0, 0), |(used, peak), (u, p)| {
        (used + u.get(), peak + p.get())
    })
}

/// The bytes in use, for tests: `bytes_of`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sim_cuda_bytes(family: *const c_char, device: i32) -> u64 {
    bytes_of(family, device).0
}

/// The most bytes in use so far, for tests: `bytes_of`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sim_cuda_peak_bytes(family: *const c_char, device: i32) -> u64 {
    bytes_of(family, device).1
}

/// Limits what this process may use of a device, as NVML does.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sim_cuda_limit(device: i32, limit: u64) {
    if !is_forked()
        && let (Ok(device), Some(sim)) = (u32::try_from(device), machine::lock().as_mut())
    {
        sim.model.limit(device, Bytes::new(limit));
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
