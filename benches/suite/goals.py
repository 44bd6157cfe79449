"""What we want to reach, and whether the figures say so.

Each goal names its question and gives a line: what was found, and whether it
holds (None: nothing was measured).
"""

import math

import ending
import instructions
from latency import ALL, ALONE, SMALL
from machine import ROOT
from memory import EXPANDABLE, MADE, NATIVE, TRACES, by_pass, priced
from run import median
from tables import all_calls, exponent, groups, of
from text import number, percent_over, size

BOUNDS = ROOT / "ci" / "instructions.bounds"
SMALLEST_OVER = {"gpt_train": 2.5, "varlen_train": 1.2, "llm_infer": 0.5}
MAPPED_OVER = {"gpt_train": 1.0, "varlen_train": 0.8, "llm_infer": 0.3, "dataframe": 2.5}
LAGGING_OVER = 8.0
RESERVED_OVER = 15.0
# What a pair of 4 KiB of glibc's malloc took where the goals in ns were set.
GLIBC_NS = 17.7
KEPT_SIZES = (512, 4096, 65536)
LARGE_SIZES = (2 << 20, 4 << 20, 16 << 20, 64 << 20)
FENCE_NS = {512: 3, 4096: 3, 65536: 5}
# Of what a loop gains by a second thread that shares no memory with the first.
TWO_THREADS = 0.95
BYTES_PER_BLOCK = 100
# Of the addresses that the driver ever gave: 1 KiB for each 64 KiB, and what
# stands above it.
PAGE_MAP_SHARE = 1.7
# What it may take to know who asks: by library, and by call stack.
OWNER_NS, STACK_NS = 3, 700
# For the names of 100 000 addresses.
SYMBOLS_S = 1
# Where times grow although no more is done: caches of the processor miss.
COUNTED = dict.fromkeys(("pair, mean", "pair, p99", "pair, p99.9"), "pair, instructions")


class Goal:
    def __init__(self, name, question, wanted, judge):
        self.name, self.question, self.wanted, self.judge = name, question, wanted, judge

    def result(self, rows):
        found = self.judge(rows)
        if found is None:
            return {
                "goal": self.name,
                "question": self.question,
                "wanted": self.wanted,
                "found": "not measured",
                "holds": None,
            }
        said, holds = found
        return {
            "goal": self.name,
            "question": self.question,
            "wanted": self.wanted,
            "found": said,
            "holds": holds,
        }


def scale(rows):
    """How much slower this machine is at the time than the one on which the goals
    were set: by the pair of glibc's malloc, in the same runs. None where that was
    not measured."""
    found = of(rows, question="hit", subject="glibc", size=4096)
    return median(found[0]["ns"]) / GLIBC_NS if found else None


def within(value, most, rows, said):
    """Whether a time is within a goal for this machine, and what to say."""
    factor = scale(rows)
    if factor is None:
        return f"{said}, not scaled", value <= most
    return f"{said} of {number(most * factor)} here", value <= most * factor


def hit_of(subject, sizes, most):
    def judge(rows):
        known = {
            row["size"]: median(row["ns"])
            for row in of(rows, question="hit", subject=subject, event_ns=0)
            if row["size"] in sizes
        }
        if not known:
            return None
        worst = max(known, key=known.get)
        said = f"{number(known[worst])} at {size(worst)}, the worst,"
        return within(known[worst], most, rows, said)

    return judge


def steady_of(doublings, field, most):
    def judge(rows):
        found = of(
            rows, question="steady", subject="arena", event_ns=0, doublings=doublings, live=4000
        )
        if not found:
            return None
        value = median(found[0][field])
        return within(value, most, rows, number(value))

    return judge


def faster_by(rows, subject):
    """What two threads do over what one does; the machine's own share of that is
    in it."""
    about = {"event_ns": 0, "doublings": SMALL, "threads": 2}
    found = of(rows, question="threads", subject=subject, **about)
    return median(found[0]["over_one"]) if found else None


def threads_of(subject):
    def judge(rows):
        mine, alone = faster_by(rows, subject), faster_by(rows, ALONE)
        if mine is None or alone is None:
            return None
        return f"{mine:.2f}, without shared memory {alone:.2f}", mine >= TWO_THREADS * alone

    return judge


