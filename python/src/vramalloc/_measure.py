"""What a stretch of the program did to the memory of its devices.

The library has one register a device for the most that was live, which can be begun
anew. Measures may lie inside each other and, in several threads, cross each other: at
each beginning and each end what the register says goes to all that are open, and it is
begun anew. When the last one is over, the register gets back what it would have said
without us.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType

from . import _native

_NAMES = ("live", "allocations", "frees", "requested")


@dataclass(frozen=True)
class Figures:
    """What a measure says of one device, or of all of them together."""

    #: Bytes that the program held at the beginning and at the end.
    live_before: int = 0
    live_after: int = 0
    #: The most bytes that it held in between.
    peak: int = 0
    #: How many blocks it was given, and how many it freed.
    allocations: int = 0
    frees: int = 0
    #: Bytes that it asked for.
    requested: int = 0

    def __str__(self) -> str:
        return (
            f"peak {size(self.peak)}, live {size(self.live_before)} before and "
            f"{size(self.live_after)} after, {self.allocations} allocations of "
            f"{size(self.requested)} in all, {self.frees} frees"
        )


def size(amount: int) -> str:
    """Bytes as people read them."""
    if amount < 0:
        return f"-{size(-amount)}"
    value, unit = float(amount), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


class _Register:
    """The measures that are open, and what their peaks are so far."""

    def __init__(self) -> None:
        # The collector, or a signal's handler, may begin and end measures in the thread
        # that has it: what is done under it holds at each call.
        self.lock = threading.RLock()
        # One that nobody has any more will not be ended.
        self.open: weakref.WeakValueDictionary[int, measure] = weakref.WeakValueDictionary()
        #: By device, the most that the library's register said since the first began.
        self.said: defaultdict[int, int] = defaultdict(int)

    def begin(self, new: measure) -> None:
        with self.lock:
            self._pass_on(anew=True)
            before = _ask()
            new._begin(before)
            self.open[id(new)] = new

    def end(self, old: measure) -> None:
        with self.lock:
            try:
                self._pass_on(anew=len(self.open) > 1)
                old._end(_ask())
            finally:
                self.open.pop(id(old), None)
                if not self.open:
                    said, self.said = self.said, defaultdict(int)
                    _raise(said)

    def look(self, at: measure) -> None:
        """Tells an open measure how it stands."""
        with self.lock:
            if id(at) in self.open:
                self._pass_on(anew=True)
                at._end(_ask())

    def _pass_on(self, anew: bool) -> None:
        library = _native.library()
        for device in range(_devices()):
            name = f"device.{device}.live_peak"
            peak = int(library.ctl(name, "reset" if anew else None))
            # Without a call in between, at which a handler could run.
            if peak > self.said[device]:
                self.said[device] = peak
            for reference in self.open.valuerefs():
                one = reference()
                if one is not None:
                    one._saw(device, peak)


def _devices() -> int:
    return int(_native.library().ctl("device.count"))


def _ask() -> dict[int, tuple[int, ...]]:
    """By device, what it has now and had since the start."""
    ctl = _native.library().ctl
    return {
        device: tuple(int(ctl(f"device.{device}.{name}")) for name in _NAMES)
        for device in range(_devices())
    }


def _raise(said: dict[int, int]) -> None:
    """Puts back into the register what it would say."""
    for device, peak in said.items():
        _native.library().ctl(f"device.{device}.live_peak", str(peak))


_register = _Register()


def _forget() -> None:
    """In a forked child, whose memory is its parent's; the lock may have been held."""
    global _register
    _register = _Register()


os.register_at_fork(after_in_child=_forget)


class measure:
    """Measures what a block does to the memory of all devices; it frees nothing.

        with vramalloc.measure("forward") as m:
            loss = model(batch)
        print(m.peak, m.live_after - m.live_before)

    The figures are of the pool that serves ``cudaMalloc`` and its like, in all threads
    of the process: ``live_before``, ``live_after``, ``peak``, ``allocations``,
    ``frees``, ``requested``. They are sums over the devices, and ``devices`` has them
    one by one; the sum of the peaks of several devices is a bound. Inside the block
    they say how it stands. Measures can be nested, and crossed in several threads.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._is_open = False
        self._before: dict[int, tuple[int, ...]] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        self._peaks: defaultdict[int, int] = defaultdict(int)

    def __enter__(self) -> measure:
        if self._is_open:
            raise RuntimeError(f"{self!r} is open already; make another measure")
        self._peaks = defaultdict(int)
        _register.begin(self)
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        with _native.ending(error):
            if id(self) in _register.open:
                _register.end(self)

    @property
    def devices(self) -> dict[int, Figures]:
        """The figures of each device, by CUDA's number."""
        if self._is_open:
            _register.look(self)
        return {device: self._of(device) for device in sorted(self._after)}

    def _of(self, device: int) -> Figures:
        nothing = (0,) * len(_NAMES)
        before = self._before.get(device, nothing)
        after = self._after.get(device, nothing)
        allocations, frees, requested = (b - a for a, b in zip(before[1:], after[1:]))
        return Figures(
            live_before=before[0],
            live_after=after[0],
            peak=max(self._peaks.get(device, 0), before[0], after[0]),
            allocations=allocations,
            frees=frees,
            requested=requested,
        )

    @property
    def figures(self) -> Figures:
        """The figures of all devices together."""
        each = list(self.devices.values())
        return Figures(
            live_before=sum(one.live_before for one in each),
            live_after=sum(one.live_after for one in each),
            peak=sum(one.peak for one in each),
            allocations=sum(one.allocations for one in each),
            frees=sum(one.frees for one in each),
            requested=sum(one.requested for one in each),
        )

    @property
    def live_before(self) -> int:
        """Bytes that the program held when the block began."""
        return self.figures.live_before

    @property
    def live_after(self) -> int:
        """Bytes that it held when the block ended."""
        return self.figures.live_after

    @property
    def peak(self) -> int:
        """The most bytes that it held in between."""
        return self.figures.peak

    @property
    def allocations(self) -> int:
        """How many blocks it was given."""
        return self.figures.allocations

    @property
    def frees(self) -> int:
        """How many blocks it freed."""
        return self.figures.frees

    @property
    def requested(self) -> int:
        """Bytes that it asked for."""
        return self.figures.requested

    def _begin(self, figures: dict[int, tuple[int, ...]]) -> None:
        self._before, self._after = figures, figures

    def _end(self, figures: dict[int, tuple[int, ...]]) -> None:
        self._after = figures

    def _saw(self, device: int, peak: int) -> None:
        if peak > self._peaks[device]:
            self._peaks[device] = peak

    def __str__(self) -> str:
        return f"{self.name or 'measured'}: {self.figures}"

    def __repr__(self) -> str:
        return f"<vramalloc.measure {self.name!r}>"
