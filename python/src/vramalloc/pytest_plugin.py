"""GPU memory in tests: limits, leaks, and who held most.

    @pytest.mark.limit_gpu_memory("64M")      # so much more than there was before
    @pytest.mark.limit_gpu_leaks("1M")        # so much may be left behind
    def test_forward(): ...

``pytest --vramalloc`` starts itself again under the library. Where pytest does not run
under it, tests with these marks are skipped, or fail with ``--vramalloc-require``.
"""

from __future__ import annotations

import operator
import os
import re
import sys
import weakref
from collections.abc import Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import pytest

from . import _environment, _memory
from ._judges import Before, Lowered, Watched
from ._measure import measure, size
from ._native import Error, NotLoaded

#: Says in the process that was started again that it was; its own id.
_AGAIN = "_VRAMALLOC_PYTEST_AGAIN"

MEMORY = "limit_gpu_memory"
LEAKS = "limit_gpu_leaks"

_MARKS = (
    f'{MEMORY}(size): the test fails if it takes more GPU memory than "64M" beyond what was '
    "there before it (vramalloc)",
    f'{LEAKS}(threshold="0"): the test fails if it leaves more GPU memory behind than "1M" '
    "(vramalloc)",
)

#: The tests that are measured. (A test's stash is there from pytest 7 on, and this module
#: is imported by every pytest.)
_tests: weakref.WeakKeyDictionary[pytest.Item, Watched] = weakref.WeakKeyDictionary()

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

_UNKNOWN_NAME = -4
_INVALID_VALUE = -6

#: The option stats among others.
_STATS = re.compile(r"(^|,)\s*stats\s*:")

_HOW = "run 'pytest --vramalloc', or 'vramalloc run pytest'"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line and of pyproject.toml."""
    group = parser.getgroup("vramalloc", "GPU memory (vramalloc)")
    group.addoption(
        "--vramalloc",
        action="store_true",
        help="run under vramalloc's library: pytest starts itself again",
    )
    group.addoption(
        "--vramalloc-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the library for --vramalloc, such as stacks=all, by which a leak "
        "says where it comes from",
    )
    group.addoption(
        "--vramalloc-require",
        action="store_true",
        help="marked tests fail, and are not skipped, where pytest is not under the library",
    )
    group.addoption(
        "--vramalloc-top",
        type=int,
        default=5,
        metavar="N",
        help="how many of the tests that held most the summary shows (5)",
    )
    parser.addini("vramalloc", "run under vramalloc's library", type="bool", default=False)
    parser.addini("vramalloc_options", "its options, as KEY=VALUE", type="args", default=[])
    parser.addini(
        "vramalloc_require",
        "marked tests fail where pytest is not under the library",
        type="bool",
        default=False,
    )
    parser.addini("vramalloc_limit", f"the {MEMORY} of tests without that mark", default="")
    parser.addini("vramalloc_leaks", f"the {LEAKS} of tests without that mark", default="")


# --- starting again under the library


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Starts pytest again under the library, before anything is captured."""
    named = early_config.known_args_namespace
    asked = bool(getattr(named, "vramalloc", False))
    if (asked or early_config.getini("vramalloc")) and not _environment.active():
        why_not = _why_not_again(early_config)
        if why_not is None:
            _start_again(early_config)
        elif asked:
            raise pytest.UsageError(f"--vramalloc: {why_not}")
    if _environment.active():
        _check_options(early_config)
    os.environ.pop(_AGAIN, None)
    yield


def _why_not_again(config: pytest.Config) -> str | None:
    """Why pytest cannot be started again; none where it can."""
    if os.environ.get(_AGAIN) == str(os.getpid()):
        return (
            "pytest was started again with the library in LD_PRELOAD, and it is not there; the "
            "loader may have said why above (a Python for another C library, or with other "
            "rights than yours, cannot be preloaded)"
        )
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "this worker was not started under the library; start its pytest with --vramalloc"
    given = tuple(str(word) for word in config.invocation_params.args)
    if not _is_pytest() or tuple(sys.orig_argv)[len(sys.orig_argv) - len(given) :] != given:
        return (
            "pytest was started by pytest.main(), so this process cannot be started again; start "
            "the whole program under the library: vramalloc run python ..."
        )
    return None


