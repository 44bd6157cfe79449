"""The C API of the library that is in this process.

Always through ``ctypes.CDLL(None)``, the process's own table of symbols: to open the
library by its path could bring a second copy of it into the process, which would know
nothing of the memory that the first one serves.

Importing this module needs no library and no ``ctypes`` (an interpreter may be built
without it): what is missing is said when something is asked of the library.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

#: What to type, for somebody whose process is not preloaded.
HOW = (
    "start it under the preload: 'vramalloc run python ...' (or 'python -m vramalloc run "
    "...'), 'pytest --vramalloc' for tests, vramalloc.preload_env() for a process that you "
    "start yourself"
)

_TOO_SMALL = -3
_FORKED = -8
_IO = -11


class NotLoaded(RuntimeError):
    """vramalloc's library is not in this process; the text says how to start it."""

    def __init__(self, why: str = "vramalloc's library is not loaded in this process") -> None:
        super().__init__(f"{why}; {HOW}")


class Error(RuntimeError):
    """A call of vramalloc's C API failed.

    ``code`` is above 0 where it is CUDA's (2 is out of memory) and below 0 where it is
    the library's own; ``name`` is its name, such as ``VRAMALLOC_INVALID_VALUE``.
    """

    def __init__(self, code: int, name: str, what: str = "") -> None:
        # All of them, so that a copy can be made from the arguments (pickle).
        super().__init__(code, name, what)
        self.code = code
        self.name = name
        self.what = what

    def __str__(self) -> str:
        text = f"{self.name} ({self.code})"
        if self.what:
            text = f"{self.what}: {text}"
        hint = _HINTS.get(self.code)
        return f"{text}: {hint}" if hint else text


@contextlib.contextmanager
def ending(error: BaseException | None) -> Iterator[None]:
    """The end of a block that ``error`` ended, which is more important than ours.

    A child by fork leaves its parent's block: there is nothing to put back.
    """
    try:
        yield
    except Error as own:
        if error is None and own.code != _FORKED:
            raise


#: What a code means where its name does not say what to do.
_HINTS = {
    2: "out of memory: of the device, of the option limit, or of the host",
    801: "no memory is mapped: start the process with the option strategy=mapped",
    900: "not while a stream captures a graph",
    -4: "the library knows no such name; option.KEY is that of an option, or it is of another version than this package",
    -5: "it cannot be set, or not any more once memory was asked for",
    -6: "the text is no valid value; 'vramalloc options' lists what is accepted",
    -7: "there is no CUDA driver in this process",
    -8: "this process was forked from one that uses CUDA, and memory is its parent's; use "
    "multiprocessing's method 'spawn'",
    -10: "the library met an error of its own, which it has printed on standard error",
    -13: "the memory is paused, or this thread is in no region",
}


class Paused:
    """What a pause or a resume did, in bytes.

    ``bytes`` went to the device or came from it, ``copied`` to the host or from there;
    ``stays_plain``, ``stays_exported`` and ``stays_refused`` were left where they are.
    ``is_paused`` says whether any of the memory is paused now.
    """

    __slots__ = (
        "bytes",
        "copied",
        "is_paused",
        "stays_exported",
        "stays_plain",
        "stays_refused",
    )

    def __init__(
        self,
        *,
        bytes: int,
        copied: int,
        stays_plain: int,
        stays_exported: int,
        stays_refused: int,
        is_paused: bool,
    ) -> None:
        self.bytes = bytes
        self.copied = copied
        self.stays_plain = stays_plain
        self.stays_exported = stays_exported
        self.stays_refused = stays_refused
        self.is_paused = is_paused

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Paused({values})"


