"""Parsing of a frame: its addresses, and the reset that answers it."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

ETHERNET = 14
IPV4 = b"\x08\x00"
TCP = 6
RESET, ACKNOWLEDGES = 0x04, 0x10


@dataclass(frozen=True, slots=True)
class Ends:
    """The addresses of a frame of IPv4; `flow` is the same for both ways of a TCP connection, and None for the rest."""

    source: str
    target: str
    flow: frozenset[tuple[str, int]] | None


def ends_of(frame: bytes) -> Ends | None:
    """None: it is no IPv4, ARP for instance."""
    if frame[12:14] != IPV4 or len(frame) < ETHERNET + 20:
        return None
    source, target = socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34])
    at = ETHERNET + (frame[ETHERNET] & 15) * 4
    if frame[23] != TCP or len(frame) < at + 20:
        return Ends(source, target, None)
    here, there = struct.unpack_from("!HH", frame, at)
    return Ends(source, target, frozenset({(source, here), (target, there)}))


def resets(frame: bytes) -> tuple[bytes, bytes] | None:
    """For a TCP frame that acknowledges something: a reset for who it was meant for, and one for who sent it."""
    at = ETHERNET + (frame[ETHERNET] & 15) * 4
    sequence, acknowledged = struct.unpack_from("!II", frame, at + 4)
    flags = frame[at + 13]
    if not flags & ACKNOWLEDGES or flags & RESET:
        return None
    macs, addresses, ports = (
        (frame[:6], frame[6:12]),
        (frame[26:30], frame[30:34]),
        (frame[at : at + 2], frame[at + 2 : at + 4]),
    )
    onward = _reset(macs[0] + macs[1], addresses[0] + addresses[1], ports[0] + ports[1], sequence)
    back = _reset(macs[1] + macs[0], addresses[1] + addresses[0], ports[1] + ports[0], acknowledged)
    return onward, back


def _reset(macs: bytes, addresses: bytes, ports: bytes, sequence: int) -> bytes:
    segment = ports + struct.pack("!IIBBHHH", sequence, 0, 5 << 4, RESET, 0, 0, 0)
    pseudo = addresses + struct.pack("!BBH", 0, TCP, len(segment))
    segment = segment[:16] + _checksum(pseudo + segment) + segment[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, TCP, 0)
    head = head[:10] + _checksum(head + addresses) + addresses
    return macs + IPV4 + head + segment


def _checksum(data: bytes) -> bytes:
    """The Internet's: the complement of the sum of all 16-bit words, with the carries added in again."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)
