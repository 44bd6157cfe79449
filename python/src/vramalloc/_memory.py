"""What a program sets and does: the limit, regions, pause and resume."""

from __future__ import annotations

import contextlib
import inspect
import json
import operator
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import _native
from ._native import Error, Paused

#: The device that is current in the calling thread.
_CURRENT = -1

_CONTENTS = {"keep": 0, "drop": 1}
_DROP_BACKUPS = 1
_UNKNOWN_NAME = -4
_INVALID_VALUE = -6
#: The least limit, in bytes.
_LEAST = 1 << 20


def ctl(name: str, value: str | None = None) -> str:
    """Answers a question by name, does something, or sets an option.

    The names are those of ``vramalloc_ctl`` in the C API: ``ctl("device.0.live")``,
    ``ctl("option.stats", "off")``.
    """
    return _native.library().ctl(name, value)


def stats() -> dict[str, Any]:
    """The statistics of this process as they are now, by the keys of the file."""
    result: dict[str, Any] = json.loads(_native.library().statistics())
    return result


def dump(pattern: str | os.PathLike[str] | None = None) -> None:
    """Writes the statistics to a file, or to where the option ``stats`` says.

    The pattern is one of that option: ``%e`` is the program, ``%p`` the process.
    """
    _native.library().dump(None if pattern is None else os.fspath(pattern))


def trim() -> int:
    """Gives idle memory back to CUDA; returns how many bytes went."""
    return int(ctl("trim"))


def limit_in_force() -> tuple[str, str]:
    """The options ``limit`` and ``device_limits``, for `put_limit_back`."""
    return ctl("option.limit"), ctl("option.device_limits")


def put_limit_back(before: tuple[str, str]) -> None:
    """Puts both options back."""
    for_all, by_device = before
    # This means every device, so those that have their own come after it.
    ctl("option.limit", for_all)
    if by_device != "none":
        ctl("option.device_limits", by_device)


#: The blocks that are open, and the limit that was set last.
_open_limits: list[limit] = []
_newest: weakref.ref[limit] | None = None


class limit:
    """Sets the most that this process may have of each device, or of one, at once.

    A size is ``"16G"``, ``"512MiB"`` or a number of bytes, a share of the device
    ``"50%"`` or ``0.5``; `None` is no limit. What is held beyond a lower limit stays;
    idle memory beyond it goes back. As a block it puts back what was before:

        with vramalloc.limit("2G"):
            train_small()
    """

    def __init__(self, size: str | int | float | None, device: int | None = None) -> None:
        self._text = _size(size)
        self._device = device
        self._name = "option.limit" if device is None else f"device.{_number(device)}.limit"
        self._set()

    def _set(self) -> None:
        global _newest
        before = limit_in_force()
        try:
            ctl(self._name, self._text)
        except Error as error:
            if error.code == _UNKNOWN_NAME and self._device is not None:
                raise _no_device(self._device) from None
            if error.code != _INVALID_VALUE:
                raise
            raise _no_limit(self._text) from None
        self._before = before
        _newest = weakref.ref(self)

    def __enter__(self) -> limit:
        if self in _open_limits:
            raise RuntimeError("this limit's block is open already; make another limit")
        if _newest is None or _newest() is not self:
            self._set()
        _open_limits.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _newest
        later = _open_limits[_open_limits.index(self) + 1 :]
        _open_limits.remove(self)
        _newest = None
        # Blocks may cross each other: one that is open still and hides this one puts back,
        # at its own end, what was before this one.
        for other in later:
            if other._device in (None, self._device):
                other._before = self._before
                return
        with _native.ending(error):
            self.restore()
            for other in later:
                ctl(other._name, other._text)

    def restore(self) -> None:
        """Puts back what was in force before."""
        if self._device is None:
            put_limit_back(self._before)
        else:
            before = dict(_entries(self._before[1])).get(self._device, "none")
            ctl(f"device.{self._device}.limit", before)


