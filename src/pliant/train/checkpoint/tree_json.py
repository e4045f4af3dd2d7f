"""A state's tree as readable JSON, and back to the same bytes.

Plain values are plain JSON. Any other value is an object with one key that begins with a dollar sign, so the encoding
is unambiguous:

    {"$tensor": NAME, "dtype": "float32", "shape": [2, 3], "nbytes": 24}
    {"$tuple": [...]}   {"$set": [...]}   {"$deque": [...], "maxlen": 3}   {"$counter": [[key, value], ...]}
    {"$dict": [[key, value], ...]}  where a key is no string, or begins with a dollar sign
    {"$bytes": BASE64}   {"$complex": [1.0, -2.0]}   {"$float": "nan"}   {"$integer": "18446744073709551616"}

JSON is kept beside the msgpack tree of a transfer because people open a checkpoint with other tools, and read it in
diffs.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pliant.errors import BadInput

STATE_FILE = "state.json"
FORMAT = "pliant state 1"
_LINE_MAX = 110
_FLOAT = struct.Struct(">d")
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INT_MIN, _INT_END = -(2**63), 2**63
_SCALARS = frozenset({int, float, str, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_SEQUENCES = frozenset({"list", "tuple", "set", "deque"})
_MAPPINGS = frozenset({"dict", "counter"})
_PLAIN = frozenset({"value", "integer", "complex"})


class _UnknownFormat(Exception):
    """The text is no state in a format that this version reads."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a state: its name in files, dtype, shape and size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def tensors_of(tree: bytes) -> tuple[TensorInfo, ...]:
    """Return the tensors of a tree, in order, each with a unique name that tells its position in the tree."""
    found: list[tuple[str, Any]] = []
    _find_tensors(msgspec.msgpack.decode(tree), "", found)
    taken = {"__metadata__"}  # reserved by safetensors
    tensors: list[TensorInfo] = []
    for path, (_, _, dtype, shape, nbytes) in found:
        name, more = path or "state", 2
        while name in taken:
            name, more = f"{path}~{more}", more + 1
        taken.add(name)
        tensors.append(TensorInfo(name, dtype, tuple(shape), nbytes))
    return tuple(tensors)


def tree_to_json(tree: bytes, about: Mapping[str, str] | None = None) -> str:
    """Return the tree as the text of a file, with additional fields."""
    names = iter([tensor.name for tensor in tensors_of(tree)])
    described = {**(about or {}), "format": FORMAT, "state": _to_json(msgspec.msgpack.decode(tree), names)}
    text = _render(described) + "\n"
    if json_to_tree(text) != tree:
        raise BadInput("The state's tree cannot be written as JSON; another version created it.")
    return text


