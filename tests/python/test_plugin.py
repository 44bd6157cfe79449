"""The plugin of pytest: it starts itself again, limits, looks for leaks, and sums up."""

import re
import subprocess
import sys

import pytest

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def outcomes(ended):
    """How many tests passed, failed and so on, from pytest's last line."""
    found = re.findall(r"([0-9]+) (passed|failed|skipped|errors?|xfailed)", last(ended))
    return {what: int(count) for count, what in found}


def last(ended):
    return ended.out.strip().splitlines()[-1]


LIMITS = """
    import pytest, sim
    MIB = 1 << 20
    kept = []

    @pytest.mark.limit_gpu_memory("64M")
    def test_below():
        sim.free(sim.get(60 * MIB))

    @pytest.mark.limit_gpu_memory("64M")
    def test_above():
        block = sim.get(30 * MIB)
        try:
            sim.free(sim.get(80 * MIB))
        finally:
            sim.free(block)

    @pytest.mark.limit_gpu_memory("64M")
    def test_beyond_what_was_there():
        kept.append(sim.get(1 * MIB))
        sim.free(sim.get(60 * MIB))

    @pytest.mark.limit_gpu_memory("1M")
    def test_above_by_a_byte():
        sim.free(sim.get(MIB + 1))

    @pytest.mark.limit_gpu_memory(1000)
    def test_a_number_of_bytes():
        sim.free(sim.get(512))

    def test_without_a_mark():
        sim.free(sim.get(200 * MIB))
"""


def test_it_starts_itself_again(machine):
    machine.file("test_it.py", LIMITS)
    for started in (
        PYTEST,
        [sys.executable, "-X", "dev", "-m", "pytest", "-p", "no:cacheprovider"],
    ):
        ended = machine.start(*started, "--vramalloc", "test_it.py")
        assert outcomes(ended) == {"passed": 4, "failed": 2}, ended.out + ended.errors
        assert "vramalloc: 0.2" in ended.out and str(machine.library) in ended.out
    assert (
        "limit_gpu_memory('64M') allows 64.0 MiB: 1 request for GPU memory failed for that; the "
        "last asked for 80.0 MiB when the test held 30.0 MiB more than before it" in ended.out
    )
    assert (
        "the test held 1049088 B of GPU memory more than before it; limit_gpu_memory('1M') allows "
        "1.0 MiB" in ended.out
    )
    # The largest first.
    first = ended.out.split("beyond what there was before\n")[1].splitlines()[0]
    assert first.split() == "200.0 MiB 1 allocation test_it.py::test_without_a_mark".split()
    assert not list(machine.folder.glob("*.json"))


def test_under_the_command(machine):
    machine.file("test_it.py", LIMITS)
    run = [sys.executable, "-m", "vramalloc", "run", *PYTEST]
    assert outcomes(machine.start(*run, "test_it.py")) == {"passed": 4, "failed": 2}


def test_with_xdist(machine):
    machine.file("test_it.py", LIMITS)
    ended = machine.start(*PYTEST, "--vramalloc", "-n", "2", "test_it.py")
    assert outcomes(ended) == {"passed": 4, "failed": 2}, ended.out + ended.errors
    assert "the last asked for 80.0 MiB" in ended.out
    assert "test_it.py::test_without_a_mark" in ended.out.split("held most GPU memory")[1]


def test_without_the_library_marked_tests_are_skipped(machine):
    machine.file("test_it.py", LIMITS)
    ended = machine.start(*PYTEST, "-rs", "test_it.py")
    assert outcomes(ended) == {"passed": 1, "skipped": 5}
    assert "5 tests were skipped that need vramalloc: run 'pytest --vramalloc'" in ended.out
    ended = machine.start(*PYTEST, "--vramalloc-require", "test_it.py")
    assert outcomes(ended) == {"passed": 1, "errors": 5}, ended.out
    assert "limit_gpu_memory needs vramalloc: run 'pytest --vramalloc'" in ended.out
    # A project that does not use it does not hear of it.
    machine.file("test_it.py", "def test_one(): pass")
    ended = machine.start(*PYTEST, "test_it.py")
    assert outcomes(ended) == {"passed": 1} and "vramalloc:" not in ended.out


