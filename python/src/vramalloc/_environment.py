"""Starting other processes under the library.

The library comes into a process by ``LD_PRELOAD``, which only the process that starts
another one can set.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from . import _native
from ._native import Error, NotLoaded

LIBRARY = "libvramalloc.so"
#: How every name of a copy of it begins, that of a link of ours too.
_STEM = "libvramalloc"
#: Names the library where it is not in this package; the command heeds it too.
VARIABLE = "VRAMALLOC_LIBRARY"
PRELOAD = "LD_PRELOAD"

#: Where this package has its library and its command.
FOLDER = Path(__file__).resolve().parent / "lib"
COMMAND = "vramalloc"
#: The command's exit status where it cannot read what it was given.
_USAGE = 2

#: What stands between the entries of LD_PRELOAD, so that no entry can hold it.
_SEPARATORS = re.compile("[ :]")
# The loader also replaces words that begin with a dollar sign, such as $LIB.
_UNFIT = re.compile("[ :$]")
_OPTION = re.compile("[a-z][a-z0-9_]*")

#: What an option can be given as.
Value = str | int | float | bool | os.PathLike[str] | None


def active() -> bool:
    """Whether this process runs under the library."""
    try:
        return _native.library().ctl("preloaded") == "1"
    except NotLoaded:
        return False
    except Error as error:
        # A forked child may not ask; and an older library does not know the question.
        return error.code in (-4, -8)


def library_path() -> Path:
    """The library that this process runs under, or that others would be started under.

    That is the one that ``VRAMALLOC_LIBRARY`` names, or the package's own.
    """
    with contextlib.suppress(NotLoaded, Error):
        return Path(_native.library().ctl("library.path"))
    return _library_on_disk()


def _library_on_disk() -> Path:
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else FOLDER / LIBRARY
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                return path.resolve()
        raise OSError(f"{path} is no library")
    if path.exists():
        raise OSError(f"{path} is no file")
    if named:
        raise FileNotFoundError(f"{VARIABLE}={named}: there is no such file")
    raise FileNotFoundError(
        f"{path} is missing: this vramalloc was installed without its library; install its "
        f"wheel, or let {VARIABLE} name a {LIBRARY} that 'scripts/build' made"
    )


def preload_env(env: Mapping[str, str] | None = None, **options: Value) -> dict[str, str]:
    """An environment for a process that is to run under the library.

    It is a copy of ``env``, or of this process's. Options are those of ``vramalloc
    options``: ``preload_env(limit="16G", stats="off")``; `None` leaves one out that
    ``env`` has.

        subprocess.run([sys.executable, "train.py"], env=vramalloc.preload_env())
    """
    result = dict(os.environ if env is None else env)
    result.update(_variables(result, options))
    for name, value in options.items():
        if value is None:
            result.pop(_variable(name), None)
    return result


def _variables(env: Mapping[str, str], options: Mapping[str, Value]) -> dict[str, str]:
    """The variables to set."""
    shown = {name: _shown(name, value) for name, value in options.items() if value is not None}
    result = {_variable(name): text for name, text in shown.items()}
    result[PRELOAD] = _with_library(env.get(PRELOAD, ""))
    if shown:
        _check(env, shown)
    return result


def _check(env: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Has the command read the options; without it, the library warns in the process that is
    started."""
    command = command_path()
    if command is None:
        return
    given = [f"--option={name}={text}" for name, text in options.items()]
    alone = {name: value for name, value in env.items() if name != PRELOAD}
    asked = [os.fspath(command), "options", "--changed", *given]
    try:
        ended = subprocess.run(asked, env=alone, capture_output=True, text=True, errors="replace")
    except OSError:
        return
    if ended.returncode == _USAGE:
        raise ValueError(ended.stderr.strip().removeprefix("vramalloc: "))


def command_path() -> Path | None:
    """The command: beside the library that ``VRAMALLOC_LIBRARY`` names, or in this package."""
    named = os.environ.get(VARIABLE)
    folders = [Path(named).resolve().parent] if named else []
    places = [folder / COMMAND for folder in (*folders, FOLDER)]
    return next((place for place in places if place.is_file()), None)


def _variable(option: str) -> str:
    """The variable of an option."""
    if not _OPTION.fullmatch(option):
        raise ValueError(f"{option!r} is no option's name; 'vramalloc options' lists them")
    try:
        _native.library().ctl(f"option.{option}")
    except NotLoaded:
        # Nobody in this process knows: the command is asked.
        pass
    except Error as error:
        if error.code == -4:
            message = f"there is no option {option!r}; 'vramalloc options' lists them"
            raise ValueError(message) from None
    return f"VRAMALLOC_{option.upper()}"


def _shown(option: str, value: Value) -> str:
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option}: {value} is no number")
    elif isinstance(value, (bool, int, float)):
        text = str(value)
    else:
        raise TypeError(f"{option}: a text or a number is needed, not {type(value).__name__}")
    if not text.strip():
        raise ValueError(f"{option}: the text is empty; None leaves the option out")
    if "\0" in text:
        raise ValueError(f"{option}: a text without zero bytes is needed: {text!r}")
    return text


