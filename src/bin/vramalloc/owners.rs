//! The libraries that hold memory of devices, as a file of statistics has them, and
//! what users call them.

use serde::Deserialize;

/// What one library of the program, or code of Python, holds of one device. Older
/// libraries do not tell.
#[derive(Deserialize)]
pub(super) struct Owned {
    pub(super) device: u64,
    /// The name of its file, or of its package; `None`: not known.
    owner: Option<String>,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) peak_bytes: u64,
    #[serde(default)]
    pub(super) past_pool_bytes: u64,
}

/// What users call libraries, by how the names of their files or packages begin.
const NAMES: [(&str, &str); 24] = [
    ("libc10_cuda", "PyTorch"),
    ("libtorch", "PyTorch"),
    ("libnccl", "NCCL"),
    ("libcublas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libcufft", "cuFFT"),
    ("libcurand", "cuRAND"),
    ("libcusolver", "cuSOLVER"),
    ("libcusparse", "cuSPARSE"),
    ("libnvshmem", "NVSHMEM"),
    ("libnvinfer", "TensorRT"),
    ("libonnxruntime", "ONNX Runtime"),
    ("libpaddle", "Paddle"),
    ("libphi", "Paddle"),
    ("libtensorflow", "TensorFlow"),
    ("xla_cuda", "JAX"),
    ("libjax", "JAX"),
    ("libggml", "llama.cpp"),
    ("librmm", "RMM"),
    ("libfaiss", "faiss"),
    ("cupy", "CuPy"),
    ("numba", "Numba"),
    // What Python calls by ctypes returns there; whose code it was is not known.
    ("libffi", "Python (ctypes)"),
    ("_ctypes", "Python (ctypes)"),
];

/// How files of Python end: they are the program's, whatever they are called.
const PYTHON: &str = ".py";

impl Owned {
    /// What a user calls it.
    pub(super) fn called(&self) -> &str {
        let Some(owner) = &self.owner else {
            return "not known";
        };
        let mut names = NAMES.iter().filter(|_| !owner.ends_with(PYTHON));
        let known = names.find(|(start, _)| owner.starts_with(start));
        known.map_or(owner, |&(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_the_names_that_users_know() {
        let owned = |owner: Option<&str>| Owned {
            device: 0,
            owner: owner.map(str::to_owned),
            bytes: 0,
            peak_bytes: 0,
            past_pool_bytes: 0,
        };
        for (file, name) in [
            ("libc10_cuda.so", "PyTorch"),
            ("libcublasLt.so.12", "cuBLAS"),
            ("libmine.so", "libmine.so"),
            ("cupy_backends", "CuPy"),
            ("numba_cuda", "Numba"),
            ("numba_test.py", "numba_test.py"),
            ("others", "others"),
        ] {
            assert_eq!(owned(Some(file)).called(), name);
        }
        assert_eq!(owned(None).called(), "not known");
    }
}
