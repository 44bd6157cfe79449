"""Runs programs, bare and preloaded, and keeps what they said and left.

Nothing that runs here can end the whole: a program that hangs is killed with
all its children, one that crashes has a status.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "target" / "release" / "libvramalloc.so"
SIMULATED = ROOT / "target" / "sim"
# What somebody set for programs of their own is no part of a check.
NOT_OURS = ("VRAMALLOC_", "FLAGS_", "SIM_CUDA_", "PYTORCH_", "LD_PRELOAD", "XLA_PYTHON_")
# What is told on standard error and need not be the same: the library's line
# about a request that failed, and how often a program does what it should not.
VIOLATION = "simulated CUDA: violation: "
ALLOWED = ("vramalloc: out of memory: ", VIOLATION)

numbers = itertools.count()


class OutOfTime(Exception):
    """The time for all checks is over."""


def tool(name):
    """Where this tool of CUDA's lies; None where it does not."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which(name) or shutil.which(name, path=f"{home}/bin")


@dataclasses.dataclass
class Outcome:
    command: list
    status: object
    output: str
    errors: str
    seconds: float
    statistics: list

    def said(self):
        """Both outputs, without what may differ."""
        kept = [
            line
            for line in self.output.splitlines()
            if not line.startswith(("info ", "number ", "fact "))
        ]
        errors = [line for line in self.errors.splitlines() if not line.startswith(ALLOWED)]
        return kept, errors

    def violations(self):
        """What the simulated CUDA saw that programs must not do, each thing once. Which
        call comes after the driver's end is not the program's choice alone."""
        lines = [line for line in self.errors.splitlines() if line.startswith(VIOLATION)]
        same = r"0x[0-9a-f]+|[0-9]+|[^ ]+(?= after shutdown$)"
        return {re.sub(same, "N", line[len(VIOLATION) :]) for line in lines}

    def numbers(self, what):
        """Those of the last line `number WHAT NAME=VALUE…`."""
        found = {}
        for line in self.output.splitlines():
            words = line.split()
            if words[:2] == ["number", what]:
                found = dict(word.split("=", 1) for word in words[2:])
        return {name: float(value) for name, value in found.items()}

    def total(self, key):
        """A total over the statistics of all processes of the run."""
        return sum(each.get("totals", {}).get(key, 0) for each in self.statistics)

    def why(self):
        last = "\n".join((self.errors.strip() or self.output.strip()).splitlines()[-6:])
        return f"status {self.status}: {last}"


@dataclasses.dataclass
class Place:
    """Where programs run: on the GPU of this machine or on the simulated CUDA."""

    results: pathlib.Path
    simulated: bool
    ends: float
    jobs: int
    devices: int = 1
    # Folders of libraries that programs need before all others.
    libraries: list = dataclasses.field(default_factory=list)
    # Only checks of this title, a regular expression.
    only: str = ""
    # How often the speed of each program is measured.
    rounds: int = 3

    def chooses(self, title):
        return re.search(self.only, title) is not None

    def left(self):
        return self.ends - time.monotonic()

    def on_simulated(self):
        """The same programs, but on the simulated CUDA; None where it is not built."""
        if not (SIMULATED / "libcuda.so.1").exists():
            return None
        return dataclasses.replace(self, simulated=True, libraries=[SIMULATED])

    def environment(self, options, more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
        known = [kept["LD_LIBRARY_PATH"]] if kept.get("LD_LIBRARY_PATH") else []
        folders = [str(each) for each in self.libraries] + known
        if folders:
            kept["LD_LIBRARY_PATH"] = ":".join(folders)
        kept["PYTHONDONTWRITEBYTECODE"] = "1"
        # Where the checks find modules of their own, not what programs import.
        paths = kept.pop("PYTHONPATH", "").split(":")
        paths = [path for path in paths if path and not path.startswith("benches/")]
        if paths:
            kept["PYTHONPATH"] = ":".join(paths)
        if self.simulated:
            kept["SIM_CUDA_DEVICES"] = str(self.devices)
        if self.simulated and options is not None:
            # What the library does during a capture has to be what strict drivers allow.
            kept["SIM_CUDA_STRICT_MAPPING"] = kept["SIM_CUDA_NO_UNMAP_IN_CAPTURE"] = "1"
        if options is not None:
            kept["LD_PRELOAD"] = str(LIBRARY)
            kept["VRAMALLOC_CONF"] = options
        kept.update(more)
        return kept


def run(place, command, options=None, environment=None, seconds=60):
    """Runs `command`; with `options`, a text as VRAMALLOC_CONF has it, under the
    library. It is killed after `seconds`; OutOfTime where there were not so many."""
    if place.left() <= 0:
        raise OutOfTime
    folder = place.results / f"{next(numbers):04d}"
    folder.mkdir(parents=True)
    more = {"VRAMALLOC_STATS": str(folder / "statistics.%p.json"), **(environment or {})}
    begin = time.monotonic()
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=place.environment(options, more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=min(seconds, max(1, place.left())))
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            if place.left() <= 0:
                raise OutOfTime from None
            status = f"killed after {seconds:.0f} s"
    took = time.monotonic() - begin
    statistics = []
    for path in sorted(folder.glob("statistics.*.json")):
        try:
            statistics.append(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            statistics.append({"unreadable": f"{path.name}: {error}"})
    decoded = [each.decode(errors="replace") for each in (output, errors)]
    outcome = Outcome([str(word) for word in command], status, *decoded, took, statistics)
    (folder / "said.txt").write_text(
        f"{' '.join(outcome.command)}\n{options}\n{outcome.status}\n"
        f"== output\n{outcome.output}== errors\n{outcome.errors}"
    )
    return outcome


def together(place, tasks):
    """What each of these functions returns, in their order; several at a time."""
    with ThreadPoolExecutor(max_workers=place.jobs) as pool:
        return [each.result() for each in [pool.submit(task) for task in tasks]]
