"""Reads a snapshot as PyTorch's page memory_viz does, and checks its rules.

    snapshot.py OUT.pickle

OUT.json must lie beside it. Prints what is in it as one line of JSON; where a
rule is broken, an AssertionError tells which. Needs the standard library alone.
"""

import bisect
import collections
import io
import json
import pathlib
import pickle
import pickletools
import sys

# What the page's own unpickler knows, and of it no call of any kind.
OPCODES = set(
    """PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE APPEND APPENDS SETITEM
    SETITEMS LIST DICT TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1
    BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINPUT LONG_BINPUT MEMOIZE BINGET
    LONG_BINGET""".split()
)
TEXTS = {"SHORT_BINUNICODE", "BINUNICODE"}
# Opcodes after which there is one value more, fewer values more, the same.
PUSH = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE", "BININT",
        "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINGET",
        "LONG_BINGET"}
BATCH = 1000
SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int,
    "active_size": int, "requested_size": int, "stream": int, "segment_type": str,
    "segment_pool_id": tuple, "is_expandable": bool, "frames": list, "blocks": list,
}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
EVENT = {
    "action": str, "size": int, "stream": int, "time_us": int, "compile_context": str,
    "user_metadata": str, "pool_id": tuple,
}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int,
    "garbage_collection_threshold": float, "expandable_segments": bool,
    "pinned_num_register_threads": int, "release_lock_on_cudamalloc": bool,
    "pinned_use_cuda_host_register": bool, "graph_capture_record_stream_reuse": bool,
    "roundup_power2_divisions": dict,
}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
           "segment_map", "segment_unmap", "oom"}


def fits_the_page(data):
    """Only the opcodes, numbers and batches that the page can take."""
    depth, marks, last = 0, [], None
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        assert name in OPCODES, f"opcode {name}"
        if name == "PROTO":
            assert 2 <= argument <= 4, f"protocol {argument}"
        elif name == "LONG1":
            assert abs(argument) < 2**53, f"{argument} is not exact"
        elif name == "MEMOIZE":
            assert last in TEXTS, f"a memo of {last}"
        elif name == "MARK":
            marks.append(depth)
        elif name in ("APPENDS", "SETITEMS"):
            values = depth - marks.pop()
            assert values <= BATCH, f"{values} values at a time"
            depth -= values
        elif name == "TUPLE2":
            depth -= 1
        elif name in PUSH:
            depth += 1
        last = name
    assert (depth, marks) == (1, [])


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"a class: {module}.{name}")


def has(value, keys, what):
    for key, kind in keys.items():
        assert type(value.get(key)) is kind, f"{what}: {key} is {value.get(key)!r}"


def frames_hold(frames):
    for frame in frames:
        assert list(map(type, frame.values())) == [str, int, str], frame
        assert list(frame) == ["filename", "line", "name"], frame


def segment_holds(segment):
    """The blocks tile it, and its sums are theirs."""
    has(segment, SEGMENT, "segment")
    assert segment["segment_type"] in ("small", "large")
    assert segment["segment_pool_id"] == (0, 0)
    frames_hold(segment["frames"])
    at, sums = segment["address"], collections.Counter()
    for block in segment["blocks"]:
        has(block, BLOCK, "block")
        frames_hold(block["frames"])
        assert block["address"] == at, "a gap"
        at += block["size"]
        active = block["state"] in ("active_allocated", "active_pending_free")
        assert active or block["state"] == "inactive", block
        assert block["requested_size"] <= block["size"]
        assert active == (block["requested_size"] > 0), block
        sums["total_size"] += block["size"]
        sums["active_size"] += active * block["size"]
        sums["requested_size"] += block["requested_size"]
        sums["allocated_size"] += (block["state"] == "active_allocated") * block["size"]
    for key, total in sums.items():
        assert segment[key] == total, f"{key}: {segment[key]}, the blocks say {total}"


def fused(events):
    """As the page does it: a free that completes at once is one event."""
    result = []
    for event in events:
        before = result[-1] if result else None
        if (
            event["action"] == "free_completed"
            and before
            and before["action"] == "free_requested"
            and before["addr"] == event["addr"]
        ):
            before["action"] = "free"
        else:
            result.append(dict(event))
    return result


