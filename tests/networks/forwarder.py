"""A wire of ours between each agent and the bridge, on which frames can be lost, late, doubled and held back.

`unshare --net python forwarder.py run SEED`: a network namespace of its own, which ends with it. On standard input come
orders, one JSON object a line, on standard output goes one answer for each. `python forwarder.py plain CARD` makes a
card's frames plain: no larger than the wire takes, and with their checksums in them.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from networks.packets import ends_of, resets
from networks.weather import Way, Weather

ALL_FRAMES = socket.htons(0x0003)
FRAME_MAX = 1 << 16
ORDERS = 0  # standard input
AT_ONCE = 64
BUFFER = 8 << 20
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SIOCETHTOOL = 0x8946
OFF = (0x17, 0x1F, 0x24, 0x2C)  # of linux/ethtool.h: checksums, segmentation in the card and before it, merging


def plain(card: str) -> None:
    """Have the kernel finish a frame before it goes out there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for what in OFF:
            value = ctypes.create_string_buffer(struct.pack("II", what, 0))
            request = struct.pack("16sP", card.encode(), ctypes.addressof(value)) + bytes(16)
            fcntl.ioctl(asked, SIOCETHTOOL, request)


def _tap(card: str) -> socket.socket:
    """Everything that comes in at a card, and a way out of it."""
    subprocess.run(["ip", "link", "set", card, "up"], check=True)
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ALL_FRAMES)
    tap.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    tap.bind((card, 0))
    tap.setblocking(False)
    return tap


@dataclass
class Side:
    """One end of a wire, and what happens on the way to the other one."""

    tap: socket.socket
    way: Way
    is_agent: bool
    far: Side = field(init=False, repr=False)
    seen: set[frozenset[tuple[str, int]]] = field(default_factory=set)  # flows that were reset already

    def take(self, resetting: bool, now: float) -> None:
        """Pass on what has come in."""
        for _ in range(AT_ONCE):
            try:
                frame = self.tap.recv(FRAME_MAX)
            except OSError:
                return
            if self.way.is_fair and not resetting:
                self.way.counts["passed"] += 1
                _put(self.far.tap, frame)
                continue
            ends = ends_of(frame)
            if resetting and ends is not None and ends.flow is not None and ends.flow not in self.seen:
                both = resets(frame)
                if both is not None:
                    self.seen.add(ends.flow)
                    self.far.seen.add(ends.flow)
                    _put(self.far.tap, both[0])
                    _put(self.tap, both[1])
                    continue
            peer = None if ends is None else ends.target if self.is_agent else ends.source
            self.way.send(frame, peer, now)

    def deliver(self, now: float) -> None:
        for frame in self.way.arrived(now):
            _put(self.far.tap, frame)


def _put(tap: socket.socket, frame: bytes) -> None:
    try:
        tap.send(frame)
    except OSError:
        return  # the other end is down, or too slow: a frame like any other that is lost


class Forwarder:
    """All wires. An agent's frames go `up`, those for it `down`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._wires: dict[str, tuple[Side, Side]] = {}
        self._resetting: dict[str, float] = {}  # by agent: until when
        self._selector = selectors.DefaultSelector()
        self._selector.register(ORDERS, selectors.EVENT_READ, None)
        self._rest = b""

    def run(self) -> None:
        """Until standard input is closed."""
        while True:
            now = time.monotonic()
            times = [at for pair in self._wires.values() for side in pair if (at := side.way.next_at()) is not None]
            wait_s = max(0.0, min(times) - now) if times else None
            for key, _ in self._selector.select(wait_s):
                if key.data is None:
                    if not self._listen():
                        return
                else:
                    agent, side = key.data
                    now = time.monotonic()
                    side.take(self._resetting.get(agent, 0.0) > now, now)
            now = time.monotonic()
            for pair in self._wires.values():
                for side in pair:
                    side.deliver(now)

    def _listen(self) -> bool:
        data = os.read(ORDERS, FRAME_MAX)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            print(json.dumps(self._obey(json.loads(line))), flush=True)
        return bool(data)

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        agent = str(order["agent"])
        if "wire" in order:
            self._join(agent, *order["wire"])
        up, down = self._wires[agent]
        for side, given in ((up, order.get("up")), (down, order.get("down"))):
            if given is not None:
                side.way.weather = Weather(**{**given, "mute": tuple(given.get("mute", ()))})
        if "reset_s" in order:
            self._resetting[agent] = time.monotonic() + float(order["reset_s"])
            up.seen.clear()
            down.seen.clear()
        return {"up": up.way.counts, "down": down.way.counts, "reset": len(up.seen)}

    def _join(self, agent: str, near: str, far: str) -> None:
        """`near` is the card towards the agent, `far` the one towards the bridge."""
        sides = [
            Side(_tap(card), Way(Random(f"{self._seed} {agent} {card == near}")), card == near) for card in (near, far)
        ]
        for side, other in (sides, sides[::-1]):
            side.far = other
            self._selector.register(side.tap, selectors.EVENT_READ, (agent, side))
        self._wires[agent] = (sides[0], sides[1])


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(sys.argv[2])
    else:
        Forwarder(int(sys.argv[2])).run()
