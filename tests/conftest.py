"""Fixtures for several test files."""

import gc
import logging
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from beanlite.host import signals
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import writer
from beanlite.journal.sqlite.served.writer import Writer
from beanlite.settings.defaults import ENV_PREFIX
from tests.support.core import Core
from tests.support.inside import Disk
from tests.support.journal_files import NO_HISTORY
from tests.support.needs import need
from tests.support.postgres import Cluster, Pair, new_home, programs

# By default Hypothesis fails a test whose examples take long, as they do on a busy machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

HERE = Path(__file__).parent
# Tests that start no process and take only seconds: they are marked fast, for `pytest -m fast`.
FAST = tuple(
    str(HERE / place)
    for place in (
        "core/",
        "protocol/",
        "commit/",
        "bench/test_runner.py",
        "client/test_dialogue.py",
        "binlog/test_records.py",
        "conformance/test_runner.py",
        "performance/test_yardstick.py",
        "soak/test_books.py",
        "test_compiled.py",
        "test_config.py",
        "test_docs.py",
        "test_layout.py",
        "test_log.py",
    )
)
# The files that take longest, from the longest on: with several processes they are begun first.
LONG = (
    "web/browser/test_accessible.py",
    "simulator/test_simulator.py",
    "faults/test_commands.py",
    "journal/test_restore_killed.py",
    "journal/test_salvage.py",
    "faults/test_kill.py",
    "faults/test_calls.py",
)


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly as well")


def pytest_xdist_auto_num_workers(config):
    """Run some chosen tests here, but all tests in two processes a core, as one works while the other waits.

    The fast ones do not wait.
    """
    marked, chosen = config.option.markexpr, config.args_source is pytest.Config.ArgsSource.ARGS
    if chosen or config.option.keyword or marked not in {"", "fast"}:
        return 0
    return (1 if marked else 2) * len(os.sched_getaffinity(0))


def pytest_ignore_collect(collection_path, config):
    """Pass over all else if only the fast tests are wanted: to read all of it takes as long as the tests."""
    path = str(collection_path)
    inside = path.startswith(FAST)
    leads_there = collection_path.is_dir() and any(place.startswith(path) for place in FAST)
    return True if config.option.markexpr == "fast" and not inside and not leads_there else None


def pytest_collection_modifyitems(config, items):
    """Mark the fast tests; with several processes, begin with the files that take long."""
    for item in items:
        if str(item.path).startswith(FAST):
            item.add_marker(pytest.mark.fast)
    if not config.option.nightly:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    if hasattr(config, "workerinput"):
        first = {str(HERE / place): number for number, place in enumerate(LONG)}
        items.sort(key=lambda item: first.get(str(item.path), len(first)))


def pytest_collection_finish():
    """Spare the garbage collector what has been collected, which lives as long as the tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard():
    """Reset SIGHUP and SIGINT: under nohup, or behind a script's &, all that the tests start would ignore them."""
    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler))
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _signals_are_let_in_again():
    """Unblock signals, and heed them: a server or a command that ran in this process no longer does.

    New processes would inherit that.
    """
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals.hear()


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    """Remove the developer's environment variables for beanlite, and change to an empty directory."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def core():
    """The core without a server."""
    return Core()


@pytest.fixture
async def journal(tmp_path):
    """A journal on a new file."""
    database = open_database(tmp_path / "queue.db")
    journal = Writer(database, "unix:socket", NO_HISTORY, Clock(), 0)
    journal.prepare()
    await journal.start()
    yield journal
    await journal.close()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server without a standby."""
    need(programs(), "PostgreSQL is not installed")
    cluster = Cluster(home := new_home(), "alone")
    cluster.make()
    cluster.start()
    yield cluster
    cluster.kill()
    shutil.rmtree(home)


@pytest.fixture
def database(postgres):
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture
def pair():
    """A primary and its synchronous standby."""
    need(programs(), "PostgreSQL is not installed")
    pair = Pair()
    yield pair
    pair.end()


@pytest.fixture
def disk(monkeypatch):
    """The simulated disk of a server in this process."""
    disk = Disk()
    monkeypatch.setattr(writer, "background_sync", lambda: disk)
    yield disk
    disk.free.set()


@pytest.fixture(autouse=True)
def _logging_is_kept():
    """Give pytest its log handlers back: a command that ran in this process has set up its own."""
    root, ours = logging.getLogger(), logging.getLogger("beanlite")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(logging.NOTSET)


def pytest_terminal_summary(terminalreporter):
    """Print how many random steps agreed with the model, how many seeds broke no promise, and what was missing."""
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key in {"model steps", "restart steps"} and report.when == "call":
                steps, source = value
                terminalreporter.write_line(f"{key}: all {steps} agreed with the model ({source})")
            if key == "simulator" and report.when == "call":
                terminalreporter.write_line(f"simulator: {value}")
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {tests}: {reason.removeprefix('Skipped: ')}")
