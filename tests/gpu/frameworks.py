"""PyTorch, JAX, CuPy and Numba: bare beside preloaded, bit for bit."""

import dataclasses
import importlib.util
import sys

from execute import LIBRARY, ROOT, run, together

GROUP = "frameworks"
CLIENTS = ROOT / "tests" / "gpu" / "clients"
PYTORCH = ROOT / "tests" / "clients" / "pytorch"

# Ways of PyTorch to get memory; with the first two the library serves it.
WAYS = {
    "cached": {},
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
DEFAULT = "strategy:auto_growth"
NAIVE = "strategy:naive_best_fit,initial_gpu_memory_in_mb:2048,reallocate_gpu_memory_in_mb:1024"
MAPPED = "strategy:mapped"
ALL = [DEFAULT, f"{DEFAULT},free_sync:strict", NAIVE, MAPPED]
# Of each of its cycles.
PAUSED = (
    "95 % of it is free: True",
    "all of it is back: True",
    "checksums that are equal: 200 of 200",
    "a copy is equal: True",
)


@dataclasses.dataclass(frozen=True)
class Client:
    title: str
    module: str
    command: tuple
    environment: tuple = ()
    options: tuple = (DEFAULT,)
    # Does it take memory by the functions that the library serves?
    served: bool = True
    seconds: int = 120
    # What it prints under the library, without which it cannot run.
    prints: tuple = ()
    # It looks at how much of the device is free: nothing may run beside it.
    alone: bool = False


def torch_steps(way, *arguments, options=(DEFAULT,), **more):
    return Client(
        f"PyTorch {' '.join(arguments)}, {way}",
        "torch",
        (CLIENTS / "torch_steps.py", *arguments),
        tuple(WAYS[way].items()),
        tuple(options),
        served=way in ("cached", "uncached"),
        **more,
    )


def torch_program(name, way="cached", **more):
    """One of those that run over the simulated CUDA too."""
    environment = {**WAYS[way], **more}
    return Client(
        f"PyTorch {name}, {way}",
        "torch",
        (PYTORCH / f"{name}.py",),
        tuple(environment.items()),
    )


def jax(title, **environment):
    steady = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"}
    return Client(
        f"JAX, {title}",
        "jax",
        (CLIENTS / "jax_steps.py",),
        tuple({**steady, **environment}.items()),
    )


CASES = [
    torch_steps("cached", "transformer"),
    torch_steps("uncached", "transformer", options=ALL),
    torch_steps("expandable", "transformer"),
    torch_steps("async", "transformer"),
    torch_steps("cached", "cnn"),
    torch_steps("uncached", "cnn", options=ALL),
    torch_steps("cached", "transformer", "--graph"),
    torch_steps("cached", "transformer", "--compile", seconds=200),
    torch_steps("uncached", "transformer", "--compile", seconds=200),
    torch_program("train"),
    torch_program("streams", "uncached"),
    torch_program("threads", "uncached"),
    torch_program("loader", "uncached"),
    torch_program("graphs"),
    torch_program("sharing"),
    torch_program("pluggable", PLUGGABLE=str(LIBRARY)),
    *[
        Client(
            f"PyTorch paused, {way}",
            "torch",
            (PYTORCH / "paused.py",),
            tuple(WAYS[way].items()),
            (MAPPED,),
            prints=tuple(f"cycle {each}: {PAUSED[0]}" for each in range(3)) + PAUSED[1:],
            alone=True,
        )
        for way in ("cached", "uncached")
    ],
    *[
        Client(
            f"PyTorch collectives, {way}",
            "torch",
            (CLIENTS / "torch_collectives.py",),
            tuple(WAYS[way].items()),
            (DEFAULT, MAPPED),
        )
        for way in ("cached", "uncached")
    ],
    jax("memory taken in advance", XLA_PYTHON_CLIENT_MEM_FRACTION="0.1"),
    jax("memory taken as needed", XLA_PYTHON_CLIENT_PREALLOCATE="false"),
    jax("no pool of its own", XLA_PYTHON_CLIENT_ALLOCATOR="platform"),
    Client("CuPy, its pool", "cupy", (CLIENTS / "cupy_work.py", "pool")),
    Client("CuPy, no pool", "cupy", (CLIENTS / "cupy_work.py", "plain"), options=tuple(ALL)),
    Client("Numba", "numba.cuda", (CLIENTS / "numba_work.py",), options=tuple(ALL)),
]


def why_not(place, module):
    """Why a framework cannot be imported here, bare; nothing where it can."""
    try:
        if importlib.util.find_spec(module) is None:
            return f"{sys.executable} has no module {module}"
    except ModuleNotFoundError:
        return f"{sys.executable} has no module {module}"
    tried = run(place, [sys.executable, "-c", f"import {module}"], seconds=120)
    return "" if tried.status == 0 else f"bare, it cannot be imported: {tried.why()}"


def execute(place, client, options=None):
    command = [sys.executable, *client.command]
    return run(place, command, options, dict(client.environment), client.seconds)


def same(left, right):
    """The same end and the same text on standard output; frameworks put times
    and warnings on the other."""
    return left.status == right.status and left.said()[0] == right.said()[0]


def difference(bare, now):
    for number, (left, right) in enumerate(zip(bare.said()[0], now.said()[0], strict=False)):
        if left != right:
            return f"line {number}: bare {left!r}, now {right!r}"
    return f"bare {len(bare.said()[0])} lines, now {now.why()}"


def check_alone(place, results, client):
    """One that tells by itself whether all is well."""
    for options in client.options:
        now = execute(place, client, options)
        lines = now.said()[0]
        missing = [line for line in client.prints if line not in lines]
        wrong = [line for line in lines if "False" in line]
        good = now.status == 0 and not missing and not wrong
        title = f"{client.title}, {options}: prints what is right"
        results.check(GROUP, title, good, f"missing {missing}, wrong {wrong}; {now.why()}", lines[-1:])


def python_lines(place, results):
    """The lines of Python in the call stacks are lines that the interpreter names."""
    sys.path[:0] = [str(PYTORCH)]
    import lines

    def check(name, good, otherwise=""):
        results.check(GROUP, name, good, otherwise)

    noting = lines.compiled(PYTORCH / "lines.c", place.results)
    notes = place.results / "lines.txt"
    environment = {
        **WAYS["uncached"],
        "VRAMALLOC_STACKS": "all",
        "LINES": str(notes),
        "LD_PRELOAD": f"{noting}:{LIBRARY}",
    }
    now = run(place, [sys.executable, PYTORCH / "steps.py"], DEFAULT, environment)
    good = now.status == 0 and now.statistics
    if results.check(GROUP, "PyTorch, call stacks: ends well", good, now.why()):
        lines.noted(check, "PyTorch, call stacks", now.statistics[0], notes)


def check(place, results, client):
    if client.prints:
        check_alone(place, results, client)
        return
    bare = execute(place, client)
    if not results.check(GROUP, f"{client.title}: runs bare", bare.status == 0, bare.why()):
        return
    for options in client.options:
        title = f"{client.title}, {options}"
        now = execute(place, client, options)
        results.check(GROUP, f"{title}: ends well", now.status == 0, now.why())
        if now.status == 0 and not same(bare, now) and not same(bare, execute(place, client)):
            results.skip(GROUP, f"{title}: as bare", "bare, it is not the same every time")
        else:
            results.check(GROUP, f"{title}: as bare", same(bare, now), difference(bare, now))
        complaints = [line for line in now.errors.splitlines() if line.startswith("vramalloc: ")]
        expected = [line for line in complaints if "out of memory" in line]
        results.check(GROUP, f"{title}: no complaint", complaints == expected, str(complaints))
        if client.served:
            served = now.total("allocations")
            results.check(GROUP, f"{title}: served", served > 0, now.why(), f"{served}")


def group(place, results, _programs):
    chosen = [client for client in CASES if place.chooses(client.title)]
    missing = {}
    for module in sorted({client.module for client in chosen}):
        why = why_not(place, module)
        if why:
            missing[module] = why
            results.skip(GROUP, module, why)
    chosen = [client for client in chosen if client.module not in missing]
    stacks = place.chooses("PyTorch, call stacks") and not why_not(place, "torch")
    together(
        place,
        [
            lambda client=client: check(place, results, client)
            for client in chosen
            if not client.alone
        ]
        + [lambda: python_lines(place, results)] * stacks,
    )
    for client in chosen:
        if client.alone:
            check(place, results, client)
