"""Any system call of a server fails, most of them once: while it starts, serves and stops.

::

    python -m tests.faults.calls 1000       # so many failures, chosen by chance
    python -m tests.faults.calls 1 --seed 17

strace has the n-th call of a kind fail, whoever makes it: Python, SQLite, the loop. What it can't do is done by
faults.c: a close that fails has closed all the same, and reads and writes do half of what they are asked for. The
server ends with an exit code and a line, or goes on; and what it acknowledged is there.
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

from tests.faults.forker import FAIL_ON, FAIL_ONCE, SHORT_ON, Fault, Forker, build, mask
from tests.faults.scenarios import RESERVE, look, make_scenarios

DISK = "EIO ENOSPC EDQUOT EROFS ENOMEM EINTR EAGAIN"
NET = "EINTR EAGAIN ENOMEM ENOBUFS ECONNRESET"
# The errors by which each may fail. Left out is what can't fail, or what no program survives that can't start a thread.
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
    "write": "EINTR",  # any other error ends libuv, or takes its wits: it wakes its loop by writes that can't fail
    "read": "EINTR",  # likewise
    "fcntl": "EIO EINTR EAGAIN ENOLCK",
    "flock": "EIO EINTR EAGAIN ENOLCK",
    "epoll_pwait": "EINTR",
    "recvfrom": "EINTR EAGAIN",  # of the signals that have come
    "clone3": "EAGAIN ENOMEM",
}
# The same of what faults.c does with the files of the database: once, with a plus for good, or half of it from then on.
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
MOST = 40  # of what faults.c does nobody counts how often it could be done; this is about the most
# A line more, of a loop that could not be made.
LOOP_SAYS = "deallocating an open event loop"
# What is not ours. Python has a thread end for which there is no memory, and whoever waits for it waits for ever. And
# libuv aborts where it can't go on.
NO_THREAD = "Thread._bootstrap"
ABORTS = ("pipe2", "epoll_ctl")
UNTRUE = ("damaged", "restore a backup", "not one of beanlite's", "not an SQLite file")


class Failure(NamedTuple):
    """A call that fails."""

    scenario: str
    call: str
    error: str
    number: int

    @property
    def way(self):
        """To have it fail."""
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
    """How often each kind of call is made by the thread that makes it most."""
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
    """A failure by chance: each kind of call is as likely, and of its calls the first ones are likelier."""
    scenario = chance.choice(sorted(counts))
    errors = [(call, ERRORS[call], number) for call, number in sorted(counts[scenario].items())]
    errors += [(call, OF_FILES[call], MOST) for call in OF_FILES]
    call, names, most = chance.choice(errors)
    return Failure(scenario, call, chance.choice(names.split()), int(most ** chance.random() + 0.5))


def wrong(forker, scenario, data, failure):
    """What is wrong with what the server did, or None."""
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
    """Have so many calls fail; returns those after which something was wrong, with what."""
    chance = random.Random(seed)
    found = []
    with tempfile.TemporaryDirectory(prefix="beanlite-calls-") as name:
        folder = Path(name)
        build(folder / "faults.so")
        with Forker(folder / "faults.so") as forker:
            (folder / "scenarios").mkdir()
            scenarios = make_scenarios(forker, folder / "scenarios")
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
