"""Sockets whose kernel buffers are full after some thousand bytes."""

import socket


def small_socket() -> socket.socket:
    """Its buffers are as small as the kernel lets them be."""
    one = socket.socket()
    for which in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        one.setsockopt(socket.SOL_SOCKET, which, 4096)
    return one
