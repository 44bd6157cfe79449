"""Runs programs that print one JSON line a figure, and keeps what they said."""

import json
import os
import statistics
import subprocess

from machine import ROOT

PROGRAMS = ROOT / "target" / "bench" / "programs"
RELEASE = ROOT / "target" / "release"
LIGHT = ROOT / "target" / "bench" / "light"
SIM = ROOT / "target" / "sim"
LIBRARY = RELEASE / "libvramalloc.so"
ARENA = RELEASE / "bench-arena"
FOOTPRINT = RELEASE / "bench-footprint"
SECONDS = 900

# What tells lines apart; everything else that is a number is measured.
KEYS = (
    "size",
    "live",
    "largest_mib",
    "threads",
    "through",
    "by",
    "count",
    "operation",
    "blocks",
    "steady",
    "trace",
    "frames",
)


class Failed(Exception):
    """A program ended badly; what it said."""


def environment(**variables):
    """Of the environment only what a program needs to run at all."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {name: str(value) for name, value in variables.items()}


def over(*folders, **variables):
    """With CUDA from these folders."""
    return environment(LD_LIBRARY_PATH=":".join(map(str, folders)), **variables)


def preloaded(**variables):
    return {"LD_PRELOAD": LIBRARY, "VRAMALLOC_STATS": "off"} | variables


def output(command, env=None):
    """What a program prints; fails with the first line of its complaint."""
    done = subprocess.run(
        [str(word) for word in command],
        env=env or environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(said[0] if said else f"status {done.returncode}")
    return done.stdout


def lines(command, env=None):
    return [json.loads(line) for line in output(command, env).splitlines()]


class Job:
    """One program to be run several times: who is measured, and how."""

    def __init__(self, question, subject, command, env=None, **about):
        self.question, self.subject, self.about = question, subject, about
        self.command, self.env = command, env
        self.rows = {}

    def run(self):
        for line in lines(self.command, self.env):
            key = tuple((name, line.pop(name)) for name in KEYS if name in line)
            values = self.rows.setdefault(key, {})
            for name, value in line.items():
                values.setdefault(name, []).append(value)

    def results(self):
        return [
            {"question": self.question, "subject": self.subject} | self.about | dict(key) | values
            for key, values in self.rows.items()
        ]


def run_all(jobs, runs, say):
    """Every job once, then every job again, so that what drifts meets all."""
    absent = {}
    for number in range(runs):
        for job in jobs:
            if job.subject in absent:
                continue
            say(f"{job.question}: {job.subject}, run {number + 1} of {runs}")
            try:
                job.run()
            except Failed as failure:
                absent[job.subject] = str(failure)
    return [row for job in jobs for row in job.results()], absent


def median(values):
    return statistics.median(values)
