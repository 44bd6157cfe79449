#!/usr/bin/env python3
"""How much time the command takes to name the functions of call stacks.

usage: symbols.py --check SECONDS

Statistics with 100 000 random addresses of one library are written, and
`vramalloc export` reads them: without a cache, with what the run before kept, and
where the library is not there. What lies between the first and the last is what
the names took. --check: a library that is made here, as large as PyTorch's; fails
where they took longer.
"""

import json
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

import run
from machine import ROOT

COMMAND = run.RELEASE / "vramalloc"
FOLDER = ROOT / "target" / "bench" / "symbols"
ADDRESSES, PLACES = 100_000, 10
# As in libtorch_cpu: so many functions, some of them large, of which random
# addresses hit 50 000.
FUNCTIONS = 450_000
SIZE, LARGE, ONE_LARGE_OF = 64, 4096, 16
TORCH = ("libtorch_cpu.so", "libtorch_cuda.so")
# Mangled names of the lengths that occur.
NAMES = (
    "_ZN2at6native{0}ERKNS_6TensorES3_N3c106ScalarE",
    "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail24WrapFunctionIntoRuntimeFunctor_I"
    "PFN2at6TensorERKS5_S7_lENS_4guts8typelist8typelistIJS7_S7_lEEEEES6_E{0}EPNS_14OperatorKernelE"
    "NS_14DispatchKeySetES7_S7_l",
    "_ZNSt10_HashtableISsSt4pairIKSs{0}ESaIS3_ENSt8__detail10_Select1stESt8equal_toISsESt4hashISsE"
    "NS5_18_Mod_range_hashingENS5_20_Default_ranged_hashENS5_20_Prime_rehash_policyENS5_17_Hashtable"
    "_traitsILb1ELb0ELb1EEEE4findERS2_",
    "_ZN5torch8autograd12VariableType12_GLOBAL__N_1{0}EN3c1014DispatchKeySetERKN2at6TensorE",
)


def made():
    """A library with so many functions, none of them exported."""
    library = FOLDER / "libmany.so"
    if library.exists():
        return library
    FOLDER.mkdir(parents=True, exist_ok=True)
    assembly = FOLDER / "many.s"
    with open(assembly, "w") as out:
        out.write(".text\n")
        for number in range(FUNCTIONS):
            part = f"function{number}"
            name = NAMES[number % len(NAMES)].format(f"{len(part)}{part}")
            size = SIZE if number % ONE_LARGE_OF else LARGE
            out.write(f'.type "{name}",@function\n"{name}":\n.zero {size}\n')
            out.write(f'.size "{name}",{size}\n')
    partial = library.with_suffix(".partial")
    words = ["gcc", "-shared", "-nostdlib", "-Wl,--build-id", "-o", partial, assembly]
    run.output(words)
    assembly.unlink()
    partial.rename(library)
    return library


def said(tool, *words):
    return subprocess.run([tool, *words], capture_output=True, text=True, check=True).stdout


def statistics(library):
    """Statistics with random addresses in the code of a library."""
    sections = said("readelf", "-SW", library)
    address, size = re.search(r" \.text +PROGBITS +(\w+) \w+ (\w+) ", sections).groups()
    start, size = int(address, 16), int(size, 16)
    build_id = re.search(r"Build ID: (\w+)", said("readelf", "-n", library))[1]
    drawn = random.Random(7)
    stacks = [
        {"stack": number, "frames": list(range(number * PLACES, (number + 1) * PLACES))}
        for number in range(ADDRESSES // PLACES)
    ]
    held = [{"stack": one["stack"], "count": 1, "bytes": 512} for one in stacks]
    return {
        "schema": 1,
        "call_stacks": {
            "objects": [{"file": str(library), "build_id": build_id}],
            "frames": [
                {"object": 0, "offset": start + drawn.randrange(size)} for _ in range(ADDRESSES)
            ],
            "stacks": stacks,
            "peak": held,
        },
    }


def seconds(file, cache):
    """The processor time of one reading, which has one thread."""
    began = processor_time()
    run.output(
        [COMMAND, "export", "--format", "folded", "--all-frames", "-o", "/dev/null", file],
        run.environment(XDG_CACHE_HOME=cache),
    )
    return processor_time() - began


def processor_time():
    """Of all that was run so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(library):
    """Seconds that the names take, first and again, and with all the rest."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        here, gone = folder / "here.json", folder / "gone.json"
        text = statistics(library)
        here.write_text(json.dumps(text))
        text["call_stacks"]["objects"][0]["file"] = str(folder / "none.so")
        gone.write_text(json.dumps(text))
        first = seconds(here, folder / "cache")
        again = seconds(here, folder / "cache")
        without = seconds(gone, folder / "other")
        return {"first_s": first - without, "again_s": again - without, "whole_s": first}


def measure(torch, say):
    """A row a library; none where a tool is missing."""
    if not (shutil.which("gcc") and shutil.which("readelf")):
        return [], {"symbols": "there is no gcc or readelf"}
    libraries = [made()]
    if torch:
        libraries += [pathlib.Path(torch) / "lib" / name for name in TORCH]
    rows = []
    for library in (library for library in libraries if library.exists()):
        say(f"symbols: {library.name}")
        runs = [measured(library) for _ in range(3)]
        figures = {key: [each[key] for each in runs] for key in runs[0]}
        rows.append({"question": "symbols", "library": library.name} | figures)
    return rows, {}


def check(most):
    """Whether the names of the library that is made here take no longer; of
    several attempts one has to be in time, because others use the machine."""
    library = made()
    for attempt in range(3):
        took = measured(library)
        print(
            f"{ADDRESSES} addresses in {FUNCTIONS} functions: {took['first_s']:.2f} s, with what "
            f"was kept {took['again_s']:.2f} s, of {took['whole_s']:.2f} s; bound {most} s"
        )
        if took["first_s"] <= most:
            print("1 passed, 0 failed")
            return True
    print("0 passed, 1 failed")
    return False


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--check":
        sys.exit(__doc__)
    sys.exit(0 if check(float(sys.argv[2])) else 1)
