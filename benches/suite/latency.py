"""Which programs answer which question about time."""

import sys

from machine import ROOT
from run import ARENA, FOOTPRINT, LIGHT, PROGRAMS, SIM, Job, environment, over, preloaded

EVENT_NS = (0, 175)
# Times the largest size is double 512 bytes: to 64 MiB, and to 64 KiB, where
# a CPU allocator does not yet ask the kernel for every block.
ALL, SMALL = 17, 7
MEMORY = "2048G"
# The loop that shows what a second thread is worth on the machine.
ALONE = "no shared memory"
# Places of a call stack, of libraries and of Python.
NATIVE_FRAMES, PYTHON_FRAMES = 60, 10
DEEP = ROOT / "benches" / "programs" / "deep.py"


class Amounts:
    """How much is done in one run of a program."""

    def __init__(self, quick):
        self.rounds = 3 if quick else 7
        self.hits = 20_000 if quick else 100_000
        self.pairs = 50_000 if quick else 200_000
        self.blocks = 20_000 if quick else 100_000
        self.milliseconds = 4 if quick else 20
        self.growth_blocks = 10_000 if quick else 1_000_000
        self.growth_chunks = 1000 if quick else 10_000


def arena(question, event_ns, amounts, **about):
    words = [
        f"event_ns={event_ns}",
        f"rounds={amounts.rounds}",
        f"pairs={amounts.hits if question == 'hit' else amounts.pairs}",
        f"blocks={amounts.blocks}",
        f"milliseconds={amounts.milliseconds}",
    ]
    words += [f"{name}={value}" for name, value in about.items()]
    return Job(question, "arena", [ARENA, question, *words], event_ns=event_ns, **about)


def numbers(question, amounts, doublings):
    """What stands behind the question on the command line of pairs."""
    return {
        "hit": [amounts.rounds, amounts.hits],
        "steady": [amounts.pairs, doublings],
        "random": [amounts.blocks],
        "threads": [amounts.milliseconds, doublings],
        "exchange": [amounts.pairs],
    }[question]


def pairs(question, subject, kind, env, amounts, doublings=ALL, **about):
    command = [PROGRAMS / f"pairs.{kind}", question, *numbers(question, amounts, doublings)]
    if question in ("steady", "threads"):
        about["doublings"] = doublings
    return Job(question, subject, command, env, **about)


def light(torch=None, **variables):
    """Over the thin runtime and the light driver."""
    folders = [LIGHT, SIM] + ([torch / "lib"] if torch else [])
    return over(*folders, **variables)


def ours(question, amounts, doublings=ALL):
    """The arena and the preloaded library, with both costs of an event."""
    about = {"doublings": doublings} if question in ("steady", "threads") else {}
    jobs = [arena(question, event_ns, amounts, **about) for event_ns in EVENT_NS]
    for kind in ("dynamic", "static"):
        jobs += [
            pairs(
                question,
                f"preloaded, {kind}",
                kind,
                light(LIGHT_EVENT_NS=event_ns, **preloaded()),
                amounts,
                doublings,
                event_ns=event_ns,
            )
            for event_ns in EVENT_NS
        ]
    return jobs


def peers(question, amounts, torch, cpu, doublings=ALL):
    jobs = []
    if torch:
        jobs += [
            pairs(
                question,
                "PyTorch native",
                "torch",
                light(torch, LIGHT_EVENT_NS=event_ns),
                amounts,
                doublings,
                event_ns=event_ns,
            )
            for event_ns in EVENT_NS
        ]
    libraries = {"glibc": None} | cpu
    for name, library in libraries.items():
        env = environment(LD_PRELOAD=library) if library else environment()
        jobs.append(pairs(question, name, "host", env, amounts, doublings, event_ns=0))
    return jobs


def bare(amounts):
    """What the driver itself costs, and what is in the runtime above it."""
    simulated = over(SIM, SIM_CUDA_MEMORY=MEMORY)
    return [
        pairs("hit", "bare, light driver", "dynamic", light(), amounts, event_ns=0),
        pairs("hit", "bare, simulated", "dynamic", simulated, amounts, event_ns=0),
        *(
            pairs(
                "hit",
                f"{strategy}, simulated",
                "dynamic",
                simulated | {k: str(v) for k, v in preloaded(VRAMALLOC_STRATEGY=strategy).items()},
                amounts,
                event_ns=0,
            )
            for strategy in ("passthrough", "auto_growth")
        ),
    ]


def who(amounts):
    """What it takes to know who asks: the same pairs without and with it."""

    def under(conf):
        return light(**preloaded(VRAMALLOC_CONF=conf))

    hits = numbers("hit", amounts, 0)
    deep = [DEEP, PROGRAMS / "deep.so", NATIVE_FRAMES, PYTHON_FRAMES, *hits]
    return [
        Job("who", f"{kind}, {conf}", [PROGRAMS / f"pairs.{kind}", "hit", *hits], under(conf))
        for kind in ("dynamic", "static")
        for conf in ("owners:off", "owners:on")
    ] + [
        Job("who", conf, [sys.executable, *deep], under(conf))
        for conf in ("stacks:off", "stacks:sampled", "stacks:all")
    ]


def jobs(question, amounts, torch, cpu):
    """All jobs of a question."""
    if question == "hit":
        return ours("hit", amounts) + peers("hit", amounts, torch, cpu) + bare(amounts)
    if question in ("steady", "threads"):
        alone = (
            [Job(question, ALONE, [ARENA, "alone"], event_ns=0, doublings=SMALL)]
            if question == "threads"
            else []
        )
        return (
            alone
            + ours(question, amounts)
            + peers(question, amounts, torch, {})[: 2 if torch else 0]
            + ours(question, amounts, SMALL)
            + peers(question, amounts, torch, cpu, SMALL)
        )
    if question in ("random", "exchange"):
        return ours(question, amounts) + peers(question, amounts, torch, cpu)
    if question == "baseline":
        words = [f"rounds={amounts.rounds}", f"pairs={amounts.hits}"]
        return [Job(question, "model device", [ARENA, "baseline", *words])]
    if question == "who":
        return who(amounts)
    if question == "recording":
        return [Job(question, "arena", [ARENA, "recording", f"rounds={amounts.rounds}"])]
    if question == "footprint":
        quick = amounts.growth_blocks < 1_000_000
        return [Job(question, "arena", [FOOTPRINT] + (["quick"] if quick else []))]
    words = [f"blocks={amounts.growth_blocks}", f"chunks={amounts.growth_chunks}"]
    return [Job(question, "arena", [ARENA, "growth", f"pairs={amounts.pairs}", *words])]
