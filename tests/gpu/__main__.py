"""Checks on a real GPU what the project claims; see scripts/gpu-check."""

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import time
import traceback

import compiled
import facts
import frameworks
import machine
import programs
import report
import sanitizer
import speed
from execute import LIBRARY, ROOT, SIMULATED, OutOfTime, Place, tool
from results import FAIL, Results, joined, now, read

# In the order in which they are run: what others rest on first, and last what
# takes all the time that is left.
GROUPS = {
    module.GROUP: module for module in (facts, programs, compiled, frameworks, sanitizer, speed)
}
# Groups that need more than the simulated CUDA gives.
ON_GPU_ONLY = {"compiled", "frameworks", "speed", "sanitizer"}
# They bring their runtime along and find it by themselves.
OWN_RUNTIME = {"frameworks", "speed"}


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check", description="Checks the library on the GPU of this machine."
    )
    parser.add_argument("--simulated", action="store_true", help="on the simulated CUDA instead")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        metavar="GROUP,…",
        help=f"only these groups: {', '.join(GROUPS)}",
    )
    parser.add_argument(
        "--cases",
        default="",
        metavar="REGEX",
        help="only what has this in its title: facts, programs, frameworks, speed",
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=ROOT / "target" / "gpu",
        help="where report.json and report.md go (target/gpu)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=540,
        metavar="SECONDS",
        help="what is not begun by then is skipped (540)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each speed (3)"
    )
    parser.add_argument("--jobs", type=int, help="programs at a time (3/4 of the processors)")
    parser.add_argument(
        "--report",
        nargs="+",
        type=pathlib.Path,
        metavar="JSON",
        help="runs nothing; makes one report of several",
    )
    asked = parser.parse_args()
    unknown = [name for name in asked.only or [] if name not in GROUPS]
    if unknown:
        parser.error(f"no such group: {unknown[0]}; there are {', '.join(GROUPS)}")
    return asked


def nvcc_release():
    nvcc = tool("nvcc")
    if not nvcc:
        return ""
    asked = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    return next((line.strip() for line in asked.stdout.splitlines() if "release" in line), "")


def describe(simulated):
    found = {"GPU": "simulated CUDA", "date": now(), "commit": machine.commit()}
    if not simulated:
        fields = "name,driver_version,memory.total"
        asked = machine.said("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
        names = ("GPU", "driver", "memory")
        found.update(zip(names, (each.strip() for each in asked.split(",")), strict=False))
        found["nvcc"] = nvcc_release()
    found["processor"] = f"{machine.processor()}, {os.cpu_count()} cores"
    found["Python"] = sys.version.split()[0]
    found.update(versions())
    return found


def versions():
    """Of the packages that the checks use."""
    wanted = {"torch": "PyTorch", "jax": "JAX", "numba": "Numba", "numba-cuda": "numba-cuda"}
    found = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name in wanted or name.startswith("cupy"):
            found[wanted.get(name, "CuPy")] = each.version
    return found


def where_cuda_is(asked, results_folder):
    """The place to run at and the compiled programs there."""
    jobs = asked.jobs or max(1, (os.cpu_count() or 2) * 3 // 4)
    ends = time.monotonic() + asked.budget
    place = Place(
        results_folder, asked.simulated, ends, jobs, only=asked.cases, rounds=asked.rounds
    )
    if asked.simulated:
        place.libraries, place.devices = [SIMULATED], 2
        folder, cudart = ROOT / "target" / "programs", SIMULATED
    else:
        folder, cudart = ROOT / "target" / "gpu" / "programs", ROOT / "target" / "gpu" / "cudart"
        place.libraries, place.devices = [cudart], programs.devices()
        subprocess.run([ROOT / "scripts" / "find-cudart", cudart], check=False)
    kinds = [
        kind
        for kind, needed in (
            ("dynamic", "libcudart.so"),
            ("static", "libcudart_static.a"),
            ("driver", "."),
        )
        if (cudart / needed).exists()
    ]
    return place, programs.Programs(folder, kinds, cudart)


def run_group(name, place, results, built):
    begin = time.monotonic()
    try:
        GROUPS[name].group(place, results, built)
    except OutOfTime:
        results.skip(name, "the rest", "no time left")
    except Exception:
        # One group's fault must not cost the others' results.
        results.check(name, "the checks themselves", False, traceback.format_exc())
    results.seconds[name] = time.monotonic() - begin
    took = results.seconds[name]
    print(f"{name}: {results.count(FAIL, name)} failed, {took:.0f} s", flush=True)


def run_all(asked, results):
    folder = asked.out / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    place, built = where_cuda_is(asked, folder)
    errors = built.build()
    results.check("build", "the C programs", not errors, errors)
    for kind in programs.KINDS:
        if kind not in built.kinds:
            results.skip("build", f"{kind} programs", f"{built.cudart} has no such runtime")
    for name in asked.only or GROUPS:
        if asked.simulated and name in ON_GPU_ONLY:
            results.skip(name, "all of it", "needs a GPU")
        elif place.left() < 20:
            results.skip(name, "all of it", f"no time left of {asked.budget:.0f} s")
        else:
            own = name in OWN_RUNTIME and not asked.simulated
            there = dataclasses.replace(place, libraries=[]) if own else place
            run_group(name, there, results, built)
        keep(asked.out, results)
    looked = any(each["group"] != "build" for each in results.checks + results.measurements)
    results.check("build", "there is something to check", looked, f"nothing has {asked.cases!r}")


def keep(folder, results):
    """Both reports, after each group: a run that is cut off leaves what it has."""
    results.write(folder / "report.json")
    (folder / "report.md").write_text(report.markdown(results))


def main():
    asked = arguments()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.report:
        results = joined([read(path) for path in asked.report])
    else:
        if not LIBRARY.exists():
            sys.exit(f"scripts/gpu-check: {LIBRARY.relative_to(ROOT)} is missing; build it first")
        results = Results(describe(asked.simulated))
        run_all(asked, results)
    keep(asked.out, results)
    print()
    print(report.terminal(results))
    print(f"report: {asked.out / 'report.md'}")
    print(report.closing(results))
    return 1 if results.count(FAIL) else 0


sys.exit(main())