def undone(segments, events):
    """Undoes all events, from the newest back. At each step every block lies in
    a segment that is there. Returns what is left at the beginning."""
    extent = {s["address"]: s["total_size"] for s in segments}
    mapped = {s["address"] for s in segments if s["is_expandable"]}
    blocks = {
        block["address"]: block["state"] == "active_pending_free"
        for segment in segments
        for block in segment["blocks"]
        if block["state"] != "inactive"
    }
    sizes = {
        block["address"]: block["requested_size"]
        for segment in segments
        for block in segment["blocks"]
    }
    starts, held = sorted(extent), sorted(blocks)

    def home(address):
        at = bisect.bisect(starts, address) - 1
        assert at >= 0, "a block without a segment"
        start = starts[at]
        assert address < start + extent[start], "a block without a segment"
        return start

    def is_empty(address, size):
        """Whether no block begins there, and none reaches into it."""
        at = bisect.bisect_left(held, address + size) - 1
        return at < 0 or held[at] + sizes[held[at]] <= address

    def put(address, size):
        assert size > 0 and address not in extent
        extent[address] = size
        bisect.insort(starts, address)

    def take(address):
        starts.remove(address)
        return extent.pop(address)

    def join(address, size):
        """As the page does where a segment is mapped: with its neighbours it is one."""
        if address + size in mapped:
            mapped.remove(address + size)
            size += take(address + size)
        at = bisect.bisect(starts, address) - 1
        if at >= 0 and starts[at] in mapped and starts[at] + extent[starts[at]] == address:
            address = starts[at]
            size += take(address)
        put(address, size)
        mapped.add(address)

    def cut(address, size):
        """As the page does where it was mapped: what is beside it stays."""
        start = home(address)
        end = start + take(start)
        mapped.remove(start)
        assert address + size <= end, event
        for first, last in ((start, address), (address + size, end)):
            if first < last:
                put(first, last - first)
                mapped.add(first)

    for event in reversed(events):
        action, address, size = event["action"], event.get("addr"), event["size"]
        if action in ("free", "free_completed"):
            assert address not in blocks, event
            blocks[address], sizes[address] = action == "free_completed", size
            bisect.insort(held, address)
            home(address)
        elif action == "free_requested":
            assert blocks[address], event
            blocks[address] = False
        elif action == "alloc":
            assert blocks.pop(address) is False, event
            held.remove(address)
        elif action == "segment_free":
            put(address, size)
        elif action == "segment_alloc":
            assert address not in mapped and is_empty(address, size), event
            assert take(address) == size, event
        elif action == "segment_unmap":
            join(address, size)
        elif action == "segment_map":
            assert is_empty(address, size), event
            cut(address, size)
    return extent, blocks


def trace_holds(segments, events):
    times, seen = [], set()
    for event in events:
        assert id(event) not in seen, "an event that is there twice"
        seen.add(id(event))
        has(event, EVENT, "event")
        assert event["action"] in ACTIONS, event
        assert event["size"] > 0 and event["stream"] == 0, event
        place = "device_free" if event["action"] == "oom" else "addr"
        assert type(event.get(place)) is int, event
        frames_hold(event.get("frames", []))
        times.append(event["time_us"])
    assert times == sorted(times), "events out of order"
    extent, blocks = undone(segments, fused(events))
    return {"segments": len(extent), "blocks": len(blocks)}


def as_json(value):
    """The value as a round through JSON leaves it."""
    return json.loads(json.dumps(value))


def main(path):
    data = path.read_bytes()
    fits_the_page(data)
    snapshot = Plain(io.BytesIO(data)).load()
    beside = json.loads(path.with_suffix(".json").read_text())
    assert as_json(snapshot) == beside, "the JSON is another snapshot"
    segments, traces = snapshot["segments"], snapshot["device_traces"]
    assert snapshot["external_annotations"] == []
    has(snapshot["allocator_settings"], SETTINGS, "settings")
    divisions = snapshot["allocator_settings"]["roundup_power2_divisions"]
    assert list(divisions) == [str(1 << slot) for slot in range(16)], "divisions by MiB"
    assert all(type(number) is int and number >= 0 for number in divisions.values())
    end = {}
    for segment in segments:
        segment_holds(segment)
        device = segment["device"]
        assert device < len(traces), "a device without a trace"
        assert segment["address"] >= end.get(device, 0), "segments overlap"
        end[device] = segment["address"] + segment["total_size"]
    before = [
        trace_holds([s for s in segments if s["device"] == device], events)
        for device, events in enumerate(traces)
    ]
    blocks = [block for segment in segments for block in segment["blocks"]]
    states = collections.Counter(block["state"] for block in blocks)
    live = [block for block in blocks if block["state"] == "active_allocated"]
    actions = [collections.Counter(event["action"] for event in events) for events in traces]
    sizes = [
        sum(event["size"] for event in events if event["action"] == "alloc") for events in traces
    ]
    print(json.dumps({
        "segments": len(segments),
        "reserved": sum(segment["total_size"] for segment in segments),
        "states": states,
        "live_requested": sum(block["requested_size"] for block in live),
        "frames": sum(
            len(each.get("frames", []))
            for each in blocks + [event for events in traces for event in events]
        ),
        "actions": actions,
        "alloc_bytes": sizes,
        "before": before,
    }))


main(pathlib.Path(sys.argv[1]))
