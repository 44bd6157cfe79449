"""Asks for memory from Python in many ways, and says of each block where.

usage: stacks.py RECORD
A line of RECORD is a block's address and the places of the interpreter's own chain
of frames at the call, the innermost first.
"""

import asyncio
import atexit
import ctypes
import functools
import json
import os
import sys
import threading
import time

RECORD = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
LOCK = threading.Lock()
KEPT = []

# The second keeps the interpreter's lock during a call.
LIBRARIES = [ctypes.CDLL("libcudart.so.12"), ctypes.PyDLL("libcudart.so.12")]


def chain(frame):
    places = []
    while frame:
        places.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return places


def say(address, places):
    with LOCK:
        KEPT.append(address)
        os.write(RECORD, (json.dumps([address, places]) + "\n").encode())


def ask(which=0, size=700):
    block = ctypes.c_void_p()
    malloc, size = LIBRARIES[which].cudaMalloc, ctypes.c_size_t(size)
    # Both in one line.
    places, code = chain(sys._getframe()), malloc(ctypes.byref(block), size)
    assert code == 0, code
    say(block.value, places)
    return block.value, places


def both():
    ask(0)
    ask(1)


def deep(levels):
    if levels:
        return deep(levels - 1)
    both()


def generator(levels):
    both()
    yield 1
    if levels:
        yield from generator(levels - 1)
    both()


class Model:
    both()

    def __call__(self):
        both()
        return self.forward([1, 2])

    def forward(self, values):
        (lambda: both())()
        return [both() for _ in values] + list(map(lambda _: both(), values))

    def __del__(self):
        both()


def with_exceptions():
    try:
        raise ValueError
    except ValueError:
        both()
    finally:
        both()


async def coroutine(levels):
    both()
    await asyncio.sleep(0)
    if levels:
        await asyncio.gather(coroutine(levels - 1), coroutine(levels - 1))
    both()


def made(rounds):
    """Code that lies where other code did before."""
    for at in range(rounds):
        name = f"made_{at % 7}"
        source = "\n" * (at * 37 % 300) + f"def {name}():\n\n  pass\n  ask({at % 2})\n\n{name}()\n"
        exec(compile(source, f"<made {at % 5}>", "exec"), {"ask": ask})


@functools.lru_cache(maxsize=None)
def cached():
    both()


def wide_lines():
    return (
        ask(0),

        ask(
            1
        ),
        [
            both()
            for _ in range(2)
        ],
    )


def called_back():
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def compare(one, other):
        both()
        return 0

    two = (ctypes.c_int * 2)(1, 2)
    ctypes.CDLL(None).qsort(two, ctypes.c_size_t(2), ctypes.c_size_t(4), compare)


def long_name():
    names = {"both": both}
    name = "größe_\u6570_" + "x" * 300
    exec(compile(f"def {name}():\n both()\n{name}()", "ordner/\u6587.py", "exec"), names)


def followed():
    def trace(frame, event, argument):
        return trace

    sys.settrace(trace)
    try:
        deep(3)
        both()
    finally:
        sys.settrace(None)


def everything():
    deep(5)
    deep(60)
    list(generator(4))
    Model()()
    with_exceptions()
    asyncio.run(coroutine(3))
    made(60)
    cached()
    wide_lines()
    called_back()
    long_name()
    followed()


class Block(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("requested", ctypes.c_size_t),
        ("calls", ctypes.c_size_t),
        ("python", ctypes.c_size_t),
        ("place", ctypes.c_int),
        ("stack", ctypes.c_uint32),
    ]


def whose():
    """The C API tells the same; it says nothing where Python is not read."""
    address, places = ask()
    block = Block(struct_size=ctypes.sizeof(Block))
    text = ctypes.create_string_buffer(4096)
    code = ctypes.CDLL(None).vramalloc_whose(
        ctypes.c_void_p(address), ctypes.byref(block), None, ctypes.c_size_t(0), text,
        ctypes.c_size_t(len(text)))
    assert code == 0 and block.address == address, code
    expected = "".join(f"{file}:{line} {name}\n" for file, line, name in places)
    assert text.value.decode() in ("", expected), (text.value, expected)
    assert text.value or sys.version_info < (3, 10)


def lines_of_threads():
    threads = [threading.Thread(target=everything) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until_the_end():
    while True:
        ask(0)
        time.sleep(0.001)


class Late:
    def __del__(self):
        both()


LATE = Late()
everything()
whose()
lines_of_threads()
atexit.register(both)
for _ in range(3):
    threading.Thread(target=until_the_end, daemon=True).start()
time.sleep(0.02)