def _entries(text: str) -> list[tuple[int, str]]:
    """The option ``device_limits``: ``[0:16GiB,1:0.5]``."""
    if text == "none":
        return []
    pairs = (entry.split(":", 1) for entry in text.strip("[]").split(","))
    return [(int(number), share) for number, share in pairs]


def _no_device(number: int) -> ValueError:
    last = int(ctl("device.count")) - 1
    return ValueError(f"there is no device {number}: CUDA numbers them from 0 to {last} here")


def _no_limit(text: str) -> ValueError:
    return ValueError(
        f"{text!r} is no limit: a size such as '16G' or '512MiB', a whole number of bytes from "
        "1 MiB on, a share such as '50%' or 0.5, or None"
    )


def _size(size: str | int | float | None) -> str:
    if size is None:
        return "none"
    if not isinstance(size, (bool, str, float)):
        with contextlib.suppress(TypeError):
            size = operator.index(size)
            # The library would read 1 as a share: all of the device.
            if size < _LEAST:
                raise _no_limit(str(size))
            return str(size)
    if not isinstance(size, (str, float)):
        raise TypeError(
            f"a limit is a text such as '16G', a number of bytes, a share such as 0.5, or None; "
            f"not {type(size).__name__}"
        )
    text = str(size).strip()
    if not text:
        raise ValueError("the limit is an empty text; None is no limit")
    return text


def _number(device: int) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"a device is CUDA's number, not {type(device).__name__}")
    if device < 0:
        raise ValueError(f"a device is CUDA's number from 0 on, not {device}")
    return device


_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The regions that each thread is in, the innermost last.
_threads = threading.local()


def _of_thread() -> list[region]:
    regions: list[region] = _threads.__dict__.setdefault("regions", [])
    return regions


class region(contextlib.ContextDecorator):
    """Device memory that this thread asks for in the block bears a tag.

    By it the memory can be paused: ``pause("weights")``. What it holds is kept over a
    pause, or with ``contents="drop"`` lost, which saves the copy. Tags are known until
    the process ends: use few. The block begins and ends in the same thread, after those
    that began in it; so no task of asyncio may wait in it.
    """

    def __init__(self, tag: str, contents: Literal["keep", "drop"] = "keep") -> None:
        if contents not in _CONTENTS:
            raise ValueError(f"contents are 'keep' or 'drop', not {contents!r}")
        if not isinstance(tag, str) or not tag:
            raise ValueError(f"a tag is a text that is not empty, not {tag!r}")
        self.tag = tag
        self.contents = contents

    def __call__(self, function: _Function) -> _Function:
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(
                f"{function!r} runs after its call has returned, and not in this region; write "
                "a with block, without await and yield, around what asks for memory"
            )
        return super().__call__(function)

    def __enter__(self) -> region:
        _native.library().begin_region(self.tag, _CONTENTS[self.contents])
        _of_thread().append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        regions = _of_thread()
        if self in regions and regions[-1] is not self:
            raise RuntimeError(
                f"the region {self.tag!r} is not the innermost of this thread, which is "
                f"{regions[-1].tag!r}; a block must not hold an await or a yield"
            )
        with _native.ending(error):
            _native.library().end_region()
            if regions:
                regions.pop()


def pause(tag: str | None = None, device: int | None = None) -> Paused:
    """Gives memory of a device to the device, while its addresses stay.

    Memory of regions with this tag; with ``""`` what was asked for in no region; with
    `None` all. The device is the current one unless another is named. It needs the
    option ``strategy=mapped``. No work may use the memory until `resume`.
    """
    place = _CURRENT if device is None else _number(device)
    return _native.library().pause(place, tag)


def resume(
    tag: str | None = None, device: int | None = None, *, drop_backups: bool = False
) -> Paused:
    """Takes memory that was paused from the device again, for the same addresses.

    The host memory that held its contents is kept for the next pause, unless
    ``drop_backups`` says otherwise.
    """
    place = _CURRENT if device is None else _number(device)
    return _native.library().resume(place, tag, _DROP_BACKUPS if drop_backups else 0)
