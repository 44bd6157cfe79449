"""Runs the checks of ci/ side by side, as far as they do not need each other.

usage: ci/steps.py [--long] [STEP…]: see scripts/test.
"""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target/test-logs"

# The lines in which a runner says how it ended.
CLOSING = re.compile(r"^(test result: |[0-9]+ passed, [0-9]+ failed)")
FAILURES = re.compile(r"\b[1-9][0-9]* failed|FAILED")

# In seconds, how long a step may take to end when it is told to.
GRACE_S = 10

# What somebody set for programs of their own is no part of a test.
FOREIGN = re.compile(
    r"(VRAMALLOC|FLAGS|SIM_CUDA|PYTORCH)_|LD_PRELOAD$|CARGO_(BUILD_)?TARGET_DIR$"
)

# How many of the slowest steps are named at the end.
SLOWEST = 5


@dataclass
class Step:
    """A script of ci/ of this name."""

    # What it needs of other steps: what they build, or that they are over.
    after: tuple = ()
    # Nothing else runs meanwhile: it measures times.
    alone: bool = False
    # A bounded part of it is run, unless the whole is asked for.
    bounded: bool = False
    # It is run where the whole is asked for, or it is named.
    long: bool = False
    # It takes long, so it gets more of the processors than those beside it.
    first: bool = False


# In the order in which they are begun where several could be: what takes long,
# and what others wait for, comes first. Two that build in one folder of target/
# would only wait for each other's lock.
STEPS = {
    "tools": Step(),
    "format": Step(("tools",)),
    "licences": Step(("tools",)),
    "floors": Step(("tools",)),
    "words": Step(("tools",)),
    "build": Step(("tools",)),
    "lint": Step(("tools",)),
    "preload": Step(("build", "lint"), bounded=True, first=True),
    "unit": Step(("build", "lint"), bounded=True, first=True),
    "docs": Step(("lint",)),
    "hazards": Step(("build",), bounded=True),
    "advice": Step(("build",), bounded=True),
    "loom": Step(("lint",)),
    "faults": Step(("build",), bounded=True),
    "header": Step(("tools",)),
    "differential": Step(("build",), bounded=True),
    "fuzz": Step(("tools",), long=True),
    "stress": Step(("build",), bounded=True),
    "gpu-check": Step(("build",), bounded=True),
    "instructions": Step(("build",)),
    "symbols": Step(("build",)),
    "clients": Step(("build",)),
    "python": Step(("build",)),
    "quickstart": Step(("build",)),
    "examples": Step(("build",)),
    "package": Step(("build",), bounded=True),
    "exports": Step(("build",)),
    "needed": Step(("build",)),
    "inert": Step(("build",), alone=True),
}


class Failed(Exception):
    """A step failed; what to say of it."""


@dataclass
class Running:
    process: subprocess.Popen
    began: float


def question(name):
    """What the step answers, from the third line of its script."""
    lines = (ROOT / "ci" / name).read_text().splitlines()
    return lines[2].removeprefix("# ")


