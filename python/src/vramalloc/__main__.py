"""``python -m vramalloc``, and the script ``vramalloc``: becomes the command."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from ._environment import COMMAND, FOLDER, VARIABLE, command_path

#: By this the command knows which interpreter runs a file that ends in .py.
PYTHON = "VRAMALLOC_PYTHON"


def _command() -> Path:
    command = command_path()
    if command is None:
        _fail(
            f"{FOLDER / COMMAND} is missing: this vramalloc was installed without its command; "
            f"install its wheel, or let {VARIABLE} name the library beside a command that "
            "'scripts/build' made",
            127,
        )
    return command


def _fail(why: str, status: int) -> NoReturn:
    print(f"vramalloc: {why}", file=sys.stderr)
    raise SystemExit(status)


def main() -> NoReturn:
    """Becomes the command, with this process's arguments."""
    command = _command()
    # It names itself in what it says, so that it can be typed.
    name = COMMAND if shutil.which(COMMAND) else str(command)
    env = dict(os.environ)
    if sys.executable:
        env[PYTHON] = sys.executable
    # Python ignores these, and what is ignored stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(command, [name, *sys.argv[1:]], env)
    except OSError as error:
        _fail(f"{command} cannot be run: {error.strerror or error}", 126)


if __name__ == "__main__":
    main()
