"""What was measured, and on what."""

import os
import pathlib
import platform
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# A load from which on others had a part of the processor.
BUSY = 0.5


def said(*command):
    """The first line that a command prints; empty where there is none."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return ""
    return (done.stdout.splitlines() or [""])[0]


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in fields.items()}
    virtual = " (a virtual machine)" if "hypervisor" in names.get("flags", "") else ""
    return names.get("model name", platform.machine()) + virtual


def commit():
    changed = said("git", "status", "--porcelain", "--untracked-files=no")
    return said("git", "rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def describe():
    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "rust": said("rustc", "--version"),
        "gcc": said("gcc", "--version"),
    }


def head(machine):
    busy = machine["load_before"] > BUSY
    return (
        f"commit {machine['commit']}, {machine['date']}\n"
        f"{machine['processor']}, {machine['cores']} cores; Linux {machine['kernel']}, "
        f"{machine['libc']}\n{machine['rust']}; {machine['gcc']}\n"
        f"load before: {machine['load_before']:.2f}; runs: {machine['runs']}"
        f"{' (quick)' if machine['quick'] else ''}; a figure is the median of the runs, "
        "with min..max behind it"
        + ("\nthe machine was busy with other work: times are too long and vary" if busy else "")
    )
