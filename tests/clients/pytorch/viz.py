"""Opens a snapshot with PyTorch's own _memory_viz.py, in every way that needs no
network: what it counts is what the statistics say.

Called by check.py with the statistics of a run, which also holds every snapshot
to the rules of tests/preload/snapshot.py.
"""

import base64
import importlib.util
import json
import pathlib
import pickle
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
COMMAND = ROOT / "target" / "release" / "vramalloc"
RULES = ROOT / "tests" / "preload" / "snapshot.py"


def script():
    """PyTorch's script, without importing PyTorch."""
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    return pathlib.Path(torch) / "cuda" / "_memory_viz.py"


def run(*arguments):
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.strip()


def plotted(page):
    """The snapshot inside a page: it is unpickled by the page's own code."""
    text = pathlib.Path(page).read_text()
    files = json.loads(re.search(r"local_files = (\[.*\])", text)[1])
    # Padded with zeros, which come after the end of the pickle.
    return pickle.loads(base64.b64decode(files[0]["base64"]))


def opened(check, name, statistics):
    """Checks that the snapshot of a run's statistics (a file) can be opened."""
    target = statistics.with_suffix(".snapshot.pickle")
    beside = ["--snapshot-json", target.with_suffix(".json")]
    code, _, errors = run(COMMAND, "report", "--snapshot", target, *beside, statistics)
    check(f"{name}: a snapshot is made", code == 0, errors)
    if code != 0:
        return
    code, found, errors = run(sys.executable, RULES, target)
    check(f"{name}: it keeps the rules", code == 0, errors)
    snapshot = pickle.loads(target.read_bytes())
    events = [event for events in snapshot["device_traces"] for event in events]
    check(f"{name}: it has blocks and events", snapshot["segments"] and events)

    code, text, errors = run(sys.executable, script(), "stats", target)
    segments = f"segments: {len(snapshot['segments'])}\n"
    check(f"{name}: stats counts the segments", code == 0 and segments in text, errors or text)

    code, text, errors = run(sys.executable, script(), "trace", target)
    taken = sum(event["action"] == "segment_alloc" for event in events)
    good = code == 0 and f"{len(events)} entries" in text and text.count("cudaMalloc(") == taken
    check(f"{name}: trace lists the events", good, errors or text[-500:])

    for plot in ("trace_plot", "segment_plot"):
        page = target.with_suffix(f".{plot}.html")
        code, _, errors = run(sys.executable, script(), plot, target, "-o", page)
        same = code == 0 and plotted(page) == snapshot
        check(f"{name}: {plot} makes a page of it", same, errors or "another snapshot")
