"""What a block did to memory: nested, crossed, in threads, with exceptions."""


def figures(lines):
    return [[int(word) for word in line.split()] for line in lines]


SHOW = """
import sim, vramalloc
MIB = 1 << 20
def show(m):
    print(m.live_before >> 20, m.live_after >> 20, m.peak >> 20, m.allocations, m.frees,
          m.requested >> 20)
"""


def test_nested_measures(machine):
    lines = machine.run(
        SHOW
        + """
with vramalloc.measure("outer") as outer:
    sim.free(sim.get(100 * MIB))
    with vramalloc.measure("first") as first:
        kept = sim.get(10 * MIB)
    with vramalloc.measure("second") as second:
        sim.free(sim.get(50 * MIB))
        sim.free(kept)
with vramalloc.measure("after") as after:
    pass
for m in (outer, first, second, after):
    show(m)
print(vramalloc.ctl("device.0.live_peak"))
"""
    ).good()
    assert figures(lines) == [
        [0, 0, 100, 3, 3, 160],
        [0, 10, 10, 1, 0, 10],
        [10, 0, 60, 1, 2, 50],
        [0, 0, 0, 0, 0, 0],
        # The register says what it would have said.
        [100 << 20],
    ]


def test_measures_that_cross_each_other(machine):
    lines = machine.run(
        SHOW
        + """
a, b = vramalloc.measure("a"), vramalloc.measure("b")
sim.free(sim.get(200 * MIB))
a.__enter__()
sim.free(sim.get(30 * MIB))
b.__enter__()
sim.free(sim.get(20 * MIB))
a.__exit__(None, None, None)
sim.free(sim.get(40 * MIB))
b.__exit__(None, None, None)
show(a)
show(b)
print(int(vramalloc.ctl("device.0.live_peak")) >> 20)
"""
    ).good()
    assert figures(lines) == [[0, 0, 30, 2, 2, 50], [0, 0, 40, 2, 2, 60], [200]]


def test_a_register_that_somebody_else_uses_keeps_its_peak(machine):
    lines = machine.run(
        SHOW
        + """
sim.free(sim.get(80 * MIB))
vramalloc.ctl("device.0.live_peak", "reset")
sim.free(sim.get(30 * MIB))
with vramalloc.measure("a"):
    sim.free(sim.get(20 * MIB))
print(int(vramalloc.ctl("device.0.live_peak")) >> 20)
"""
    ).good()
    assert lines == ["30"]


def test_inside_the_block_it_says_how_it_stands(machine):
    lines = machine.run(
        SHOW
        + """
with vramalloc.measure("a") as m:
    show(m)
    block = sim.get(10 * MIB)
    show(m)
    sim.free(block)
    show(m)
sim.get(99 * MIB)
show(m)
print(m)
print(m.devices[0] == m.figures, sorted(m.devices))
"""
    ).good()
    assert figures(lines[:4]) == [
        [0, 0, 0, 0, 0, 0],
        [0, 10, 10, 1, 0, 10],
        [0, 0, 10, 1, 1, 10],
        [0, 0, 10, 1, 1, 10],
    ]
    assert lines[4] == (
        "a: peak 10.0 MiB, live 0 B before and 0 B after, 1 allocations of 10.0 MiB in all, 1 frees"
    )
    assert lines[5] == "True [0, 1]"


def test_an_exception_ends_the_block_and_is_the_programs(machine):
    lines = machine.run(
        SHOW
        + """
try:
    with vramalloc.measure("a") as m:
        kept = sim.get(3 * MIB)
        raise KeyError("mine")
except KeyError as error:
    print(error)
show(m)
with m:
    sim.free(kept)
show(m)
try:
    with m, m:
        pass
except RuntimeError as error:
    print("open already" in str(error))
with vramalloc.measure() as last:
    pass
show(last)
"""
    ).good()
    assert lines[0] == "'mine'" and lines[3] == "True"
    assert figures([lines[1], lines[2], lines[4]]) == [
        [0, 3, 3, 1, 0, 3],
        [3, 0, 3, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_a_block_that_never_ends_is_forgotten(machine):
    lines = machine.run(
        SHOW
        + """
import gc
sim.free(sim.get(90 * MIB))
vramalloc.measure("a").__enter__()
gc.collect()
with vramalloc.measure("b") as m:
    sim.free(sim.get(5 * MIB))
show(m)
print(int(vramalloc.ctl("device.0.live_peak")) >> 20)
m.__exit__(None, None, None)
"""
    ).good()
    assert lines == ["0 0 5 1 1 5", "90"]


def test_measures_of_threads(machine):
    """A peak of one thread's block is never below what that thread itself held."""
    lines = machine.run(
        SHOW
        + """
import threading
wrong = []
def work(number):
    for turn in range(60):
        with vramalloc.measure(f"{number}") as m:
            blocks = [sim.get((1 + number) * MIB) for _ in range(turn % 4 + 1)]
            with vramalloc.measure() as inner:
                sim.free(sim.get(700))
            for block in blocks:
                sim.free(block)
        held = (1 + number) * MIB * len(blocks)
        if m.peak < held or inner.peak < held or m.allocations < len(blocks) + 1:
            wrong.append((number, turn, m.peak, inner.peak, held))
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong[:3])
with vramalloc.measure() as m:
    pass
show(m)
"""
    ).good()
    assert lines == ["[]", "0 0 0 0 0 0"]


def test_devices_apart(machine):
    lines = machine.run(
        SHOW
        + """
with vramalloc.measure("two") as m:
    one = sim.get(10 * MIB)
    sim.set_device(1)
    two = sim.get(20 * MIB)
    sim.free(two)
for device in m.devices.values():
    show(device)
show(m)
"""
    ).good()
    assert figures(lines) == [
        [0, 10, 10, 1, 0, 10],
        [0, 0, 20, 1, 1, 20],
        [0, 10, 30, 2, 1, 30],
    ]


def test_a_context_that_ends_in_the_block(machine):
    lines = machine.run(
        SHOW
        + """
with vramalloc.measure("a") as m:
    sim.get(50 * MIB)
    sim.reset()
    sim.get(20 * MIB)
show(m)
"""
    ).good()
    assert figures(lines) == [[0, 20, 50, 2, 0, 70]]


def test_a_process_without_cuda(machine):
    lines = machine.run(
        """
        import vramalloc
        with vramalloc.measure("nothing") as m:
            pass
        print(m.figures == vramalloc.Figures(), m.devices)
        print(vramalloc.trim(), vramalloc.ctl("device.0.limit"))
        with vramalloc.limit("1G"):
            print(vramalloc.ctl("option.limit"))
        print(open("/proc/self/maps").read().count("libcuda"))
        """
    ).good()
    assert lines == ["True {}", "0 none", "1GiB", "0"]


def test_a_measure_in_a_signals_handler_and_in_a_forgotten_generator(machine):
    lines = machine.run(
        """
        import signal, vramalloc
        def batches():
            with vramalloc.measure("epoch"):
                yield from range(3)
        class Loader:
            def __init__(self):
                self.it, self.me = batches(), self
        def handle(*_):
            with vramalloc.measure("signal"):
                pass
        handle()
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(2000):
            next(Loader().it)
            with vramalloc.measure("step"):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("done")
        """
    ).good()
    assert lines == ["done"]
