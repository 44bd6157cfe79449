"""Runs every program here bare and preloaded, and says what differs.

Called by scripts/check-pytorch, which has built the library, the simulated CUDA
and the stand-ins. One line a check; the last line counts them.
"""

import os
import pathlib
import subprocess
import sys

import summary
import viz
from checks import OUT_OF_MEMORY, check, end, load

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
LIBRARY = ROOT / "target" / "release" / "libvramalloc.so"
LIBRARIES = [ROOT / "target" / "sim", ROOT / "target" / "pytorch" / "stubs"]
RESULTS = ROOT / "target" / "pytorch" / "results"
STRATEGIES = ["passthrough", "auto_growth", "naive_best_fit"]
SECONDS = 120
SMALL = "256M"
# Ways for PyTorch to get memory: from its own cache, from CUDA each time, or
# from the memory pool of CUDA's own, which the library leaves alone.
CACHED, UNCACHED, POOL = "cached", "uncached", "pool"
# By its pluggable allocator: with all functions that it can call, with none but
# the two that it must have, and by a program that does not tell of a stream.
PLUGGED, FENCED, FORGETFUL = "plugged", "fenced", "forgetful"
SETTINGS = {
    CACHED: {},
    UNCACHED: {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    POOL: {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    PLUGGED: {"PLUGGABLE": str(LIBRARY)},
    FENCED: {"PLUGGABLE": str(LIBRARY), "PLUGGABLE_HOOKS": ""},
    FORGETFUL: {"PLUGGABLE": str(LIBRARY), "PLUGGABLE_FORGETS": "1"},
}
# Each program and the ways it runs. What cannot be done uncached cannot be done
# so bare either: allocations would invalidate the capture of a graph, and
# PyTorch lends only what is in its cache to other processes.
PROGRAMS = {
    "train": (CACHED, UNCACHED, POOL),
    "streams": (CACHED, UNCACHED, POOL),
    "two_devices": (CACHED, UNCACHED, POOL),
    "threads": (CACHED, UNCACHED),
    "loader": (CACHED, UNCACHED),
    "graphs": (CACHED,),
    "sharing": (CACHED,),
    "shortage": (CACHED, UNCACHED),
    # On PyTorch's own cache, and plugged in.
    "pluggable": (CACHED,),
}

def by_process(pattern):
    """The files of this name, whose number is that of a process."""
    return {int(path.name.split(".")[-3]): load(path) for path in RESULTS.glob(pattern)}


def plain_environment():
    """Only what a program needs to run at all: nothing that a user of this
    machine chose for CUDA or for the library."""
    keep = ("PATH", "HOME", "TMPDIR", "LANG")
    environment = {key: os.environ[key] for key in keep if key in os.environ}
    environment["LD_LIBRARY_PATH"] = ":".join(map(str, LIBRARIES))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


class Run:
    """One run of a program and what it left behind."""

    def __init__(self, program, way, strategy=None, free_sync=None, trace=None):
        traced = "traced" if trace else None
        self.name = " ".join(filter(None, (program, way, strategy or "bare", free_sync, traced)))
        self.file = file = RESULTS / self.name.replace(" ", ".")
        environment = plain_environment()
        environment["SIM_CUDA_REPORT"] = f"{file}.%p.sim.json"
        environment["SIM_CUDA_STRICT"] = "1"
        environment["VRAMALLOC_STATS"] = f"{file}.%p.stats.json"
        environment.update(SETTINGS[way])
        if strategy:
            environment["LD_PRELOAD"] = str(LIBRARY)
            environment["VRAMALLOC_STRATEGY"] = strategy
            if free_sync:
                environment["VRAMALLOC_FREE_SYNC"] = free_sync
            if trace:
                environment["VRAMALLOC_TRACE"] = trace
        # A small device bare, a large one that is capped preloaded.
        if program == "shortage":
            environment["VRAMALLOC_LIMIT" if strategy else "SIM_CUDA_MEMORY"] = SMALL
        with subprocess.Popen(
            [sys.executable, HERE / f"{program}.py"],
            env=environment,
            cwd=RESULTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                self.output, self.errors = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                self.output, self.errors = process.communicate()
                self.errors += f"killed after {SECONDS} s"
        self.status = process.returncode
        # Of each process that used CUDA, and of each that was served.
        self.reports = by_process(f"{file.name}.[0-9]*.sim.json")
        self.report = self.reports.get(process.pid, {})
        self.statistics = by_process(f"{file.name}.[0-9]*.stats.json")
        self.totals = self.statistics.get(process.pid, {}).get("totals", {})

    def calls(self, name):
        return self.report.get("calls", {}).get(name, 0)

    def said(self):
        return [line for line in self.output.splitlines() if not line.startswith("number ")]

    def numbers(self, what):
        """Those of the last line of numbers of this kind."""
        lines = [line.split() for line in self.output.splitlines()]
        lines = [line[2:] for line in lines if line[:2] == ["number", what]]
        pairs = (word.split("=") for word in (lines or [[]])[-1])
        return {name: int(value) for name, value in pairs}

    def complaints(self):
        return [line for line in self.errors.splitlines() if line.startswith("vramalloc: ")]


def ended_well(run):
    ended = run.status == 0
    check(f"{run.name}: ends with status 0", ended, f"status {run.status}\n{run.errors.strip()}")
    check(f"{run.name}: used the simulated CUDA", bool(run.report))
    unknown = ["a report that cannot be read"]
    violations = [v for each in run.reports.values() for v in each.get("violations", unknown)]
    check(f"{run.name}: breaks no rule of CUDA", violations == [], str(violations))


def same_number(what, expected, found):
    check(f"{what}: {found}", found == expected and found > 0, f"{expected} expected")


def served_as_many(run, bare, way, short):
    """Every request of PyTorch's that succeeded was served, and none was
    counted that it did not make."""
    served, freed = run.totals.get("allocations", 0), run.totals.get("frees", 0)
    counts = run.numbers("counts")
    if way == POOL:
        # All that is left to serve is what PyTorch stages copies in.
        arenas = [arena for each in run.statistics.values() for arena in each["arenas"]]
        check(f"{run.name}: no device memory served", arenas == [], str(arenas))
        hosts = [arena for each in run.statistics.values() for arena in each["host_arenas"]]
        pinned, asked = sum(each["allocations"] for each in hosts), bare.calls("cuMemHostAlloc")
        check(f"{run.name}: page-locked memory served: {pinned}", pinned == asked, f"{asked} asked")
        for name in ("cuMemAllocAsync", "cuMemFreeAsync"):
            same_number(f"{run.name}: {name}", bare.calls(name), run.calls(name))
        return
    if way == CACHED:
        same_number(f"{run.name}: allocations served", counts.get("num_device_alloc"), served)
        least = counts.get("num_device_free", 0)
        check(f"{run.name}: frees served: {freed}", freed >= least, f"at least {least} expected")
    elif not short:
        same_number(f"{run.name}: allocations served", bare.calls("cuMemAlloc_v2"), served)
        same_number(f"{run.name}: frees served", bare.calls("cuMemFree_v2"), freed)
    files = len(run.statistics)
    check(f"{run.name}: statistics of one process", files == 1, f"{files} files")
    calls = run.calls("cuMemAlloc_v2")
    if run.name.endswith("passthrough"):
        enough = calls >= served
        check(f"{run.name}: allocations of the driver: {calls}", enough, f"{served} served")
    elif way == UNCACHED:
        few = 0 < calls < served / 10
        check(f"{run.name}: allocations of the driver: {calls}", few, f"{served} served")


def ran_short(run, bare):
    """It was told as bare, got about as much as bare, and the library said so."""
    held, held_bare = (each.numbers("held").get("tensors", 0) for each in (run, bare))
    near = held_bare // 2 <= held <= held_bare + 1
    check(f"{run.name}: tensors before memory ran out: {held}", near, f"{held_bare} bare")
    ooms = run.totals.get("ooms", 0)
    check(f"{run.name}: failures counted: {ooms}", ooms > 0)
    strange = [line for line in run.complaints() if not line.startswith(OUT_OF_MEMORY)]
    check(f"{run.name}: nothing said but that", strange == [], str(strange))


def preloaded(program, way, strategy, bare):
    run = Run(program, way, strategy)
    ended_well(run)
    same = run.said() == bare.said()
    check(f"{run.name}: prints what it prints bare", same, f"{bare.said()} bare, {run.said()}")
    short = program == "shortage"
    served_as_many(run, bare, way, short)
    if short:
        ran_short(run, bare)
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
            same = run.said() == bare.said()
            check(f"{run.name}: prints what it prints bare", same, f"{bare.said()}, {run.said()}")
            strange = [line for line in run.complaints() if not line.startswith(OUT_OF_MEMORY)]
            check(f"{run.name}: one request failed", run.totals.get("ooms") == 1, str(run.totals))
            check(f"{run.name}: nothing said but that", strange == [], str(strange))
            served, calls = run.totals.get("allocations", 0), run.calls("cuMemAlloc_v2")
            # Without being told of streams nothing is pooled unless preloaded.
            if strategy == "passthrough" or (way == FENCED and not strategy):
                good = calls >= served > 1000
            else:
                good = 0 < calls < served / 10
            check(f"{run.name}: allocations of the driver: {calls}", good, f"{served} served")
    for strategy in (None, "auto_growth"):
        run = Run("pluggable", FORGETFUL, strategy)
        violations = run.report.get("violations")
        check(f"{run.name}: the early reuse is seen", bool(violations), f"violations {violations}")


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


def main():
    chosen = sys.argv[1:] or list(PROGRAMS)
    unknown = [name for name in chosen if name not in PROGRAMS]
    if unknown:
        print(f"check-pytorch: no such program: {unknown[0]}; there are {', '.join(PROGRAMS)}")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob("*.json"):
        old.unlink()
    for program in chosen:
        if program == "pluggable":
            bare = Run(program, CACHED)
            ended_well(bare)
            plugged_in(bare)
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
    return end()


sys.exit(main())
