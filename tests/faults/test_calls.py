"""A failing file operation is reported in one line, and not taken for damage; the file keeps everything it had.

FAULTS=1 makes each operation fail both once and from then on; FAULTS_AT=17 only the 17th of its kind. Of the other
system calls a few are tried here (calls.py), and the rest by ``python -m tests.faults.calls``.
"""

import errno
import os
import shutil
import subprocess
from typing import NamedTuple

import pytest

from tests.faults.calls import SHORT, Failure, wrong
from tests.faults.forker import FAIL_ON, FAIL_ONCE, Fault, mask
from tests.faults.record import report
from tests.faults.scenarios import RESERVE, look


class Case(NamedTuple):
    """Operations of some kinds, between two notes of the record, fail one at a time."""

    scenario: str
    kinds: tuple[str, ...]
    errno: int
    action: int
    since: str = ""
    until: str = ""


UNTRUE = ("damaged", "restore a backup", "not one of beanlite's", "not an SQLite file")
WRITES = ("write", "create", "truncate", "allocate")
CASES = {
    "a read of a start": Case("stop", ("read",), errno.EIO, FAIL_ON, until="started"),
    "a read of a start after a kill": Case("start after a kill", ("read",), errno.EIO, FAIL_ON, until="started"),
    "a read of a migration": Case("migration", ("read",), errno.EIO, FAIL_ON, until="started"),
    "one read of a start": Case("stop", ("read",), errno.EIO, FAIL_ONCE, until="started"),
    "one read of the first start": Case("first start", ("read",), errno.EIO, FAIL_ONCE, until="started"),
    "a read of a start after a kill, once": Case(
        "start after a kill", ("read",), errno.EIO, FAIL_ONCE, until="started"
    ),
    "room for a write of the first start": Case("first start", WRITES, errno.ENOSPC, FAIL_ON, until="started"),
    "room for a write of a migration": Case("migration", WRITES, errno.ENOSPC, FAIL_ON, until="started"),
    "a sync of the first start": Case("first start", ("sync",), errno.EIO, FAIL_ONCE, until="started"),
    "a removal at the stop": Case("stop", ("unlink",), errno.EIO, FAIL_ONCE, since="stop"),
    "a removal at the stop, read-only from then on": Case("stop", ("unlink",), errno.EROFS, FAIL_ON, since="stop"),
    "a sync at the stop": Case("stop", ("sync",), errno.EIO, FAIL_ONCE, since="stop"),
}


def operations_of(case, operations):
    """Yield the number and the operation for each one that is to fail."""
    number, within = 0, not case.since
    for operation in operations:
        if operation.kind == "note":
            within = (within or operation.name == case.since) and operation.name != case.until
        elif operation.kind in case.kinds:
            number += 1
            if within and os.environ.get("FAULTS_AT", str(number)) == str(number):
                yield number, operation


@pytest.mark.parametrize("name", CASES)
def test_without(forkers, scenarios, undisturbed, tmp_path, name):
    case = CASES[name]
    scenario = scenarios[case.scenario]

    def fail_and_start(forker, moment):
        action, number, operation = moment
        data = tmp_path / f"{action}-{number}"
        fault = Fault(action, mask(*case.kinds), number, case.errno)
        ended = scenario.run(forker, data, idle=not case.since, fault=fault)
        try:
            assert ended.code in {0, 3, 4}, f"it ended with {ended.code}: {ended.stderr.strip().splitlines()[-1:]}"
            lines = ended.stderr.splitlines()
            assert len(lines) == bool(ended.code), f"it ended with {ended.code}, and said {lines}"
            assert not any(word in ended.stderr for word in UNTRUE), f"it said {lines}"
            beside = {RESERVE} if (data / RESERVE).exists() else set()
            scenario.check(look(data, scenario.migrations), ended.acked, ended.ids, beside)
        except Exception as error:  # noqa: BLE001 - they are reported together
            return f"{'from then on' if action == FAIL_ON else 'once'} at number {number}, {operation}", error
        shutil.rmtree(data)
        return None

    actions = (FAIL_ONCE, FAIL_ON) if "FAULTS" in os.environ else (case.action,)
    moments = [(action, *found) for action in actions for found in operations_of(case, undisturbed[case.scenario][0])]
    assert moments or "FAULTS_AT" in os.environ
    report(forkers.map(fail_and_start, moments))


SOME = [
    Failure("first start", "pipe2", "EMFILE", 2),
    Failure("start after a kill", "socketpair", "EMFILE", 1),
    Failure("start after a kill", "clone3", "EAGAIN", 2),
    Failure("start after a kill", "mmap", "ENOMEM", 6),
    Failure("first start", "io_setup", "ENOMEM", 1),
    Failure("start after a kill", "openat", "EMFILE", 3),
    Failure("stop", "io_submit", "EAGAIN", 2),
    Failure("stop", "epoll_pwait", "EINTR", 3),
    Failure("migration", "fcntl", "EIO", 5),
    Failure("first start", "pwrite64", "EDQUOT", 9),
    Failure("stop", "newfstatat", "EIO", 30),
    Failure("start after a kill", "read", SHORT, 1),
    Failure("first start", "write", SHORT, 1),
    Failure("stop", "close", "EIO", 5),
]


def test_without_other_calls(forkers, scenarios, tmp_path):
    if "CI" not in os.environ and not can_trace():
        pytest.skip("strace can't trace here")

    def fail(forker, failure):
        what = wrong(forker, scenarios[failure.scenario], tmp_path / failure.call, failure)
        return None if what is None else (str(tuple(failure)), AssertionError(what))

    report(forkers.map(fail, SOME))


def can_trace():
    return shutil.which("strace") and not subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode
