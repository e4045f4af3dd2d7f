"""Values that peers published for the wiring of a generation, kept until this member wires it.

A peer may receive a new generation a moment before this member, and start to wire at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

KEYS_MAX = 8192  # per generation; a world publishes a few per rank
VALUE_MAX = 1 << 16
GENERATIONS_MAX = 64


class PeerValue(msgspec.Struct, frozen=True, array_like=True):
    """One key and its value, as a peer sends it."""

    key: str
    value: bytes


_decoder = msgspec.msgpack.Decoder(PeerValue)


class PeerValues:
    """Values by generation and key. Pass `receive` the notifications of kind `store`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[int, dict[str, bytes]] = {}
        self._floor = 0

    def receive(self, generation: int, head: bytes) -> None:
        """Keep the value of a notification of kind `store`."""
        try:
            sent = _decoder.decode(head)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ValueError(f"not a value: {error}") from error
        self.put(generation, sent.key, sent.value)

    def put(self, generation: int, key: str, value: bytes) -> None:
        with self._changed:
            if generation < self._floor:
                return
            if generation not in self._values and len(self._values) >= GENERATIONS_MAX:
                raise ValueError(
                    f"there are values of {GENERATIONS_MAX} generations; call `forget_below` for those that are over"
                )
            values = self._values.setdefault(generation, {})
            if (key not in values and len(values) >= KEYS_MAX) or len(value) > VALUE_MAX:
                raise ValueError(f"generation {generation} may have at most {KEYS_MAX} values of {VALUE_MAX} bytes")
            values[key] = value
            self._changed.notify_all()

    def wait(self, generation: int, keys: list[str], called_off: Callable[[], bool]) -> list[bytes] | None:
        """Return the values of `keys` once all are there; None if it was called off or the generation is over."""

        def over() -> bool:
            return called_off() or generation < self._floor

        def there() -> bool:
            values = self._values.get(generation, {})
            return all(key in values for key in keys)

        with self._changed:
            self._changed.wait_for(lambda: over() or there())
            return None if over() else [self._values[generation][key] for key in keys]

    def has(self, generation: int, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._values.get(generation, {}) for key in keys)

    def wake(self) -> None:
        """Make every waiting thread check again whether it was called off."""
        with self._changed:
            self._changed.notify_all()

    def forget_below(self, below: int) -> None:
        """Drop the values of generations below: they are over, or wired."""
        with self._changed:
            self._floor = max(self._floor, below)
            for generation in [each for each in self._values if each < self._floor]:
                del self._values[generation]
            self._changed.notify_all()


def encode_value(key: str, value: bytes) -> bytes:
    """Return the notification of kind `store` for this value."""
    return msgspec.msgpack.encode(PeerValue(key, value))
