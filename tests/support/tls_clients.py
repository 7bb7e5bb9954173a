"""Clients of a server with TLS."""

import contextlib
import ssl


def rest_of(client):
    """What is left to read up to the end, which over TLS the server has to announce, and which is to be no reset."""
    said = b""
    while data := client.recv(1 << 16):
        said += data
    return said


def shake_hands(tls, client, incoming, outgoing):
    """Do the handshake of a client; its last part is still to be sent."""
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            return
        client.sendall(outgoing.read())
        incoming.write(client.recv(1 << 16))


def settings_of(own):
    return {"tls": "127.0.0.1:0", "tls_cert": own[0], "tls_key": own[1]}
