"""The record that gloo publishes about a rank, byte by byte."""

import socket
import struct


def blob(address: tuple[str, int], places: list[int], family: int = socket.AF_INET, length: int = 136) -> bytes:
    host, port = address
    packed = socket.inet_pton(family, host)
    sockaddr = (
        struct.pack("=H", family) + struct.pack("!H", port) + (b"" if family == socket.AF_INET else bytes(4)) + packed
    )
    body = sockaddr.ljust(128, b"\x55") + struct.pack("=q", -1)
    numbers = b"".join(struct.pack("=q", place) for place in places)
    return struct.pack("=Q", 4) + b"host" + struct.pack("=Q", length) + body + numbers
