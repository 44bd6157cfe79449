"""One table a question, from the figures."""

from memory import EXPANDABLE, NATIVE, by_pass, memory_calls, priced, priced_by_unit
from run import median
from text import duration, number, percent_over, size, spread, table

# What a subject is called where traces are replayed.
OVER_TRACES = {"arena": "auto_growth", "preloaded, dynamic": "preloaded"}
SHOWN_SIZES = (512, 4096, 65536, 1 << 20, 4 << 20, 64 << 20)


def of(rows, **wanted):
    """The rows in which these hold."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def groups(rows, *names):
    """Rows that agree in these, in the order in which they first come."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return found.items()


def events(event_ns):
    return "0" if not event_ns else f"{event_ns} ns"


def summary(rows):
    """The main figure of each question, for who serves device memory."""
    subjects = ("arena", "preloaded, dynamic", "preloaded, static", NATIVE)
    traces = list(dict.fromkeys(row["trace"] for row in of(rows, question="memory")))
    heads = ["", "hit, 4 KiB", "4000 live, mean", "4000 live, p99", "2 threads over 1", *traces]
    lines = []
    for subject in subjects:
        timed = of(rows, subject=subject, event_ns=0)
        hits = of(timed, question="hit", size=4096)
        pairs = of(timed, question="steady", live=4000, doublings=17)
        two = of(timed, question="threads", doublings=17, threads=2)
        line = [subject]
        line += [spread(row["ns"]) for row in hits] or ["-"]
        for field in ("ns", "p99"):
            line += [spread(row[field]) for row in pairs] or ["-"]
        line += [f"{median(row['over_one']):.2f}" for row in two] or ["-"]
        who = OVER_TRACES.get(subject, subject)
        for trace in traces:
            found = of(rows, question="memory", trace=trace, subject=who, kernel_ns=0)
            over = [f"{percent_over(row['smallest'], row['live']):+.2f} %" for row in found]
            line.append(over[0] if over else "-")
        lines.append(line)
    return table(heads, lines)


def by_column(rows, column, shown, head):
    """A row for each subject and cost of an event, a column for each value."""
    heads = ["", "event"] + [head(value) for value in shown]
    lines = []
    for (subject, event_ns), group in groups(rows, "subject", "event_ns"):
        known = {row[column]: spread(row["ns"]) for row in group}
        lines.append([subject, events(event_ns)] + [known.get(value, "-") for value in shown])
    return table(heads, lines)


def hit(rows):
    return by_column(of(rows, question="hit"), "size", SHOWN_SIZES, size)


def steady(rows):
    parts = []
    for (doublings,), some in groups(of(rows, question="steady"), "doublings"):
        lines = [
            [
                row["subject"],
                events(row["event_ns"]),
                row["live"],
                spread(row["ns"]),
                spread(row["p50"]),
                spread(row["p99"]),
                spread(row["p999"]),
            ]
            for row in some
        ]
        heads = ["", "event", "live", "mean", "p50", "p99", "p99.9"]
        parts.append(f"sizes from 512 B to {size(512 << doublings)}:\n" + table(heads, lines))
    return "\n\n".join(parts)


def random(rows):
    return by_column(
        of(rows, question="random"), "largest_mib", (1, 4, 64), lambda mib: f"up to {mib} MiB"
    )


def fences(rows):
    """Driver calls about fences, of the arena with events that cost."""
    lines = []
    for question, column in (("hit", "size"), ("steady", "live")):
        for row in of(rows, question=question, subject="arena", event_ns=175):
            if row.get("doublings", 17) == 17:
                what = size(row["size"]) if column == "size" else f"{row['live']} live"
                lines.append(
                    [
                        question,
                        what,
                        spread(row["fences_per_free"]),
                        spread(row["fence_ns_per_free"]),
                    ]
                )
    return table(["", "", "calls per free", "ns per free"], lines, left=2)


def baseline(rows):
    shown = (4096, 1 << 20, 16 << 20)
    lines = []
    for (through,), group in groups(of(rows, question="baseline"), "through"):
        known = {row["size"]: spread(row["ns"]) for row in group}
        lines.append([f"model device, {through}"] + [known.get(value, "-") for value in shown])
    return table([""] + [size(value) for value in shown], lines)


