"""Runs a program over the simulated CUDA, bare or preloaded, and keeps what it
said and what it left behind; for the scripts that run frameworks."""

import os
import pathlib
import subprocess

from checks import check, load

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "target" / "release" / "libvramalloc.so"
SIMULATED = ROOT / "target" / "sim"
STRATEGIES = ["passthrough", "auto_growth", "naive_best_fit"]


def plain_environment(*libraries):
    """Only what a program needs to run at all: nothing that a user of this
    machine chose for CUDA or for the library."""
    keep = ("PATH", "HOME", "TMPDIR", "LANG")
    environment = {key: os.environ[key] for key in keep if key in os.environ}
    environment["LD_LIBRARY_PATH"] = ":".join(map(str, (SIMULATED, *libraries)))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


def by_process(file, kind):
    """The reports of this kind that a run left, by the process."""
    paths = file.parent.glob(f"{file.name}.[0-9]*.{kind}.json")
    return {int(path.name.split(".")[-3]): load(path) for path in paths}


class Run:
    """One run of a command and what it left behind, in files that begin with
    its name. With a strategy it is preloaded, the libraries `before` before it."""

    def __init__(
        self, folder, words, command, environment, strategy=None, seconds=120, before=()
    ):
        self.name = " ".join(filter(None, words))
        self.file = file = folder / self.name.replace(" ", ".")
        environment = dict(environment)
        environment["SIM_CUDA_REPORT"] = f"{file}.%p.sim.json"
        environment["SIM_CUDA_STRICT"] = "1"
        # PyTorch itself creates memory during captures then.
        expands = "expandable_segments" in environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
        creates = expands and "graphs" in words
        environment["SIM_CUDA_STRICT_MAPPING"] = str(int(not creates))
        environment["SIM_CUDA_NO_UNMAP_IN_CAPTURE"] = "1"
        environment["VRAMALLOC_STATS"] = f"{file}.%p.stats.json"
        if strategy:
            environment["LD_PRELOAD"] = ":".join(map(str, (*before, LIBRARY)))
            environment["VRAMALLOC_STRATEGY"] = strategy
        with subprocess.Popen(
            [*map(str, command)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                self.output, self.errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                self.output, self.errors = process.communicate()
                self.errors += f"killed after {seconds} s"
        self.status = process.returncode
        # Of each process that used CUDA, and of each that was served.
        self.reports = by_process(file, "sim")
        self.report = self.reports.get(process.pid, {})
        self.statistics = by_process(file, "stats")
        own = self.statistics.get(process.pid, {})
        self.totals, self.arenas = own.get("totals", {}), own.get("arenas", [])
        self.past = own.get("families", [])

    def calls(self, name):
        return self.report.get("calls", {}).get(name, 0)

    def families(self, name):
        """What is counted of a family that goes past the pools, by device."""
        return [each for each in self.past if each["family"] == name]

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

    def violations(self):
        unknown = ["a report that cannot be read"]
        return [v for each in self.reports.values() for v in each.get("violations", unknown)]


def ended_well(run):
    ended = run.status == 0
    check(f"{run.name}: ends with status 0", ended, f"status {run.status}\n{run.errors.strip()}")
    check(f"{run.name}: used the simulated CUDA", bool(run.report))
    check(f"{run.name}: breaks no rule of CUDA", run.violations() == [], str(run.violations()))


def same_number(what, expected, found):
    check(f"{what}: {found}", found == expected and found > 0, f"{expected} expected")


def prints_the_same(run, bare):
    same = run.said() == bare.said()
    check(f"{run.name}: prints what it prints bare", same, f"{bare.said()} bare, {run.said()}")


def old_files_go(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
