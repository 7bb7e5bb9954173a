"""What the other side of a connection has not read."""

import asyncio
import termios
from fcntl import ioctl
from sys import byteorder


def unread_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the client has not read, if some of them are left to be sent; otherwise 0."""
    unsent, sock = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if not unsent or sock is None:  # a simulated one has none
        return unsent
    try:  # what the kernel has is counted, too: it has room for megabytes, and asks for more in large parts
        return unsent + int.from_bytes(ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), byteorder)
    except OSError:  # the connection is closed
        return unsent
