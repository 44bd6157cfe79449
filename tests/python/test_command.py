"""The command, started by the package."""

import os
import shutil
import signal
import subprocess
import sys

SAYS = """
import os, sys, vramalloc
print(vramalloc.active(), sys.executable, sys.argv[1:], "VRAMALLOC_PYTHON" in os.environ)
"""


def test_a_file_is_run_by_the_interpreter_that_started_the_package(machine):
    machine.file("train.py", SAYS)
    run = [sys.executable, "-m", "vramalloc", "run"]
    for program in (["train.py"], [sys.executable, "train.py"]):
        ended = machine.start(*run, *program, "-x", PATH="/nowhere")
        assert ended.status == 0, ended.errors
        assert ended.out == f"True {sys.executable} ['-x'] False\n"


def test_statuses_and_arguments_are_passed_on(machine):
    module = [sys.executable, "-m", "vramalloc"]
    ended = machine.start(*module, "--version")
    assert ended.status == 0 and ended.out.startswith("vramalloc ")
    assert machine.start(*module, "run", "sh", "-c", "exit 7").status == 7
    ended = machine.start(*module, "run", "none.py")
    assert ended.status == 127 and "cannot start none.py" in ended.errors
    assert machine.start(*module, "nonsense").status == 2


def test_what_python_ignores_is_not_ignored(machine):
    script = "import signal; print(signal.getsignal(signal.SIGXFSZ) == signal.SIG_DFL)"
    # Python ignores it itself: a shell says it.
    mask = "grep SigIgn /proc/$$/status"
    module = [sys.executable, "-m", "vramalloc", "run", "sh", "-c", mask]
    ended = machine.start(*module)
    bits = int(ended.out.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not bits & (1 << (number - 1)), script


def test_a_package_without_its_command_says_so(machine, tmp_path):
    package = tmp_path / "bare/vramalloc"
    shutil.copytree(machine.site / "vramalloc", package, ignore=shutil.ignore_patterns("lib"))
    variables = {"PYTHONPATH": str(package.parent)}
    ended = machine.start(sys.executable, "-m", "vramalloc", "--version", **variables)
    assert ended.status == 127 and "installed without its command" in ended.errors
    ended = machine.bare("import vramalloc; vramalloc.preload_env()", **variables)
    assert "installed without its library" in ended.errors
    # Another library, with the command beside it.
    variables["VRAMALLOC_LIBRARY"] = str(machine.library)
    ended = machine.start(sys.executable, "-m", "vramalloc", "--version", **variables)
    assert ended.status == 0, ended.errors
    code = "import vramalloc; print(vramalloc.preload_env()['LD_PRELOAD'])"
    assert machine.bare(code, **variables).good() == [str(machine.library)]
    variables["VRAMALLOC_LIBRARY"] = "/nowhere.so"
    ended = machine.bare(code, **variables)
    assert "VRAMALLOC_LIBRARY=/nowhere.so: there is no such file" in ended.errors
    # What cannot be run: a file without the right.
    (package / "lib").mkdir()
    (package / "lib/vramalloc").write_text("")
    del variables["VRAMALLOC_LIBRARY"]
    ended = machine.start(sys.executable, "-m", "vramalloc", "--version", **variables)
    assert ended.status == 126 and "cannot be run: Permission denied" in ended.errors


def test_the_doctor_examines_a_file(machine):
    machine.file("train.py", "import sim; sim.get(1)")
    module = [sys.executable, "-m", "vramalloc", "doctor"]
    ended = machine.start(*module, "--", "train.py")
    assert "1 allocations of" in ended.out or "1 allocation of" in ended.out, ended.out


def test_a_signal_reaches_the_program(machine):
    machine.file("wait.py", "import signal, sys; print('up', flush=True); signal.pause()")
    module = [sys.executable, "-m", "vramalloc", "run", "wait.py"]
    child = subprocess.Popen(
        module,
        cwd=machine.folder,
        env=machine.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout.readline() == "up\n"
    os.kill(child.pid, signal.SIGTERM)
    child.stdout.close()
    assert child.wait(timeout=30) == 128 + signal.SIGTERM
