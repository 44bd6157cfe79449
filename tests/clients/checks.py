"""Checks that are printed as they are made, and counted; for the scripts that
run clients."""

import json

OUT_OF_MEMORY = "vramalloc: out of memory: "

passed = 0
failed = 0


def check(what, good, otherwise=""):
    global passed, failed
    if good:
        passed += 1
        print(f"ok    {what}", flush=True)
    else:
        failed += 1
        print(f"FAIL  {what}: {otherwise}", flush=True)


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        print(f"      {path.name}: {error}")
        return {}


def end():
    """Prints the count; the exit status."""
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
