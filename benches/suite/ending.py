"""How long the end of a PyTorch process takes, by what it says of its memory.

A process trains over the simulated CUDA and prints when that is done, and how much
processor time it took; from then until it is gone is the end. Every way once, then
every way again, so that what drifts meets all.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

import run
from machine import ROOT

ENVIRONMENT = ROOT / "target" / "pytorch" / "venv" / "bin" / "python"
STAND_INS = ROOT / "target" / "pytorch" / "stubs"
CLIENTS = ROOT / "tests" / "clients" / "pytorch"
PROGRAM = ROOT / "benches" / "programs" / "end.py"
STEPS = 20
# The options; none: bare.
BARE, WITHOUT, DEFAULT, ALL = "bare", "owners:off, stacks:off", "owners:on", "stacks:all"
SUBJECTS = {BARE: None, WITHOUT: "owners:off,stacks:off", DEFAULT: "", ALL: "stacks:all"}
# With a cache PyTorch asks for little, without one for every tensor.
CACHES = {"on": {}, "off": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}


def environment(conf, cache, statistics):
    folders = (run.SIM, STAND_INS)
    variables = {"PYTHONPATH": CLIENTS, "PYTHONDONTWRITEBYTECODE": 1} | CACHES[cache]
    if conf is not None:
        variables |= run.preloaded(VRAMALLOC_CONF=conf, VRAMALLOC_STATS=statistics)
    return run.over(*folders, **variables)


def once(conf, cache):
    """Milliseconds that the end took, and of the processor's time, and what the
    statistics say of requests and call stacks."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        statistics = folder / "statistics.json"
        output, errors = (folder / name for name in ("output", "errors"))
        with open(output, "w") as said, open(errors, "w") as complaint:
            process = subprocess.Popen(
                [ENVIRONMENT, PROGRAM, str(STEPS)],
                env=environment(conf, cache, statistics),
                cwd=folder,
                stdout=said,
                stderr=complaint,
            )
            _, status, used = os.wait4(process.pid, 0)
            ended = time.monotonic_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            lines = errors.read_text().strip().splitlines() or [f"status {process.returncode}"]
            raise run.Failed(lines[-1])
        done = json.loads(output.read_text())
        told = {} if conf is None else json.loads(statistics.read_text())
    processor_ns = 1e9 * (used.ru_utime + used.ru_stime) - done["processor_ns"]
    return {
        "ms": (ended - done["ns"]) / 1e6,
        "processor_ms": processor_ns / 1e6,
        "requests": told.get("totals", {}).get("allocations", 0),
        "stacks": (told.get("call_stacks") or {}).get("taken", 0),
    }


def measure(torch, runs, say):
    """A row for each way and cache."""
    if not torch:
        return [], {}
    run.output(["tests/sim/stubs/build", STAND_INS, *sorted((torch / "lib").glob("*.so*"))])
    found = {(subject, cache): [] for cache in CACHES for subject in SUBJECTS}
    for number in range(runs):
        for (subject, cache), figures in found.items():
            say(f"exit: {subject}, cache {cache}, run {number + 1} of {runs}")
            try:
                figures.append(once(SUBJECTS[subject], cache))
            except run.Failed as failure:
                return [], {"exit": str(failure)}
    rows = []
    for (subject, cache), figures in found.items():
        values = {name: [each[name] for each in figures] for name in figures[0]}
        rows.append({"question": "exit", "subject": subject, "cache": cache} | values)
    return rows, {}
