"""Those who are measured beside us, as far as they can be had.

Nothing is installed outside of target/: PyTorch goes into a virtual
environment, Debian's packages are only unpacked.
"""

import pathlib
import shutil
import subprocess

from machine import ROOT

UNPACKED = ROOT / "target" / "bench" / "peers"
# The library to preload, of which package.
CPU = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "mimalloc": ("libmimalloc.so.2.0", "libmimalloc2.0"),
}


def unpack(package):
    """Fetches a package and unpacks it; what went wrong, or nothing."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return "there is no apt-get"
    folder = UNPACKED / package
    folder.mkdir(parents=True, exist_ok=True)
    commands = (["apt-get", "download", package], ["apt-get", "update", "-qq"])
    for command in (commands[0], commands[1], commands[0]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if command is commands[0] and done.returncode == 0:
            break
    found = list(folder.glob("*.deb"))
    if not found:
        return (done.stderr.strip().splitlines() or ["it cannot be downloaded"])[-1]
    subprocess.run(["dpkg", "-x", found[0], folder], check=True)
    return None


def cpu_allocators(install):
    """The libraries by name, and why others are absent."""
    here, absent = {}, {}
    for name, (file, package) in CPU.items():
        library = next(iter((UNPACKED / package).rglob(file)), None)
        problem = "not unpacked yet" if library is None and not install else None
        if library is None and install:
            problem = unpack(package)
            library = next(iter((UNPACKED / package).rglob(file)), None)
        if library:
            here[name] = library
        else:
            absent[name] = problem or f"{package} has no {file}"
    return here, absent


def torch(install):
    """The folder of PyTorch's package, or why there is none."""
    command = ["scripts/pytorch-environment"] + ([] if install else ["--no-install"])
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it cannot be installed"])[-1]
    return pathlib.Path(done.stdout.strip()), None
