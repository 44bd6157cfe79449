"""What CUDA does: measured by small programs, and held against what is assumed."""

import itertools
import subprocess

from assumptions import ASSUMPTIONS, about
from execute import ROOT, run, together

GROUP = "facts"
PROGRAMS = [
    "fact_waits",
    "fact_costs",
    "fact_marks",
    "fact_captures",
    "fact_amounts",
    "fact_handles",
    "fact_mapped",
    "fact_units",
    "fact_families",
]
# The fact about a look-up, which is measured preloaded.
DEEPBIND = "deepbind.served"
# Names of memory, of which a runtime must find no way past the library.
MEMORY = ("cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemHost", "cuIpc")
# Times, amounts, and how many bytes of a few random handles happen to be the same.
NEVER_THE_SAME = ("cost.", "amount.", "mark.delay", "mark.idle", "handle.bytes_always_the_same")


def read(output):
    found = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "fact":
            found[words[1]] = int(words[2])
    return found


def measure(place, results, programs, kind, name):
    """The facts of one program; an error on the way leaves those before it."""
    outcome = run(place, [programs.path(name, kind)], seconds=120)
    if results is not None:
        results.check(GROUP, f"{name} {kind}: ran to its end", outcome.status == 0, outcome.why())
    return read(outcome.output)


def unit_of(name):
    if name.startswith("cost.") or name in ("mark.delay", "mark.idle_ns"):
        return "ns"
    if name.startswith(("amount.", "alignment")) and "blocks" not in name:
        return "B"
    return ""


def hold_against(results, kind, facts, simulated):
    """Each assumption is one check of all facts that it is about."""
    wrong, right, texts = {}, {}, {}
    for name, value in facts.items():
        there = simulated.get(name)
        assumption = about(kind, name)
        note = ""
        if there is not None and unit_of(name) != "ns" and there != value:
            note = f"simulated: {there}"
        assumed = assumption.text if assumption else None
        results.measured(GROUP, f"{name} ({kind})", value, unit_of(name), assumed, note)
        if assumption:
            side = right if assumption.holds(value) else wrong
            side.setdefault(assumption.text, []).append(f"{name} = {value}")
            texts[assumption.text] = assumption
    for text, assumption in texts.items():
        bad, good = wrong.get(text, []), right.get(text, [])
        weight = "rests on it" if assumption.vital else "as modelled"
        of = f"{len(bad)} of {len(bad) + len(good)}: "
        results.check(
            GROUP,
            f"{text} ({kind}; {weight})",
            not bad,
            of + ", ".join(bad[:8]) + (" …" if len(bad) > 8 else ""),
            f"{len(good)} measured",
            assumption.hazards,
        )


def untold(results, kind, facts):
    """Assumptions of which no fact tells: what was not measured must not pass for good."""
    for assumption in ASSUMPTIONS:
        told = any(assumption.about(kind, name) for name in facts)
        if kind in assumption.kinds and assumption.facts != DEEPBIND and not told:
            name = f"{assumption.text} ({kind}): measured"
            why = f"no fact is named {assumption.facts}"
            if assumption.vital:
                results.check(GROUP, name, False, why, hazards=assumption.hazards)
            else:
                results.skip(GROUP, name, why)


def differences(results, kind, facts, simulated):
    """What is not what the simulated CUDA does, but for what need not be the same number."""

    def may_differ(name):
        assumption = about(kind, name)
        return name.startswith(NEVER_THE_SAME) or assumption and callable(assumption.expected)

    apart = [
        f"{name} = {value}, simulated {simulated[name]}"
        for name, value in facts.items()
        if name in simulated and not may_differ(name) and value != simulated[name]
    ]
    results.check(
        GROUP,
        f"all as the simulated CUDA has it ({kind})",
        not apart,
        f"{len(apart)}: " + "; ".join(apart),
    )


def deepbind(place, results, programs):
    """Under the library, since it is about preloading."""
    outcome = run(place, [programs.path("fact_deepbind", "driver")], options="")
    facts = read(outcome.output)
    title = "fact_deepbind: ran to its end, preloaded"
    if not results.check(GROUP, title, outcome.status == 0, outcome.why()):
        return
    if not facts.get("deepbind.blocks"):
        results.skip(GROUP, "a runtime opened with RTLD_DEEPBIND", "no runtime was found to open")
        return
    served = int(outcome.total("allocations") >= facts["deepbind.blocks"])
    hold_against(results, "driver", {DEEPBIND: served}, {})


def lookups(place, results, programs, kind):
    """Which of the driver's functions the runtime asks for, at which versions."""
    shim = place.results / "liblookups.so"
    source = ROOT / "tests" / "gpu" / "lookups.c"
    built = subprocess.run(
        ["gcc", "-O2", "-fPIC", "-shared", "-o", shim, source, "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        results.skip(GROUP, "look-ups of the runtime", built.stderr)
        return
    path = place.results / f"lookups.{kind}.txt"
    more = {"LD_PRELOAD": str(shim), "LOOKUPS": str(path)}
    outcome = run(place, [programs.path("steps", kind), "+1M", "-0"], environment=more)
    results.check(GROUP, f"look-ups ({kind}): the program ran", outcome.status == 0, outcome.why())
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    asked = [line.split() for line in lines]
    results.measured(GROUP, f"look-ups of the runtime ({kind})", len(asked), "")
    memory = sorted({(words[0], words[1]) for words in asked if words[0].startswith(MEMORY)})
    for name, versions in itertools.groupby(memory, key=lambda pair: pair[0]):
        listed = ", ".join(version for _, version in versions)
        results.measured(GROUP, f"look-up {name} ({kind})", listed, "")


def group(place, results, programs):
    simulated = place.on_simulated()
    for kind in programs.kinds:
        # Linked in or shared, it is the same runtime.
        if kind == "static" and "dynamic" in programs.kinds:
            continue
        facts, there = {}, {}
        chosen = [name for name in PROGRAMS if place.chooses(name)]
        for name in chosen:
            facts.update(measure(place, results, programs, kind, name))
        if simulated and not place.simulated:
            for found in together(
                place,
                [lambda n=name, k=kind: measure(simulated, None, programs, k, n) for name in chosen],
            ):
                there.update(found)
        hold_against(results, kind, facts, there)
        if chosen == PROGRAMS:
            untold(results, kind, facts)
        if there:
            differences(results, kind, facts, there)
    deepbind(place, results, programs)
    for kind in programs.kinds:
        if kind != "driver" and place.chooses("look-ups"):
            lookups(place, results, programs, kind)
