"""What programs gain: the time of a step bare and under each strategy.

One program at a time, and nothing beside it. Each figure is the median of the
rounds that there was time for; a round runs every configuration once, so that
a machine that slows down slows them all. A round that is cut short counts.
"""

import dataclasses
import gzip
import json
import statistics
import sys

import facts
from execute import ROOT, OutOfTime, run
from frameworks import CLIENTS, WAYS, why_not

GROUP = "speed"
AUTO, NAIVE = "strategy:auto_growth", "strategy:naive_best_fit"
MAPPED = "strategy:mapped"
TRACES = {"gpt_train": 2, "llm_infer": 1}
# Questions of benches/programs/pairs.c: blocks from 512 bytes to 64 MiB, and to 64 KiB.
JOBS = [("hit", 5, 20000), ("steady", 50000, 17), ("threads", 100, 7), ("exchange", 200000)]


@dataclasses.dataclass(frozen=True)
class Configuration:
    program: str
    how: str
    command: tuple
    options: str | None = None
    environment: tuple = ()


def torch(model):
    command = (sys.executable, CLIENTS / "torch_steps.py", model, "--steps", "30")
    cached, uncached = ((), tuple(WAYS["uncached"].items()))
    program = f"PyTorch {model}, ms per step"
    found = [
        Configuration(program, "no cache, bare", command, None, uncached),
        Configuration(program, "PyTorch's cache, bare", command, None, cached),
        Configuration(program, "no cache, auto_growth", command, AUTO, uncached),
        Configuration(program, "no cache, mapped", command, MAPPED, uncached),
    ]
    # Starting takes the most of the time, so of one model alone.
    if model == "transformer":
        found += [
            Configuration(program, "no cache, naive_best_fit", command, NAIVE, uncached),
            Configuration(program, "PyTorch's cache, auto_growth", command, AUTO, cached),
        ]
    return found


