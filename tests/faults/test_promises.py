"""The comparison of promises distinguishes a server that keeps them from one that does not."""

import errno
import shutil

import pytest

from tests.faults.forker import FAIL_ON, Fault
from tests.faults.promises import EACH_WRITE, LOST, Peer, build_armed, count_of
from tests.support.needs import need
from tests.support.servers import beanstalkd_program


def after_writes_fail(peer):
    """Return the outcome when every write fails from some moment amid the work on."""
    _, trace = peer.recorded()
    first, _ = count_of(trace, EACH_WRITE)
    return peer.disturbed(Fault(FAIL_ON, EACH_WRITE, first + 10, errno.EIO))


@pytest.fixture
def library(tmp_path):
    need(shutil.which("cc"), "cc is not installed")
    return build_armed(tmp_path / "armed.so")


def test_what_is_acknowledged_before_a_disk_fails_is_there_afterwards(library, tmp_path):
    assert after_writes_fail(Peer("beanlite", "always", library, tmp_path)) == ""


def test_what_beanstalkd_acknowledges_after_a_failed_write_is_lost(library, tmp_path):
    need(beanstalkd_program(), "beanstalkd is not installed")
    assert after_writes_fail(Peer("beanstalkd", "always", library, tmp_path)) == LOST
