"""Other processes that are started under the library: variables, multiprocessing, paths."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

#: What a child says of itself.
CHILD = """
def say(queue):
    import os, vramalloc
    queue.put((vramalloc.active(), os.environ.get("VRAMALLOC_LIMIT"),
               vramalloc.ctl("option.limit") if vramalloc.active() else None))
"""


def test_an_environment_is_a_copy(machine):
    lines = machine.bare(
        """
        import os, vramalloc
        os.environ["VRAMALLOC_STRATEGY"] = "mapped"
        env = vramalloc.preload_env(limit="16G", stats=None, trace=10, strategy=None)
        print("LD_PRELOAD" in os.environ, "VRAMALLOC_LIMIT" in os.environ)
        print(env["LD_PRELOAD"] == str(vramalloc.library_path()))
        print(env["VRAMALLOC_LIMIT"], env["VRAMALLOC_TRACE"])
        print("VRAMALLOC_STATS" in env, "VRAMALLOC_STRATEGY" in env)
        given = {"LD_PRELOAD": "/a.so /b.so", "A": "1"}
        env = vramalloc.preload_env(given)
        print(given, sorted(env), env["LD_PRELOAD"].split(":")[1:])
        print(vramalloc.preload_env(env)["LD_PRELOAD"] == env["LD_PRELOAD"])
        """
    ).good()
    assert lines == [
        "False False",
        "True",
        "16G 10",
        "False False",
        "{'LD_PRELOAD': '/a.so /b.so', 'A': '1'} ['A', 'LD_PRELOAD'] ['/a.so', '/b.so']",
        "True",
    ]


def test_other_copies_of_the_library_are_left_out(machine):
    lines = machine.bare(
        """
        import vramalloc
        own = str(vramalloc.library_path())
        for named in ("/old/libvramalloc.so.0:/a.so libvramalloc-0123.so", f"{own}:/a.so:{own}",
                      f"/old/libvramalloc.so:{own}", f"/a.so:{own}"):
            print(vramalloc.preload_env({"LD_PRELOAD": named})["LD_PRELOAD"].replace(own, "own"))
        """
    ).good()
    assert lines == ["own:/a.so", "own:/a.so", "own", "/a.so:own"]


def test_options_that_are_none_are_refused(machine):
    code = """
        import vramalloc
        for options in ({"Limit": "1G"}, {"a=b": "1"}, {"limit": ""}, {"limit": " "},
                        {"limit": "1\\0"}, {"limit": float("nan")}, {"limit": [1]}, {"colour": "red"}):
            try:
                vramalloc.preload_env(**options)
                print("taken")
            except (ValueError, TypeError) as error:
                print(type(error).__name__)
        """
    refused = [*["ValueError"] * 6, "TypeError", "ValueError"]
    assert machine.run(code).good() == refused
    assert machine.bare(code).good() == refused


def test_what_cannot_be_read_is_refused_here(machine):
    """Not in the process that is started, which would run without it."""
    code = """
        import vramalloc
        def told(make):
            try:
                make()
                print("taken")
            except ValueError as error:
                print(error)
        told(lambda: vramalloc.preload_env(limit="5Q"))
        told(lambda: vramalloc.preload_env(limit="5G", strategy="best"))
        told(lambda: vramalloc.configure_subprocess(limit=16).__enter__())
        told(lambda: vramalloc.preload_env({"VRAMALLOC_LIMIT": "5Q"}, decay_ms=5, trace=None))
        """
    readable = "a size such as 16G or 512MiB, a share up to 100% such as 0.5 or 50%, or none"
    for lines in (machine.run(code).good(), machine.bare(code).good()):
        assert lines == [
            f'limit: cannot read "5Q"; accepted: {readable}',
            'strategy: cannot read "best"; accepted: naive_best_fit, auto_growth, mapped, '
            "passthrough",
            f'limit: cannot read "16" (did you mean 16G?); accepted: {readable}',
            "taken",
        ]


def test_a_subprocess_runs_under_the_library(machine):
    lines = machine.bare(
        """
        import subprocess, sys, vramalloc
        code = "import sim, vramalloc; print(vramalloc.active(), sim.malloc(2 << 20))"
        env = vramalloc.preload_env(limit="1M", oom_report="off")
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        """
    ).good()
    assert lines == ["True 2"]


@pytest.mark.parametrize("preload", [False, True])
def test_multiprocessing_by_spawn(machine, preload):
    program = machine.file(
        "spawn.py",
        CHILD
        + """
