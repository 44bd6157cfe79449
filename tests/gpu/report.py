"""The results as tables: for a terminal, and as Markdown to keep."""

import text
from results import FAIL, PASS, SKIP


def summary(results):
    heads = ["group", "passed", "failed", "skipped", "seconds"]
    rows = [
        [
            group,
            *(results.count(state, group) for state in (PASS, FAIL, SKIP)),
            f"{results.seconds.get(group, 0):.0f}",
        ]
        for group in results.groups()
    ]
    return heads, rows


def closing(results):
    skipped = results.count(SKIP)
    return (
        f"{results.count(PASS)} passed, {results.count(FAIL)} failed"
        f"{f', {skipped} skipped' if skipped else ''}"
    )


def terminal(results):
    parts = [text.table(*summary(results))]
    speeds = [each for each in results.measurements if each["group"] == "speed"]
    if speeds:
        rows = [[each["name"], each["value"], each["note"]] for each in speeds]
        parts.append(text.table(["speed", "median", "spread"], rows))
    return "\n\n".join(parts)


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", "<br>")


def markdown_table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
    return "\n".join(lines)


def machine_lines(machine):
    return "\n".join(f"- {name}: {value}" for name, value in machine.items() if value)


def assumptions(results):
    """The checks of the facts, those that do not hold first."""
    facts = [each for each in results.checks if each["group"] == "facts"]
    facts.sort(key=lambda each: each["state"] != FAIL)
    return [[each["name"], each["state"], each["note"]] for each in facts]


def hazards(results):
    """Of each row of docs/compatibility.md, what bears on it and how it went."""
    rows = sorted({row for each in results.checks for row in each["hazards"]})
    found = []
    for row in rows:
        mine = [each for each in results.checks if row in each["hazards"]]
        failed = [each["name"] for each in mine if each["state"] == FAIL]
        passed = sum(each["state"] == PASS for each in mine)
        found.append([row, passed, len(failed), "; ".join(failed[:5])])
    return found


def markdown(results):
    parts = [
        f"# {results.machine.get('GPU', 'GPU')}",
        f"`scripts/gpu-check`: {closing(results)}.",
        machine_lines(results.machine),
        markdown_table(*summary(results)),
    ]
    failed = [each for each in results.checks if each["state"] == FAIL]
    if failed:
        rows = [[each["group"], each["name"], each["note"]] for each in failed]
        parts += ["## What failed", markdown_table(["group", "check", "found"], rows)]
    speeds = [each for each in results.measurements if each["group"] == "speed"]
    if speeds:
        rows = [[each["name"], each["value"], each["note"]] for each in speeds]
        parts += ["## Speed", markdown_table(["program", "median", "spread"], rows)]
    if hazards(results):
        heads = ["hazard", "passed", "failed", "which"]
        parts += [
            "## Hazards, by their rows in docs/compatibility.md",
            markdown_table(heads, hazards(results)),
        ]
    if assumptions(results):
        parts += [
            "## What is assumed of CUDA",
            markdown_table(["assumption", "holds", "measured"], assumptions(results)),
        ]
    skipped = [each for each in results.checks if each["state"] == SKIP]
    if skipped:
        rows = [[each["group"], each["name"], each["note"]] for each in skipped]
        parts += ["## What was not checked", markdown_table(["group", "check", "why"], rows)]
    facts = [each for each in results.measurements if each["group"] == "facts"]
    if facts:
        rows = [[each["name"], each["value"], each["unit"], each["note"]] for each in facts]
        parts += ["## Facts", markdown_table(["fact", "value", "unit", "note"], rows)]
    return "\n\n".join(parts) + "\n"
