"""System calls of a server fail, most of them once, while it starts, serves and stops.

::

    python -m tests.faults.calls 1000       # this many failures, chosen at random
    python -m tests.faults.calls 1 --seed 17

strace makes the n-th call of a kind fail, whether Python, SQLite or the loop makes it. faults.c does what strace can't:
a close that fails but has closed the file all the same, and reads and writes that transfer only half. The server has to
end with an exit code and a line, or to go on; and everything that it acknowledged has to be there.
"""

import argparse
import errno
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from beanlite import is_compiled
from tests.faults.forker import FAIL_ON, FAIL_ONCE, SHORT_ON, Fault, Forker, build, mask
from tests.faults.scenarios import RESERVE, UPKEEP, look, make_scenarios

DISK = "EIO ENOSPC EDQUOT EROFS ENOMEM EINTR EAGAIN"
NET = "EINTR EAGAIN ENOMEM ENOBUFS ECONNRESET"
# The errors with which each call may fail. Calls that can't fail are left out, and those whose failure no program
# survives because it can't start a thread.
ERRORS = {
    **dict.fromkeys(
        "pwrite64 fdatasync fsync ftruncate fallocate unlink rename fchown fsetxattr io_submit".split(),
        DISK,
    ),
    **dict.fromkeys("pread64 newfstatat fstat lseek statx fgetxattr fstatfs getdents64 readlink".split(), "EIO ENOMEM"),
    **dict.fromkeys("accept4 sendto epoll_ctl getsockname getpeername".split(), NET),
    **dict.fromkeys("socketpair eventfd2 pipe2 epoll_create1 io_setup".split(), "EMFILE ENFILE ENOMEM"),
    **dict.fromkeys("mmap munmap madvise".split(), "ENOMEM"),
    "openat": f"{DISK} EMFILE ENFILE",
    "io_getevents": "EINTR",
    "write": "EINTR",  # any other error aborts or confuses libuv, which wakes its loop by writes that can't fail
    "read": "EINTR",  # likewise
    "fcntl": "EIO EINTR EAGAIN ENOLCK",
    "flock": "EIO EINTR EAGAIN ENOLCK",
    "epoll_pwait": "EINTR",
    "recvfrom": "EINTR EAGAIN",  # for the signals that have come
    "clone3": "EAGAIN ENOMEM",
}
# The same for the faults that faults.c makes on the database's files: once, for good (with a plus), or half of each
# transfer from then on.
FOR_GOOD = "+"
SHORT = "half"
OF_FILES = {
    "close": "EINTR EIO ENOSPC EDQUOT",
    "read": f"{SHORT} EIO EIO+",
    "write": f"{SHORT} EIO+ EROFS+ EDQUOT+",
    "open": "EIO EIO+",
    "sync": "EIO+",
    "unlink": "EROFS+",
}
MOST = 40  # the calls that faults.c could fail are not counted; this is about the maximum
# An additional line, about a loop that could not be made.
LOOP_SAYS = "deallocating an open event loop"
# Failures outside this project: Python lets a thread end for which there is no memory, and anything that waits for that
# thread waits for ever; and libuv aborts where it can't go on.
NO_THREAD = "Thread._bootstrap"
ABORTS = ("pipe2", "epoll_ctl")
UNTRUE = ("damaged", "restore a backup", "not one of beanlite's", "not an SQLite file")


class Failure(NamedTuple):
    """A call that is to fail."""

    scenario: str
    call: str
    error: str
    number: int

    @property
    def way(self):
        """The arguments of ``Scenario.run`` that make it fail."""
        if self.error == SHORT:
            return {"fault": Fault(SHORT_ON, mask(self.call), self.number)}
        if self.call in OF_FILES and self.error in OF_FILES[self.call].split():
            action = FAIL_ON if self.error.endswith(FOR_GOOD) else FAIL_ONCE
            number = getattr(errno, self.error.removesuffix(FOR_GOOD))
            return {"fault": Fault(action, mask(self.call), self.number, number)}
        return {"strace": self._strace}

    @property
    def _strace(self):
        return [
            "-o",
            "/dev/null",
            "-e",
            f"trace={self.call}",
            "-e",
            f"inject={self.call}:error={self.error}:when={self.number}",
        ]


def count_calls(forker, scenario, folder):
    """Return how often each kind of call is made by the thread that makes it most often."""
    trace = folder / "trace"
    ended = scenario.run(forker, folder / "counted", strace=["-o", str(trace), "-e", f"trace={','.join(ERRORS)}"])
    assert (ended.code, ended.stderr) == (0, ""), ended
    shutil.rmtree(folder / "counted")
    counts = Counter(re.findall(r"^(\d+) +(\w+)\(", trace.read_text(), re.MULTILINE))
    most = {}
    for (_, call), number in counts.items():
        most[call] = max(number, most.get(call, 0))
    return most


def choose(chance, counts):
    """Choose a random failure: all kinds of call are equally likely, and early calls likelier than late ones."""
    scenario = chance.choice(sorted(counts))
    errors = [(call, ERRORS[call], number) for call, number in sorted(counts[scenario].items())]
    errors += [(call, OF_FILES[call], MOST) for call in OF_FILES]
    call, names, most = chance.choice(errors)
    return Failure(scenario, call, chance.choice(names.split()), int(most ** chance.random() + 0.5))


def wrong(forker, scenario, data, failure):
    """Run a scenario with a failure; return what the server did wrong, or None."""
    ended = scenario.run(forker, data, **failure.way)
    lines = [line for line in ended.stderr.splitlines() if LOOP_SAYS not in line]
    try:
        if NO_THREAD in ended.stderr:
            return None
        if not (ended.code == -signal.SIGABRT and failure.call in ABORTS):
            assert ended.code in {0, 2, 3, 4, 5}, f"it ended with {ended.code}: {lines[-1:]}"
            assert len(lines) == 1 or not ended.code, f"it ended with {ended.code}, and said {lines}"
        assert not any(word in ended.stderr for word in UNTRUE), f"it said {lines}"
        beside = {RESERVE} if (data / RESERVE).exists() else set()
        scenario.check(look(data, scenario.migrations), ended.acked, ended.ids, beside)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(data)
    return None


def run(number, seed, tell):
    """Have this many calls fail, one at a time; return those after which something was wrong, and what it was."""
    chance = random.Random(seed)
    found = []
    with tempfile.TemporaryDirectory(prefix="beanlite-calls-") as name:
        folder = Path(name)
        build(folder / "faults.so")
        with Forker(folder / "faults.so") as forker:
            (folder / "scenarios").mkdir()
            scenarios = make_scenarios(forker, folder / "scenarios")
            if is_compiled():  # strace makes too much of what it then takes to have the file shrunk
                del scenarios[UPKEEP]
            counts = {each: count_calls(forker, scenarios[each], folder) for each in scenarios}
            for done in range(number):
                failure = choose(chance, counts)
                what = wrong(forker, scenarios[failure.scenario], folder / "data", failure)
                if what is not None:
                    found.append((failure, what))
                tell(done + 1, failure, what)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()

    def tell(done, failure, what):
        if what is not None:
            print(f"{tuple(failure)}: {what}", flush=True)
        if done % 100 == 0:
            print(f"{done} calls have failed, seed {given.seed}", file=sys.stderr, flush=True)

    found = run(given.number, given.seed, tell)
    print(f"{given.number} calls, {len(found)} of them went wrong, seed {given.seed}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
