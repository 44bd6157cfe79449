"""One picture a question, as SVG, by matplotlib."""

import matplotlib

matplotlib.use("svg")
# Text as text keeps the files small; a fixed salt keeps them the same.
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "vramalloc"
matplotlib.rcParams["axes.spines.top"] = False
matplotlib.rcParams["axes.spines.right"] = False
matplotlib.rcParams["font.size"] = 9

import matplotlib.pyplot as plt  # noqa: E402  (after the settings)
from memory import EXPANDABLE, NATIVE  # noqa: E402
from run import median  # noqa: E402
from tables import groups, of  # noqa: E402
from text import percent_over  # noqa: E402


def save(figure, folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def style(subject):
    return "-" if subject == "arena" or subject.startswith("preloaded") else "--"


def latency(rows, folder):
    """Mean and p99 of a replaced pair over live blocks."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    some = of(rows, question="steady", doublings=17, event_ns=0)
    for axis, (field, name) in zip(axes, (("ns", "mean"), ("p99", "p99")), strict=True):
        for (subject,), group in groups(some, "subject"):
            live = [row["live"] for row in group]
            middle = [median(row[field]) for row in group]
            below = [m - min(row[field]) for m, row in zip(middle, group, strict=True)]
            above = [max(row[field]) - m for m, row in zip(middle, group, strict=True)]
            axis.errorbar(
                live,
                middle,
                [below, above],
                linestyle=style(subject),
                marker="o",
                markersize=3,
                capsize=2,
                label=subject,
            )
        goal = 60 if field == "ns" else 120
        axis.axhline(goal, color="gray", linewidth=0.8, linestyle=":")
        axis.annotate(f"goal {goal} ns", (16, goal), fontsize=7, va="bottom")
        axis.set(xscale="log", yscale="log", xlabel="live blocks", title=name)
        axis.set_xticks((16, 256, 1000, 4000), ("16", "256", "1000", "4000"))
        axis.minorticks_off()
    axes[0].set_ylabel("ns per free and allocation")
    axes[1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, folder, "latency")


def scaling(rows, folder):
    """Pairs a second over threads."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, (doublings, name) in zip(
        axes, ((17, "512 B to 64 MiB"), (7, "512 B to 64 KiB")), strict=True
    ):
        some = of(rows, question="threads", doublings=doublings, event_ns=0)
        for (subject,), group in groups(some, "subject"):
            axis.plot(
                [row["threads"] for row in group],
                [median(row["pairs_per_s"]) / 1e6 for row in group],
                linestyle=style(subject),
                marker="o",
                markersize=3,
                label=subject,
            )
        axis.set(xlabel="threads", title=name, yscale="log", xticks=(1, 2, 4))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:.2g}")
    axes[0].set_ylabel("million pairs a second")
    axes[1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, folder, "scaling")


def memory(rows, folder):
    """The smallest device over the live bytes, for each trace."""
    bars = (
        ("auto_growth", 0, "auto_growth"),
        ("auto_growth", 50_000, "auto_growth, kernels of 50 µs"),
        ("mapped", 0, "mapped"),
        ("mapped", 50_000, "mapped, kernels of 50 µs"),
        ("naive_best_fit", 0, "naive_best_fit"),
        (NATIVE, 0, NATIVE),
        (EXPANDABLE, 0, EXPANDABLE),
    )
    some = of(rows, question="memory")
    traces = list(dict.fromkeys(row["trace"] for row in some))
    figure, axis = plt.subplots(figsize=(9, 3.6))
    width = 0.8 / len(bars)
    for number, (subject, kernel_ns, label) in enumerate(bars):
        known = {row["trace"]: row for row in of(some, subject=subject, kernel_ns=kernel_ns)}
        if not known:
            continue
        places = [traces.index(trace) + (number - len(bars) // 2) * width for trace in known]
        over = [percent_over(row["smallest"], row["live"]) for row in known.values()]
        drawn = axis.bar(places, over, width, label=label)
        axis.bar_label(drawn, fmt="%.1f", fontsize=7)
    for place, trace in enumerate(traces):
        (row, *_) = of(some, trace=trace)
        bound = percent_over(row["paged"], row["live"])
        axis.hlines(
            bound,
            place - 0.5,
            place + 0.5,
            color="black",
            linewidth=1,
            label="every large block in pages of 2 MiB" if place == 0 else None,
        )
    axis.set_xticks(range(len(traces)), traces)
    axis.set(ylabel="% over the peak of live bytes", yscale="log")
    axis.legend(fontsize=7, frameon=False)
    save(figure, folder, "memory")


def draw(rows, folder):
    """All pictures for which there are figures; their names."""
    drawn = []
    for name, picture in (("steady", latency), ("threads", scaling), ("memory", memory)):
        if of(rows, question=name):
            picture(rows, folder)
            drawn.append(picture.__name__)
    return drawn
