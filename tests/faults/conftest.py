"""The helper processes and the scenarios, made once for all tests in this folder."""

import os
import queue
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.faults.forker import Forker, build
from tests.faults.record import read_trace, tried
from tests.faults.scenarios import make_scenarios

HELPERS = 4  # more than cores: a process that has used the kernel's asynchronous I/O is slow to exit


class Forkers:
    """Several helper processes."""

    def __init__(self, forkers) -> None:
        self._free = queue.SimpleQueue()
        for forker in forkers:
            self._free.put(forker)

    def map(self, function, items):
        """Call `function` with a helper and each of the items, several at a time; return the results."""
        with ThreadPoolExecutor(HELPERS) as threads:
            return list(threads.map(lambda item: self._call(function, item), items))

    def _call(self, function, item):
        forker = self._free.get()
        try:
            return function(forker, item)
        finally:
            self._free.put(forker)


def pytest_terminal_summary(terminalreporter):
    """Print the counts that `python -m tests.faults` adds up."""
    if counts := ", ".join(f"{number} {what}" for what, number in tried.items() if number):
        terminalreporter.write_line(f"tried: {counts}")


@pytest.fixture(scope="session")
def compiler():
    """Skip the test if there is no C compiler, which makes the preloaded libraries."""
    if shutil.which("cc") is None and "CI" not in os.environ:
        pytest.skip("cc is not installed")


@pytest.fixture(scope="session")
def faults_library(compiler, tmp_path_factory):
    """The compiled faults.c, which intercepts a process's file operations."""
    del compiler
    library = tmp_path_factory.mktemp("library") / "faults.so"
    build(library)
    return library


@pytest.fixture(scope="session")
def forkers(faults_library):
    with ExitStack() as stack:
        helpers = [stack.enter_context(Forker(faults_library)) for _ in range(HELPERS)]
        yield Forkers(helpers)
        tried["kills"] += sum(helper.kills for helper in helpers)


@pytest.fixture(scope="session")
def scenarios(forkers, tmp_path_factory):
    return forkers.map(make_scenarios, [tmp_path_factory.mktemp("scenarios")])[0]


@pytest.fixture(scope="session")
def undisturbed(forkers, scenarios, tmp_path_factory):
    """For each scenario, by name: the file operations of a run without a fault, its ids, and the folder afterwards."""

    def run(forker, scenario):
        folder = tmp_path_factory.mktemp("undisturbed")
        ended = scenario.run(forker, folder / "data", trace=folder / "trace")
        assert (ended.code, ended.stderr, ended.acked) == (0, "", len(scenario.acts))
        return read_trace(folder / "trace"), ended.ids, folder / "data"

    return dict(zip(scenarios, forkers.map(run, scenarios.values()), strict=True))
