"""What the package says and does in a process under the library, and outside of one."""

import os
import subprocess
import sys

import pytest


def test_what_the_process_is(machine):
    lines = machine.run(
        """
        import vramalloc
        print(vramalloc.active())
        print(vramalloc.library_path())
        print(vramalloc.ctl("preloaded"), vramalloc.ctl("device.count"))
        import sim
        sim.get(1)
        print(vramalloc.ctl("device.count"))
        """,
        SIM_CUDA_DEVICES="3",
    ).good()
    assert lines == ["True", str(machine.library), "1 0", "3"]


def test_without_the_library_each_says_what_to_do(machine):
    lines = machine.bare(
        """
        import vramalloc

        def measured():
            with vramalloc.measure("forward"):
                print("never")

        def tagged():
            with vramalloc.region("weights"):
                print("never")

        print(vramalloc.active())
        for ask in (vramalloc.stats, vramalloc.trim, vramalloc.dump, vramalloc.pause,
                    vramalloc.resume, measured, tagged, lambda: vramalloc.limit("1G"),
                    lambda: vramalloc.ctl("version")):
            try:
                ask()
            except vramalloc.NotLoaded as error:
                print(error)
        print(vramalloc.library_path())
        """
    ).good()
    assert lines[0] == "False"
    assert len(lines) == 11 and lines[-1] == str(machine.library)
    for line in lines[1:-1]:
        assert "vramalloc run python" in line and "preload_env" in line, line
    # Whoever catches nothing reads of it once, by the name that can be caught.
    errors = machine.bare("import vramalloc; vramalloc.stats()").errors
    assert errors.count("Traceback") == 1 and "\nvramalloc.NotLoaded: " in errors, errors


def test_without_ctypes_it_is_said(machine):
    lines = machine.run(
        """
        import sys
        sys.modules["_ctypes"] = None
        import vramalloc
        print(vramalloc.active())
        try:
            vramalloc.stats()
        except vramalloc.NotLoaded as error:
            print(error)
        """
    ).good()
    assert lines[0] == "False" and "this Python has no ctypes" in lines[1]


def test_a_library_that_came_late_is_asked_and_is_not_active(machine):
    lines = machine.bare(
        f"""
        import ctypes
        ctypes.CDLL({str(machine.library)!r}, ctypes.RTLD_GLOBAL)
        import vramalloc
        print(vramalloc.active(), vramalloc.ctl("preloaded"), "arenas" in vramalloc.stats())
        """
    ).good()
    assert lines == ["False 0 True"]


def test_a_second_copy_of_the_library_is_not_the_one_that_is_asked(machine):
    lines = machine.run(
        f"""
        import ctypes, shutil, sim, vramalloc
        shutil.copy({str(machine.library)!r}, "copy.so")
        copy = ctypes.CDLL("./copy.so")
        sim.get(5 << 20)
        print(vramalloc.active(), vramalloc.library_path())
        print(vramalloc.ctl("device.0.live"))
        """
    ).good()
    assert lines == [f"True {machine.library}", str(5 << 20)]


def test_statistics_and_files(machine):
    lines = machine.run(
        """
        import pathlib, sim, vramalloc
        block = sim.get(5 << 20)
        print(vramalloc.stats()["totals"]["allocations"])
        vramalloc.dump("here.%p.json")
        vramalloc.dump(pathlib.Path("there.json"))
        print(len(list(pathlib.Path().glob("here.*.json"))), pathlib.Path("there.json").exists())
        sim.free(block)
        print(vramalloc.trim() >= 5 << 20, vramalloc.trim())
        try:
            vramalloc.dump("/no/such/folder/x.json")
        except vramalloc.Error as error:
            print(error.code, error.name, error)
        try:
            vramalloc.dump("%q")
        except vramalloc.Error as error:
            print(error.name)
        """
    ).good()
    assert lines[:3] == ["1", "1 True", "True 0"]
    assert lines[3].startswith("-11 VRAMALLOC_IO dump to '/no/such/folder/x.json': No such file")
    assert lines[4] == "VRAMALLOC_INVALID_VALUE"


def test_an_error_goes_through_pickle(machine):
    lines = machine.run(
        """
        import pickle, vramalloc
        try:
            vramalloc.ctl("colour", "red")
        except vramalloc.Error as error:
            again = pickle.loads(pickle.dumps(error))
            print(type(again).__name__, again.code, again.name, str(again) == str(error))
        """
    ).good()
    assert lines == ["Error -4 VRAMALLOC_UNKNOWN_NAME True"]


def test_texts_that_are_none(machine):
    lines = machine.run(
        """
        import vramalloc
        for name, value in ((1, None), ("a\\0b", None), ("option.limit", 5), (None, None)):
            try:
                vramalloc.ctl(name, value)
            except (TypeError, ValueError) as error:
                print(type(error).__name__)
        """
    ).good()
    assert lines == ["TypeError", "ValueError", "TypeError", "TypeError"]