def jax():
    command = (sys.executable, CLIENTS / "jax_steps.py", "60")
    program = "JAX, ms per step"
    platform = (("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),)
    return [
        Configuration(program, "no pool, bare", command, None, platform),
        Configuration(program, "JAX's pool, bare", command),
        Configuration(program, "no pool, auto_growth", command, AUTO, platform),
        Configuration(program, "no pool, naive_best_fit", command, NAIVE, platform),
    ]


def cupy():
    plain, pool = (
        (sys.executable, CLIENTS / "cupy_work.py", way, "60") for way in ("plain", "pool")
    )
    program = "CuPy, ms per round"
    return [
        Configuration(program, "no pool, bare", plain),
        Configuration(program, "CuPy's pool, bare", pool),
        Configuration(program, "no pool, auto_growth", plain, AUTO),
        Configuration(program, "no pool, naive_best_fit", plain, NAIVE),
    ]


def numba():
    command = (sys.executable, CLIENTS / "numba_work.py", "120")
    program = "Numba, ms per round"
    return [
        Configuration(program, "bare", command),
        Configuration(program, "auto_growth", command, AUTO),
        Configuration(program, "naive_best_fit", command, NAIVE),
    ]


def configurations(place):
    found = []
    for module, listed in (
        ("torch", torch("transformer") + torch("cnn")),
        ("jax", jax()),
        ("cupy", cupy()),
        ("numba.cuda", numba()),
    ):
        if not why_not(place, module):
            found += listed
    return found


def traces(place, programs):
    """The allocations of real programs, and nothing else."""
    kind = "static" if "static" in programs.kinds else "driver"
    found = []
    for name, passes in TRACES.items():
        packed = ROOT / "tests" / "traces" / f"{name}.1.csv.gz"
        trace = place.results / f"{name}.csv"
        trace.write_bytes(gzip.decompress(packed.read_bytes()))
        command = (programs.path("replay", kind), trace, str(passes))
        program = f"allocations of {name}, ns per event"
        for how, options in (("bare", None), ("auto_growth", AUTO), ("naive_best_fit", NAIVE)):
            found.append(Configuration(program, how, command, options))
    return found


def jobs(place, results, programs):
    """Random replacement of live blocks by one thread, of blocks of their own by
    several, and an exchange between two: what goes beside the work of a program."""
    if not place.chooses("replacements"):
        return
    errors = programs.build("pairs")
    if not results.check(GROUP, "the program of replacements is compiled", not errors, errors):
        return
    for kind in programs.kinds:
        for options in (AUTO, MAPPED):
            for question, *numbers in JOBS:
                command = [programs.path("pairs", kind), question, *numbers]
                outcome = run(place, command, options, seconds=60)
                title = f"replacements, {question}, {kind}, {options}"
                results.check(GROUP, f"{title}: ends well", outcome.status == 0, outcome.why())
                for line in outcome.output.splitlines():
                    found = json.loads(line)
                    (what, number), *figures = found.items()
                    for name, value in figures:
                        unit = "" if name == "pairs_per_s" else "ns"
                        results.measured(GROUP, f"{title}: {name}, {what} {number}", value, unit)


def pairs(place, results, programs):
    """An allocation and a free by size, which the facts have bare."""
    for kind in programs.kinds if place.chooses("pairs") else ():
        outcome = run(place, [programs.path("fact_costs", kind)], AUTO, seconds=100)
        results.check(GROUP, f"pairs, {kind}", outcome.status == 0, outcome.why())
        for name, value in facts.read(outcome.output).items():
            if name.startswith("cost.pair."):
                size = name.removeprefix("cost.pair.")
                results.measured(GROUP, f"a pair of {size} B, ns: {kind}, auto_growth", value, "ns")


def figure(outcome):
    """Milliseconds of a step, or nanoseconds of an event in the last pass."""
    step = outcome.numbers("step").get("ms")
    if step is not None:
        return step
    passes = [line for line in outcome.output.splitlines() if line.startswith("pass=")]
    return float(passes[-1].rpartition("ns_per_event=")[2]) if passes else None


def memory(results, each, outcome):
    """What of the device the pools had at most, and what of that was used: the
    library's as its statistics have it, PyTorch's own as PyTorch says."""
    own = outcome.numbers("reserved").get("bytes")
    arenas = [arena for file in outcome.statistics for arena in file["arenas"]]
    for name, key in (("reserved", "reserved_bytes"), ("used", "live_bytes")):
        most = max((arena[key]["peak"] for arena in arenas), default=0)
        if each.options:
            title = f"{each.program.split(',')[0]}, MiB {name}: {each.how}"
            results.measured(GROUP, title, round(most / (1 << 20), 1), "MiB")
    if own:
        title = f"{each.program.split(',')[0]}, MiB reserved by PyTorch: {each.how}"
        results.measured(GROUP, title, round(own / (1 << 20), 1), "MiB")


def rounds(place, results, listed):
    """The figures of each configuration, as many as there is time for."""
    found = {}
    try:
        for turn in range(place.rounds):
            for each in listed:
                outcome = run(place, each.command, each.options, dict(each.environment), 100)
                value = figure(outcome) if outcome.status == 0 else None
                if not turn:
                    found[each] = []
                    title = f"{each.program}: {each.how}"
                    results.check(GROUP, title, value is not None, outcome.why())
                    memory(results, each, outcome)
                if value is not None:
                    found[each].append(value)
    except OutOfTime:
        for each in listed:
            if each not in found:
                results.skip(GROUP, f"{each.program}: {each.how}", "no time left")
    return found


def group(place, results, programs):
    pairs(place, results, programs)
    jobs(place, results, programs)
    listed = traces(place, programs) + configurations(place)
    listed = [each for each in listed if place.chooses(each.program)]
    for each, values in rounds(place, results, listed).items():
        if values:
            spread = f"{min(values):.3f}..{max(values):.3f}, rounds: {len(values)}"
            middle = round(statistics.median(values), 4)
            results.measured(GROUP, f"{each.program}: {each.how}", middle, "", None, spread)
