"""Whether the call stacks of the statistics name the lines that the interpreter
itself names: lines.c notes those at each allocation."""

import collections
import subprocess

SLOT = 512
NOWHERE = None


def compiled(source, folder):
    """The library that notes the lines."""
    library = folder / "lines.so"
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", library, source, "-ldl"], check=True)
    return library


def steps(notes):
    """What was noted: the address, and of an allocation its size and line."""
    for line in notes.read_text().splitlines():
        sign, address, *rest = line.split(" ", 3)
        if sign == "-":
            yield address, None
            continue
        size, place = rest
        yield address, (-int(size) // SLOT * -SLOT, NOWHERE if place == "-" else place)


def at_peak(notes):
    """Blocks and bytes of each line when most was live, and that most."""
    live, now, most, last = {}, 0, 0, 0
    for number, (address, block) in enumerate(steps(notes), 1):
        if block:
            live[address] = block
            now += block[0]
        else:
            now -= live.pop(address)[0]
        if now > most:
            most, last = now, number
    live = {}
    for number, (address, block) in enumerate(steps(notes), 1):
        if number > last:
            break
        if block:
            live[address] = block
        else:
            del live[address]
    return sums((place, 1, size) for size, place in live.values()), most


def sums(rows):
    """Blocks and bytes of each line."""
    each = collections.defaultdict(lambda: [0, 0])
    for place, count, size in rows:
        each[place][0] += count
        each[place][1] += size
    return dict(each)


def told(statistics):
    """The same by the statistics."""
    stacks = statistics["call_stacks"]
    frames = stacks["frames"]
    innermost = {}
    for stack in stacks["stacks"]:
        python = (frames[at] for at in stack["frames"] if "line" in frames[at])
        places = (f"{frame['file']}:{frame['line']}" for frame in python)
        innermost[stack["stack"]] = next(places, NOWHERE)
    peak = ((innermost.get(row["stack"]), row["count"], row["bytes"]) for row in stacks["peak"])
    return sums(peak)


def same(check, name, statistics, notes):
    """Each block that was live at the peak has its line, or, where its thread ran no
    Python, a stack of the operator."""
    (noted, most), found = at_peak(notes), told(statistics)
    lines = [place for place in noted if place is not NOWHERE]
    check(f"{name}: lines of Python at the peak: {len(lines)}", len(lines) >= 5, str(noted))
    for place in sorted(lines):
        known, own = noted[place], found.get(place)
        what = f"{name}: {place}: {known[0]} blocks, {known[1]} bytes"
        check(what, known == own, f"{own} in the statistics")
    strange = {place: found[place] for place in found if place not in noted}
    check(f"{name}: no other line at the peak", not strange, str(strange))
    rest, own = (each.get(NOWHERE, [0, 0]) for each in (noted, found))
    check(f"{name}: {rest[0]} blocks of threads without Python", rest == own, str(own))
    peak = statistics["arenas"][0]["live_bytes"]["peak"]
    check(f"{name}: {most} bytes at the peak", peak == most, f"{peak} in the statistics")


def noted(check, name, statistics, notes):
    """Each line that the statistics tell of was noted, over the whole run for at
    least as many blocks: where libraries allocate past the functions that note, the
    peak is another one, and larger."""
    each = sums((block[1], 1, block[0]) for _, block in steps(notes) if block)
    found = {place: row for place, row in told(statistics).items() if place is not NOWHERE}
    check(f"{name}: lines of Python at the peak: {len(found)}", len(found) >= 5, str(found))
    for place, (count, _) in sorted(found.items()):
        most = each.get(place, [0, 0])[0]
        check(f"{name}: {place}: {count} blocks", count <= most, f"{most} noted in all")


def named(check, name, command, statistics):
    """What threads without Python asked for carries the symbol of the operator, and
    the report tells how much that was, and how much Python code asked for."""

    def said(*words):
        words = [*map(str, (command, *words))]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    folded = said("export", statistics, "--format", "folded", "--at", "peak").splitlines()
    rest = [line for line in folded if ".py" not in line]
    unnamed = [line for line in rest if "at::_ops::" not in line]
    check(f"{name}: {len(rest)} stacks without Python", rest and not unnamed, str(unnamed))
    report = " ".join(said("report", statistics).split())
    for part in ("asked for by Python code,", "by threads without Python"):
        check(f"{name}: the report tells how much was {part}", part in report)