def who(rows):
    shown = (512, 4096, 65536)
    rows = of(rows, question="who")
    lines = []
    for (subject,), group in groups([row for row in rows if "size" in row], "subject"):
        known = {row["size"]: spread(row["ns"]) for row in group}
        lines.append([subject] + [known.get(value, "-") for value in shown])
    parts = [table([""] + [size(value) for value in shown], lines)]
    lines = [[row["subject"], spread(row["ns"])] for row in rows if "frames" in row]
    parts.append(table(["60 places of libraries, 10 of Python", "4 KiB"], lines))
    return "\n\n".join(parts)


def exit(rows):
    lines = [
        [row["subject"], row["cache"]]
        + [spread(row[column]) for column in ("ms", "processor_ms")]
        + [f"{median(row[column]):g}" for column in ("requests", "stacks")]
        for row in of(rows, question="exit")
    ]
    heads = ["", "PyTorch's cache", "ms", "of the processor", "requests", "stacks"]
    return table(heads, lines, left=2)


def recording(rows):
    columns = ("bytes_per_event", "ns_per_event", "read_ns_per_event")
    lines = [
        [row["trace"]] + [spread(row[column]) for column in columns]
        for row in of(rows, question="recording")
    ]
    return table(["", "bytes", "ns, written", "ns, read"], lines)


def threads(rows):
    parts = []
    for (doublings,), some in groups(of(rows, question="threads"), "doublings"):
        lines = []
        for (subject, event_ns), group in groups(some, "subject", "event_ns"):
            known = {row["threads"]: row for row in group}
            rate = {n: [ns / 1e6 for ns in known[n]["pairs_per_s"]] for n in known}
            lines.append(
                [subject, events(event_ns)]
                + [spread(rate[n]) for n in (1, 2, 4)]
                + [f"{median(known[2]['over_one']):.2f}"]
                + [spread(known[n]["ns"]) for n in (1, 2)]
            )
        heads = ["", "event", "1 thread", "2 threads", "4 threads", "2 over 1", "ns, 1", "ns, 2"]
        parts.append(
            f"million pairs a second, sizes from 512 B to {size(512 << doublings)}; "
            "ns of one thread's pair:\n" + table(heads, lines)
        )
    return "\n\n".join(parts)


def exchange(rows):
    return by_column(of(rows, question="exchange"), "size", (4096, 1 << 20), size)


def passes(report):
    """The memory calls of each pass, where they were counted so."""
    if not report or not isinstance(report["calls"], list):
        return "-"
    return "+".join(map(str, by_pass(report)))


def all_calls(report):
    calls = report["calls"]
    return calls[-1] if isinstance(calls, list) else calls


def over_live(row, bytes_):
    return percent_over(bytes_, row["live"])


def memory(rows):
    heads = ["trace", "", "kernels", "smallest device", "bound", "calls", "priced", "by unit"]
    heads += ["waits", "roomy: reserved", "calls by pass", "+3 %: calls by pass"]
    lines = []
    for row in of(rows, question="memory"):
        roomy, calls = row["roomy"], all_calls(row["tight"])
        lines.append(
            [
                row["trace"],
                row["subject"],
                duration(row["kernel_ns"]) if row["kernel_ns"] else "none",
                f"{over_live(row, row['smallest']):+.2f} %",
                f"{over_live(row, row['paged']):+.2f} %",
                memory_calls(calls),
                f"{priced(calls):.1f} ms",
                f"{priced_by_unit(calls):.1f} ms",
                calls["wait"],
                f"{over_live(row, roomy['reserved_peak']):+.1f} %",
                passes(roomy),
                passes(row.get("near")),
            ]
        )
    return table(heads, lines, left=2)