def exchanged(rows):
    found = of(rows, question="exchange", subject="arena", event_ns=0, size=4096)
    if not found:
        return None
    value = median(found[0]["ns"])
    return within(value, 100, rows, number(value))


def recorded(rows):
    found = of(rows, question="recording")
    if not found:
        return None
    ns, size_of_one = (
        max(median(row[column]) for row in found)
        for column in ("ns_per_event", "bytes_per_event")
    )
    said, holds = within(ns, 60, rows, f"{number(ns)} ns")
    return f"{size_of_one:.1f} bytes, {said}", holds and size_of_one <= 6


def added(rows, without, with_it):
    """What a pair takes more; the most of all sizes."""
    known = [
        {row.get("size"): median(row["ns"]) for row in of(rows, question="who", subject=subject)}
        for subject in (without, with_it)
    ]
    more = {size: known[1][size] - ns for size, ns in known[0].items() if size in known[1]}
    return max((ns for size, ns in more.items() if size in (None, *KEPT_SIZES)), default=None)


def owned(rows):
    found = {
        kind: added(rows, f"{kind}, owners:off", f"{kind}, owners:on")
        for kind in ("dynamic", "static")
    }
    if None in found.values():
        return None
    said = ", ".join(f"{kind} {ns:.1f}" for kind, ns in found.items())
    return within(max(found.values()), OWNER_NS, rows, said)


def stacked(rows):
    ns = added(rows, "stacks:off", "stacks:all")
    return within(ns, STACK_NS, rows, number(ns)) if ns is not None else None