def _with_library(preload: str) -> str:
    """``LD_PRELOAD`` with the library in front, once, and without other copies of it:
    two in one process get in each other's way."""
    library = library_path()
    entries = [entry for entry in _SEPARATORS.split(preload) if entry]
    own = [entry for entry in entries if _is_same(entry, library)]
    others = [
        entry
        for entry in entries
        if entry not in own and not os.path.basename(entry).startswith(_STEM)
    ]
    if len(own) == 1 and len(entries) == 1 + len(others):
        return preload
    return ":".join([loadable(library), *others])


def _is_same(entry: str, library: Path) -> bool:
    try:
        return os.path.samefile(entry, library)
    except OSError:
        return False


def loadable(library: Path) -> str:
    """A path of the library that ``LD_PRELOAD`` can hold.

    A path with a blank, a colon or a dollar sign gets a link to it in a folder that
    nobody else can write to.
    """
    path = str(library)
    if not _UNFIT.search(path):
        return path
    tried = []
    for parent in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp", "/tmp"):
        if _UNFIT.search(parent):
            continue
        folder = os.path.join(parent, f"vramalloc-preload-{os.geteuid()}")
        try:
            _make_private(parent, folder)
            return _linked(folder, path)
        except OSError as error:
            tried.append(f"{folder}: {error.strerror or error}")
    raise OSError(
        f"{path} holds a blank, a colon or a dollar sign, which {PRELOAD} cannot hold, and no link to "
        f"it could be made ({'; '.join(tried)}); move it, or install into a path without them"
    )


def _make_private(parent: str, folder: str) -> None:
    """Makes a folder of the user's alone; fails where it is not."""
    above = os.stat(parent)
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        raise OSError(f"anybody may rename what is in {parent}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError("it is no folder")
    if found.st_uid != os.geteuid():
        raise OSError("it belongs to somebody else")
    if found.st_mode & 0o077:
        raise OSError("it is open to others")


def _linked(folder: str, path: str) -> str:
    """A link to a path, by a name of its own."""
    # FNV-1a, as the command does it: the two use the same links.
    number = 0xCBF29CE484222325
    for byte in os.fsencode(path):
        number = ((number ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    link = os.path.join(folder, f"libvramalloc-{number:016x}.so")
    try:
        if os.readlink(link) == path:
            return link
    except OSError:
        pass
    new = f"{link}.{os.getpid()}"
    try:
        os.unlink(new)
    except FileNotFoundError:
        pass
    os.symlink(path, new)
    os.replace(new, link)
    return link


class configure_subprocess:
    """While the block runs, processes that this one starts run under the library.

        with vramalloc.configure_subprocess(limit="16G"):
            multiprocessing.get_context("spawn").Process(target=train).start()

    It sets variables in ``os.environ``, and puts back what was there. A child by
    ``fork`` shares this process's libraries, and a forkserver that runs already keeps
    the environment that it was started with: neither comes under the library by this,
    and a `RuntimeWarning` says so.
    """

    def __init__(self, **options: Value) -> None:
        self._options = options
        self._entered: list[dict[str, str | None]] = []

    def __enter__(self) -> configure_subprocess:
        new: dict[str, str | None] = dict(_variables(os.environ, self._options))
        for name, value in self._options.items():
            if value is None:
                new[_variable(name)] = None
        # A warning may be an exception: before anything is set.
        _look_for_forkserver(new)
        before = {name: os.environ.get(name) for name in new}
        self._entered.append(before)
        _open_blocks.append(before)
        _put(new)
        _watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._entered:
            raise RuntimeError("this block was not entered")
        before = self._entered.pop()
        at = next(at for at, other in enumerate(_open_blocks) if other is before)
        later = _open_blocks[at + 1 :]
        del _open_blocks[at]
        # Blocks may cross each other: one that is open still puts back, at its own end,
        # what was before this one.
        for other in later:
            for name in before.keys() & other.keys():
                other[name] = before.pop(name)
        _put(before)


def _put(variables: Mapping[str, str | None]) -> None:
    """Sets variables, and deletes those that have no value."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


#: What was before each block that is open, and whether forks are watched.
_open_blocks: list[dict[str, str | None]] = []
_watches = False


def _watch() -> None:
    global _watches
    if not _watches:
        _watches = True
        os.register_at_fork(before=_warn_of_fork)


def _warn_of_fork() -> None:
    if _open_blocks and not active():
        warnings.warn(
            "a child by fork does not come under vramalloc: use multiprocessing's method "
            "'spawn' in configure_subprocess(), or start this process under the preload",
            RuntimeWarning,
            stacklevel=3,
        )


def _look_for_forkserver(wanted: Mapping[str, str | None]) -> None:
    """Warns of a forkserver that runs with another environment."""
    module = sys.modules.get("multiprocessing.forkserver")
    server = getattr(module, "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    if not isinstance(pid, int):
        return
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        # It has ended; the next one starts in this environment.
        return
    pairs = [os.fsdecode(entry).partition("=") for entry in text.split(b"\0") if entry]
    has = {name: value for name, _, value in pairs}
    if any(has.get(name) != value for name, value in wanted.items()):
        warnings.warn(
            "multiprocessing's forkserver runs already, and keeps the environment that it was "
            "started with: its children do not come under vramalloc by "
            "configure_subprocess(); enter the block before the first of them is started, or "
            "use the method 'spawn'",
            RuntimeWarning,
            stacklevel=3,
        )
