"""Where we are worse than the peer that does the same work, PyTorch's
allocator: said first. (CPU allocators are a limit, not a peer: they need not
ask whether a device is done.)
"""

from memory import EXPANDABLE, NATIVE
from run import median
from tables import of
from text import duration, number, percent_over, size

OURS = "preloaded, dynamic"
# The question, the columns that tell its rows apart, and the figures of which
# less is better.
COMPARED = (
    ("hit", ("size", "event_ns"), ("ns",)),
    ("steady", ("live", "doublings", "event_ns"), ("ns", "p50", "p99", "p999")),
    ("random", ("largest_mib", "event_ns"), ("ns",)),
    ("threads", ("threads", "doublings", "event_ns"), ("ns",)),
    ("exchange", ("size", "event_ns"), ("ns",)),
)
WORDS = {
    "size": size,
    "live": lambda count: f"{count} live",
    "largest_mib": lambda mib: f"up to {mib} MiB",
    "threads": lambda count: f"{count} threads" if count > 1 else "1 thread",
    "doublings": lambda doublings: f"up to {size(512 << doublings)}",
    "event_ns": lambda ns: f"events of {ns} ns",
    "ns": "mean",
    "p999": "p99.9",
}


def slower(rows):
    for question, columns, fields in COMPARED:
        for theirs in of(rows, question=question, subject=NATIVE):
            same = {column: theirs[column] for column in columns}
            for mine in of(rows, question=question, subject=OURS, **same):
                for field in fields:
                    ours, other = median(mine[field]), median(theirs[field])
                    if ours > other:
                        where = ", ".join(WORDS[column](same[column]) for column in columns)
                        yield (
                            f"{question}, {where}, {WORDS.get(field, field)}: "
                            f"{number(ours)} ns, {NATIVE} {number(other)} ns"
                        )


def larger(rows):
    for theirs in of(rows, question="memory"):
        if theirs["subject"] not in (NATIVE, EXPANDABLE):
            continue
        about = {"trace": theirs["trace"], "kernel_ns": theirs["kernel_ns"]}
        kernels = duration(about["kernel_ns"]) if about["kernel_ns"] else "none"
        for mine in of(rows, question="memory", **about):
            if mine["subject"] not in ("auto_growth", "mapped"):
                continue
            ours, other = (percent_over(r["smallest"], r["live"]) for r in (mine, theirs))
            if ours > other:
                yield (
                    f"smallest device for {about['trace']}, kernels: {kernels}: "
                    f"{mine['subject']} {ours:+.2f} %, {theirs['subject']} {other:+.2f} %"
                )
            ours, other = (
                percent_over(r["roomy"]["reserved_peak"], r["live"]) for r in (mine, theirs)
            )
            if ours > other:
                yield (
                    f"reserved on a roomy device for {about['trace']}, kernels: {kernels}: "
                    f"{mine['subject']} {ours:+.1f} %, {theirs['subject']} {other:+.1f} %"
                )


def text(rows):
    if not any(row["subject"] == NATIVE for row in rows if "subject" in row):
        return "not known: PyTorch's allocator was not measured"
    return "\n".join([*larger(rows), *slower(rows)]) or "in nothing that was measured"
