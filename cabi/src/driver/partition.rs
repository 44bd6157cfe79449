//! NVIDIA's own limits of device memory, by control group (from CUDA 13.4 on).
//!
//! A hard limit is what a group may have of a device; the driver refuses what
//! is beyond it, so here it counts like the option `limit`, and requests fail in
//! one way. Memory beyond a soft limit may be asked back by force when others
//! are short, so idle memory goes back before that limit is passed.
//!
//! NVML tells the limits, and it is asked once for each device, when memory is
//! first asked for there. Nobody pays for loading it in vain: it is loaded only
//! where the container says that there is such a limit (the variables
//! `NVIDIA_GPU_MEMORY_LIMIT` and `NVIDIA_GPU_MEMORY_REQUEST`), or where the
//! kernel's controller `dmem` has one for this process's group or one above it.
//! A kernel without that controller leaves the limits to the driver, and
//! nothing tells of them but NVML: there it is asked where the program has
//! loaded it already. It stays loaded.
//!
//! What could be checked only with such a driver and root's rights, and was
//! not: that the name which NVML wants of a group is the path of its folder,
//! and that a container which sees its own group as the root may ask by that
//! path. If NVML refuses, no limit is known here, and the driver's own holds.
//! Parts of a device (MIG) have no such limits.
//!
//! Cost: below 13.4 one call to the driver; else a few small files.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vramalloc_core::Bytes;

use crate::linker::resolve;
use crate::process::guard::own_call;
use crate::real;

/// The first driver that has such limits.
const SINCE: c_int = 13_040;

/// The variables by which NVIDIA's container toolkit tells of such limits.
const TOLD: [&str; 2] = ["NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"];

/// Where control groups of the second version are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// NVIDIA's limits for this process on a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Partition {
    /// What its group may have.
    pub(crate) hard: Option<Bytes>,
    /// What nobody takes away from it.
    pub(crate) soft: Option<Bytes>,
    /// What its group has now, contexts and other processes included.
    pub(crate) used: Bytes,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct Limits {
    group: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// The limits on the device with this number; `None` if there are none.
pub(crate) fn of(uuid: u128) -> Option<Partition> {
    static ASKED: OnceLock<Option<(Nvml, Vec<PathBuf>)>> = OnceLock::new();
    // Found before it is put in place: no lock spans it.
    let asked = match ASKED.get() {
        Some(asked) => asked,
        None => {
            let found = found();
            ASKED.get_or_init(|| found)
        }
    };
    let (nvml, groups) = asked.as_ref()?;
    nvml.limits(uuid, groups)
}

/// NVML, and the groups to ask about; `None` if there is nothing to ask.
fn found() -> Option<(Nvml, Vec<PathBuf>)> {
    let mut version = 0;
    // SAFETY: writes the answer to a local.
    let told = own_call(|| unsafe { real::cuDriverGetVersion(&raw mut version) }) == 0;
    if !told || version < SINCE {
        return None;
    }
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let groups = groups(Path::new(GROUPS), &own)?;
    let is_told = TOLD.iter().any(|name| std::env::var_os(name).is_some());
    let may_load = match controller(&groups) {
        _ if is_told => true,
        Controller::Limits => true,
        Controller::Free => return None,
        Controller::Missing => false,
    };
    Some((Nvml::open(may_load)?, groups))
}

/// The folders of a process's group and of those above it, by its
/// `/proc/PID/cgroup`.
fn groups(root: &Path, own: &str) -> Option<Vec<PathBuf>> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // A path that ends in a slash is another name than the folder's.
    let own = if path.is_empty() {
        root.to_owned()
    } else {
        root.join(path)
    };
    let all = own
        .ancestors()
        .take_while(|folder| folder.starts_with(root));
    Some(all.map(Path::to_owned).collect())
}

/// What the kernel's controller of device memory says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Controller {
    /// It limits one of the groups on a device of NVIDIA's.
    Limits,
    /// It limits none.
    Free,
    /// There is none.
    Missing,
}

/// A line of its files is a region and an amount; NVIDIA's regions begin with
/// the vendor's name.
fn controller(groups: &[PathBuf]) -> Controller {
    let mut is_there = false;
    for folder in groups {
        is_there |= folder.join("dmem.capacity").exists();
        for (file, none) in [("dmem.max", "max"), ("dmem.min", "0")] {
            let Ok(text) = fs::read_to_string(folder.join(file)) else {
                continue;
            };
            is_there = true;
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            if lines.any(|(region, most)| region.starts_with("nvidia") && most.trim() != none) {
                return Controller::Limits;
            }
        }
    }
    if is_there {
        Controller::Free
    } else {
        Controller::Missing
    }
}

