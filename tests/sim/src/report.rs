//! The report at exit.
//!
//! Invariant: it is written once, by the process that initialised the driver,
//! after all other code of the process is done.

use std::fmt::Write;

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
    if let Some(sim) = machine::lock().as_ref()
        && let Err(error) = std::fs::write(&path, report(sim))
    {
        eprintln!("simulated CUDA: the report {path} cannot be written: {error}");
    }
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
            format!(
                "\n    {{\"used_bytes\": {}, \"peak_bytes\": {}}}",
                used.get(),
                peak.get()
            )
        })
        .collect();
    let taken: Vec<String> = sim.taken.iter().map(i64::to_string).collect();
    format!(
        "{{\n  \"simulated_ns\": {},\n  \"live_allocations\": {},\n  \"devices\": [{}\n  ],\n  \
         \"host\": {{\"blocks\": {}, \"used_bytes\": {}, \"peak_bytes\": {}}},\n  \
         \"taken\": [{}],\n  \"violations\": [{}\n  ],\n  \"calls\": {{{calls}\n  }}\n}}\n",
        sim.model.now(),
        sim.model.live_count(),
        devices.join(","),
        sim.host.count(),
        sim.host.used(),
        sim.host.peak(),
        taken.join(", "),
        texts.join(","),
    )
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
