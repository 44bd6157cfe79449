//! Which driver there is, and what it answers.
//!
//! A process of its own, `vramalloc-probe`, loads the driver and asks it, so
//! that no foreign code is loaded here. Cost: the driver's start, seconds on
//! some machines.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::super::probe::{self, APART, PROBE};
use super::super::units::bytes;
use super::findings::Findings;
use super::loader::{Loaded, Loader};

/// The name by which every program and runtime loads the driver.
pub(super) const DRIVER: &str = "libcuda.so.1";

/// How long the driver may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says which driver a file of the process would load, and what it answers.
///
/// Without a driver a program that `uses_cuda` cannot run.
pub(super) fn examine(
    from: &Loaded,
    uses_cuda: bool,
    library: &Path,
    loader: &Loader,
    findings: &mut Findings,
) {
    let Some(driver) = loader.find(OsStr::new(DRIVER), from) else {
        return findings.hindrance(
            uses_cuda,
            "driver",
            format_args!(
                "{DRIVER}, the driver, is nowhere where the loader looks, so no CUDA program can \
                 run; install NVIDIA's driver, or name its directory in LD_LIBRARY_PATH"
            ),
        );
    };
    let path = driver.path;
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    if real.components().any(|part| part.as_os_str() == "stubs") {
        return findings.hindrance(
            uses_cuda,
            "driver",
            format_args!(
                "{} is the toolkit's stub, for linking only; take its directory out of \
                 LD_LIBRARY_PATH",
                path.display()
            ),
        );
    }
    findings.ok(
        "driver",
        format_args!("{DRIVER} is {}{}", path.display(), version(&real)),
    );
    match probe::find(Some(library)) {
        Some(probe) => ask(&probe, &path, uses_cuda, findings),
        None => findings.note(
            "devices",
            format_args!(
                "not examined: {PROBE} is beside neither this command nor the library, nor in \
                 {APART}"
            ),
        ),
    }
}

/// The version, which NVIDIA appends to the file's name.
fn version(real: &Path) -> String {
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_prefix("libcuda.so.") {
        Some(version) if version.contains('.') => format!(" (version {version})"),
        _ => String::new(),
    }
}

/// Asks the driver at `path`.
fn ask(probe: &Path, path: &Path, uses_cuda: bool, findings: &mut Findings) {
    match answer(probe, path) {
        Ok(text) => tell(&text, uses_cuda, findings),
        Err(error) => findings.hindrance(
            uses_cuda,
            "devices",
            format_args!("the driver gave no answer: {error}; try nvidia-smi"),
        ),
    }
}

/// The output of the probe.
fn answer(probe: &Path, path: &Path) -> Result<String, String> {
    let mut child = Command::new(probe)
        .arg(path)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", probe.display()))?;
    let mut out = child.stdout.take().ok_or("no output")?;
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        // What came before an error is used all the same.
        let _ = out.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().map_err(|error| error.to_string())?;
                child.wait().map_err(|error| error.to_string())?;
                return Err(format!("none within {} s", PATIENCE.as_secs()));
            }
        }
    };
    let text = reading.join().map_err(|_| "cannot be read")?;
    match status.success() {
        true => Ok(text),
        false => Err(format!("{status} while it started")),
    }
}

/// Says what the probe's lines mean.
fn tell(text: &str, uses_cuda: bool, findings: &mut Findings) {
    let mut devices = 0;
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "version" => {
                let version: u32 = rest.parse().unwrap_or(0);
                findings.ok(
                    "driver",
                    format_args!(
                        "it serves CUDA up to {}.{}",
                        version / 1000,
                        version % 1000 / 10
                    ),
                );
            }
            "device" => {
                let (total, name) = rest.split_once(' ').unwrap_or((rest, ""));
                let total = total.parse().map_or_else(|_| String::new(), bytes);
                findings.ok("device", format_args!("{devices}: {name}, {total}"));
                devices += 1;
            }
            "failed" => {
                let (function, why) = rest.split_once(' ').unwrap_or((rest, ""));
                return findings.hindrance(
                    uses_cuda,
                    "devices",
                    format_args!("{function} fails: {}; {}", reason(why), advice(why)),
                );
            }
            _ => {}
        }
    }
    if devices == 0 {
        findings.hindrance(
            uses_cuda,
            "devices",
            format_args!("the driver has none; {}", advice("100")),
        );
    }
}

/// The names of the codes with which a driver refuses to start.
fn reason(code: &str) -> String {
    let name = match code {
        "3" => "not initialized",
        "34" => "a stub in place of the driver",
        "46" => "the device is busy or unavailable",
        "100" => "no device",
        "101" => "no such device",
        "802" => "the system is not ready",
        "803" => "library and kernel module are of different versions",
        "804" => "forward compatibility on a device that does not have it",
        "999" => "unknown error",
        _ => return code.to_owned(),
    };
    format!("{name} ({code})")
}

/// What the user can do about a code.
fn advice(code: &str) -> &'static str {
    match code {
        "100" | "101" => {
            "see whether nvidia-smi lists a GPU, whether CUDA_VISIBLE_DEVICES hides it, and \
             whether the container was given it"
        }
        "802" => "start nvidia-fabricmanager",
        "803" => "restart the machine after an update of the driver",
        "804" => "take the cuda-compat directory out of LD_LIBRARY_PATH",
        _ => "see what nvidia-smi says",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> (String, usize) {
        let mut findings = Findings::new(true);
        tell(text, true, &mut findings);
        let text = findings.take();
        let words: Vec<&str> = text.split_whitespace().collect();
        (words.join(" "), findings.problems())
    }

    #[test]
    fn what_the_driver_answers() {
        let (text, problems) = told("version 12080\ndevice 17179869184 Model GPU\n");
        assert!(text.contains("CUDA up to 12.8") && text.contains("0: Model GPU, 16.0 GiB"));
        assert_eq!(problems, 0);
        for (answer, words) in [
            ("failed cuInit 803", "different versions (803)"),
            ("failed cuInit 7777", "cuInit fails: 7777"),
            (
                "failed dlopen libx.so: wrong",
                "dlopen fails: libx.so: wrong",
            ),
            ("version 13000", "the driver has none"),
            ("", "the driver has none"),
            ("device", "0: ,"),
        ] {
            let (text, problems) = told(answer);
            assert!(text.contains(words), "{answer}: {text}");
            assert_eq!(problems, usize::from(answer != "device"), "{text}");
        }
    }
}