def json_to_tree(text: str) -> bytes:
    """Return the bytes that `tree_to_json` received. Raises ValueError with the reason for any other text."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT or "state" not in said:
        raise ValueError(f"its format is not {FORMAT!r}")
    try:
        return msgspec.msgpack.encode(_from_json(said["state"], _Counter()))
    except (_UnknownFormat, ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"its content is no state: {error}") from error


# ------------------------------------------------------------------------------------------------ tree to text


# A large model has ten thousand tensors, each with its notes. This runs beside training and holds the interpreter lock,
# so it compares the kind alone instead of matching patterns.
def _find_tensors(note: Any, path: str, found: list[tuple[str, Any]]) -> None:
    """Collect the note of every tensor below a note, with its path, in the order of their numbers."""
    kind = note[0]
    if kind == "tensor":
        found.append((path, note))
    elif kind in _SEQUENCES:
        for at, each in enumerate(note[1]):
            _find_tensors(each, f"{path}.{at}" if path else f"{at}", found)
    elif kind in _MAPPINGS:
        for key, each in note[1]:
            name = key[1] if key[0] == "value" and type(key[1]) is str else _key_name(key)
            below = f"{path}.{name}" if path else name
            if key[0] not in _PLAIN:
                _find_tensors(key, f"{below}.key", found)
            _find_tensors(each, below, found)


def _key_name(note: Any) -> str:
    match note:
        case ["value", str(key)]:
            return key
        case ["value", bytes(key)]:
            return key.hex()
        case ["value", key]:
            return str(key)
        case ["integer", str(digits)]:
            return digits
        case ["tuple" | "set", list(notes)]:
            return "-".join(map(_key_name, notes))
        case _:
            return str(note[0])


def _to_json(note: Any, names: Iterator[str]) -> Any:
    kind, value = note[0], note[1]
    if kind == "value":
        plain = type(value) is not float and type(value) is not bytes
        return value if plain else _float_to_json(value) if type(value) is float else _bytes_to_json(value)
    if kind == "tensor":
        return {"$tensor": next(names), "dtype": note[2], "shape": note[3], "nbytes": note[4]}
    if kind == "dict" and _is_plain(value):
        return {key[1]: _to_json(each, names) for key, each in value}
    if kind in _MAPPINGS:
        return {f"${kind}": [[_to_json(key, names), _to_json(each, names)] for key, each in value]}
    if kind == "list":
        return [_to_json(each, names) for each in value]
    if kind in _SEQUENCES:
        more = {"maxlen": note[2]} if kind == "deque" else {}
        return {f"${kind}": [_to_json(each, names) for each in value], **more}
    if kind == "integer":
        return {"$integer": value}
    if kind == "complex" and type(value) is type(note[2]) is float:
        return {"$complex": [_float_to_json(value), _float_to_json(note[2])]}
    raise BadInput("The state's tree cannot be read: another version wrote it, or it is damaged.")


def _is_plain(pairs: list[Any]) -> bool:
    """Return whether a dictionary is plain JSON: string keys, none twice, none with a leading dollar sign."""
    keys = [key[1] for key, _ in pairs if key[0] == "value" and isinstance(key[1], str) and not key[1].startswith("$")]
    return len(set(keys)) == len(pairs)


def _bytes_to_json(value: bytes) -> Any:
    return {"$bytes": base64.b64encode(value).decode()}


def _float_to_json(value: float) -> Any:
    if math.isfinite(value):
        return value
    for name, known in _FLOATS.items():
        if _FLOAT.pack(known) == _FLOAT.pack(value):
            return {"$float": name}
    return {"$float": f"bits {_FLOAT.pack(value).hex()}"}  # a NaN with a payload


def _render(value: Any, indent: str = "") -> str:
    """Return JSON with short values on one line and long ones over several."""
    if not isinstance(value, dict | list):
        return _encode(value)
    inside = value.values() if isinstance(value, dict) else value
    if "$tensor" in value or _SCALARS.issuperset(map(type, inside)):
        line = _encode(value)
        if len(line) + len(indent) <= _LINE_MAX:
            return line
    deeper = indent + "  "
    if isinstance(value, list):
        rows, brackets = [_render(each, deeper) for each in value], "[]"
    else:
        rows = [f"{_encode(key)}: {_render(each, deeper)}" for key, each in value.items()]
        brackets = "{}"
    if sum(map(len, rows)) + 2 * len(rows) + len(indent) <= _LINE_MAX and not any("\n" in row for row in rows):
        return f"{brackets[0]}{', '.join(rows)}{brackets[1]}"
    body = ",\n".join(deeper + row for row in rows)
    return f"{brackets[0]}\n{body}\n{indent}{brackets[1]}"


# ------------------------------------------------------------------------------------------------ text to tree


class _Counter:
    """A counter for tensors."""

    def __init__(self) -> None:
        self.next = 0


def _from_json(value: Any, tensors: _Counter) -> list[Any]:
    kind = type(value)
    if kind is dict:
        if next(iter(value), "").startswith("$"):
            return _from_tagged_json(value, tensors)
        return ["dict", [[["value", key], _from_json(each, tensors)] for key, each in value.items()]]
    if kind is list:
        return ["list", [_from_json(each, tensors) for each in value]]
    if kind is int and not _INT_MIN <= value < _INT_END:
        raise _UnknownFormat(f"the number {value} is too large")
    return ["value", value]


def _from_tagged_json(value: dict[str, Any], tensors: _Counter) -> list[Any]:
    match value:
        case {"$tensor": str(), "dtype": str(dtype), "shape": list(shape), "nbytes": int(nbytes)} if nbytes >= 0:
            tensors.next += 1
            return ["tensor", tensors.next - 1, dtype, [_size(each) for each in shape], nbytes]
        case {"$bytes": str(text)}:
            return ["value", base64.b64decode(text, validate=True)]
        case {"$float": str()}:
            return ["value", _float(value)]
        case {"$integer": str(digits)}:
            return ["integer", digits]
        case {"$complex": [real, imag]}:
            return ["complex", _float(real), _float(imag)]
        case {"$tuple": list(each)}:
            return ["tuple", [_from_json(one, tensors) for one in each]]
        case {"$set": list(each)}:
            return ["set", [_from_json(one, tensors) for one in each]]
        case {"$deque": list(each), "maxlen": int() | None as maxlen}:
            return ["deque", [_from_json(one, tensors) for one in each], maxlen]
        case {"$dict": list(pairs)}:
            return ["dict", [[_from_json(key, tensors), _from_json(each, tensors)] for key, each in pairs]]
        case {"$counter": list(pairs)}:
            return ["counter", [[_from_json(key, tensors), _from_json(each, tensors)] for key, each in pairs]]
        case _:
            raise _UnknownFormat(f"unknown keys {', '.join(value)}")


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _UnknownFormat(f"{value!r} is not a size")
    return value


def _float(value: Any) -> float:
    match value:
        case float():
            return value
        case {"$float": str(name)} if name in _FLOATS:
            return _FLOATS[name]
        case {"$float": str(bits)} if bits.startswith("bits "):
            (number,) = _FLOAT.unpack(bytes.fromhex(bits.removeprefix("bits ")))
            return float(number)
        case _:
            raise _UnknownFormat(f"{value!r} is not a number")
