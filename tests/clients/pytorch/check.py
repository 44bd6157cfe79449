"""Runs every program here bare and preloaded, and says what differs.

Called by scripts/check-pytorch, which has built the library, the simulated CUDA
and the stand-ins. One line a check; the last line counts them.
"""

import pathlib
import sys

import lines
import runs
import summary
import viz
from checks import OUT_OF_MEMORY, check, end
from runs import LIBRARY, ROOT, STRATEGIES, ended_well, prints_the_same, same_number

HERE = pathlib.Path(__file__).resolve().parent
STAND_INS = ROOT / "target" / "pytorch" / "stubs"
RESULTS = ROOT / "target" / "pytorch" / "results"
SECONDS = 600
SMALL = "256M"
# Ways for PyTorch to get memory: from its own cache, from CUDA each time, from
# CUDA's own memory pool, or as virtual memory. The last two go past the
# library's pools.
CACHED, UNCACHED, POOL, EXPANDABLE = "cached", "uncached", "pool", "expandable"
# What the library and the simulated driver call their memory; and functions of
# the driver that PyTorch then calls as often as bare.
PAST = {POOL: ("async_pools", "pool"), EXPANDABLE: ("virtual", "virtual")}
PAST_CALLS = {
    POOL: ("cuMemAllocAsync", "cuMemFreeAsync"),
    EXPANDABLE: ("cuMemCreate", "cuMemMap"),
}
# By its pluggable allocator: with all functions that it can call, with none but
# the two that it must have, and by a program that does not tell of a stream.
PLUGGED, FENCED, FORGETFUL = "plugged", "fenced", "forgetful"
SETTINGS = {
    CACHED: {},
    UNCACHED: {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    POOL: {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    EXPANDABLE: {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    PLUGGED: {"PLUGGABLE": str(LIBRARY)},
    FENCED: {"PLUGGABLE": str(LIBRARY), "PLUGGABLE_HOOKS": ""},
    FORGETFUL: {"PLUGGABLE": str(LIBRARY), "PLUGGABLE_FORGETS": "1"},
}
# Each program and the ways it runs. What cannot be done uncached cannot be done
# so bare either: allocations would invalidate the capture of a graph, and
# PyTorch lends only what is in its cache to other processes.
PROGRAMS = {
    "train": (CACHED, UNCACHED, POOL, EXPANDABLE),
    "streams": (CACHED, UNCACHED, POOL, EXPANDABLE),
    "two_devices": (CACHED, UNCACHED, POOL, EXPANDABLE),
    "threads": (CACHED, UNCACHED),
    "loader": (CACHED, UNCACHED),
    "graphs": (CACHED, EXPANDABLE),
    "sharing": (CACHED,),
    "shortage": (CACHED, UNCACHED, POOL, EXPANDABLE),
    # On PyTorch's own cache, and plugged in.
    "pluggable": (CACHED,),
    # Preloaded alone: bare there is nothing to ask.
    "paused": (CACHED, UNCACHED),
}

class Run(runs.Run):
    """One run of a program and what it left behind."""

    def __init__(
        self, program, way, strategy=None, free_sync=None, trace=None, noting=None
    ):
        traced = "traced" if trace else None
        environment = {**plain_environment(), **SETTINGS[way]}
        if strategy and free_sync:
            environment["VRAMALLOC_FREE_SYNC"] = free_sync
        if strategy and trace:
            environment["VRAMALLOC_TRACE"] = trace
        if noting:
            environment["VRAMALLOC_STACKS"] = "all"
            environment["LINES"] = str(RESULTS / "lines.txt")
        # A small device bare, a large one that is capped preloaded.
        if program == "shortage":
            environment["VRAMALLOC_LIMIT" if strategy else "SIM_CUDA_MEMORY"] = SMALL
        noted = "noted" if noting else None
        words = (program, way, strategy or "bare", free_sync, traced, noted)
        command = [sys.executable, HERE / f"{program}.py"]
        before = [noting] if noting else []
        super().__init__(RESULTS, words, command, environment, strategy, SECONDS, before)


def plain_environment():
    return runs.plain_environment(STAND_INS)


def served_as_many(run, bare, way, short):
    """Every request of PyTorch's that succeeded was served, and none was
    counted that it did not make."""
    served, freed = run.totals.get("allocations", 0), run.totals.get("frees", 0)
    counts = run.numbers("counts")
    if way == CACHED:
        same_number(f"{run.name}: allocations served", counts.get("num_device_alloc"), served)
        least = counts.get("num_device_free", 0)
        check(f"{run.name}: frees served: {freed}", freed >= least, f"at least {least} expected")
    elif not short:
        same_number(f"{run.name}: allocations served", bare.calls("cuMemAlloc_v2"), served)
        same_number(f"{run.name}: frees served", bare.calls("cuMemFree_v2"), freed)
    files = run.statistics.values()
    served_in = [each for each in files if each["arenas"]]
    opened_in = [each for each in files if each["imports"]]
    counted = (len(served_in), len(files) - len(served_in), len(opened_in))
    # The other process asks for nothing, and opens what it is handed.
    expected = (1, 1, 1) if "sharing" in run.name else (1, 0, 0)
    what = f"{run.name}: processes served, others, and such with memory of others: {counted}"
    check(what, counted == expected, f"{expected} expected")
    calls = run.calls("cuMemAlloc_v2")
    if run.name.endswith("passthrough"):
        enough = calls >= served
        check(f"{run.name}: allocations of the driver: {calls}", enough, f"{served} served")
    elif way == UNCACHED:
        few = 0 < calls < served / 10
        check(f"{run.name}: allocations of the driver: {calls}", few, f"{served} served")


def counted_past(run, bare, way, short):
    """All that is left to serve is what PyTorch stages copies in; what went past
    the pools is counted as the driver counts it."""
    arenas = [arena for each in run.statistics.values() for arena in each["arenas"]]
    check(f"{run.name}: no device memory served", arenas == [], str(arenas))
    hosts = [arena for each in run.statistics.values() for arena in each["host_arenas"]]
    pinned, asked = sum(each["allocations"] for each in hosts), bare.calls("cuMemHostAlloc")
    check(f"{run.name}: page-locked memory served: {pinned}", pinned == asked, f"{asked} asked")
    for name in () if short else PAST_CALLS[way]:
        same_number(f"{run.name}: {name}", bare.calls(name), run.calls(name))
    ours, drivers = PAST[way]
    for family in run.families(ours):
        device = run.report["devices"][family["device"]]
        for at, key in (("peak", "peak_bytes"), ("current", "used_bytes")):
            own = device["families"][drivers][key]
            counted = family["bytes"][at]
            what = f"{run.name}: device {family['device']}: {at} bytes counted: {counted}"
            check(what, counted == own, f"{own} by the driver")
    check(f"{run.name}: {ours} counted", run.families(ours) != [])


def ran_short(run, bare, way):
    """It was told as bare, got about as much as bare, and the library said so."""
    held, held_bare = (each.numbers("held").get("tensors", 0) for each in (run, bare))
    near = held_bare // 2 <= held <= held_bare + 1
    check(f"{run.name}: tensors before memory ran out: {held}", near, f"{held_bare} bare")
    if way in PAST:
        ooms = sum(family["refused"] for family in run.families(PAST[way][0]))
    else:
        ooms = run.totals.get("ooms", 0)
    check(f"{run.name}: failures counted: {ooms}", ooms > 0)
    strange = [line for line in run.complaints() if not line.startswith(OUT_OF_MEMORY)]
    check(f"{run.name}: nothing said but that", strange == [], str(strange))


def preloaded(program, way, strategy, bare):
    run = Run(program, way, strategy)
    ended_well(run)
    prints_the_same(run, bare)
    short = program == "shortage"
    if way in PAST:
        counted_past(run, bare, way, short)
    else:
        served_as_many(run, bare, way, short)
    if short:
        ran_short(run, bare, way)
    else:
        check(f"{run.name}: no complaint", run.complaints() == [], str(run.complaints()))


def early_reuse_is_seen():
    """Without the reuse rule the simulated CUDA complains: so its silence
    elsewhere means something."""
    run = Run("streams", UNCACHED, "auto_growth", "immediate")
    violations = run.report.get("violations")
    check(f"{run.name}: the early reuse is seen", bool(violations), f"violations {violations}")


def plugged_in(bare):
    """PyTorch's pluggable allocator on the library, preloaded and only loaded."""
    for way in (PLUGGED, FENCED):
        for strategy in (None, *STRATEGIES):
            run = Run("pluggable", way, strategy)
            ended_well(run)
            prints_the_same(run, bare)
            strange = [line for line in run.complaints() if not line.startswith(OUT_OF_MEMORY)]
            check(f"{run.name}: one request failed", run.totals.get("ooms") == 1, str(run.totals))
            check(f"{run.name}: nothing said but that", strange == [], str(strange))
            served, calls = run.totals.get("allocations", 0), run.calls("cuMemAlloc_v2")
            # Without being told of streams nothing is pooled unless preloaded. A
            # graph has its memory from a lane, which gives it again to the same.
            if strategy == "passthrough" or (way == FENCED and not strategy):
                plain = [arena["allocations"] for arena in run.arenas if not arena["lane"]]
                good = calls >= sum(plain) > 1000 and served - sum(plain) < 10
            else:
                good = 0 < calls < served / 10
            check(f"{run.name}: allocations of the driver: {calls}", good, f"{served} served")
    for strategy in (None, "auto_growth"):
        run = Run("pluggable", FORGETFUL, strategy)
        violations = run.report.get("violations")
        check(f"{run.name}: the early reuse is seen", bool(violations), f"violations {violations}")


def pauses(way):
    """All mapped memory goes to the device and comes back as it was."""
    run = Run("paused", way, "mapped")
    ended_well(run)
    cycle = [
        "all of it is back: True",
        "checksums that are equal: 200 of 200",
        "a copy is equal: True",
    ]
    expected = []
    for number in range(3):
        expected += [f"cycle {number}: 95 % of it is free: True", *cycle]
    check(f"{run.name}: every checksum is equal", run.said() == expected, str(run.said()))
    check(f"{run.name}: no complaint", run.complaints() == [], str(run.complaints()))
    stats = [arena["pause"] for arena in run.arenas]
    counted = sum(each["pauses"] for each in stats)
    check(f"{run.name}: pauses counted: {counted}", counted == 3, str(stats))


def statistics_are_read():
    """What is written of blocks and events is what PyTorch's own tools read, and
    the report's table is PyTorch's."""
    for way in (UNCACHED, CACHED):
        run = Run("train", way, "auto_growth", trace="100000")
        ended_well(run)
        for process in run.statistics:
            statistics = RESULTS / f"{run.file.name}.{process}.stats.json"
            viz.opened(check, run.name, statistics)
            summary.same(check, run.name, statistics, plain_environment())


def stacks_name_the_lines():
    """The call stacks of what was live at the peak name the lines of Python that the
    interpreter names."""
    noting = lines.compiled(HERE / "lines.c", RESULTS)
    run = Run("steps", UNCACHED, "auto_growth", noting=noting)
    ended_well(run)
    for process, statistics in run.statistics.items():
        lines.same(check, run.name, statistics, RESULTS / "lines.txt")
        file = RESULTS / f"{run.file.name}.{process}.stats.json"
        lines.named(check, run.name, LIBRARY.parent / "vramalloc", file)


def main():
    chosen = sys.argv[1:] or list(PROGRAMS)
    unknown = [name for name in chosen if name not in PROGRAMS]
    if unknown:
        print(f"check-pytorch: no such program: {unknown[0]}; there are {', '.join(PROGRAMS)}")
        return 2
    runs.old_files_go(RESULTS)
    for program in chosen:
        if program == "pluggable":
            bare = Run(program, CACHED)
            ended_well(bare)
            plugged_in(bare)
            continue
        if program == "paused":
            for way in PROGRAMS[program]:
                pauses(way)
            continue
        for way in PROGRAMS[program]:
            bare = Run(program, way)
            ended_well(bare)
            for strategy in STRATEGIES:
                preloaded(program, way, strategy, bare)
        if program == "streams":
            early_reuse_is_seen()
        if program == "train":
            statistics_are_read()
            stacks_name_the_lines()
    return end()


sys.exit(main())
