"""Runs programs as they are published, bare and preloaded, and says what differs.

Called by scripts/check-programs, which has built the library, the simulated
CUDA and the stand-ins. One line a check; the last line counts them.
"""

import json
import pathlib
import sys

import runs
from checks import OUT_OF_MEMORY, check, end
from runs import ROOT, STRATEGIES, ended_well, prints_the_same, same_number

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = ROOT / "target" / "check-programs"
RESULTS = FOLDER / "results"
SECONDS = 240

# The devices are of the age of NVIDIA's runtime 10.2, which ends its contexts at
# exit. Kernels take long, so that streams lag.
SETTINGS = {
    "SIM_CUDA_CAPABILITY": "7.0",
    "SIM_CUDA_KERNEL_NS": "3000000",
    "SIM_CUDA_LATE": "1",
    # CuPy keeps what it compiled.
    "CUPY_CACHE_DIR": str(FOLDER / "cupy"),
}
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
NO_POOL = {"FLAGS_use_system_allocator": "1"}
NAIVE = {"FLAGS_allocator_strategy": "naive_best_fit"}
VIDEO = "testsrc=size=640x480:rate=30:duration=4"
UPLOAD = "format=nv12,hwupload_cuda,hwdownload,format=nv12"
TWO_UPLOADS = f"split[a][b];[a]{UPLOAD}[c];[b]scale=1920:1080,{UPLOAD},scale=640:480[d];[c][d]hstack"


def python(script, *arguments):
    return [sys.executable, HERE / script, *arguments]


def frames(graph):
    """The hash of each frame."""
    device = ["-init_hw_device", "cuda=c:0", "-filter_hw_device", "c"]
    source = ["-f", "lavfi", "-i", VIDEO]
    return [
        *("ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", *device, *source),
        *("-filter_complex", graph, "-f", "framemd5", "-"),
    ]


# Of each program: what is run, its name here, and the environment.
PROGRAMS = {
    "torch112": [
        ("figures", python("torch112/figures.py"), {}),
        ("train", python("torch112/train.py"), {}),
        ("train-uncached", python("torch112/train.py"), NO_CACHE),
        ("threads-uncached", python("torch112/train.py", "threads"), NO_CACHE),
        ("loader", python("pytorch/loader.py"), {}),
        ("sharing", python("pytorch/sharing.py"), {}),
        ("two_devices-uncached", python("pytorch/two_devices.py"), NO_CACHE),
    ],
    "paddle": [
        ("train", python("paddle/train.py"), {}),
        ("train-naive", python("paddle/train.py"), {**NAIVE, "FLAGS_initial_gpu_memory_in_mb": "500"}),
        ("train-system", python("paddle/train.py"), NO_POOL),
    ],
    "cupy": [
        ("pool", python("cupy/arrays.py"), {}),
        ("unpooled", python("cupy/arrays.py", "unpooled"), {}),
    ],
    "faiss": [("index", python("faiss/index.py"), {})],
    "ffmpeg": [("frames", frames(UPLOAD), {}), ("two-sizes", frames(TWO_UPLOADS), {})],
}


def run(program, what, command, extra, strategy=None):
    libraries = FOLDER / "libraries"
    environment = {**runs.plain_environment(libraries), **SETTINGS, **extra}
    words = (program, what, strategy or "bare")
    return runs.Run(RESULTS, words, command, environment, strategy, SECONDS)


def compared(program, what, command, extra):
    bare = run(program, what, command, extra)
    ended_well(bare)
    check(f"{bare.name}: says something", len(bare.said()) > 5, str(bare.said()))
    for strategy in STRATEGIES:
        served = run(program, what, command, extra, strategy)
        ended_well(served)
        prints_the_same(served, bare)
        strange = [line for line in served.complaints() if not line.startswith(OUT_OF_MEMORY)]
        check(f"{served.name}: no complaint", strange == [], str(strange))
        asked = sum(each["calls"].get("cuMemAlloc_v2", 0) for each in bare.reports.values())
        totals = [each["totals"] for each in served.statistics.values()]
        found = sum(each["allocations"] + each["ooms"] for each in totals)
        same_number(f"{served.name}: requests", asked, found)


def early_reuse_is_seen():
    """Without the reuse rule the simulated CUDA complains: so its silence
    elsewhere means something."""
    extra = {**NO_CACHE, "VRAMALLOC_FREE_SYNC": "immediate"}
    command = python("torch112/train.py")
    early = run("torch112", "train-immediate", command, extra, "auto_growth")
    check(f"{early.name}: the early reuse is seen", bool(early.violations()), early.errors)


def chunks_are_as_known():
    """What Paddle's own strategies take from the driver is what
    tests/preload/paddle.rs holds ours against."""
    table = json.loads((HERE / "paddle" / "chunks.json").read_text())
    for number, row in enumerate(table):
        flags = dict(flag.split("=") for flag in row["flags"].split())
        command = python("paddle/chunks.py", *row["steps"].split())
        bare = run("paddle", f"chunks-{number}", command, flags)
        ended_well(bare)
        taken = bare.report.get("taken")
        check(f"{bare.name}: {row['flags']}", taken == row["taken"], f"{taken}")


def main():
    chosen = sys.argv[1:] or list(PROGRAMS)
    runs.old_files_go(RESULTS)
    for program in chosen:
        for what, command, extra in PROGRAMS[program]:
            compared(program, what, command, extra)
        if program == "torch112":
            early_reuse_is_seen()
        if program == "paddle":
            chunks_are_as_known()
    return end()


if __name__ == "__main__":
    sys.exit(main())