if __name__ == "__main__":
    import multiprocessing, os, vramalloc
    before = dict(os.environ)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with vramalloc.configure_subprocess(limit="3G"):
        with vramalloc.configure_subprocess(limit="2G"):
            pass
        child = context.Process(target=say, args=(queue,))
        child.start()
        print(queue.get(timeout=30))
        child.join()
    print(dict(os.environ) == before)
    child = context.Process(target=say, args=(queue,))
    child.start()
    print(queue.get(timeout=30))
    child.join()
""",
    )
    lines = machine.start(sys.executable, program, preload=preload).good()
    after = "(True, None, 'none')" if preload else "(False, None, None)"
    assert lines == ["(True, '3G', '3GiB')", "True", after]


def test_forks_are_warned_of(machine):
    program = machine.file(
        "fork.py",
        CHILD
        + """
if __name__ == "__main__":
    import multiprocessing, subprocess, sys, vramalloc
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with vramalloc.configure_subprocess():
        # No fork of the program's own.
        subprocess.run([sys.executable, "-c", ""], check=True)
        child = context.Process(target=say, args=(queue,))
        child.start()
        print(queue.get(timeout=30)[0])
        child.join()
    child = context.Process(target=say, args=(queue,))
    child.start()
    queue.get(timeout=30)
    child.join()
""",
    )
    ended = machine.start(sys.executable, program)
    assert (ended.status, ended.out) == (0, "False\n"), ended.errors
    assert ended.errors.count("RuntimeWarning: a child by fork does not come under") == 1
    assert "spawn" in ended.errors


def test_a_forkserver_that_runs_is_warned_of(machine):
    program = machine.file(
        "server.py",
        CHILD
        + """
if __name__ == "__main__":
    import multiprocessing, sys, vramalloc
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    def child():
        child = context.Process(target=say, args=(queue,))
        child.start()
        print(queue.get(timeout=30)[0])
        child.join()
    if sys.argv[1] == "early":
        child()
    with vramalloc.configure_subprocess():
        child()
    with vramalloc.configure_subprocess():
        pass
