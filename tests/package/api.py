"""Asks the Python API of the process that it runs in, which is preloaded."""

import os
from importlib.metadata import version
from pathlib import Path

import vramalloc
from cuda import MIB, free, malloc

assert vramalloc.active()
# As installed, and no other copy.
own = Path(vramalloc.__file__).parent / "lib/libvramalloc.so"
assert os.path.samefile(vramalloc.library_path(), own), vramalloc.library_path()
assert vramalloc.__version__ == version("vramalloc")
with vramalloc.measure("a block") as measured:
    free(malloc(20 * MIB))
assert measured.allocations == measured.frees == 1, measured
assert measured.peak - measured.live_before == 20 * MIB, measured
assert vramalloc.stats()["totals"]["allocations"] == 1
vramalloc.ctl("flush")
assert vramalloc.trim() >= 20 * MIB
with vramalloc.limit("64M"):
    try:
        malloc(128 * MIB)
    except MemoryError:
        pass
    else:
        raise AssertionError("the limit does not hold")
free(malloc(128 * MIB))
vramalloc.dump("dumped.json")
assert Path("dumped.json").stat().st_size > 0
print("all is well")
