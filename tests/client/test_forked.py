"""A fork of a program with a client leaves the connections to it."""

import subprocess
import sys

import pytest

from tests.support.authority import Authority

# A connection of three is ending: the transport of TLS is gone, and the client not told yet.
PROGRAM = """
import asyncio, os, ssl, sys
from beanlite.client import channel, connect

context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(sys.argv[2])

async def serve(reader, writer):
    while await reader.readline():
        writer.write(b"USING default\\r\\n")

def fork():
    numbers = [each.number for each in channel._CHANNELS]
    assert len(numbers) == 3, numbers
    child = os.fork()
    if child == 0:
        places = [os.readlink(f"/proc/self/fd/{number}") for number in numbers if number >= 0]
        os._exit(sum("socket" in place for place in places))
    sockets.set_result(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

async def main(ends):
    global sockets
    sockets = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"beanlites://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls = ssl.create_default_context(cafile=sys.argv[1])
    async with connect(url, tls=tls) as first, connect(url, tls=tls), connect(url, tls=tls):
        if ends:
            first._pool._free[0].abort()
        asyncio.get_running_loop().call_soon(fork)
        print("sockets of the child:", await sockets)
    server.close()

asyncio.run(main(len(sys.argv) > 3))
"""


@pytest.mark.parametrize("ends", [[], ["ends"]], ids=["all last", "one ends"])
def test_fork_has_no_connection_of_the_client(tmp_path, ends):
    authority = Authority(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(authority.file), str(authority.issue("server")), *ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("sockets of the child: 0\n", "")
