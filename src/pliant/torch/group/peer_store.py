"""The key-value store in which NCCL looks up its peers' addresses while a group is built.

Members send the values to each other. torch's own TCPStore listens without a credential and ends with one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Store  # torch.distributed's own; only here it has types

from pliant.core.model.names import MemberId
from pliant.train.peer.kv import PeerValues, encode_value

SendToAll = Callable[[bytes], None]  # sends a message of the kind `store` to every peer of the world
OnValue = Callable[[str, bytes], None]  # called with every value that is set or gotten


class PeerSender(Protocol):
    """The part of `pliant.train.peer.server.PeerServer` that wiring needs."""

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None: ...


class StoreClosed(Exception):
    """The wiring was broken off while it waited for a peer's value."""


class PeerStore(Store):
    """A store that sends each value to every peer, and waits for their values in this process."""

    def __init__(self, mailbox: PeerValues, generation: int, send_to_all: SendToAll, on_value: OnValue) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._generation = generation
        self._send_to_all = send_to_all
        self._on_value = on_value
        self._closed = False
        self.missing: tuple[str, ...] = ()  # keys that are, or were last, waited for

    def close(self) -> None:
        """End all waiting with `StoreClosed`. Any thread may call it."""
        self._closed = True
        self._mailbox.wake()

    def set(self, key: str, value: bytes | str) -> None:
        value = value.encode() if isinstance(value, str) else bytes(value)
        self._on_value(key, value)
        self._mailbox.put(self._generation, key, value)
        self._send_to_all(encode_value(key, value))

    def get(self, key: str) -> bytes:
        [value] = self._values([key])
        self._on_value(key, value)
        return value

    # Ignores the library's time limit: only the wiring itself ends a wiring.
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002
        self._values(keys)

    def check(self, keys: list[str]) -> bool:
        return self._mailbox.has(self._generation, keys)

    def _values(self, keys: list[str]) -> list[bytes]:
        self.missing = tuple(keys)
        values = self._mailbox.wait(self._generation, keys, lambda: self._closed)
        if values is None:
            raise StoreClosed(f"the wiring of generation {self._generation} was broken off")
        self.missing = ()
        return values
