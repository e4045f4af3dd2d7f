"""Make damaged inputs from valid ones: byte by byte, number by number, and value by value."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec

INPUT_MAX = 1 << 20
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_NUMBERS = (b"0", b"-1", b"1", b"-0.0", b"65536", b"4294967296", b"9223372036854775808", b"18446744073709551616")
_ODD_NUMBERS = (b"1e999", b"NaN", b"-Infinity", b"0x10", b"1_0", b"00", b"+1", b"1." + b"9" * 400, b"9" * 5000)
_SPLINTERS = (
    b"\x00",
    b"\xff\xfe",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n\n",
    b"\x1b[2J",
    b"$",
    b"../",
    b"%00",
    b"'\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"\xd9\xa3",  # a digit of another script
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\x91" * 3000,  # msgpack: an array in an array
    b"\xdd\xff\xff\xff\xff",  # msgpack: an array of four billion
    b"\xc6\xff\xff\xff\xff",  # msgpack: four billion bytes
    b"\xdb\xff\xff\xff\xff",  # msgpack: a text of four billion bytes
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    10**30,
    0.5,
    -0.0,
    1e308,
    "",
    "m1",
    "../x",
    "\u0000",
    "\u2028",
    "\U0010ffff",
    "9" * 5000,
    "x" * 70_000,
    [],
    [[]],
    [0] * 300,
    {},
    {"": {}},
    {"$tensor": "x"},
)


class Mutator:
    """A source of damaged inputs. The same seed and corpus give the same inputs."""

    def __init__(self, seed: str, corpus: list[bytes]) -> None:
        self._rng = random.Random(seed)
        self._corpus = corpus

    def next(self) -> bytes:
        """Return another input. One in fifty is valid as it is, and one in fifty is noise."""
        rng = self._rng
        data = rng.choice(self._corpus)
        kind = rng.random()
        if kind < 0.02:
            return data
        if kind < 0.04:
            return rng.randbytes(rng.choice((0, 1, 3, 8, 64, 2000)))
        if kind < 0.45 and (changed := self._changed_value(data)) is not None:
            data = changed
            if rng.random() < 0.7:
                return data[:INPUT_MAX]
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            data = self._changed_bytes(data)
        return data[:INPUT_MAX]

    def _changed_bytes(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 200)))
        match rng.randrange(9):
            case 0 if data:
                at = rng.randrange(len(data))
                return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 1:
                return data[:at] + rng.randbytes(end - at) + data[end:]
            case 2:
                return data[:at] + data[end:]
            case 3:
                return data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
            case 4:
                return data[:at] + rng.choice(_SPLINTERS) + data[at:]
            case 5:
                return data[:at] if rng.random() < 0.5 else data[at:]
            case 6:
                other = rng.choice(self._corpus)
                return data[:at] + other[rng.randrange(len(other) + 1) :]
            case 7:
                return self._changed_number(data)
            case _:
                return data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))] * (end - at)) + data[end:]

    def _changed_number(self, data: bytes) -> bytes:
        found = list(_NUMBER.finditer(data))
        if not found:
            return data
        hit = self._rng.choice(found)
        return data[: hit.start()] + self._rng.choice(_NUMBERS + _ODD_NUMBERS) + data[hit.end() :]

    def _changed_value(self, data: bytes) -> bytes | None:
        """Replace, remove or add one value within JSON or msgpack; None if the input is neither."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self._changed_msgpack(data)
        return json.dumps(self._changed(value)).encode()

    def _changed_msgpack(self, data: bytes) -> bytes | None:
        try:
            value = msgspec.msgpack.decode(data)
            return msgspec.msgpack.encode(self._changed(value))
        except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError, RecursionError):
            return None

    def _changed(self, value: Any) -> Any:
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            changed = dict(value)
            key = rng.choice(list(changed))
            match rng.randrange(8):
                case 0:
                    del changed[key]
                case 1:
                    changed[rng.choice(("", "v", "type", "extra", "$x"))] = rng.choice(_VALUES)
                case _:
                    changed[key] = self._changed(changed[key])
            return changed
        if isinstance(value, list) and value and rng.random() < 0.85:
            items = list(value)
            at = rng.randrange(len(items))
            match rng.randrange(6):
                case 0:
                    del items[at]
                case 1:
                    items.insert(at, items[at])
                case _:
                    items[at] = self._changed(items[at])
            return items
        return rng.choice(_VALUES)
