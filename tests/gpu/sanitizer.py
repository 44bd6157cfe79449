"""NVIDIA's compute-sanitizer over C programs, bare and under the library: it
finds nothing in them, and the library does not disturb it."""

from execute import run, tool

GROUP = "sanitizer"
# One after the other, since most of them look at how much of the device is free.
PROGRAMS = [("basics",), ("capture_modes",), ("host_memory",), ("threads",)]
OPTIONS = ["strategy:auto_growth", "strategy:passthrough"]


def errors(outcome):
    """What the tool counted; None where it did not come to that."""
    for line in (outcome.output + outcome.errors).splitlines():
        if "ERROR SUMMARY:" in line:
            return int(line.split("ERROR SUMMARY:")[1].split()[0])
    return None


def said(outcome):
    """The program's lines, without the tool's."""
    return [line for line in outcome.said()[0] if not line.startswith("=========")]


def check(place, results, program, kind, path):
    title = " ".join((*program, kind))
    # An error that the program asks for, such as a wrong free, is one too.
    checker = [tool("compute-sanitizer"), "--report-api-errors", "no"]
    command = [*checker, path, *program[1:]]
    bare = run(place, command, seconds=120)
    if errors(bare) is None:
        results.skip(GROUP, title, f"the tool does not run here: {bare.why()}")
        return
    good = errors(bare) == 0 and bare.status == 0 and said(bare)
    if not results.check(GROUP, f"{title}, bare: nothing found", good, bare.output[-600:]):
        return
    for options in OPTIONS:
        now = run(place, command, options, seconds=120)
        results.check(
            GROUP,
            f"{title}, {options}: nothing found",
            errors(now) == 0 and now.status == 0,
            f"{errors(now)} errors; {now.why()}",
        )
        results.check(
            GROUP,
            f"{title}, {options}: served",
            now.total("allocations") > 0,
            f"no statistics, or none of a request; {now.why()}",
        )
        same = said(now) == said(bare)
        apart = f"bare {said(bare)}, now {said(now)}"
        results.check(GROUP, f"{title}, {options}: prints as bare", same, apart)


def group(place, results, programs):
    if not tool("compute-sanitizer"):
        results.skip(GROUP, "compute-sanitizer", "it is not installed")
        return
    for program in PROGRAMS:
        for kind in programs.kinds:
            chosen = place.chooses(" ".join((*program, kind)))
            if chosen and (kind != "dynamic" or "static" not in programs.kinds):
                check(place, results, program, kind, programs.path(program[0], kind))