""",
    )
    late = machine.start(sys.executable, program, "late")
    assert (late.status, late.out, late.errors) == (0, "True\n", "")
    early = machine.start(sys.executable, program, "early")
    assert (early.status, early.out) == (0, "False\nFalse\n"), early.errors
    assert "forkserver runs already" in early.errors


def test_an_exception_puts_variables_back(machine):
    lines = machine.bare(
        """
        import os, vramalloc
        os.environ["VRAMALLOC_LIMIT"] = "1G"
        try:
            with vramalloc.configure_subprocess(limit="2G", stacks="all", strategy=None):
                print(os.environ["VRAMALLOC_LIMIT"], os.environ["VRAMALLOC_STACKS"])
                raise KeyError
        except KeyError:
            pass
        print(os.environ["VRAMALLOC_LIMIT"], "VRAMALLOC_STACKS" in os.environ)
        print("LD_PRELOAD" in os.environ)
        try:
            vramalloc.configure_subprocess(limit="").__enter__()
        except ValueError:
            print("LD_PRELOAD" in os.environ)
        """
    ).good()
    assert lines == ["2G all", "1G False", "False", "False"]


@pytest.fixture(params=["my programs: mine", "$LIB"])
def spaced(request, site, tmp_path):
    """A copy of the package in a folder that LD_PRELOAD cannot name."""
    folder = site.parent / f"{os.getpid()}{request.param}"
    shutil.copytree(site, folder, copy_function=os.link)
    yield folder
    shutil.rmtree(folder)


def test_a_path_with_a_blank(machine, spaced):
    code = """
        import os, subprocess, sys, vramalloc
        path = str(vramalloc.library_path())
        env = vramalloc.preload_env()
        print(env["LD_PRELOAD"], flush=True)
        code = "import vramalloc; print(vramalloc.active(), vramalloc.library_path())"
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        # The same link, which is known as the library.
        print(vramalloc.preload_env(env)["LD_PRELOAD"] == env["LD_PRELOAD"])
        """
    library = spaced / "vramalloc/lib/libvramalloc.so"
    machine.site = spaced
    # PYTHONPATH cannot name it either.
    plain = machine.folder / "plain"
    plain.symlink_to(spaced)
    variables = {"PYTHONPATH": f"{plain}:{Path(__file__).parent}"}
    link, active, same = machine.bare(code, **variables).good()
    assert active == f"True {library}" and same == "True"
    assert Path(link).resolve() == library and " " not in link
    found = Path(link).parent.lstat()
    assert stat.S_ISDIR(found.st_mode) and found.st_mode & 0o777 == 0o700
    # The command uses the same.
    run = [sys.executable, "-m", "vramalloc", "run", "sh", "-c", "echo $LD_PRELOAD"]
    assert machine.start(*run, **variables).out.strip() == link
    os.unlink(link)


def test_a_folder_of_somebody_else_is_not_used(machine, spaced):
    """Where no folder is the user's own, nothing is loaded from it."""
    code = """
        import os, vramalloc
        from vramalloc import _environment
        parent = os.path.abspath("parent")
        os.mkdir(parent)
        folder = os.path.join(parent, "own")
        def refused(what):
            try:
                _environment._make_private(parent, folder)
                print(what, "taken")
            except OSError as error:
                print(what, error)
        os.mkdir(folder)
        os.chmod(folder, 0o755)
        refused("open")
        os.rmdir(folder)
        os.mkdir("other", 0o700)
        os.symlink(os.path.abspath("other"), folder)
        refused("link")
        os.unlink(folder)
        refused("none")
        os.chmod(parent, 0o777)
        refused("parent")
        """
    lines = machine.bare(code).good()
    assert lines[0] == "open it is open to others"
    assert lines[1] == "link it is no folder"
    assert lines[2] == "none taken"
    assert lines[3].startswith("parent anybody may rename")


def test_blocks_that_cross_or_do_not_begin_leave_no_variables(machine):
    lines = machine.bare(
        """
        import os, vramalloc
        from vramalloc import _environment
        before = dict(os.environ)
        a = vramalloc.configure_subprocess(limit="1G", trace=1).__enter__()
        b = vramalloc.configure_subprocess(limit="2G").__enter__()
        a.__exit__(None, None, None)
        print(os.environ["VRAMALLOC_LIMIT"], "VRAMALLOC_TRACE" in os.environ)
        b.__exit__(None, None, None)
        print(dict(os.environ) == before)
        try:
            b.__exit__(None, None, None)
        except RuntimeError as error:
            print(error)
        def warn(wanted):
            raise RuntimeWarning("forkserver")
        _environment._look_for_forkserver = warn
        try:
            b.__enter__()
        except RuntimeWarning:
            print(dict(os.environ) == before)
        """
    ).good()
    assert lines == ["2G False", "True", "this block was not entered", "True"]


@pytest.mark.parametrize("path, why", [("/etc/passwd", "no library"), ("/tmp", "no file")])
def test_what_is_no_library_is_not_preloaded(machine, path, why):
    ended = machine.bare("import vramalloc; vramalloc.preload_env()", VRAMALLOC_LIBRARY=path)
    assert f"OSError: {path} is {why}" in ended.errors
