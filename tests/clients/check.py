"""Runs every client bare and preloaded, and says what is the same and what is not.

Called by scripts/check-clients, which has built the library and the simulated
CUDA. One line a check; the last line counts them.
"""

import os
import pathlib
import subprocess
import sys

from checks import OUT_OF_MEMORY, check, end, load

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "target" / "release" / "libvramalloc.so"
SIMULATED = ROOT / "target" / "sim"
RESULTS = ROOT / "target" / "clients" / "results"
# Each with the name under which what it takes is counted: that of its own file, which
# calls NVIDIA's bindings, and that of the package.
CLIENTS = {"bindings": "bindings.py", "numba_arrays": "numba_cuda"}
STRATEGIES = ["passthrough", "auto_growth", "naive_best_fit"]
SECONDS = 300

class Run:
    """One run of a client and what it left behind."""

    def __init__(self, client, strategy=None, free_sync="deferred"):
        name = f"{client}.{strategy or 'bare'}.{free_sync}"
        report = RESULTS / f"{name}.sim.json"
        stats = RESULTS / f"{name}.stats.json"
        # Of the environment only what a program needs to run at all: nothing
        # that a user of this machine chose for CUDA or for the library.
        keep = ("PATH", "HOME", "TMPDIR", "LANG")
        environment = {key: os.environ[key] for key in keep if key in os.environ}
        environment["LD_LIBRARY_PATH"] = str(SIMULATED)
        environment["SIM_CUDA_REPORT"] = str(report)
        environment["SIM_CUDA_STRICT"] = "1"
        environment["SIM_CUDA_STRICT_MAPPING"] = "1"
        environment["SIM_CUDA_NO_UNMAP_IN_CAPTURE"] = "1"
        if strategy:
            environment["LD_PRELOAD"] = str(LIBRARY)
            environment["VRAMALLOC_CONF"] = f"strategy:{strategy},free_sync:{free_sync}"
            environment["VRAMALLOC_STATS"] = str(stats)
        script = ROOT / "tests" / "clients" / f"{client}.py"
        try:
            result = subprocess.run(
                [sys.executable, script],
                env=environment,
                cwd=RESULTS,
                timeout=SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
            self.status, self.output, self.errors = result.returncode, result.stdout, result.stderr
        except subprocess.TimeoutExpired as late:
            self.status, self.output = f"none after {SECONDS} s", ""
            self.errors = (late.stderr or b"").decode(errors="replace")
        self.report = load(report)
        told = load(stats) if strategy else {}
        self.totals = told.get("totals", {})
        self.owners = [each["owner"] for each in told.get("owners", [])]

    def calls(self, name):
        return self.report.get("calls", {}).get(name, 0)

    def violations(self):
        return self.report.get("violations")

    def said(self):
        """Both outputs, without the one line about a request that failed for
        want of memory: the library is to say that much."""
        lines = self.errors.splitlines()
        return self.output, [line for line in lines if not line.startswith(OUT_OF_MEMORY)]


def ended_well(name, run):
    check(
        f"{name}: ends with status 0",
        run.status == 0,
        f"status {run.status}\n{run.errors.strip()}",
    )
    check(f"{name}: breaks no rule of CUDA", run.violations() == [], str(run.violations()))


def same_number(what, bare, served):
    """As many as the driver saw bare. It also saw the requests that fail, and
    those stay the driver's own; each client makes no more than four."""
    check(f"{what}: {served}", served > 0 and 0 <= bare - served <= 4, f"{bare} bare")


def preloaded(client, strategy, bare):
    name = f"{client} {strategy}"
    run = Run(client, strategy)
    ended_well(name, run)
    check(
        f"{name}: prints what it prints bare",
        run.said() == bare.said(),
        f"{bare.said()} bare, {run.said()} preloaded",
    )
    served = run.totals.get("allocations", 0)
    same_number(f"{name}: allocations served", bare.calls("cuMemAlloc_v2"), served)
    same_number(f"{name}: frees served", bare.calls("cuMemFree_v2"), run.totals.get("frees", 0))
    calls = run.calls("cuMemAlloc_v2")
    expected = calls >= served if strategy == "passthrough" else 0 < calls < served / 2
    check(f"{name}: allocations of the driver: {calls}", expected, f"{served} served")
    asked = run.owners == [CLIENTS[client]]
    check(f"{name}: who asked: {', '.join(map(str, run.owners))}", asked, CLIENTS[client])


def early_reuse_is_seen():
    """Without the reuse rule the client and the simulated CUDA complain: so
    their silence elsewhere means something."""
    run = Run("bindings", "auto_growth", free_sync="immediate")
    check(
        "bindings free_sync:immediate: the early reuse is seen",
        run.status != 0 and run.violations(),
        f"status {run.status}, violations {run.violations()}",
    )


def main():
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob("*.json"):
        old.unlink()
    for client in CLIENTS:
        bare = Run(client)
        ended_well(f"{client} bare", bare)
        for strategy in STRATEGIES:
            preloaded(client, strategy, bare)
    early_reuse_is_seen()
    return end()


sys.exit(main())