def _is_pytest() -> bool:
    """Whether the program of this process is pytest."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", "") or Path(getattr(main, "__file__", None) or "").name
    return name in ("pytest", "py.test", "pytest.__main__", "py.test.__main__", "coverage.__main__")


def _start_again(config: pytest.Config) -> NoReturn:
    try:
        env = _environment.preload_env(**_library_options(config))
    except OSError as error:
        raise pytest.UsageError(f"--vramalloc: {error}") from None
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(f"--vramalloc-option: {error}") from None
    env[_AGAIN] = str(os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, sys.orig_argv, env)
    except OSError as error:
        raise pytest.UsageError(f"--vramalloc: {sys.executable}: {error}") from None


def _library_options(config: pytest.Config) -> dict[str, Any]:
    """What the user says of the library; its file would lie around after every run."""
    options: dict[str, Any] = {}
    said = _STATS.search(os.environ.get("VRAMALLOC_CONF", ""))
    if "VRAMALLOC_STATS" not in os.environ and not said:
        options["stats"] = "off"
    return {**options, **_given_options(config)}


def _check_options(config: pytest.Config) -> None:
    """Sets what the user gave, since the library only warns of what it cannot read."""
    try:
        for key, value in _given_options(config).items():
            _memory.ctl(f"option.{key}", value)
    except Error as error:
        if error.code in (_UNKNOWN_NAME, _INVALID_VALUE):
            why = f"--vramalloc-option {key}={value}: {error}"
            raise pytest.UsageError(why) from None
    except (ValueError, NotLoaded) as error:
        raise pytest.UsageError(f"--vramalloc-option: {error}") from None


def _given_options(config: pytest.Config) -> dict[str, str]:
    options: dict[str, str] = {}
    named = config.known_args_namespace
    given = [*config.getini("vramalloc_options"), *getattr(named, "vramalloc_option", [])]
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is no KEY=VALUE")
        options[key.strip()] = value.strip()
    return options


# --- each test


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marks, and checks the defaults."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    for name in ("vramalloc_limit", "vramalloc_leaks"):
        text = config.getini(name)
        if text:
            try:
                _bytes(text)
            except ValueError as error:
                raise pytest.UsageError(f"{name}: {error}") from None
    config.pluginmanager.register(_Summary(config), "vramalloc-summary")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says whether pytest runs under the library, where anybody asked."""
    if _environment.active():
        return f"vramalloc: {_memory.ctl('version')}, {_environment.library_path()}"
    if config.getini("vramalloc"):
        return f"vramalloc: not active, since {_why_not_again(config) or 'it did not start'}"
    return None


def _bytes(text: object) -> int:
    """A size: ``"64M"``, ``"1.5GiB"``, or a number of bytes."""
    amount = -1
    if isinstance(text, str):
        found = _SIZE.fullmatch(text.strip())
        # A fraction of a byte would be meant as a share.
        if found and (found[2] or "." not in found[1]):
            amount = int(Fraction(found[1]) * (1 << _UNITS[found[2].upper()]))
    elif hasattr(text, "__index__") and not isinstance(text, bool):
        amount = operator.index(text)
    if not 0 <= amount < 1 << 62:
        raise ValueError(f'{text!r} is no size; write "64M", "1.5G", or a number of bytes')
    return amount


