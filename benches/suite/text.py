"""Tables and numbers as text."""

import run


def number(value):
    """Three digits or so, whatever the size."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def spread(values):
    """The median, with the least and the most behind it."""
    middle = number(run.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))}..{number(max(values))})"


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


def duration(ns):
    for unit, name in ((1_000_000, "ms"), (1000, "µs")):
        if ns >= unit:
            return f"{ns / unit:g} {name}"
    return f"{ns} ns"


def percent_over(value, base):
    return 100 * (value / base - 1)


def table(heads, rows, left=1):
    """Columns as wide as what is in them; the first `left` to the left."""
    cells = [list(heads)] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]

    def line(row):
        padded = (
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in cells)
