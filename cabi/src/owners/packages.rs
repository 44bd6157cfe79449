//! Which libraries are bindings, and whose code of Python calls through one.
//!
//! A *binding* only passes calls of Python on to whatever library they name, so its
//! own name says nothing: ctypes and cffi, NVIDIA's bindings of CUDA (`cuda`), and
//! PyCUDA. A library that has memory for a purpose of its own is none, whatever
//! language it serves: CuPy's module keeps a pool, and the pool is CuPy's.

/// The packages that are bindings. Their frames are passed over, and their modules
/// in machine code ask for others.
const BINDINGS: [&[u8]; 3] = [b"cffi", b"cuda", b"pycuda"];

/// How the files of ctypes and cffi begin, and of libffi, by which both call.
const FILES: [&[u8]; 4] = [b"libffi.", b"libffi-", b"_ctypes.", b"_cffi_backend."];

/// How interpreters are called: ctypes may be a part of them. A program that has
/// Python inside it is not called so, and asks for itself.
const INTERPRETERS: [&[u8]; 2] = [b"python", b"libpython"];

/// Code that is in no file: what somebody typed, or a program put together.
const NO_FILE: &[u8] = b"__main__";

/// Whether a library is a binding.
pub(super) fn is_binding(path: &[u8]) -> bool {
    let file = last_part(path);
    FILES.iter().any(|start| file.starts_with(start)) || is_of_binding(path)
}

/// Whether an interpreter of this path asks for the Python code that it runs.
pub(super) fn is_interpreter(path: &[u8]) -> bool {
    let file = last_part(path);
    (INTERPRETERS.iter()).any(|start| file.starts_with(start))
}

/// What a library counts under: itself, or its package, where it is a module of one
/// whose file is called by what it does in there.
pub(super) fn of_library(path: &[u8]) -> &[u8] {
    let is_module = [&b".cpython-"[..], b".abi3."]
        .iter()
        .any(|part| has(last_part(path), part));
    if is_module {
        return package(path).unwrap_or(path);
    }
    path
}

/// What code of Python counts under: its package, or its file where that is in none.
/// Nothing, where it only passes calls on, or is Python's own.
pub(super) fn of_code(file: &[u8]) -> Option<&[u8]> {
    if file.starts_with(b"<frozen ") || is_of_binding(file) {
        return None;
    }
    // A notebook writes each cell into a file of its own.
    if file.is_empty() || file.starts_with(b"<") || has(file, b"/ipykernel_") {
        return Some(NO_FILE);
    }
    if let Some(package) = package(file) {
        return Some(package);
    }
    let is_standard = [&b"/lib/python3."[..], b"/lib64/python3."]
        .iter()
        .any(|folder| has(file, folder));
    (!is_standard).then_some(file)
}

fn is_of_binding(path: &[u8]) -> bool {
    package(path).is_some_and(|package| BINDINGS.contains(&last_part(package)))
}

/// The path of the package that a file is of: the folder, or the single file.
fn package(path: &[u8]) -> Option<&[u8]> {
    let behind = |folder: &&[u8]| Some(last_at(path, folder)? + folder.len());
    let folders = [&b"/site-packages/"[..], b"/dist-packages/"];
    let begin = folders.iter().filter_map(behind).max()?;
    let inside = path.get(begin..)?;
    let length = inside.iter().position(|&byte| byte == b'/');
    path.get(..begin + length.unwrap_or(inside.len()))
}

fn last_at(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|some| some == part)
}

fn has(text: &[u8], part: &[u8]) -> bool {
    last_at(text, part).is_some()
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = "/opt/venv/lib/python3.12/site-packages";
    const TAG: &str = "cpython-312-x86_64-linux-gnu.so";

    #[test]
    fn bindings_are_told_from_other_libraries() {
        for path in [
            "/lib/x86_64-linux-gnu/libffi.so.8",
            &format!("{SITE}/cffi.libs/libffi-810e58ae.so.8.1.0"),
            &format!("/usr/lib/python3.12/lib-dynload/_ctypes.{TAG}"),
            &format!("{SITE}/_cffi_backend.{TAG}"),
            &format!("{SITE}/cuda/bindings/_bindings/cydriver.{TAG}"),
            &format!("{SITE}/pycuda/_driver.{TAG}"),
            "/usr/lib/python3/dist-packages/pycuda/_driver.so",
        ] {
            assert!(is_binding(path.as_bytes()), "{path}");
        }
        for path in [
            "/usr/lib/libfficient.so",
            "/home/cuda/libmine.so",
            &format!("{SITE}/torch/lib/libc10_cuda.so"),
            &format!("{SITE}/cupy_backends/cuda/api/runtime.{TAG}"),
            "",
        ] {
            assert!(!is_binding(path.as_bytes()), "{path}");
        }
        assert!(is_interpreter(b"/usr/bin/python3.12"));
        assert!(is_interpreter(b"/usr/lib/libpython3.12.so.1.0"));
        assert!(!is_interpreter(b"/opt/blender/blender"));
    }

    #[test]
    fn a_module_of_a_package_counts_under_it() {
        let of = |path: &str| String::from_utf8(of_library(path.as_bytes()).to_vec()).unwrap();
        for (path, expected) in [
            (
                format!("{SITE}/cupy_backends/cuda/api/runtime.{TAG}"),
                "cupy_backends",
            ),
            (format!("{SITE}/vllm/_C.abi3.so"), "vllm"),
        ] {
            assert_eq!(of(&path), format!("{SITE}/{expected}"));
        }
        for path in [
            format!("{SITE}/torch/lib/libc10_cuda.so"),
            format!("{SITE}/alone.{TAG}"),
            format!("/home/u/mine.{TAG}"),
            "/home/u/a.out".to_owned(),
        ] {
            assert_eq!(of(&path), path);
        }
    }

    #[test]
    fn code_counts_under_its_package_or_its_file() {
        let of = |file: &str| {
            let path = of_code(file.as_bytes())?;
            Some(String::from_utf8(path.to_vec()).unwrap())
        };
        for (file, expected) in [
            (
                format!("{SITE}/numba/cuda/cudadrv/driver.py"),
                format!("{SITE}/numba"),
            ),
            (format!("{SITE}/alone.py"), format!("{SITE}/alone.py")),
            (
                "/usr/lib/python3/dist-packages/pool/a.py".to_owned(),
                "/usr/lib/python3/dist-packages/pool".to_owned(),
            ),
            ("train.py".to_owned(), "train.py".to_owned()),
            (
                "/home/u/cuda/train.py".to_owned(),
                "/home/u/cuda/train.py".to_owned(),
            ),
            ("<string>".to_owned(), "__main__".to_owned()),
            ("<ipython-input-3-a0>".to_owned(), "__main__".to_owned()),
            ("/tmp/ipykernel_7/123.py".to_owned(), "__main__".to_owned()),
            (String::new(), "__main__".to_owned()),
        ] {
            assert_eq!(of(&file), Some(expected), "{file}");
        }
        for file in [
            "/usr/lib/python3.12/ctypes/__init__.py",
            "/usr/lib64/python3.9/threading.py",
            "<frozen importlib._bootstrap>",
            &format!("{SITE}/cuda/core/experimental/_memory.py"),
            &format!("{SITE}/cffi/api.py"),
            &format!("{SITE}/pycuda/gpuarray.py"),
        ] {
            assert_eq!(of(file), None, "{file}");
        }
    }
}
