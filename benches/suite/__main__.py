"""The measuring suite; scripts/bench starts it, and has built what it runs."""

import argparse
import json
import re
import sys
import textwrap
import time

import ending
import goals
import instructions
import latency
import machine
import memory
import peers
import run
import symbols
import tables
import worse

RESULTS = machine.ROOT / "target" / "bench" / "results.json"
PLOTS = machine.ROOT / "target" / "bench"
PAGE = machine.ROOT / "docs" / "benchmarks.md"
# In the order of the tables: the question, and its words above the table.
QUESTIONS = {
    "hit": "A hit: an allocation and a free of one size, ns, the best of some rounds",
    "fences": "Fence work of the arena, with events that cost 175 ns",
    "steady": "A replaced pair: one live block freed, another allocated, ns",
    "random": "RMM's random_allocations, ns per call",
    "baseline": "Without a pool: the model device, and what the arena adds, ns per pair",
    "threads": "Threads, each with 64 live blocks of its own",
    "exchange": "One thread allocates and another frees, ns per block",
    "who": "Who asks: the best round of a pair, ns, by what is found out about the caller",
    "exit": "The end of a PyTorch process, from the last line of its program on, ms",
    "recording": "A recorded event, over the three traces: what it adds, and what it takes to be read",
    "memory": "The smallest device on which three passes complete, over the peak of live bytes",
    "instructions": "Instructions of the fast paths",
    "footprint": "Host memory of the arena's own",
    "symbols": "Names of 100 000 random addresses of a library, seconds",
    "growth": "How cost grows; the exponent is 0 for constant and 1 for linear",
}
# These have figures of another question.
DERIVED = {"fences": ("hit", "steady")}
TIMED = ("hit", "steady", "random", "baseline", "threads", "exchange", "who", "recording", "footprint", "growth")
# What does not change from run to run, or takes long enough to vary little.
ONCE = ("footprint", "growth")
# What a program says when it fails, in characters.
LONGEST_WHY = 60


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small amounts, one run, no downloads")
    parser.add_argument("--runs", type=int, help="runs of each timed program (11; quick: 1)")
    parser.add_argument("--only", default="", help="only these questions: " + ", ".join(QUESTIONS))
    parser.add_argument("--load-before", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help="print the last results again")
    parser.add_argument("--docs", action="store_true", help="put the short tables into docs/benchmarks.md")
    parsed = parser.parse_args()
    parsed.runs = parsed.runs or (1 if parsed.quick else 11)
    parsed.questions = [name for name in parsed.only.split(",") if name] or list(QUESTIONS)
    # What costs nothing more is answered too.
    parsed.questions += [
        name
        for name, sources in DERIVED.items()
        if name not in parsed.questions and set(sources) <= set(parsed.questions)
    ]
    unknown = set(parsed.questions) - set(QUESTIONS)
    if unknown:
        parser.error(f"no question {', '.join(sorted(unknown))}")
    return parsed


def say(what):
    print(f"bench: {what}", file=sys.stderr, flush=True)


def wanted(questions):
    """The questions to measure, those that others derive from included."""
    needed = [each for name in questions for each in DERIVED.get(name, (name,))]
    return list(dict.fromkeys(needed))


def measure(options):
    cpu, absent = peers.cpu_allocators(not options.quick)
    torch, why = peers.torch(not options.quick)
    if torch:
        run.output(["scripts/build-benches", "--torch", torch])
    else:
        absent[memory.NATIVE] = why
    amounts = latency.Amounts(options.quick)
    rows, questions = [], wanted(options.questions)
    for runs, names in ((1, ONCE), (options.runs, set(TIMED) - set(ONCE))):
        jobs = [
            job
            for question in TIMED
            if question in questions and question in names
            for job in latency.jobs(question, amounts, torch, cpu)
        ]
        more, failed = run.run_all(jobs, runs, say)
        rows, absent = rows + more, absent | failed
    if "memory" in questions:
        more, failed = memory.measure(options.quick, torch, say)
        rows, absent = rows + more, absent | failed
    if "instructions" in questions:
        more, failed = instructions.measure(say)
        rows, absent = rows + more, absent | failed
    if "symbols" in questions:
        more, failed = symbols.measure(torch, say)
        rows, absent = rows + more, absent | failed
    if "exit" in questions:
        more, failed = ending.measure(torch, options.runs, say)
        rows, absent = rows + more, absent | failed
    if "growth" in questions:
        more, failed = instructions.growth(amounts.growth_blocks, say)
        rows, absent = rows + more, absent | failed
    return rows, absent


def sections(questions, rows, results):
    """Each question with its table and its goals, as text."""
    for question in questions:
        if not any(tables.of(rows, question=each) for each in DERIVED.get(question, (question,))):
            continue
        body = getattr(tables, question)(rows)
        about = goals.text([r for r in results if r["question"] == question])
        yield question, body + (f"\n\n{about}" if about else "")


def say_absent(absent):
    short = {name: textwrap.shorten(why, LONGEST_WHY) for name, why in absent.items()}
    return "\n".join(f"not measured: {name}: {why}" for name, why in short.items())


def write_docs(done, rows, only):
    """Puts the short tables between their marks in the page; of some questions only,
    those that have no others in them."""
    page = PAGE.read_text()
    of_run = machine.head(done["machine"]).splitlines()[0]
    parts = {}
    if tables.of(rows, question="memory"):
        parts["mapped"] = f"{of_run}\n\n{tables.mapped(rows)}"
    if not only:
        parts |= {
            "machine": machine.head(done["machine"]),
            "absent": say_absent(done["absent"]) or "nothing",
            "summary": tables.summary(rows),
            "worse": worse.text(rows),
            "goals": goals.text(done["goals"]),
        }
    for name, text in parts.items():
        mark = re.compile(rf"(<!-- bench: {name} -->\n).*?(<!-- end -->)", re.S)
        if not mark.search(page):
            sys.exit(f"bench: {PAGE} has no place for {name}")
        page = mark.sub(lambda found, text=text: f"{found[1]}```\n{text}\n```\n{found[2]}", page)
    PAGE.write_text(page)
    say(f"{PAGE} is written")


def draw(rows):
    try:
        import plots
    except ImportError:
        say("no plots: matplotlib is not installed")
        return []
    return plots.draw(rows, PLOTS)


def main():
    options = arguments()
    if options.report:
        done = json.loads(RESULTS.read_text())
    else:
        about = machine.describe() | {
            "runs": options.runs,
            "quick": options.quick,
            "load_before": options.load_before,
        }
        start = time.monotonic()
        rows, absent = measure(options)
        about["minutes"] = round((time.monotonic() - start) / 60, 1)
        done = {"machine": about, "absent": absent, "figures": rows}
        done["goals"] = goals.results(rows)
        RESULTS.write_text(json.dumps(done, indent=1))
    rows = done["figures"]
    print(machine.head(done["machine"]))
    if done["absent"]:
        print("\n" + say_absent(done["absent"]))
    print(f"\n== Worse than the peer\n\n{worse.text(rows)}")
    for question, text in sections(options.questions, rows, done["goals"]):
        print(f"\n== {QUESTIONS[question]}\n\n{text}")
    judged = [r for r in done["goals"] if r["question"] in options.questions]
    print(f"\n== Goals\n\n{goals.text(judged)}")
    drawn = draw(rows)
    print(f"\nresults: {RESULTS}" + "".join(f"\nplot: {PLOTS / name}.svg" for name in drawn))
    if options.docs:
        write_docs(done, rows, options.only)


main()
