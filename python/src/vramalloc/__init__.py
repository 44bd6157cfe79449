"""vramalloc: a GPU memory allocator under unmodified CUDA programs.

A process comes under it when it is started: ``vramalloc run python train.py``. There
this package asks and steers it: `stats`, `limit`, `measure`, `trim`, `dump`, `region`,
`pause`, `resume`, and `ctl` for all that has a name. Anywhere, `preload_env` and
`configure_subprocess` start other processes under it, and `active` says whether this
one is. Functions that need the library raise `NotLoaded` where it is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._environment import active, configure_subprocess, library_path, preload_env
from ._measure import Figures, measure
from ._memory import ctl, dump, limit, pause, region, resume, stats, trim
from ._native import Error, NotLoaded, Paused

__all__ = [
    "Error",
    "Figures",
    "NotLoaded",
    "Paused",
    "active",
    "configure_subprocess",
    "ctl",
    "dump",
    "library_path",
    "limit",
    "measure",
    "pause",
    "preload_env",
    "region",
    "resume",
    "stats",
    "trim",
]

if TYPE_CHECKING:
    #: The version of the package.
    __version__: str
else:

    def __getattr__(name):
        # Read only where somebody asks: finding it takes longer than the rest.
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("vramalloc")
            except PackageNotFoundError:
                # Modules that were not installed as a package.
                pass
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# What a traceback calls them is what can be caught.
for _public in (Error, Figures, NotLoaded, Paused):
    _public.__module__ = __name__
del _public
