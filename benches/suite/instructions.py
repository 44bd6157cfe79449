#!/usr/bin/env python3
"""Counts the instructions of the fast paths with valgrind's callgrind.

usage: instructions.py [--check FILE]

A pair is an allocation and a free of 4 KiB that the cache serves; of 2 MiB, which
needs a fence, where the path is called fenced; of 64 MiB, whose free makes the fence,
where it is called full; of all sizes up to 64 MiB, among 64 live blocks that are
replaced, where it is called mixed. Two numbers of pairs are run, and what lies between
the counts is what the pairs took: the start of the process is in both. --check compares with the bounds in FILE,
lines of `path bound`, and fails where a count is above its bound, or so far
below that the bound no longer guards what was gained.
"""

import collections
import pathlib
import re
import shutil
import sys
import tempfile

from run import ARENA, LIGHT, PROGRAMS, SIM, environment, output, over, preloaded

SIZE, FENCED, FULL = 4096, 2 << 20, 64 << 20
MIXED = ("live=64", "doublings=17")
FEW, MANY = 2048, 12_288
# Live blocks among which pairs are counted, for how cost grows.
LIVE = (10, 100, 1000, 10_000, 100_000, 1_000_000)
# How often a count above its bound is taken again, before the least says it.
AGAIN = 2
# A count below this share of its bound asks for a new bound.
LEAST_SHARE = 0.85


def preloaded_pairs(kind, size):
    command = [PROGRAMS / f"pairs.{kind}", "count", size]
    return lambda n: ([*command, n], over(LIGHT, SIM, **preloaded()))


PATHS = {
    "arena": lambda n: ([ARENA, "count", f"size={SIZE}", f"pairs={n}"], environment()),
    "arena_full": lambda n: ([ARENA, "count", f"size={FULL}", f"pairs={n}"], environment()),
    "arena_mixed": lambda n: ([ARENA, "count", *MIXED, f"pairs={n}"], environment()),
    "preloaded_dynamic": preloaded_pairs("dynamic", SIZE),
    "preloaded_static": preloaded_pairs("static", SIZE),
    "fenced_dynamic": preloaded_pairs("dynamic", FENCED),
    "fenced_static": preloaded_pairs("static", FENCED),
}
NUMBERED = re.compile(r"(ob|fn|cob|cfn|fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?")


def profile(path, pairs):
    """Instructions by library and function, without what they call."""
    return profile_of(*PATHS[path](pairs))


def profile_of(command, env):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        tool = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
        output([*tool, *command], env)
        return parse(out.read_text().splitlines())


def parse(text):
    """Sums up the lines of callgrind's format: `calls=` stands before a line
    that is the cost of the callee."""
    names, counts = {}, collections.Counter()
    here = {"ob": "", "fn": ""}
    is_callee = False
    for line in text:
        match = NUMBERED.match(line)
        if match:
            kind, number, name = match.groups()
            # Names are numbered once for objects, files and functions each.
            group = {"cob": "ob", "cfn": "fn"}.get(kind, kind)
            if name is not None:
                names[group, number] = name
            if kind in here:
                here[kind] = names[group, number]
        elif line.startswith("calls="):
            is_callee = True
        elif line[:1].isdigit() or line.startswith(("+", "-", "*")):
            if is_callee:
                is_callee = False
            else:
                counts[pathlib.Path(here["ob"]).name, here["fn"]] += int(line.split()[1])
    return counts


def per_pair(path):
    """Instructions a pair, by library and function."""
    many, few = profile(path, MANY), profile(path, FEW)
    return {
        key: (count - few[key]) / (MANY - FEW) for key, count in many.items() if count != few[key]
    }


def measure(say):
    """All paths; none where there is no valgrind."""
    if not shutil.which("valgrind"):
        return [], {"callgrind": "valgrind is not installed"}
    rows = []
    for path in PATHS:
        say(f"instructions: {path}")
        by_function = per_pair(path)
        libraries = collections.Counter()
        for (library, _), count in by_function.items():
            libraries[library] += count
        largest = sorted(by_function.items(), key=lambda item: -item[1])[:16]
        rows.append(
            {
                "question": "instructions",
                "path": path,
                "instructions": sum(by_function.values()),
                "libraries": dict(libraries.most_common()),
                "functions": [
                    {"library": library, "function": function, "instructions": count}
                    for (library, function), count in largest
                ],
            }
        )
    return rows, {}


def growth(most, say):
    """What the pairs of the arena take among ever more live blocks."""
    if not shutil.which("valgrind"):
        return [], {"instructions by live blocks": "valgrind is not installed"}
    rows = []
    for live in (live for live in LIVE if live <= most):
        say(f"growth: instructions among {live} live blocks")
        few, many = (
            sum(profile_of([ARENA, "count", f"live={live}", f"pairs={n}"], environment()).values())
            for n in (FEW, MANY)
        )
        about = {"question": "growth", "subject": "arena", "by": "live blocks", "count": live}
        rows.append(
            about | {"operation": "pair, instructions", "ns": [(many - few) / (MANY - FEW)]}
        )
    return rows, {}


def bounds(file):
    """The bounds by path; `#` begins a comment."""
    lines = (line.split("#")[0].split() for line in pathlib.Path(file).read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if words}


def check(file):
    """Prints a line a path; whether all are within their bounds."""
    wanted, failed = bounds(file), 0
    rows, absent = measure(lambda _: None)
    for name, why in absent.items():
        print(f"{name}: {why}", file=sys.stderr)
    if absent or wanted.keys() != PATHS.keys():
        print(f"paths measured: {', '.join(PATHS)}; bounded: {', '.join(wanted)}", file=sys.stderr)
        return False
    for row in rows:
        count, bound = row["instructions"], wanted[row["path"]]
        # What goes by the clock only adds to a count, on a busy machine.
        for _ in range(AGAIN):
            if count > bound:
                count = min(count, sum(per_pair(row["path"]).values()))
        verdict = "ok"
        if count > bound:
            verdict = "FAIL: above the bound; where it goes: scripts/bench --only instructions"
        elif count < LEAST_SHARE * bound:
            verdict = f"FAIL: well below the bound; set it to {round(count * 1.1)} in {file}"
        failed += verdict != "ok"
        print(f"{row['path']:<18} {count:7.1f} instructions a pair, bound {bound}: {verdict}")
    print(f"{len(rows) - failed} passed, {failed} failed")
    return failed == 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--check":
        sys.exit(__doc__)
    sys.exit(0 if check(sys.argv[2]) else 1)
