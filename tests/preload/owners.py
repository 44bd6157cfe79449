"""Asks for memory by libraries that call for others.

usage: owners.py FOLDER, where packages are, in a folder `site-packages`, and the
library `threads.so`.
"""

import ctypes
import functools
import pathlib
import sys
import threading

FOLDER = pathlib.Path(sys.argv[1])
SITE = FOLDER / "site-packages"
sys.path.insert(0, str(SITE))

import alone
import pool

KEPT = []
RUNTIME = ctypes.CDLL("libcudart.so.12")


def take(size, by=RUNTIME.cudaMalloc):
    block = ctypes.c_void_p()
    assert by(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    KEPT.append(block)
    return block


def free(block):
    assert RUNTIME.cudaFree(block) == 0


def caller(file):
    """What a library calls, without a line of Python in between."""
    malloc = ctypes.cast(RUNTIME.cudaMalloc, ctypes.c_void_p)
    return functools.partial(ctypes.CDLL(str(file)).asker_call, malloc)


def turns():
    """Blocks that threads keep, each by another package than the one before, from one
    place in libffi."""
    for _ in range(300):
        free(take(4096))
        free(pool.take(4096))
    for _ in range(10):
        take(4096)
        pool.take(4096)
        pool.take(4096)


def bindings():
    """Modules of packages that are bindings, and of one that is none."""
    (driver,) = SITE.glob("cuda/bindings/driver.*")
    (runtime,) = SITE.glob("cupy_backends/cuda/api/runtime.*")
    by = caller(driver)
    take(1 << 20, by)
    pool.by(by, 1 << 20)
    # Frames of the binding's own package, and Python's own, are passed over.
    from cuda.bindings import wrapped

    wrapped.by(lambda: take(1 << 20, by))
    wrapped.take(by, 1 << 20, KEPT)
    pool.by(caller(runtime), 1 << 20)


def without_code():
    """A thread in which all code is Python's own, and one that knows no Python."""
    block = ctypes.c_void_p()
    size = ctypes.c_size_t(1 << 20)
    malloc = RUNTIME.cudaMalloc
    thread = threading.Thread(target=malloc, args=(ctypes.byref(block), size))
    thread.start()
    thread.join()
    assert block.value
    (file,) = SITE.glob("cffi.libs/libffi-*")
    ask = ctypes.CDLL(str(file)).asker_call
    in_thread = ctypes.CDLL(str(FOLDER / "threads.so")).in_thread
    ask, malloc = (ctypes.cast(each, ctypes.c_void_p) for each in (ask, malloc))
    assert in_thread(ask, malloc, ctypes.byref(block), size) == 0


def from_interpreter():
    """The interpreter itself calls the function, as where ctypes is a part of it: by a
    method of Python whose object is where the block's address goes, and whose argument
    is the size."""

    class Method(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_char_p),
            ("function", ctypes.c_void_p),
            ("flags", ctypes.c_int),
            ("doc", ctypes.c_char_p),
        ]

    api = ctypes.pythonapi
    api.PyCFunction_NewEx.restype = ctypes.c_void_p
    malloc = ctypes.cast(RUNTIME.cudaMalloc, ctypes.c_void_p)
    method = Method(b"malloc", malloc, 8, None)
    # As long as it is an object: its references, and its type.
    block = (ctypes.c_size_t * 8)(1 << 20, id(object))
    function = api.PyCFunction_NewEx(ctypes.byref(method), block, None)
    KEPT.extend((method, block))
    try:
        api.PyObject_CallFunctionObjArgs(
            ctypes.c_void_p(function), ctypes.c_void_p(1 << 20), None
        )
    except SystemError:
        # It returned no object, and no reason.
        pass
    assert block[0] > 1 << 20


turns()
bindings()
without_code()
from_interpreter()
alone.take(1 << 20)
# The runtime asks the driver: who called the runtime is found on the stack.
managed = ctypes.c_void_p()
assert pool.managed(ctypes.byref(managed), ctypes.c_size_t(4 << 20)) == 0
