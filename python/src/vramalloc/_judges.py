"""What a test took of GPU memory, and what it left behind: two judges of that."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from typing import Any

from . import _memory
from ._measure import measure, size

#: A place in machine code: libx.so+0x1234.
_NATIVE = re.compile(r"(^|\+)0x[0-9a-f]+$")

#: A place in pytest itself.
_OF_PYTEST = re.compile(r"/(_?pytest|pluggy|xdist|execnet)/[^:]*:[0-9]+ |^<")

#: What a device gives memory in.
_PAGE = 2 << 20


class Watched:
    """What is known of a test while it runs."""

    def __init__(self) -> None:
        #: Which limits it broke.
        self.broken: list[str] = []
        #: What its failure is explained with.
        self.told: list[str] = []
        #: What the summary says of it.
        self.figures: dict[str, int] | None = None


class Before:
    """How memory stood before a test."""

    def __init__(self, looks_for_leaks: bool) -> None:
        self.mark: str | None = None
        if looks_for_leaks:
            _settle()
            self.held = _held()
            self.mark = _memory.ctl("mark")

    def judge(self, leaks: tuple[int, str], watched: Watched) -> None:
        """Says whether the test left too much behind, and what that is."""
        allowed, written = leaks
        _settle()
        grown = _held() - self.held
        if grown <= allowed:
            return
        lines = [
            f"the test left {_more(grown, allowed)} of GPU memory behind; {written} allows "
            f"{size(allowed)}"
        ]
        report = json.loads(_memory.ctl(f"mark.{self.mark}.report"))
        for group in report["groups"][:5]:
            blocks = "1 block" if group["blocks"] == 1 else f"{group['blocks']} blocks"
            places = " < ".join(_telling(group["places"])[:6])
            lines.append(
                f"  {size(group['bytes'])} in {blocks} on device {group['device']}"
                + (f", asked for by {places}" if places else "")
            )
        past = grown - report["bytes"]
        if past > 0:
            lines.append(f"  {size(past)} came past the pool, as by cudaMallocAsync")
        if not any(group["places"] for group in report["groups"]):
            lines.append("  with --vramalloc-option stacks=all it is told where it was asked for")
        watched.broken.append("\n".join(lines))

    def end(self) -> None:
        """Forgets the mark."""
        if self.mark is not None:
            _memory.ctl(f"mark.{self.mark}.end")


def _telling(places: list[str]) -> list[str]:
    """The places of a call stack that are Python's, without pytest's own; else all."""
    here = os.path.join(os.getcwd(), "")
    python = [place.removeprefix(here) for place in places if not _NATIVE.search(place)]
    return [place for place in python if not _OF_PYTEST.search(place)] or python or places


def _more(amount: int, than: int) -> str:
    """Bytes that are more than others, so that it shows."""
    shown = size(amount)
    return f"{amount} B" if shown == size(than) else shown


def _settle() -> None:
    """Makes memory free that nobody holds any more."""
    gc.collect()
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
        cuda.empty_cache()
    _memory.ctl("flush")


def _held() -> int:
    """Bytes that the program holds on all devices, in the pool and past it."""
    return _sum("live") + _sum("past_pool")


def _devices() -> range:
    return range(int(_memory.ctl("device.count")))


def _sum(name: str) -> int:
    return sum(int(_memory.ctl(f"device.{device}.{name}")) for device in _devices())


class Lowered:
    """A limit for one test: what is there already, and so much more."""

    def __init__(self, allowed: int, written: str) -> None:
        self.allowed = allowed
        self.written = written
        _settle()
        _memory.trim()
        self.failures = _failures()
        self.past_pool = _sum("past_pool")
        self.before = _memory.limit_in_force()
        for device in _devices():
            most = int(_memory.ctl(f"device.{device}.counted")) + _with_pages(allowed)
            now = _memory.ctl(f"device.{device}.limit")
            least = most if now == "none" else min(most, int(now))
            _memory.ctl(f"device.{device}.limit", f"{least}B")
        if not _devices():
            # CUDA starts in the test, and has nothing before.
            _memory.ctl("option.limit", f"{_with_pages(allowed)}B")

    def end(self) -> None:
        """Puts back what was in force."""
        self.past_pool = _sum("past_pool") - self.past_pool
        _memory.put_limit_back(self.before)

    def judge(self, measured: measure, watched: Watched) -> None:
        """Says whether the test kept to it, and if not what it asked for."""
        # Past the pool there is no peak: what the test holds at its end.
        at_end = measured.live_after + self.past_pool
        held = max(measured.peak, at_end) - measured.live_before
        limit = f"{self.written} allows {size(self.allowed)}"
        refused = [event for event in self._new_failures() if event["at_limit"]]
        if refused:
            times = "1 request" if len(refused) == 1 else f"{len(refused)} requests"
            watched.told.append(
                f"{limit}: {times} for GPU memory failed for that; the last asked for "
                f"{size(refused[-1]['request_bytes'])} when the test held "
                f"{size(refused[-1]['before']['live_bytes'] - measured.live_before)} more than "
                "before it"
            )
        if held > self.allowed:
            # Out of what was cached when it began.
            watched.broken.append(
                f"the test held {_more(held, self.allowed)} of GPU memory more than before it; "
                f"{limit}"
            )

    def _new_failures(self) -> list[dict[str, Any]]:
        new: list[dict[str, Any]] = []
        for at, (count, events) in enumerate(_failures()):
            known = self.failures[at][0] if at < len(self.failures) else 0
            new += events[-(count - known) :] if count > known else []
        return new


def _with_pages(allowed: int) -> int:
    """What the device gives for so much: whole pages, and one for small blocks.

    Whether a test kept to the byte is told by what it held.
    """
    return (allowed + 2 * _PAGE - 1) // _PAGE * _PAGE


def _failures() -> list[tuple[int, list[dict[str, Any]]]]:
    """By arena, how many requests failed, and what is known of the last of them."""
    arenas = _memory.stats()["arenas"]
    return [
        (len(arena["oom_events"]) + arena["oom_events_left_out"], arena["oom_events"])
        for arena in arenas
    ]
