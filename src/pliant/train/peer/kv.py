"""What peers said about the wiring of a generation, kept until this member wires it.

A peer may be told of a new generation a moment before we are, and starts to wire at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

KEYS_MAX = 8192  # of one generation; a world publishes a few for each rank
VALUE_MAX = 1 << 16
GENERATIONS_MAX = 64


class PeerValue(msgspec.Struct, frozen=True, array_like=True):
    """One key and its value, as a peer tells it."""

    key: str
    value: bytes


_decoder = msgspec.msgpack.Decoder(PeerValue)


class PeerValues:
    """Keys and values by generation. Hand it to `hear` for what comes with the kind `store`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[int, dict[str, bytes]] = {}
        self._floor = 0

    def receive(self, generation: int, head: bytes) -> None:
        """When a peer told something of the kind `store`; what it told is kept."""
        try:
            letter = _decoder.decode(head)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a letter: {error}") from error
        self.put(generation, letter.key, letter.value)

    def put(self, generation: int, key: str, value: bytes) -> None:
        with self._changed:
            if generation < self._floor:
                return
            if generation not in self._values and len(self._values) >= GENERATIONS_MAX:
                raise ValueError(f"{GENERATIONS_MAX} generations have letters here; `forget` those that are over")
            letters = self._values.setdefault(generation, {})
            if (key not in letters and len(letters) >= KEYS_MAX) or len(value) > VALUE_MAX:
                raise ValueError(f"the mailbox of generation {generation} takes {KEYS_MAX} values of {VALUE_MAX} bytes")
            letters[key] = value
            self._changed.notify_all()

    def wait(self, generation: int, keys: list[str], called_off: Callable[[], bool]) -> list[bytes] | None:
        """The values of `keys` once all are there; None when `called_off()`, after a `wake`, or it is forgotten."""

        def over() -> bool:
            return called_off() or generation < self._floor

        def there() -> bool:
            letters = self._values.get(generation, {})
            return all(key in letters for key in keys)

        with self._changed:
            self._changed.wait_for(lambda: over() or there())
            return None if over() else [self._values[generation][key] for key in keys]

    def has(self, generation: int, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._values.get(generation, {}) for key in keys)

    def wake(self) -> None:
        """Whoever waits looks again whether it was called off."""
        with self._changed:
            self._changed.notify_all()

    def forget_below(self, below: int) -> None:
        """When generations below are over, or wired: what was said about them is dropped."""
        with self._changed:
            self._floor = max(self._floor, below)
            for generation in [each for each in self._values if each < self._floor]:
                del self._values[generation]
            self._changed.notify_all()


def encode_value(key: str, value: bytes) -> bytes:
    """What to tell peers, with the kind `store`."""
    return msgspec.msgpack.encode(PeerValue(key, value))