/// The functions of NVML that tell of limits.
struct Nvml {
    begin: unsafe extern "C" fn() -> c_int,
    end: unsafe extern "C" fn() -> c_int,
    device: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    limits: unsafe extern "C" fn(*mut c_void, *mut Limits) -> c_int,
}

impl Nvml {
    fn open(may_load: bool) -> Option<Nvml> {
        let library = own_call(|| resolve::nvml(may_load))?;
        let find = |name: &CStr| resolve::look_up(library, name);
        // SAFETY: found under the names to which NVML gives these prototypes.
        unsafe {
            Some(Nvml {
                begin: std::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(find(
                    c"nvmlInit_v2",
                )?),
                end: std::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(find(
                    c"nvmlShutdown",
                )?),
                device: std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
                >(find(c"nvmlDeviceGetHandleByUUID")?),
                limits: std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(*mut c_void, *mut Limits) -> c_int,
                >(find(c"nvmlDeviceGetMemoryLimits_v1")?),
            })
        }
    }

    /// The least hard limit of the groups, and the soft one of the first.
    fn limits(&self, uuid: u128, groups: &[PathBuf]) -> Option<Partition> {
        own_call(|| {
            let uuid = CString::new(text(uuid)).ok()?;
            // SAFETY: takes no argument; the end below belongs to it.
            if unsafe { (self.begin)() } != 0 {
                return None;
            }
            let mut device = std::ptr::null_mut();
            // SAFETY: a text ending in zero, and a local for the answer.
            let known = unsafe { (self.device)(uuid.as_ptr(), &raw mut device) } == 0;
            let all = groups.iter().filter(|_| known).filter_map(|group| {
                let group = CString::new(group.to_str()?).ok()?;
                let mut limits = Limits {
                    group: group.as_ptr(),
                    soft: 0,
                    hard: u64::MAX,
                    used: 0,
                };
                // SAFETY: a handle of NVML's, and a record for the answer.
                let told = unsafe { (self.limits)(device, &raw mut limits) } == 0;
                told.then_some(limits)
            });
            let all: Vec<Limits> = all.collect();
            // SAFETY: as above.
            unsafe { (self.end)() };
            let own = all.first()?;
            let hard = all.iter().map(|limits| limits.hard).min()?;
            let partition = Partition {
                hard: (hard != u64::MAX).then(|| Bytes::new(hard)),
                soft: (own.soft != 0).then(|| Bytes::new(own.soft)),
                used: Bytes::new(own.used),
            };
            (partition.hard.is_some() || partition.soft.is_some()).then_some(partition)
        })
    }
}

/// A device's number as NVML writes it.
fn text(uuid: u128) -> String {
    let digits = format!("{uuid:032x}");
    let mut text = String::from("GPU");
    let mut rest = digits.as_str();
    for length in [8, 4, 4, 4, 12] {
        let (part, more) = rest.split_at(length);
        text += "-";
        text += part;
        rest = more;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_as_nvml_does() {
        let uuid = u128::from_be_bytes(*b"simulated-gp\0\0\0\x01");
        assert_eq!(text(uuid), "GPU-73696d75-6c61-7465-642d-677000000001");
    }

    #[test]
    fn the_groups_are_found_from_the_inside_out() {
        let root = Path::new("/groups");
        let own = "4:memory:/other\n0::/a.slice/b.scope\n";
        let folders = ["/groups/a.slice/b.scope", "/groups/a.slice", "/groups"];
        assert_eq!(groups(root, own), Some(folders.map(PathBuf::from).to_vec()));
        assert_eq!(
            groups(root, "0::/\n"),
            Some(vec![PathBuf::from("/groups/")])
        );
        assert_eq!(groups(root, "4:memory:/other\n"), None);
    }

    #[test]
    fn the_kernels_controller_tells_whether_there_is_a_limit() {
        let root = std::env::temp_dir().join(format!("dmem-{}", std::process::id()));
        let inner = root.join("inner");
        fs::create_dir_all(&inner).unwrap();
        let all = [inner.clone(), root.clone()];
        assert_eq!(controller(&all), Controller::Missing);
        fs::write(
            root.join("dmem.capacity"),
            "nvidia/0000:01:00.0/vidmem 17\n",
        )
        .unwrap();
        assert_eq!(controller(&all), Controller::Free);
        let lines = "drm/0000:02:00.0/vram0 4096\nnvidia/0000:01:00.0/vidmem max\n";
        fs::write(inner.join("dmem.max"), lines).unwrap();
        fs::write(inner.join("dmem.min"), "nvidia/0000:01:00.0/vidmem 0\n").unwrap();
        assert_eq!(controller(&all), Controller::Free);
        fs::write(inner.join("dmem.min"), "nvidia/0000:01:00.0/vidmem 4096\n").unwrap();
        assert_eq!(controller(&all), Controller::Limits);
        fs::remove_dir_all(&root).unwrap();
    }
}