def begin(name, whole):
    """Starts a step, its output in a log of its own."""
    print(f"-- {name}: {question(name)}", flush=True)
    before = [] if STEPS[name].first else ["nice", "-n", "3"]
    arguments = ["--long"] if whole and STEPS[name].bounded else []
    with open(LOGS / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            [*before, ROOT / "ci" / name, *arguments],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Running(process, time.monotonic())


def ended_with(step):
    """Its exit status and the processor time of all that it ran, once it ended."""
    pid, status, usage = os.wait4(step.process.pid, os.WNOHANG)
    if pid == 0:
        return None
    step.process.returncode = os.waitstatus_to_exitcode(status)
    return step.process.returncode, round(usage.ru_utime + usage.ru_stime)


def show(name):
    """Prints what a step says, as it comes."""
    with open(LOGS / f"{name}.log", errors="replace") as log:
        while True:
            text = log.read()
            if not text:
                yield
            print(text, end="", flush=True)


def signalled(step, number):
    """Sends a signal to the step's processes, if any is left."""
    try:
        os.killpg(step.process.pid, number)
    except ProcessLookupError:
        pass


def stop(running):
    """Ends what still runs, with all that it has started."""
    for step in running.values():
        signalled(step, signal.SIGTERM)
    for step in running.values():
        try:
            step.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        signalled(step, signal.SIGKILL)
        step.process.wait()


def may_begin(name, running, slots):
    """Whether there is room for a step beside those that run."""
    if not running:
        return True
    if STEPS[name].alone or any(STEPS[other].alone for other in running):
        return False
    return len(running) < slots


def run(names, whole):
    """Runs the steps; how many seconds each took."""
    # One more than there are processors: programs under test also wait.
    slots = len(os.sched_getaffinity(0)) + 1
    waiting, running, took = list(names), {}, {}
    shown = None
    try:
        while waiting or running:
            for name in list(waiting):
                needs = [other for other in STEPS[name].after if other in names]
                ready = all(other in took for other in needs)
                if ready and may_begin(name, running, slots):
                    waiting.remove(name)
                    running[name] = begin(name, whole)
                    shown = show(name) if len(names) == 1 else None
            time.sleep(0.2)
            ended = {name: ended_with(step) for name, step in running.items()}
            if shown:
                next(shown)
            for name, end in ended.items():
                if end is None:
                    continue
                status, busy = end
                step = running.pop(name)
                signalled(step, signal.SIGKILL)
                seconds = round(time.monotonic() - step.began)
                took[name] = seconds
                if status or any(FAILURES.search(line) for line in closing_lines(name)):
                    raise Failed(name, status, seconds)
                print(f"ok {name}: {seconds} s, {busy} s of processor time", flush=True)
    finally:
        stop(running)
    return took


def not_entered():
    """The scripts of ci/ that are no steps, and steps without a script."""
    helpers = {"pages"}
    scripts = {path.name for path in (ROOT / "ci").iterdir() if os.access(path, os.X_OK)}
    scripts = {name for name in scripts if (ROOT / "ci" / name).is_file()}
    return sorted((scripts - helpers) ^ set(STEPS))


def closing_lines(name):
    text = (LOGS / f"{name}.log").read_text(errors="replace")
    return [line for line in text.splitlines() if CLOSING.match(line)]


def summary(took, seconds):
    print("\n== summary")
    for name in took:
        for line in closing_lines(name):
            print(f"{name}: {line}")
    slowest = sorted(took.items(), key=lambda item: -item[1])[:SLOWEST]
    print("slowest: " + ", ".join(f"{name} {took} s" for name, took in slowest))
    print(f"steps: {len(took)} passed, 0 failed")
    print(f"all {len(took)} steps passed in {seconds} s")


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = sys.argv[1:]
    whole = "--long" in arguments
    asked = [name for name in arguments if name != "--long"]
    asked = list(dict.fromkeys(asked))
    unknown = [name for name in asked if name not in STEPS]
    if unknown:
        known = " ".join(STEPS)
        print(f"scripts/test: no step '{unknown[0]}'; steps: {known}", file=sys.stderr)
        return 2
    if wrong := not_entered():
        print(f"scripts/test: ci/{wrong[0]} and STEPS in ci/steps.py disagree", file=sys.stderr)
        return 2
    if asked == []:
        asked = [name for name, step in STEPS.items() if whole or not step.long]
    for name in filter(FOREIGN.match, list(os.environ)):
        del os.environ[name]
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        took = run(asked, whole)
    except Failed as failed:
        name, status, seconds = failed.args
        log = LOGS / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines()
        print(f"\n== {name} failed after {seconds} s; the end of its output:")
        print("\n".join(lines[-60:]))
        print(
            f"scripts/test: step '{name}' failed with status {status}; "
            f"its output: {log.relative_to(ROOT)}",
            file=sys.stderr,
        )
        print("steps: 1 failed")
        return 1
    summary(took, round(time.monotonic() - began))
    return 0


if __name__ == "__main__":
    sys.exit(main())