def _limit_of(item: pytest.Item, name: str, default: str) -> tuple[int, str] | None:
    """What a mark, or the default, allows: bytes, and how it is written."""
    mark = item.get_closest_marker(name)
    if mark is None:
        return (_bytes(default), f"{default!r} by default") if default else None
    values = [*mark.args, *mark.kwargs.values()]
    if name == LEAKS and not values:
        values = [0]
    if len(values) != 1 or not set(mark.kwargs) <= {"size", "threshold"}:
        pytest.fail(f"{name} takes one size: @pytest.mark.{name}('64M')", pytrace=False)
    try:
        allowed = _bytes(values[0])
    except ValueError as error:
        why = f"{name}: {error}"
    else:
        return allowed, f"{name}({values[0]!r})"
    pytest.fail(why, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a marked test where nothing can be measured, or fails it."""
    marked = [name for name in (MEMORY, LEAKS) if item.get_closest_marker(name)]
    if not marked or _environment.active():
        return
    why = f"{marked[0]} needs vramalloc: {_HOW}"
    config = item.config
    if config.getoption("vramalloc_require") or config.getini("vramalloc_require"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Limits and measures a test."""
    if not _environment.active():
        yield
        return
    config = item.config
    memory = _limit_of(item, MEMORY, config.getini("vramalloc_limit"))
    leaks = _limit_of(item, LEAKS, config.getini("vramalloc_leaks"))
    watched = _tests[item] = Watched()
    try:
        before = Before(leaks is not None)
        measured = measure(item.nodeid)
        measured.__enter__()
        lowered = Lowered(*memory) if memory else None
    except (Error, NotLoaded) as error:
        # Such as the library's own failure, of which it tells itself.
        if item.get_closest_marker(MEMORY) or item.get_closest_marker(LEAKS):
            pytest.fail(f"nothing was measured: {error}", pytrace=False)
        watched.told.append(f"nothing was measured: {error}")
        yield
        return
    outcome = yield
    # A test of unittest keeps what it raised.
    failed = outcome.excinfo is not None or bool(getattr(item, "_excinfo", None))
    try:
        if lowered:
            lowered.end()
        measured.__exit__(None, None, None)
        watched.figures = {
            "held": measured.peak - measured.live_before,
            "allocations": measured.allocations,
        }
        if lowered:
            lowered.judge(measured, watched)
        if leaks and not failed:
            before.judge(leaks, watched)
        before.end()
    except (Error, NotLoaded) as error:
        watched.told.append(f"it was not measured to the end: {error}")
    if failed:
        watched.told += watched.broken
    elif watched.broken:
        # As if the test itself had: for xfail and for --pdb too.
        _fail(outcome, "\n".join(watched.broken))


def _fail(outcome: Any, why: str) -> None:
    try:
        pytest.fail(why, pytrace=False)
    except pytest.fail.Exception as error:
        if hasattr(outcome, "force_exception"):
            outcome.force_exception(error)
        else:
            # pluggy before 1.1
            outcome._excinfo = (type(error), error, error.__traceback__)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Explains the failure of a test, and tells the summary of it."""
    outcome = yield
    watched = _tests.get(item)
    if watched is None or call.when != "call":
        return
    report = outcome.get_result()
    if watched.figures:
        report.vramalloc = watched.figures
    if watched.told and report.failed:
        report.sections.append(("vramalloc", "\n".join(watched.told)))


# --- the summary


class _Summary:
    """Who held most, in the end; with xdist, of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: list[tuple[int, int, str]] = []
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A report came, perhaps from a worker."""
        figures = getattr(report, "vramalloc", None)
        if figures and figures["allocations"]:
            self.tests.append((figures["held"], figures["allocations"], report.nodeid))
        if report.skipped and _HOW in str(report.longrepr):
            self.skipped += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The section of the summary."""
        most = self.config.getoption("vramalloc_top")
        if self.skipped:
            tests = "1 test was" if self.skipped == 1 else f"{self.skipped} tests were"
            terminalreporter.section("vramalloc")
            terminalreporter.line(f"{tests} skipped that need vramalloc: {_HOW}")
        if not self.tests or most <= 0:
            return
        if not self.skipped:
            terminalreporter.section("vramalloc")
        self.tests.sort(key=lambda test: (-test[0], test[2]))
        terminalreporter.line("tests that held most GPU memory, beyond what there was before")
        for held, allocations, name in self.tests[:most]:
            count = "1 allocation" if allocations == 1 else f"{allocations} allocations"
            terminalreporter.line(f"{size(held):>11}  {count:>15}  {name}")
        if len(self.tests) > most:
            terminalreporter.line(f"and {len(self.tests) - most} more (--vramalloc-top)")
