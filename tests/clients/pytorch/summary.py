"""Compares the table of `vramalloc report` with what PyTorch's own
memory_summary() makes of the same numbers: byte for byte.

Called by check.py with the statistics of a run. Called as a program with such a
file, prints PyTorch's table of each arena.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
COMMAND = ROOT / "target" / "release" / "vramalloc"
COLUMNS = 77
# On both sides of each place where a size or a count changes its unit; what does
# not fit its column makes the line wider.
EDGES = sorted(
    {
        edge * step**power + more
        for edge, step in ((768 * 1024, 1024), (750_000, 1000))
        for power in range(5)
        for more in (-1, 0, 1)
        if edge * step**power < 2**62
    }
    | {0, 1, 999, 1000, 1023, 1024, 2**62}
)


def rendered(path):
    """What PyTorch prints for the arenas of a file."""
    import torch.cuda.memory

    text = ""
    for arena in json.loads(pathlib.Path(path).read_text())["arenas"]:
        torch.cuda.memory.memory_stats = lambda device, arena=arena: arena["memory_stats"]
        text += torch.cuda.memory.memory_summary(arena["device"])
    return text


def at_edges(statistics):
    """The same with numbers at the edges: every edge leads a group once in
    every column."""
    arena = statistics["arenas"][0]
    for start in range(len(EDGES)):
        values = itertools.cycle(EDGES[start:] + EDGES[:start])
        stats = {key: next(values) for key in arena["memory_stats"]}
        yield {**arena, "device": start, "memory_stats": stats}


def ran(arguments, environment=None):
    done = subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, env=environment
    )
    return done.stdout, done.stderr.strip()


def compared(check, what, path, environment):
    out, errors = ran([COMMAND, "report", "--table", path], {**os.environ, "COLUMNS": "80"})
    ours = [line for line in out.splitlines() if line.startswith("|")]
    out, more = ran([sys.executable, __file__, path], environment)
    torchs = out.splitlines()
    pairs = itertools.zip_longest(ours, torchs)
    other = next((f"{one!r} is not {two!r}" for one, two in pairs if one != two), "")
    alike = bool(torchs) and ours == torchs
    check(f"{what}: {len(torchs)} lines alike", alike, f"{other} {errors} {more}")
    return torchs


def same(check, name, path, environment):
    """Checks the numbers of a run, and such as reach every unit."""
    lines = compared(check, f"{name}: memory_summary()", path, environment)
    wide = {len(line) for line in lines}
    check(f"{name}: of {COLUMNS} columns", wide == {COLUMNS}, str(wide))
    statistics = json.loads(path.read_text())
    edges = path.with_suffix(".edges.json")
    edges.write_text(json.dumps({**statistics, "arenas": list(at_edges(statistics))}))
    compared(check, f"{name}: memory_summary() at the edges of units", edges, environment)


if __name__ == "__main__":
    sys.stdout.write(rendered(sys.argv[1]))
