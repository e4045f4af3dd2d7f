"""Facts about the data, the module and the model of a job: a short text each, which differs when they do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from typing import Any

from pliant.records import Records

SHOWN = 80  # characters of a name


def described(name: str, content: str) -> str:
    """Return the last part of a name, with a hash of what it is the name of."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return f"{name.rstrip('/').rpartition('/')[2][-SHOWN:]} ({digest})"


def content_of(data: Any) -> str:
    """Return text that changes with data: the sizes and times of its files, or else some of its records."""
    mark = data.change_mark() if isinstance(data, Records) else ""
    numbers = sorted({0, len(data) // 2, len(data) - 1}) if len(data) else []
    return f"{len(data)} {mark or [_record(data, number) for number in numbers]}"


def _record(data: Any, number: int) -> str:
    """Return a record as text; empty if it is another one each time, as with random changes of it."""
    found = _text(data[number])
    return found if found == _text(data[number]) else ""


def _text(value: Any) -> str:
    """Return a value as text that is the same in every process."""
    kind = type(value).__qualname__
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | bytearray():
            return f"{kind} {value!r}"
        case Mapping():
            return f"{kind} {sorted((_text(key), _text(each)) for key, each in value.items())}"
        case Set():
            return f"{kind} {sorted(map(_text, value))}"
        case list() | tuple():
            return f"{kind} {[_text(each) for each in value]}"
        case _:
            return f"{kind} {_array(value) if hasattr(value, '__array__') else _shown(value)}"


def _array(value: Any) -> str:
    try:
        array = value.__array__()
    except (RuntimeError, TypeError, ValueError):  # such as a tensor on a GPU
        return ""
    content = _text(array.tolist()) if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
    return f"{array.dtype} {array.shape} {content}"


def _shown(value: Any) -> str:
    shown = repr(value)
    return "" if " at 0x" in shown else shown  # an address is another one in each process