LEAKS = """
    import gc, pytest, sim
    MIB = 1 << 20
    kept = []

    def workspace():
        kept.append(sim.get(3 * MIB))

    @pytest.mark.limit_gpu_leaks("1M")
    def test_leaks():
        workspace()
        workspace()

    @pytest.mark.limit_gpu_leaks("8M")
    def test_first_workspace():
        workspace()

    @pytest.mark.limit_gpu_leaks
    def test_nothing_is_left():
        sim.free(sim.get(50 * MIB))

    class Cycle:
        def __init__(self):
            self.own, self.block = self, sim.get(5 * MIB)
        def __del__(self):
            sim.free(self.block)

    @pytest.mark.limit_gpu_leaks(threshold="1M")
    def test_what_the_collector_finds():
        gc.disable()
        Cycle()

    @pytest.mark.limit_gpu_leaks("1M")
    def test_past_the_pool():
        kept.append(sim.malloc_async(20 * MIB))

    @pytest.mark.limit_gpu_leaks("1M")
    def test_that_fails_for_another_reason():
        workspace()
        assert False, "mine"

    @pytest.fixture
    def model():
        block = sim.get(9 * MIB)
        yield block
        sim.free(block)

    @pytest.mark.limit_gpu_leaks("1M")
    def test_of_a_fixture(model):
        pass
"""


def test_leaks_are_found_and_told(machine):
    machine.file("test_it.py", LEAKS)
    ended = machine.start(*PYTEST, "--vramalloc", "test_it.py")
    assert outcomes(ended) == {"passed": 4, "failed": 3}, ended.out + ended.errors
    assert (
        "the test left 6.0 MiB of GPU memory behind; limit_gpu_leaks('1M') allows 1.0 MiB\n"
        "  6.0 MiB in 2 blocks on device 0\n"
        "  with --vramalloc-option stacks=all it is told where it was asked for\n" in ended.out
    )
    assert "came past the pool, as by cudaMallocAsync" in ended.out
    assert "AssertionError: mine" in ended.out
    ended = machine.start(
        *PYTEST, "--vramalloc", "--vramalloc-option", "stacks=all", "test_it.py::test_leaks"
    )
    assert outcomes(ended) == {"failed": 1}
    # Where CI is set, pytest's summary says all of it once more.
    found = set(re.findall(r"3.0 MiB in 1 block on device 0, asked for by (.*)", ended.out))
    assert len(found) == 2, ended.out
    for line, place in zip((11, 12), sorted(found)):
        assert place.endswith(f"get < test_it.py:7 workspace < test_it.py:{line} test_leaks"), place


def test_pytorchs_cache_is_emptied_first(machine):
    stub = machine.folder / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text("from . import cuda\n")
    (stub / "cuda.py").write_text(
        "import sim\n"
        "cache = []\n"
        "def is_available(): return True\n"
        "def is_initialized(): return True\n"
        "def synchronize(): pass\n"
        "def empty_cache():\n"
        "    while cache: sim.free(cache.pop())\n"
    )
    machine.file(
        "test_it.py",
        """
        import pytest, sim, torch

        @pytest.mark.limit_gpu_leaks("1M")
        def test_one():
            torch.cuda.cache.append(sim.get(20 << 20))

        @pytest.mark.limit_gpu_memory("24M")
        def test_two():
            torch.cuda.cache.append(sim.get(20 << 20))

        @pytest.mark.limit_gpu_memory("24M")
        def test_three():
            assert not torch.cuda.cache
            torch.cuda.cache.append(sim.get(20 << 20))
        """,
    )
    ended = machine.start(*PYTEST, "--vramalloc", "test_it.py")
    assert outcomes(ended) == {"passed": 3}, ended.out