def mapped(rows):
    """Memory by virtual memory calls, beside the default strategy and PyTorch."""
    heads = ["trace", "", "smallest device", "kernels of 50 µs", "roomy: reserved"]
    heads += ["calls", "priced", "by unit", "+3 %: calls by pass"]
    lines = []
    some = of(rows, question="memory", kernel_ns=0)
    for (trace,), group in groups(some, "trace"):
        for subject in ("auto_growth", "mapped", "preloaded, mapped", NATIVE, EXPANDABLE):
            for row in of(group, subject=subject):
                calls = all_calls(row["tight"])
                late = of(rows, question="memory", trace=trace, subject=subject, kernel_ns=50_000)
                lagging = [f"{over_live(each, each['smallest']):+.2f} %" for each in late] or ["-"]
                lines.append(
                    [
                        trace,
                        subject,
                        f"{over_live(row, row['smallest']):+.2f} %",
                        lagging[0],
                        f"{over_live(row, row['roomy']['reserved_peak']):+.1f} %",
                        memory_calls(calls),
                        f"{priced(calls):.1f} ms",
                        f"{priced_by_unit(calls):.1f} ms",
                        passes(row.get("near")),
                    ]
                )
    return table(heads, lines, left=2)


def instructions(rows):
    lines = []
    for row in of(rows, question="instructions"):
        lines.append([row["path"], "all", number(row["instructions"])])
        lines += [
            ["", name, number(count)] for name, count in row["libraries"].items() if count >= 1
        ]
    counts = table(["a pair of 4 KiB", "in", "instructions"], lines, left=2)
    lines = [
        [row["path"], each["function"], number(each["instructions"])]
        for row in of(rows, question="instructions")
        for each in row["functions"]
        if each["instructions"] >= 5
    ]
    return (
        counts
        + "\n\n"
        + table(["", "function, without what it calls", "instructions"], lines, left=2)
    )


def footprint(rows):
    lines = []
    rows = of(rows, question="footprint")
    for row in rows:
        if "blocks" in row:
            count, host, pages = row["blocks"], median(row["host"]), median(row["page_map"])
            lines.append(
                [
                    count,
                    number((host - pages) / count),
                    number((median(row["host_peak"]) - pages) / count),
                    number(pages / count),
                    size_of(host),
                ]
            )
    heads = ["live blocks", "bytes per block", "at most", "page map per block", "all of it"]
    parts = [table(heads, lines, left=0)]
    lines = [
        [
            row["steady"],
            median(row["replacements"]),
            size_of(median(row["books"])),
            size_of(median(row["books_growth"])),
            size_of(median(row["page_map"])),
            size_of(median(row["page_map_growth"])),
            f"{100 * median(row['page_map']) / median(row['given']):.2f} %",
            size_of(median(row["reserved_growth"])),
        ]
        for row in rows
        if "steady" in row
    ]
    heads = [
        "4000 live",
        "replacements",
        "books",
        "growth",
        "page map",
        "growth",
        "of all given",
        "reserved growth",
    ]
    return "\n\n".join(parts + [table(heads, lines)])


def size_of(count):
    return f"{count / (1 << 20):.2f} MiB"


def symbols(rows):
    lines = [
        [row["library"]]
        + [f"{median(row[key]):.2f}" for key in ("first_s", "again_s", "whole_s")]
        for row in of(rows, question="symbols")
    ]
    return table(["library", "names", "kept names", "with the file's reading"], lines)


def growth(rows):
    parts = []
    for (by,), some in groups(of(rows, question="growth"), "by"):
        counts = list(dict.fromkeys(row["count"] for row in some))
        lines = []
        for (operation,), group in groups(some, "operation"):
            known = {row["count"]: median(row["ns"]) for row in group}
            lines.append(
                [operation]
                + [number(known[count]) for count in counts]
                + [f"{exponent(known):+.2f}"]
            )
        parts.append(table([f"ns by {by}"] + [str(c) for c in counts] + ["exponent"], lines))
    lines = []
    for row in of(rows, question="threads", subject="arena", event_ns=0, doublings=17):
        lines.append([row["threads"], number(median(row["ns"]))])
    if lines:
        known = {count: float(ns) for count, ns in lines}
        parts.append(
            table(
                ["ns by threads"] + [str(c) for c in known] + ["exponent"],
                [
                    ["pair, mean"]
                    + [number(ns) for ns in known.values()]
                    + [f"{exponent(known):+.2f}"]
                ],
            )
        )
    return "\n\n".join(parts)


def exponent(known):
    """The slope of log cost over log count: 0 is constant, 1 linear."""
    import math

    points = [(math.log(count), math.log(max(ns, 0.01))) for count, ns in known.items()]
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return above / below if below else 0.0
