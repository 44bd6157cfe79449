"""The C programs of tests/programs, each bare and under the library.

They print the same whatever is below them, so the bare run is the judge of
every other one.
"""

import dataclasses
import re
import subprocess

from execute import ROOT, run, together

GROUP = "programs"
# How they are linked to CUDA's runtime, or not at all.
KINDS = ("dynamic", "static", "driver")
# How much of a device there is differs by a little.
AMOUNT = re.compile(r"\b[0-9]+ KiB\b")
# What each program runs under. Several run at a time, and an arena that takes
# a fraction of the device in advance would leave the others nothing.
SETTINGS = {
    "auto_growth": "strategy:auto_growth",
    "naive_best_fit": "strategy:naive_best_fit,initial_gpu_memory_in_mb:256,"
    "reallocate_gpu_memory_in_mb:256",
    "passthrough": "strategy:passthrough",
    "strict": "strategy:auto_growth,free_sync:strict",
    "mapped": "strategy:mapped",
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple = ()
    # It prints what differs; its status is what counts.
    by_status: bool = False
    # It takes so much of the device that nothing may run beside it.
    alone: bool = False
    # It is to end otherwise than well.
    cut_off: bool = False
    # Devices that it needs.
    devices: int = 1
    kinds: tuple = ("dynamic", "static", "driver")
    environment: tuple = ()
    seconds: int = 60
    # Settings under which it is to differ from the bare run.
    without: tuple = ()
    # Rows of docs/compatibility.md that it stands for.
    hazards: tuple = ()

    def title(self):
        return " ".join((self.name, *self.arguments))


def runs_on(*streams):
    return [Case("free_after_launch", (each,), by_status=True, hazards=(1,)) for each in streams]


# No handle for another process is made of mapped memory.
PLAIN = ("mapped",)
# Some of their runs ask for no memory of a device.
UNSERVED = ("nothing", "host_life", "host_does_not_wait")
DEFERRED = ("auto_growth", "naive_best_fit", "mapped")
WAYS = ("plain", "pool", "virtual", "managed", "array", "graph")
FAMILIES = (*(f"{way}:48M" for way in WAYS), "all", "sync", *(f"{way}:9M" for way in WAYS), "all")
# All of the device is taken plainly and freed, and taken in other ways then.
RELIEF = tuple(
    step
    for way in ("pool", "virtual", "array", "graph")
    for step in ("fill-plain:64M", "all", "sync", f"{way}:96M", "give", "sync", "trim")
)
FILLED = ("fill-plain:64M", "fill-plain:2M", "all", "sync")
NEWCOMERS = (*FILLED, "stream:1", "enter", "plain:64M", "leave")
# What a limit holds for; a graph's memory is only counted.
LIMITED = ("plain", "pool", "virtual", "managed", "array")

CASES = [
    # What is free is everybody's.
    Case("basics", alone=True, hazards=(14, 30)),
    *runs_on("apart", "blocking", "default", "thread", "destroyed", "destroyed-blocking"),
    Case("free_after_launch", ("peer",), by_status=True, devices=2, hazards=(1,)),
    *[
        Case("host_in_flight", (each,), by_status=True, hazards=(34,))
        for each in ("apart", "blocking", "default", "thread", "destroyed", "capture")
    ],
    Case("host_does_not_wait", by_status=True, hazards=(34,)),
    Case("stream_gone", hazards=(1,)),
    Case("streams", ("200",), hazards=(1,)),
    Case("stress", ("7", "3", "400"), hazards=(1, 31)),
    Case("exchange", ("7", "2", "300"), hazards=(1, 8, 34)),
    Case("random", ("1", "4"), devices=2, seconds=120),
    Case("capture", ("8",), alone=True, hazards=(7, 8)),
    Case("capture_modes", alone=True, hazards=(7, 8)),
    *[Case("capture_only", (each,), hazards=(7, 8)) for each in ("one", "host")],
    Case("ranges", hazards=(3, 6, 28)),
    Case("ipc", ("share",), without=PLAIN, hazards=(2, 5)),
    Case("ipc", ("ranges",), without=PLAIN, hazards=(2, 3)),
    Case("ipc", ("own",), without=PLAIN, hazards=(2,)),
    Case("ipc", ("crash",), cut_off=True, without=PLAIN, hazards=(2,)),
    # A receiver that is not preloaded gets the block or an error.
    Case(
        "ipc",
        ("share",),
        by_status=True,
        environment=(("IPC_PEER_PRELOAD", ""),),
        without=PLAIN,
        hazards=(2,),
    ),
    Case("host_memory", hazards=(36, 37)),
    Case("host_life", ("fork",), hazards=(37,)),
    Case("host_life", ("captures",), hazards=(37,)),
    Case("host_life", ("atexit",), hazards=(37,)),
    Case("host_life", ("destructor",), hazards=(37,)),
    Case("host_life", ("threads",), devices=2, hazards=(37,)),
    Case("host_life", ("contexts",), devices=2, hazards=(37,)),
    Case("info", alone=True, hazards=(9, 10)),
    Case("oom", alone=True, seconds=120, hazards=(10, 15)),
    Case("foreign", hazards=(11, 13, 14)),
    Case("misuse", hazards=(14, 15)),
    Case("lookups", hazards=(16, 17, 20)),
    Case("threads", alone=True, hazards=(25, 31)),
    Case("contexts", alone=True, hazards=(17, 24)),
    Case("reset", devices=2, hazards=(24,)),
    Case("peer_copy", ("peer",), by_status=True, devices=2, hazards=(1,)),
    *[Case("mapped", (each,), hazards=(5, 7, 28)) for each in ("fill", "first", "ended")],
    Case("mapped", ("peers",), devices=2, hazards=(5,)),
    # Only a free that waits is as bare here.
    Case("read_after_free", without=DEFERRED, hazards=(1,)),
    Case("read_after_free", ("captured",), without=DEFERRED, hazards=(1,)),
    # Other families beside the pool, and what it has cached when they need room.
    Case("families", FAMILIES, hazards=(13, 18)),
    Case("families", RELIEF, alone=True, hazards=(10, 39)),
    Case("families", NEWCOMERS, alone=True, hazards=(10, 39)),
    *[
        Case("neighbours", (each,), by_status=True, alone=True, hazards=(10, 39))
        for each in ("turns", "capture", "threads")
    ],
    Case("constructor", hazards=(23,)),
    Case("forks", hazards=(22,)),
    Case("nothing", hazards=(19,)),
    *[
        Case("exit_paths", (each,), cut_off=True, hazards=(22, 23))
        for each in ("return", "exit", "_exit", "abort", "atexit", "destructor", "fork")
    ],
]


# Programs of the library's own interface, which say by themselves what is right:
# each with what it prints, as a pattern, under `mapped`. Numbers in it are bytes that
# are missing, of which CUDA may have a page for what the program does first meanwhile.
PAGE = 2 << 20
OWN = [
    (
        ("cycles", "200"),
        r"before: 1\ngood cycles: 200, stayed: 0, missing while paused: ([0-9]+)\n"
        r"missing in the end: ([0-9]+)\n",
    ),
    (("tags",), r"(?s)cache: copied 0, others hold: 16\n.*all hold: 16\n.*unheard: 0\n"),
    (("refusals",), r"refused: 2, hold: 22\n"),
    (("captures",), r"torn: 0, hold: 24\n"),
    (("together",), r"failed: 0, torn: 0, lost: 0\n"),
]


@dataclasses.dataclass
class Programs:
    """Where the compiled programs lie, in which kinds, and the folder of the
    runtime that they are compiled against."""

    folder: object
    kinds: list
    cudart: object

    def path(self, name, kind):
        return self.folder / f"{name}.{kind}"

    def build(self, *names):
        """Compiles these, or all of tests/programs; what went wrong, or nothing."""
        built = subprocess.run(
            [
                ROOT / "scripts" / "build-programs",
                "--cudart",
                self.cudart,
                "--out",
                self.folder,
                "--kinds",
                " ".join(self.kinds),
                *names,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return built.stderr.strip() if built.returncode else ""


def devices():
    """As nvidia-smi lists them."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return max(1, sum(line.startswith("GPU ") for line in listed.stdout.splitlines()))


def settings_of(case, kind):
    """All settings where the program is linked to the runtime dynamically, as
    most are checked; elsewhere the default, which every door leads to."""
    if case.name == "nothing":
        return ["auto_growth"]
    listed = list(SETTINGS) if kind == "dynamic" else ["auto_growth"]
    return [setting for setting in listed if setting not in case.without]


def without_amounts(said):
    return [[AMOUNT.sub("some KiB", line) for line in part] for part in said]


def compare(results, title, case, bare, with_it, setting):
    good = with_it.status == bare.status
    if not case.by_status:
        good = good and without_amounts(with_it.said()) == without_amounts(bare.said())
    results.check(
        GROUP,
        f"{title} {setting}: as bare",
        good,
        f"bare {bare.said() if not case.by_status else bare.status}; {with_it.why()}; "
        f"said {with_it.said()}",
        hazards=case.hazards,
    )
    new = with_it.violations() - bare.violations()
    if new:
        results.check(GROUP, f"{title} {setting}: asks of CUDA what is allowed", False, f"{new}")
    # A program that is cut off leaves no statistics.
    if not case.cut_off and case.name not in UNSERVED:
        served = with_it.total("allocations")
        results.check(GROUP, f"{title} {setting}: served", served > 0, with_it.why())


def simulated_as_well(place, results, programs, case, kind, bare):
    """Is the bare program's text on the simulated CUDA the one that it is here?
    Not a check of the library, but of what it is tested on."""
    simulated = place.on_simulated()
    if place.simulated or not simulated or kind == "static" or case.by_status:
        return
    there = run(simulated, [programs.path(case.name, kind), *case.arguments])
    here, line = (
        [AMOUNT.sub("some KiB", each) for each in side.said()[0] if "MiB" not in each]
        for side in (bare, there)
    )
    apart = [pair for pair in zip(here, line, strict=False) if pair[0] != pair[1]]
    name = f"{case.title()} {kind}: bare, it prints what it prints on the simulated CUDA"
    results.check(GROUP, name, here == line, f"{apart[:4]} of {len(here)} and {len(line)} lines")


def check(place, results, programs, case, kind):
    title = f"{case.title()} {kind}"
    command = [programs.path(case.name, kind), *case.arguments]
    more = dict(case.environment)
    bare = run(place, command, environment=more, seconds=case.seconds)
    ends = bare.status == 0 or (case.cut_off and isinstance(bare.status, int))
    results.check(GROUP, f"{title} bare: runs", ends, bare.why())
    simulated_as_well(place, results, programs, case, kind, bare)
    if not ends:
        return
    for setting in settings_of(case, kind):
        options = SETTINGS[setting]
        with_it = run(place, command, options, more, case.seconds)
        compare(results, title, case, bare, with_it, setting)


def check_own(place, results, programs, arguments, pattern, kind):
    title = f"api_pause {' '.join(arguments)} {kind}"
    outcome = run(place, [programs.path("api_pause", kind), *arguments], SETTINGS["mapped"])
    found = re.fullmatch(pattern, outcome.output)
    good = outcome.status == 0 and found and all(int(each) <= PAGE for each in found.groups())
    why = f"{outcome.why()}; said {outcome.output}"
    results.check(GROUP, f"{title}: says what is right", good, why, outcome.output)


def check_limit(place, results, programs, way, kind):
    """No more than the limit can be had, and nearly all of that."""
    command = [programs.path("families", kind), f"fill-{way}:32M"]
    outcome = run(place, command, "limit:1G", seconds=60)
    found = re.match(r"([0-9]+) KiB, .*: 2$", outcome.output.strip())
    taken = int(found[1]) >> 10 if found else 0
    title = f"families fill-{way}:32M {kind}, limit:1G: holds"
    results.check(GROUP, title, 896 <= taken <= 1024, f"{outcome.output}; {outcome.why()}", taken)


def check_pool_at_limit(place, results, programs, kind):
    """A pool of CUDA's that passed the limit serves again after what it gave back."""
    outcome = run(place, [programs.path("pools_at_limit", kind), "1", "100000"], "limit:32M")
    title = f"pools_at_limit {kind}, limit:32M: goes on after what it gave back"
    good = outcome.status == 0 and outcome.output.startswith("served 2,")
    results.check(GROUP, title, good, f"{outcome.output}; {outcome.why()}", outcome.output)


def group(place, results, programs):
    chosen = [
        (case, kind)
        for case in CASES
        for kind in case.kinds
        if kind in programs.kinds and case.devices <= place.devices and place.chooses(case.title())
    ]
    for case in CASES:
        if case.devices > place.devices:
            why = f"needs {case.devices} devices; there is {place.devices}"
            results.skip(GROUP, case.title(), why)
    beside = [pair for pair in chosen if not pair[0].alone]
    together(
        place,
        [
            lambda case=case, kind=kind: check(place, results, programs, case, kind)
            for case, kind in beside
        ],
    )
    # They look at how much is free.
    for arguments, pattern in OWN if place.chooses("api_pause") else ():
        for kind in programs.kinds:
            check_own(place, results, programs, arguments, pattern, kind)
    for way in LIMITED if place.chooses("limit") else ():
        for kind in programs.kinds:
            check_limit(place, results, programs, way, kind)
    for kind in programs.kinds if place.chooses("limit") else ():
        check_pool_at_limit(place, results, programs, kind)
    for case, kind in chosen:
        if case.alone:
            check(place, results, programs, case, kind)