def test_defaults_of_a_project(machine):
    machine.file(
        "pyproject.toml",
        """
        [tool.pytest.ini_options]
        vramalloc = true
        vramalloc_limit = "16M"
        vramalloc_leaks = "1M"
        vramalloc_options = ["stacks=all"]
        """,
    )
    machine.file(
        "test_it.py",
        """
        import pytest, sim, vramalloc
        kept = []

        def test_above():
            sim.free(sim.get(20 << 20))

        @pytest.mark.limit_gpu_memory("32M")
        def test_with_a_mark():
            sim.free(sim.get(20 << 20))

        def test_leaks():
            kept.append(sim.get(2 << 20))

        def test_the_option():
            assert vramalloc.ctl("option.stacks") == "all"
        """,
    )
    ended = machine.start(*PYTEST, "test_it.py")
    assert outcomes(ended) == {"passed": 2, "failed": 2}, ended.out + ended.errors
    assert "'16M' by default allows 16.0 MiB" in ended.out
    assert "'1M' by default allows 1.0 MiB" in ended.out
    machine.file("pyproject.toml", '[tool.pytest.ini_options]\nvramalloc_limit = "much"\n')
    ended = machine.start(*PYTEST, "test_it.py")
    assert ended.status == 4 and "vramalloc_limit: 'much' is no size" in ended.errors


def test_a_users_limit_is_not_lifted(machine):
    machine.file(
        "test_it.py",
        """
        import pytest, sim, vramalloc

        def test_before():
            sim.free(sim.get(1))

        @pytest.mark.limit_gpu_memory("64M")
        def test_one():
            assert sim.malloc(40 << 20) == 2

        @pytest.mark.limit_gpu_memory("8M")
        def test_that_sets_its_own():
            with vramalloc.limit("4M"):
                assert sim.malloc(6 << 20) == 2
            sim.free(sim.get(6 << 20))

        def test_after():
            assert vramalloc.ctl("option.limit") == "32MiB"
            assert vramalloc.ctl("option.device_limits") == "none"
        """,
    )
    ended = machine.start(*PYTEST, "--vramalloc", "test_it.py", VRAMALLOC_LIMIT="32M")
    assert outcomes(ended) == {"passed": 4}, ended.out


def test_sizes_that_are_none_fail_the_test(machine):
    machine.file(
        "test_it.py",
        """
        import pytest

        @pytest.mark.limit_gpu_memory(1, 2)
        def test_two(): pass

        @pytest.mark.limit_gpu_memory()
        def test_none_at_all(): pass

        @pytest.mark.limit_gpu_memory("64Q")
        def test_a_unit(): pass

        @pytest.mark.limit_gpu_memory("")
        def test_an_empty_text(): pass

        @pytest.mark.limit_gpu_memory(True)
        def test_a_truth(): pass

        @pytest.mark.limit_gpu_memory(-5)
        def test_below_nothing(): pass

        @pytest.mark.limit_gpu_memory(None)
        def test_nothing(): pass

        @pytest.mark.limit_gpu_memory("0.5")
        def test_a_share(): pass

        @pytest.mark.limit_gpu_memory("9" * 400)
        def test_many_digits(): pass

        @pytest.mark.limit_gpu_memory(10**30)
        @pytest.mark.limit_gpu_leaks
        def test_more_than_there_is(): pass

        @pytest.mark.limit_gpu_memory(most="1M")
        def test_another_name(): pass
        """,
    )
    ended = machine.start(*PYTEST, "--vramalloc", "test_it.py")
    assert outcomes(ended) == {"failed": 11}, ended.out
    told = re.findall(r"^(?:limit_gpu_memory takes one size|limit_gpu_memory: .*)", ended.out, re.M)
    assert len(told) == 11 and "INTERNALERROR" not in ended.out, ended.out


def test_in_a_program_that_calls_pytest(machine):
    machine.file("test_it.py", LIMITS)
    program = machine.file(
        "program.py",
        """
        import sys, pytest
        print("began", flush=True)
        sys.exit(pytest.main(sys.argv[1:] or ["--vramalloc", "test_it.py"]))
        """,
    )
    for words in ((), ("--vramalloc", "test_it.py")):
        ended = machine.start(sys.executable, program, *words)
        assert ended.status == 4, ended.out + ended.errors
        assert ended.out.count("began") == 1
        assert "started by pytest.main()" in ended.errors and "vramalloc run python" in ended.errors
    # As the project's default it does not stand in the way of an editor.
    machine.file("pytest.ini", "[pytest]\nvramalloc = true\n")
    ended = machine.start(sys.executable, program, "test_it.py")
    assert outcomes(ended) == {"passed": 1, "skipped": 5}
    assert "vramalloc: not active, since pytest was started by pytest.main()" in ended.out
    run = [sys.executable, "-m", "vramalloc", "run", sys.executable, program]
    assert outcomes(machine.start(*run)) == {"passed": 4, "failed": 2}


