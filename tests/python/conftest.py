"""Programs of Python under the library, over the simulated CUDA.

Each runs in a process of its own, with the package laid out as its wheel has it:
library, command and probe in vramalloc/lib/.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
SIM = ROOT / "target/sim"
HERE = Path(__file__).resolve().parent

#: What somebody set for programs of their own is no part of a test.
FOREIGN = re.compile(r"(VRAMALLOC|FLAGS|SIM_CUDA|PYTORCH|PYTEST|PYTHON)|LD_PRELOAD$|COV_")

ENTRY_POINTS = """\
[console_scripts]
vramalloc = vramalloc.__main__:main

[pytest11]
vramalloc = vramalloc.pytest_plugin
"""

FILES = ("libvramalloc.so", "vramalloc", "vramalloc-probe")


def lay_out(folder):
    """The package in a folder, as its wheel is unpacked."""
    package = folder / "vramalloc"
    leave = shutil.ignore_patterns("__pycache__", "lib")
    shutil.copytree(ROOT / "python/src/vramalloc", package, ignore=leave)
    (package / "lib").mkdir()
    for name in FILES:
        # Not a link: where a library lies is what its path says.
        os.link(BUILT / name, package / "lib" / name)
    info = folder / "vramalloc-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vramalloc\nVersion: 0.2.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@dataclass
class Ended:
    """How a program ended, and what it printed."""

    status: int
    out: str
    errors: str

    def good(self):
        """Its lines, if it ended well and said nothing of an error."""
        assert self.status == 0, self.out + self.errors
        assert self.errors == "", self.errors
        return self.out.splitlines()


class Machine:
    """Starts programs."""

    def __init__(self, site, folder):
        self.site = site
        self.folder = folder
        self.library = site / "vramalloc/lib/libvramalloc.so"

    def environment(self, preload=False, **variables):
        """That of a program."""
        env = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        env["PYTHONPATH"] = f"{self.site}:{HERE}"
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env["LD_LIBRARY_PATH"] = str(SIM)
        env["VRAMALLOC_STATS"] = "off"
        if preload:
            env["LD_PRELOAD"] = str(self.library)
        env.update(variables)
        return env

    def start(self, *words, preload=False, **variables):
        """Runs a program to its end."""
        ended = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.environment(preload, **variables),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def bare(self, code, **variables):
        """Runs a program of Python without the library."""
        return self.start(sys.executable, "-c", textwrap.dedent(code), **variables)

    def run(self, code, **variables):
        """The same under the library."""
        return self.bare(code, preload=True, **variables)

    def file(self, name, text):
        """A file of the program's folder."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The package as its wheel is unpacked."""
    folder = ROOT / "target/python/layout" / str(os.getpid())
    folder.mkdir(parents=True)
    yield lay_out(folder)
    shutil.rmtree(folder)


@pytest.fixture
def machine(site, tmp_path):
    """Starts programs in a folder of the test's own."""
    return Machine(site, tmp_path)
