"""How much memory the traces need: ours on the model device, PyTorch's and the
preloaded library's on the simulated CUDA, which is the same device.

Nothing here depends on the host's time, so one run says it: where a program waits
by sleeping between two questions, the simulated device goes on.
"""

import gzip
import json

from run import ARENA, LIBRARY, PROGRAMS, ROOT, SIM, Failed, lines, output, over

# Recorded, and made by a program (`bench-arena trace`).
TRACES = ("gpt_train", "varlen_train", "llm_infer")
MADE = ("dataframe",)
PRELOADED = {"preloaded": "auto_growth", "preloaded, mapped": "mapped"}
STRATEGIES = ("auto_growth", "mapped", "naive_best_fit", "passthrough")
KERNEL_NS = (0, 10_000, 50_000, 1_000_000)
PASSES = 3
PAGE = 2 << 20
ROOMY = 160 << 30
# How long a thread sleeps that means to sleep for 50 us, as the library does between
# two questions whether the device is done.
NAP_NS = 100_000
FOLDER = ROOT / "target" / "bench" / "memory"
# What calls cost on a real driver, in microseconds, from published figures:
# cudaMalloc, launch, cudaFree 14 together; cudaEventRecord 0.175 to 0.244;
# cudaEventQuery 0.1 to 1. Those of virtual memory for 2 MiB. The time that a call
# waits for is not in it.
MEMORY_PRICES = {"alloc": 7.0, "free": 7.0}
MEMORY_PRICES |= {"create": 29, "map": 2, "set_access": 38, "unmap": 34, "release": 23}
PRICES = MEMORY_PRICES | {"fence": 0.21, "reached": 0.1, "wait": 0.1}
SIMULATED = {
    "alloc": "cuMemAlloc_v2",
    "free": "cuMemFree_v2",
    "create": "cuMemCreate",
    "map": "cuMemMap",
    "set_access": "cuMemSetAccess",
    "unmap": "cuMemUnmap",
    "release": "cuMemRelease",
    "fence": ("cuEventRecord", "cuCtxRecordEvent"),
    "reached": "cuEventQuery",
    "wait": ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"),
}
NATIVE, EXPANDABLE = "PyTorch native", "PyTorch expandable segments"


def priced(calls):
    """Milliseconds that so many calls would take."""
    return sum(PRICES[name] * calls[name] for name in PRICES) / 1000


def priced_by_unit(calls):
    """The same if a call cost as much for each unit of memory as for one. A unit is
    given access once each time that it is mapped; what was mapped and is not any more
    was unmapped."""
    unmapped = calls["map"] - (calls["create"] - calls["release"])
    units = {"set_access": calls["map"], "unmap": max(unmapped, calls["unmap"])}
    return priced(calls | units)


def memory_calls(calls):
    return sum(calls[name] for name in MEMORY_PRICES)


def by_pass(report):
    """The memory calls of each pass."""
    total = [0] + [memory_calls(each) for each in report["calls"]]
    return [after - before for before, after in zip(total, total[1:], strict=False)]


def model(trace, strategy, kernel_ns):
    """Our arena on the model device."""
    words = [f"trace={trace}", f"strategy={strategy}", f"kernel_ns={kernel_ns}"]
    (row,) = lines([ARENA, "memory", *words])
    return row | {"subject": strategy}


def unpacked(trace):
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{trace}.csv"
    if trace in MADE:
        path.write_text(output([ARENA, "trace", f"trace={trace}"]))
        return path
    packed = ROOT / "tests" / "traces" / f"{trace}.1.csv.gz"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


class Simulated:
    """A program that replays a trace on the simulated CUDA."""

    def __init__(self, program, trace, kernel_ns, folders, variables):
        self.command = [PROGRAMS / program, unpacked(trace), PASSES, kernel_ns]
        self.folders, self.variables = folders, variables
        self.report = FOLDER / "report.json"

    def run(self, memory):
        """What the device saw; none where it was too small."""
        self.report.unlink(missing_ok=True)
        env = over(
            SIM,
            *self.folders,
            SIM_CUDA_MEMORY=memory,
            SIM_CUDA_DEVICES=1,
            SIM_CUDA_NAP_NS=NAP_NS,
            SIM_CUDA_REPORT=self.report,
            **self.variables,
        )
        try:
            output(self.command, env)
        except Failed as failure:
            # The call that failed, and CUDA's number of being out of memory.
            if "gpu_malloc" in str(failure) and ": 2" in str(failure):
                return None
            # The library says first what it ran out of.
            if "out of memory" in str(failure):
                return None
            raise
        seen = json.loads(self.report.read_text())
        return {
            "reserved_peak": seen["devices"][0]["peak_bytes"],
            "calls": {
                name: sum(
                    seen["calls"].get(each, 0)
                    for each in ((names,) if isinstance(names, str) else names)
                )
                for name, names in SIMULATED.items()
            },
        }

    def smallest(self, live):
        """The smallest device in whole pages, by steps and then bisection."""
        low = -(-live // PAGE) - 1
        step = 1 + low // 256
        while not (found := self.run((low + step) * PAGE)):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            seen = self.run(middle * PAGE)
            if seen:
                high, found = middle, seen
            else:
                low = middle
        return high * PAGE, found


def simulated(subject, program, trace, kernel_ns, known, folders=(), **variables):
    replay = Simulated(program, trace, kernel_ns, folders, variables)
    smallest, tight = replay.smallest(known["live"])
    return {
        "trace": trace,
        "subject": subject,
        "kernel_ns": kernel_ns,
        "live": known["live"],
        "paged": known["paged"],
        "smallest": smallest,
        "tight": tight,
        "roomy": replay.run(ROOMY),
    }


def measure(quick, torch, say):
    traces = TRACES[:1] if quick else TRACES + MADE
    rows, absent = [], {}
    for trace in traces:
        for strategy in STRATEGIES:
            for kernel_ns in KERNEL_NS:
                say(f"memory: {trace}, {strategy}, kernels of {kernel_ns} ns")
                rows.append(model(trace, strategy, kernel_ns))
        known = rows[-1]
        say(f"memory: {trace}, peers")
        preload = {"LD_PRELOAD": LIBRARY, "VRAMALLOC_STATS": "off"}
        kernels = (0, 50_000)
        for subject, strategy in PRELOADED.items():
            rows += [
                simulated(
                    subject,
                    "replay.dynamic",
                    trace,
                    kernel_ns,
                    known,
                    VRAMALLOC_STRATEGY=strategy,
                    **preload,
                )
                for kernel_ns in kernels
            ]
        if not torch:
            continue
        settings = {NATIVE: "", EXPANDABLE: "expandable_segments:True"}
        for subject, setting in settings.items():
            if subject in absent:
                continue
            conf = {"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else {}
            for kernel_ns in kernels:
                try:
                    rows.append(
                        simulated(
                            subject,
                            "replay.torch",
                            trace,
                            kernel_ns,
                            known,
                            [torch / "lib"],
                            **conf,
                        )
                    )
                except Failed as failure:
                    absent[subject] = str(failure)
                    break
    return [row | {"question": "memory"} for row in rows], absent