LIMITS = """
import sim, vramalloc
has = lambda mib, device=0: (sim.set_device(device), sim.malloc(mib << 20))[1]
def had(mib, device=0):
    block = has(mib, device)
    if isinstance(block, int):
        return False
    sim.free(block)
    return True
"""


def test_a_limit_holds_at_once_and_as_long_as_its_block(machine):
    lines = machine.run(
        LIMITS
        + """
print(had(100))
with vramalloc.limit("64M"):
    print(had(100), had(60))
    with vramalloc.limit(16 << 20):
        print(had(60), had(10))
    print(had(60), vramalloc.ctl("device.0.limit"))
try:
    with vramalloc.limit("8M"):
        raise KeyError
except KeyError:
    pass
print(had(100), vramalloc.ctl("option.limit"))
vramalloc.limit("50%")
print(vramalloc.ctl("option.limit"))
vramalloc.limit(None)
print(vramalloc.ctl("device.0.limit"))
""",
        VRAMALLOC_OOM_REPORT="off",
    ).good()
    assert lines == [
        "True",
        "False True",
        "False True",
        f"True {64 << 20}",
        "True none",
        "0.5",
        "none",
    ]


def test_a_limit_of_one_device(machine):
    lines = machine.run(
        LIMITS
        + """
with vramalloc.limit("64M", device=1):
    print(had(100, 0), had(100, 1))
    with vramalloc.limit("32M", device=1):
        print(had(60, 1))
    print(had(60, 1), had(100, 1))
    with vramalloc.limit("16M"):
        print(had(20, 0), had(20, 1), vramalloc.ctl("option.device_limits"))
    print(had(60, 0), had(60, 1), had(100, 1), vramalloc.ctl("option.device_limits"))
print(had(100, 1), vramalloc.ctl("option.device_limits"))
""",
        VRAMALLOC_OOM_REPORT="off",
    ).good()
    assert lines == [
        "True False",
        "False",
        "True False",
        "False False none",
        "True True False [1:64MiB]",
        "True none",
    ]


def test_limits_that_are_none_change_nothing(machine):
    lines = machine.run(
        """
        import vramalloc
        vramalloc.limit("2G")
        for bad in ("", "  ", "16", 16, 1, -1, 0, "2Q", 1.5, 1e9, True, b"2G", [2]):
            try:
                vramalloc.limit(bad)
                print("taken", bad)
            except (TypeError, ValueError) as error:
                print(type(error).__name__, "'16G'" in str(error) or "None" in str(error))
        for device in (-1, 0.0, True, "0"):
            try:
                vramalloc.limit("1G", device=device)
            except (TypeError, ValueError) as error:
                print(type(error).__name__)
        print(vramalloc.ctl("option.limit"))
        """
    ).good()
    values = ["ValueError True"] * 10 + ["TypeError True"] * 3
    assert lines == [*values, "ValueError", "TypeError", "TypeError", "TypeError", "2GiB"]


def test_a_limit_of_a_device_that_is_not_there_is_refused(machine):
    lines = machine.run(
        LIMITS
        + """
print(had(1))
for device in (2, 9):
    try:
        vramalloc.limit("1G", device=device)
    except ValueError as error:
        print(error)
print(vramalloc.ctl("option.device_limits"))
for name in ("device.2.live", "device.+1.limit"):
    try:
        vramalloc.ctl(name)
    except Exception as error:
        print(type(error).__name__, name in str(error))
"""
    ).good()
    assert lines == [
        "True",
        "there is no device 2: CUDA numbers them from 0 to 1 here",
        "there is no device 9: CUDA numbers them from 0 to 1 here",
        "none",
        "Error True",
        "Error True",
    ]


def test_a_limit_below_what_is_reserved_lets_what_is_there_live(machine):
    lines = machine.run(
        LIMITS
        + """
held = has(100)
with vramalloc.limit("10M"):
    print(isinstance(has(20), int))
    sim.free(held)
    vramalloc.trim()
    print(had(8))
print(had(100))
""",
        VRAMALLOC_OOM_REPORT="off",
    ).good()
    assert lines == ["True", "True", "True"]