class Library:
    """The functions of the library, found in this process."""

    def __init__(self) -> None:
        try:
            import ctypes
        except ImportError as error:
            raise NotLoaded(f"this Python has no ctypes ({error})") from error
        self._ctypes = ctypes
        try:
            found: Any = ctypes.CDLL(None, use_errno=True)
            self._ctl = found.vramalloc_ctl
            self._error_name = found.vramalloc_error_name
            self._statistics = found.vramalloc_statistics
            self._free_text = found.vramalloc_free_text
            self._dump = found.vramalloc_dump
        except (AttributeError, OSError):
            # What ctypes says of it would only stand before what to do.
            raise NotLoaded from None
        self._found = found
        text, size, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
        self._ctl.argtypes = [text, text, ctypes.c_void_p, size, ctypes.POINTER(size)]
        self._error_name.argtypes = [number]
        self._error_name.restype = text
        self._statistics.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
        self._free_text.argtypes = [ctypes.c_void_p]
        self._free_text.restype = None
        self._dump.argtypes = [text]

        class PausedStruct(ctypes.Structure):
            _fields_ = [
                ("struct_size", size),
                ("bytes", ctypes.c_uint64),
                ("copied", ctypes.c_uint64),
                ("stays_plain", ctypes.c_uint64),
                ("stays_exported", ctypes.c_uint64),
                ("stays_refused", ctypes.c_uint64),
                ("is_paused", number),
            ]

        self._paused = PausedStruct

    def check(self, code: int, what: str) -> None:
        """Raises what a code says."""
        if code == 0:
            return
        if code == _IO:
            what = f"{what}: {os.strerror(self._ctypes.get_errno())}"
        name = self._error_name(code)
        raise Error(code, name.decode() if name else "unknown", what)

    def ctl(self, name: str, value: str | None = None) -> str:
        """Answers a question by name, does something, or sets an option."""
        ctypes = self._ctypes
        # Nothing that is done, and not asked, has an answer that is longer.
        room = 1 << 12
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = ctypes.c_size_t(0)
            code: int = self._ctl(
                encoded(name),
                None if value is None else encoded(value),
                buffer,
                room,
                ctypes.byref(length),
            )
            if code != _TOO_SMALL:
                break
            # What it tells of may grow meanwhile.
            room = 2 * length.value
        self.check(code, name if value is None else f"{name} = {value!r}")
        answer: bytes = buffer.value
        return os.fsdecode(answer)

    def statistics(self) -> str:
        """The statistics as they are now: a JSON."""
        ctypes = self._ctypes
        text = ctypes.c_void_p()
        self.check(self._statistics(ctypes.byref(text)), "statistics")
        try:
            answer: bytes = ctypes.string_at(text.value or 0)
            return answer.decode("utf-8", "replace")
        finally:
            self._free_text(text)

    def dump(self, pattern: str | None) -> None:
        """Writes the statistics to a file."""
        code: int = self._dump(None if pattern is None else encoded(pattern))
        self.check(code, "dump" if pattern is None else f"dump to {pattern!r}")

    def begin_region(self, tag: str, contents: int) -> None:
        """Begins a region of the calling thread."""
        begin: Any = self._found.vramalloc_region_begin
        self.check(begin(encoded(tag), contents), f"region {tag!r}")

    def end_region(self) -> None:
        """Ends it."""
        self.check(self._found.vramalloc_region_end(), "the end of a region")

    def pause(self, place: int, tag: str | None) -> Paused:
        """Gives memory to the device."""
        told = self._new_paused()
        arguments = (place, _tag(tag), self._ctypes.byref(told))
        self.check(self._found.vramalloc_pause(*arguments), "pause")
        return self._told(told)

    def resume(self, place: int, tag: str | None, flags: int) -> Paused:
        """Takes it from there again."""
        told = self._new_paused()
        arguments = (place, _tag(tag), flags, self._ctypes.byref(told))
        self.check(self._found.vramalloc_resume(*arguments), "resume")
        return self._told(told)

    def _new_paused(self) -> Any:
        return self._paused(struct_size=self._ctypes.sizeof(self._paused))

    @staticmethod
    def _told(told: Any) -> Paused:
        return Paused(
            bytes=told.bytes,
            copied=told.copied,
            stays_plain=told.stays_plain,
            stays_exported=told.stays_exported,
            stays_refused=told.stays_refused,
            is_paused=bool(told.is_paused),
        )


def encoded(text: str) -> bytes:
    """A text for C."""
    if not isinstance(text, str):
        raise TypeError(f"a text is needed, not {type(text).__name__}: {text!r}")
    data = os.fsencode(text)
    if b"\0" in data:
        raise ValueError(f"a text without zero bytes is needed: {text!r}")
    return data


def _tag(tag: str | None) -> bytes | None:
    return None if tag is None else encoded(tag)


_library: Library | None = None


def library() -> Library:
    """The library in this process; raises `NotLoaded` where there is none."""
    global _library
    if _library is None:
        # Two threads may each find it: they find the same.
        _library = Library()
    return _library