def ended(rows):
    """Owners add no more than what the runs without them differ by: half of those lie
    within it. On a busy machine only the processor's time tells much."""
    found, holds = [], True
    for cache in ending.CACHES:
        about = {row["subject"]: row for row in of(rows, question="exit", cache=cache)}
        if not {ending.WITHOUT, ending.DEFAULT} <= about.keys():
            return None
        for column, what in (("ms", ""), ("processor_ms", " of the processor")):
            usual = sorted(about[ending.WITHOUT][column])
            within = usual[3 * (len(usual) - 1) // 4] - usual[(len(usual) - 1) // 4]
            more = median(about[ending.DEFAULT][column]) - median(usual)
            found.append(f"cache {cache}{what}: {more:+.1f} of {number(within)}")
            holds &= more <= within
    return ", ".join(found), holds


def fence_work(rows):
    found = {
        row["size"]: median(row["fence_ns_per_free"])
        for row in of(rows, question="hit", subject="arena", event_ns=175)
        if row["size"] in FENCE_NS
    }
    if not found:
        return None
    said = ", ".join(f"{number(ns)} at {size(count)}" for count, ns in found.items())
    return said, all(ns <= FENCE_NS[count] for count, ns in found.items())


def ours(rows, kernel_ns, strategy="auto_growth", traces=TRACES):
    found = of(rows, question="memory", subject=strategy, kernel_ns=kernel_ns)
    return {row["trace"]: row for row in found if row["trace"] in traces}


def mapped(rows, kernel_ns):
    return ours(rows, kernel_ns, "mapped", TRACES + MADE)


def listed(values, unit="%"):
    return ", ".join(f"{name} {value:.2f} {unit}" for name, value in values.items())


def smallest(found, most):
    """Whether the smallest devices are within a bound for each trace."""
    over = {trace: percent_over(row["smallest"], row["live"]) for trace, row in found.items()}
    if not over:
        return None
    return listed(over), all(over[trace] <= most[trace] for trace in over)


def lagging(found):
    return smallest(found, dict.fromkeys(found, LAGGING_OVER))


def against_torch(rows):
    mine = ours(rows, 0)
    theirs = of(rows, question="memory", subject=NATIVE, kernel_ns=0)
    theirs = [row for row in theirs if row["trace"] in mine]
    if not theirs:
        return None
    more = {r["trace"]: percent_over(mine[r["trace"]]["smallest"], r["smallest"]) for r in theirs}
    return listed(more), all(value <= 0 for value in more.values())


def repeating(rows):
    found = {}
    for trace, row in ours(rows, 0).items():
        found[trace] = by_pass(row["roomy"])[-1]
    return (listed(found, "calls"), not any(found.values())) if found else None


def near(rows):
    """Memory calls of the last pass where there is little more room than needed. Not
    of what is made: no two of its tables are alike, so its memory is cut anew all the
    time."""
    found = {}
    for trace, row in ours(rows, 0, "mapped").items():
        found[trace] = by_pass(row["near"])[-1] if row["near"] else math.inf
    return (listed(found, "calls"), not any(found.values())) if found else None


def cheaper(rows):
    """What the calls on the smallest device take, beside those of PyTorch on its."""
    said, holds = [], None
    theirs = ours(rows, 0, EXPANDABLE, TRACES + MADE)
    for trace, row in mapped(rows, 0).items():
        mine = priced(all_calls(row["tight"]))
        other = priced(all_calls(theirs[trace]["tight"])) if trace in theirs else None
        said.append(f"{trace} {number(mine)}" + (f" of {number(other)} ms" if other else " ms"))
        if trace in MADE and other:
            holds = mine < other
    return (", ".join(said), holds) if said else None


def reserved(rows):
    over = {
        trace: percent_over(row["roomy"]["reserved_peak"], row["live"])
        for trace, row in ours(rows, 0).items()
    }
    return (listed(over), all(value <= RESERVED_OVER for value in over.values())) if over else None


def counted(rows):
    found = {row["path"]: row["instructions"] for row in of(rows, question="instructions")}
    if not found:
        return None
    bounds = instructions.bounds(BOUNDS)
    said = ", ".join(f"{path} {number(count)} of {bounds[path]}" for path, count in found.items())
    return said, all(count <= bounds[path] for path, count in found.items())


def footprint(rows):
    found = {}
    for row in of(rows, question="footprint"):
        if "blocks" in row:
            most = max(median(row["host"]), median(row["host_peak"]))
            found[row["blocks"]] = (most - median(row["page_map"])) / row["blocks"]
    if not found:
        return None
    worst, most = max(found, key=found.get), max(found)
    said = f"{number(found[most])} at {most} blocks; the worst, at {worst}: {number(found[worst])}"
    return said, found[worst] <= BYTES_PER_BLOCK


def no_growth(rows):
    found = [row for row in of(rows, question="footprint") if row.get("steady") == "repeating"]
    if not found:
        return None
    books, pages = (median(found[0][f"{part}_growth"]) for part in ("books", "page_map"))
    return f"books {books} bytes, page map {pages} bytes", max(books, pages) <= 0


def page_map_share(rows):
    shares = {
        row["steady"]: 100 * median(row["page_map"]) / median(row["given"])
        for row in of(rows, question="footprint")
        if "steady" in row
    }
    return (listed(shares), max(shares.values()) <= PAGE_MAP_SHARE) if shares else None


def slopes(rows):
    """Exponents of all operations, and of a logarithm over the same counts:
    where count goes from a to b, that is log(log b / log a)."""
    found = {}
    for by in ("live blocks", "chunks"):
        for (operation,), group in groups(of(rows, question="growth", by=by), "operation"):
            known = {row["count"]: median(row["ns"]) for row in group}
            logarithm = exponent({count: math.log(count) + 1 for count in known})
            found[operation, by] = (exponent(known), logarithm)
    return found


def cost_growth(rows):
    """Judged by exponents. Where the times of an operation grow faster than a
    logarithm, what is counted of it decides, if that was counted: more work, or
    the same that waits for memory."""
    found = slopes(rows)
    if not found:
        return None
    steep, waits = [], []
    for (operation, by), (slope, logarithm) in found.items():
        if slope <= logarithm:
            continue
        counted = found.get((COUNTED.get(operation), by))
        if counted and counted[0] <= counted[1]:
            waits.append(f"{operation} by {by} {slope:.2f}, its instructions {counted[0]:.2f}")
        else:
            steep.append(f"{operation} by {by} {slope:.2f}")
    said = f"steeper: {', '.join(steep) or 'none'}"
    return said + (f"; in time alone: {', '.join(waits)}" if waits else ""), not steep


def symbols(rows):
    found = {row["library"]: median(row["first_s"]) for row in of(rows, question="symbols")}
    if not found:
        return None
    said = ", ".join(f"{library} {took:.2f}" for library, took in found.items())
    return within(max(found.values()), SYMBOLS_S, rows, said)


GOALS = [
    Goal("G1", "hit", "arena, to 64 KiB, at most 12 ns", hit_of("arena", KEPT_SIZES, 12)),
    Goal(
        "G1",
        "hit",
        "preloaded, dynamic, to 64 KiB, at most 25 ns",
        hit_of("preloaded, dynamic", KEPT_SIZES, 25),
    ),
    Goal(
        "G1",
        "hit",
        "preloaded, static, to 64 KiB, at most 40 ns",
        hit_of("preloaded, static", KEPT_SIZES, 40),
    ),
    Goal("G2", "steady", "4000 live to 64 KiB, mean at most 30 ns", steady_of(SMALL, "ns", 30)),
    Goal("G2", "steady", "4000 live to 64 KiB, p99 at most 120 ns", steady_of(SMALL, "p99", 120)),
    Goal("G2", "steady", "4000 live to 64 MiB, mean at most 250 ns", steady_of(ALL, "ns", 250)),
    Goal("G2", "steady", "4000 live to 64 MiB, p99 at most 1500 ns", steady_of(ALL, "p99", 1500)),
    Goal("G2", "hit", "arena, from 2 MiB, at most 150 ns", hit_of("arena", LARGE_SIZES, 150)),
    Goal("G3", "threads", f"arena, two threads at least {TWO_THREADS} of it", threads_of("arena")),
    Goal(
        "G3",
        "threads",
        f"preloaded, two threads at least {TWO_THREADS} of it",
        threads_of("preloaded, dynamic"),
    ),
    Goal("G3", "exchange", "producer to consumer, 4 KiB, at most 100 ns", exchanged),
    Goal("who", "who", f"a library at most {OWNER_NS} ns a pair", owned),
    Goal("who", "who", f"a call stack at most {STACK_NS} ns", stacked),
    Goal("who", "exit", "the end of a PyTorch process, ms: owners add no more than its runs differ by", ended),
    Goal("recording", "recording", "an event at most 6 bytes and 60 ns", recorded),
    Goal(
        "G4",
        "memory",
        "smallest device at most " + listed(SMALLEST_OVER) + " over live",
        lambda rows: smallest(ours(rows, 0), SMALLEST_OVER),
    ),
    Goal("G4", "memory", "on no trace more than PyTorch native", against_torch),
    Goal(
        "G4",
        "memory",
        f"at most {LAGGING_OVER:g} % with kernels of 50 µs",
        lambda rows: lagging(ours(rows, 50_000)),
    ),
    Goal("G4", "memory", "no memory call after the second pass", repeating),
    Goal("G4", "memory", f"roomy: reserved at most {RESERVED_OVER:g} % over live", reserved),
    Goal(
        "G5",
        "memory",
        "mapped: smallest device at most " + listed(MAPPED_OVER) + " over live",
        lambda rows: smallest(mapped(rows, 0), MAPPED_OVER),
    ),
    Goal("G5", "memory", "mapped: on +3 % no memory call in the third pass", near),
    Goal("G5", "memory", "mapped: dataframe's calls cost less than expandable ones", cheaper),
    Goal(
        "G5",
        "memory",
        f"mapped: at most {LAGGING_OVER:g} % with kernels of 50 µs",
        lambda rows: lagging(mapped(rows, 50_000)),
    ),
    Goal("G6", "fences", "fence work at most 3 ns per free, at 64 KiB 5", fence_work),
    Goal("instructions", "instructions", "within the bounds of ci/instructions.bounds", counted),
    Goal(
        "footprint",
        "footprint",
        f"at most {BYTES_PER_BLOCK} bytes per block beside the page map",
        footprint,
    ),
    Goal("footprint", "footprint", "a repeating program takes no more", no_growth),
    Goal(
        "footprint",
        "footprint",
        f"page map at most {PAGE_MAP_SHARE:g} % of what the driver ever gave",
        page_map_share,
    ),
    Goal("symbols", "symbols", f"within {SYMBOLS_S:g} s", symbols),
    Goal("growth", "growth", "no cost grows faster than a logarithm", cost_growth),
]


def results(rows):
    return [goal.result(rows) for goal in GOALS]


def verdict(result):
    return {True: "holds", False: "does not", None: "-"}[result["holds"]]


def text(results):
    """The goals with what was found."""
    return "\n".join(f"{r['goal']}: {r['wanted']}: {r['found']}: {verdict(r)}" for r in results)


assert set(SMALLEST_OVER) == set(TRACES)
assert set(MAPPED_OVER) == set(TRACES + MADE)