def test_regions_pause_and_resume(machine):
    lines = machine.run(
        """
        import threading, sim, vramalloc
        other = sim.get(1)
        with vramalloc.region("weights"):
            weights = sim.get(8 << 20)
        @vramalloc.region("cache", contents="drop")
        def fill():
            return sim.get(4 << 20)
        cache = fill()
        done = vramalloc.pause("weights")
        print(done.bytes >= 8 << 20, done.copied == 8 << 20, done.is_paused)
        print(vramalloc.pause("weights").bytes)
        dropped = vramalloc.pause("cache", device=0)
        print(dropped.bytes >= 4 << 20, dropped.copied)
        print(vramalloc.resume("weights").copied == 8 << 20)
        print(vramalloc.resume(drop_backups=True).is_paused)
        try:
            with vramalloc.region("weights"):
                raise KeyError("mine")
        except KeyError as error:
            print(error)
        for bad in (lambda: vramalloc.region(""), lambda: vramalloc.region(7),
                    lambda: vramalloc.region("a", "lose"), lambda: vramalloc.pause(device=-3)):
            try:
                bad()
            except ValueError as error:
                print("ValueError")
        # Ended in another thread.
        region = vramalloc.region("weights").__enter__()
        def end():
            try:
                region.__exit__(None, None, None)
            except vramalloc.Error as error:
                print(error.name)
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        """,
        VRAMALLOC_STRATEGY="mapped",
    ).good()
    assert lines == [
        "True True True",
        "0",
        "True 0",
        "True",
        "False",
        "'mine'",
        *["ValueError"] * 4,
        "VRAMALLOC_INVALID_STATE",
    ]


def test_a_pause_without_mapped_memory_says_what_to_do(machine):
    lines = machine.run(
        """
        import sim, vramalloc
        sim.get(1)
        try:
            vramalloc.pause()
        except vramalloc.Error as error:
            print(error.code, error)
        """
    ).good()
    assert lines[0].startswith("801 ") and "strategy=mapped" in lines[0]


def test_a_forked_child_is_told_so(machine):
    lines = machine.run(
        """
        import os, sim, vramalloc
        sim.get(1)
        with vramalloc.measure("in the parent"):
            child = os.fork()
            if child == 0:
                print(vramalloc.active())
                try:
                    vramalloc.trim()
                except vramalloc.Error as error:
                    print(error.name, "spawn" in str(error), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """
    ).good()
    assert lines == ["True", "VRAMALLOC_FORKED True"]


def test_the_package_is_typed(machine, tmp_path):
    pytest.importorskip("mypy")
    program = machine.file(
        "user.py",
        """
        import vramalloc

        with vramalloc.measure("a") as m, vramalloc.limit("1G"), vramalloc.region("w"):
            peak: int = m.peak
        env: dict[str, str] = vramalloc.preload_env(limit="1G", stacks=None)
        path: str = str(vramalloc.library_path())
        """,
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10"]
    cache = os.path.join(os.path.dirname(sys.executable), "../mypy_cache")
    ended = subprocess.run(
        [*mypy, "--cache-dir", cache, str(machine.site / "vramalloc"), str(program)],
        capture_output=True,
        text=True,
        env=machine.environment(MYPYPATH=str(machine.site)),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_limits_whose_blocks_cross(machine):
    lines = machine.run(
        """
        import vramalloc
        show = lambda: print(vramalloc.ctl("option.limit"), vramalloc.ctl("option.device_limits"))
        a = vramalloc.limit("3G").__enter__()
        b = vramalloc.limit("2G").__enter__()
        a.__exit__(None, None, None); show()
        b.__exit__(None, None, None); show()
        a = vramalloc.limit("3G").__enter__()
        b = vramalloc.limit("2G", device=0).__enter__()
        a.__exit__(None, None, None); show()
        b.__exit__(None, None, None); show()
        late = vramalloc.limit("3G")
        vramalloc.limit("4G")
        for _ in range(2):
            with late:
                show()
                try:
                    late.__enter__()
                except RuntimeError:
                    print("open already")
            show()
        """
    ).good()
    late = ["3GiB none", "open already", "4GiB none"]
    assert lines == ["2GiB none", "none none", "none [0:2GiB]", "none none", *late, *late]


def test_a_forked_child_leaves_its_parents_blocks(machine):
    lines = machine.run(
        """
        import os, sim, vramalloc
        sim.get(1)
        for block in (vramalloc.limit("1G"), vramalloc.region("w"), vramalloc.measure()):
            with block:
                child = os.fork()
            if child == 0:
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    ).good()
    assert lines == ["7"] * 3


def test_a_region_that_is_not_the_innermost_does_not_end(machine):
    lines = machine.run(
        """
        import vramalloc
        a = vramalloc.region("a").__enter__()
        b = vramalloc.region("b").__enter__()
        try:
            a.__exit__(None, None, None)
        except RuntimeError as error:
            print(error)
        b.__exit__(None, None, None)
        a.__exit__(None, None, None)
        async def coroutine(): pass
        def generator(): yield
        async def both(): yield
        for function in (coroutine, generator, both):
            try:
                vramalloc.region("a")(function)
            except TypeError:
                print("TypeError")
        """
    ).good()
    assert lines[0].startswith("the region 'a' is not the innermost of this thread, which is 'b'")
    assert lines[1:] == ["TypeError"] * 3
