"""Errors that the handler of a signal raises in the midst of a command."""

import random
import signal
import socket

import pytest

from beanlite.client import connect_blocking


@pytest.fixture
def raise_soon():
    """Have the handler of a signal raise an error in this thread."""
    before = signal.getsignal(signal.SIGALRM)

    def begin(error):
        def interrupt(*_):
            raise error

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.02, 0.1))

    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError, OSError])
@pytest.mark.parametrize("timeout_s", [None, 30])
def test_error_of_a_handler_of_a_signal_is_raised(url, tube, raise_soon, kind, timeout_s):
    with connect_blocking(url, watch=tube, timeout_s=timeout_s) as queue:
        error = kind("timed out")
        raise_soon(error)
        with pytest.raises(kind) as raised:
            queue.reserve(3)
        assert raised.value is error
        queue.put("x", tube)
        queue.reserve(9).delete()


def test_error_of_a_handler_is_raised_amid_connecting(raise_soon):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = TimeoutError()
        raise_soon(error)
        with pytest.raises(TimeoutError) as raised:
            connect_blocking(f"beanlite://127.0.0.1:{silent.getsockname()[1]}", timeout_s=3)
        assert raised.value is error
