"""Where gloo looks up its peers' addresses while a group is built: told from member to member, kept by nobody special.

torch's own TCPStore listens without a credential and dies with one rank (H24).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store  # torch.distributed's own; only here it has types

from pliant.train.peer.kv import PeerValues, encode_value

SendToAll = Callable[[bytes], None]  # tells every peer of the world, with the kind `store`
OnValue = Callable[[str, bytes], None]  # is shown every value that gloo sets or gets


class StoreClosed(Exception):
    """The wiring was broken off while it waited for what a peer will not say."""


class PeerStore(Store):
    """Keys are set here and at every peer; whoever waits for one waits here."""

    def __init__(self, mailbox: PeerValues, generation: int, spread: SendToAll, saw: OnValue) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._generation = generation
        self._spread = spread
        self._saw = saw
        self._closed = False
        self.missing: tuple[str, ...] = ()  # keys that somebody waits for, or waited for in vain

    def close(self) -> None:
        """From any thread: whoever waits here hears that it is over."""
        self._closed = True
        self._mailbox.wake()

    def set(self, key: str, value: bytes | str) -> None:
        value = value.encode() if isinstance(value, str) else bytes(value)
        self._saw(key, value)
        self._mailbox.put(self._generation, key, value)
        self._spread(encode_value(key, value))

    def get(self, key: str) -> bytes:
        [value] = self._values([key])
        self._saw(key, value)
        return value

    # The time limit is gloo's own; what ends a wiring is decided elsewhere (H25).
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
