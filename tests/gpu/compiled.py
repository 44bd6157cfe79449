"""A CUDA program as nvcc makes it, with the runtime shared and linked in, with
both meanings of the default stream; bare beside preloaded, word for word."""

import subprocess

from execute import ROOT, run, together, tool

GROUP = "compiled"
MODES = ["default", "streams", "late", "threads", "graph", "async", "host", "shapes", "ipc"]
BUILDS = {
    "static": ["--cudart", "static"],
    "shared": ["--cudart", "shared"],
    "per-thread": ["--cudart", "static", "--default-stream", "per-thread"],
}
OPTIONS = ["strategy:auto_growth", "strategy:passthrough"]


def build(place, name, flags):
    program = place.results / f"work.{name}"
    source = ROOT / "tests" / "gpu" / "cuda" / "work.cu"
    command = [tool("nvcc"), "-std=c++17", "-O2", "-arch=native", *flags, "-o", program, source]
    made = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return program, made.stderr.strip() if made.returncode else ""


def check(place, results, name, program, mode):
    title = f"{name}, {mode}"
    bare = run(place, [program, mode])
    if not results.check(GROUP, f"{title}: runs bare", bare.status == 0, bare.why()):
        return
    for options in OPTIONS:
        with_it = run(place, [program, mode], options)
        same = (with_it.status, with_it.said()) == (bare.status, bare.said())
        results.check(
            GROUP,
            f"{title}, {options}: the same as bare",
            same,
            f"{with_it.why()}\nbare {bare.said()}\nnow  {with_it.said()}",
        )
        served = with_it.total("allocations")
        results.check(GROUP, f"{title}, {options}: served", served > 0, with_it.why())


def group(place, results, _programs):
    if not tool("nvcc"):
        results.skip(GROUP, "programs compiled by nvcc", "there is no nvcc")
        return
    built = together(
        place, [lambda n=name, f=flags: (n, *build(place, n, f)) for name, flags in BUILDS.items()]
    )
    tasks = []
    for name, program, errors in built:
        if results.check(GROUP, f"{name}: nvcc compiles it", not errors, errors):
            tasks += [
                lambda n=name, p=program, m=mode: check(place, results, n, p, m) for mode in MODES
            ]
    together(place, tasks)