def test_what_stands_in_the_way_is_said(machine):
    machine.file("test_it.py", "def test_one(): pass")
    words = [*PYTEST, "--vramalloc", "test_it.py"]
    for variables, why in (
        ({"VRAMALLOC_LIBRARY": "/nowhere.so"}, "VRAMALLOC_LIBRARY=/nowhere.so: there is no such"),
        # What the loader does not take is started again once, and not for ever.
        ({"VRAMALLOC_LIBRARY": str(machine.file("no.so", "\x7fELF no library"))}, "is not there"),
    ):
        ended = machine.start(*words, **variables)
        assert ended.status == 4 and why in ended.errors, ended.out + ended.errors
    ended = machine.start(*words, "--vramalloc-option", "limit")
    assert ended.status == 4 and "'limit' is no KEY=VALUE" in ended.errors


def test_a_test_that_starts_pytest(machine):
    machine.file("test_inner.py", "import vramalloc\ndef test_one(): assert vramalloc.active()")
    machine.file(
        "test_outer.py",
        """
        import subprocess, sys
        def test_outer():
            words = [sys.executable, "-m", "pytest", "--vramalloc", "test_inner.py"]
            assert subprocess.run(words).returncode == 0
        """,
    )
    ended = machine.start(*PYTEST, "--vramalloc", "test_outer.py")
    assert outcomes(ended) == {"passed": 1}, ended.out


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("limit=16", 'limit: cannot read "16" (did you mean 16G?)'),
        ("limt=2G", 'unknown option "limt" with value "2G"; did you mean limit?'),
        ("strategy=mapd", 'strategy: cannot read "mapd"'),
    ],
)
def test_an_option_that_the_library_does_not_take_is_an_error(machine, option, told):
    machine.file("test_it.py", "def test_one(): pass")
    ended = machine.start(*PYTEST, "--vramalloc", "--vramalloc-option", option, "test_it.py")
    assert ended.status == 4 and f"--vramalloc-option: {told}" in ended.errors, ended.errors
    machine.file("pytest.ini", f"[pytest]\nvramalloc_options = {option}\n")
    assert machine.start(*PYTEST, "--vramalloc", "test_it.py").status == 4


def test_a_broken_limit_is_a_failure_of_the_test_itself(machine):
    machine.file(
        "test_it.py",
        """
        import pytest, sim, unittest
        kept = []

        @pytest.mark.xfail(strict=True)
        @pytest.mark.limit_gpu_leaks
        def test_xfail():
            kept.append(sim.get(1 << 20))

        @pytest.mark.limit_gpu_memory("1K")
        def test_past_the_pool():
            kept.append(sim.malloc_managed(1 << 20))

        class TestOfUnittest(unittest.TestCase):
            @pytest.mark.limit_gpu_leaks
            def test_its_own_failure(self):
                kept.append(sim.get(1 << 20))
                assert False, "mine"
        """,
    )
    ended = machine.start(*PYTEST, "--vramalloc", "test_it.py")
    assert outcomes(ended) == {"xfailed": 1, "failed": 2}, ended.out + ended.errors
    assert "AssertionError: mine" in ended.out
    words = [*PYTEST, "--vramalloc", "--pdb", "-k", "past"]
    assert "entering PDB" in machine.start(*words, "test_it.py").out


def test_statistics_that_the_environment_asks_for_are_written(machine):
    machine.file("test_it.py", "import sim\ndef test_one(): sim.get(1)")
    env = machine.environment(VRAMALLOC_CONF="stats:here.%p.json")
    del env["VRAMALLOC_STATS"]
    subprocess.run([*PYTEST, "--vramalloc", "test_it.py"], cwd=machine.folder, env=env, check=True)
    assert list(machine.folder.glob("here.*.json"))
