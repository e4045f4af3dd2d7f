"""Typed JSON for the frozen dataclasses of `pliant.core`, which does not depend on JSON.

The codec encodes three kinds of values.

  A **message**, one of a family (all events, all commands), names its class in its first key:
      {"type":"MemberGone","at":12.5,"member":"m3","how":"left","why":"drained"}
  A **state**, one value of a type known beforehand, also has the version of its format:
      {"v":1,"type":"Job","name":"demo",...}
  A **body**, whose type the route defines, is the value alone:
      {"member":"m3","revision":17}

**Canonical.** Equal values give equal bytes, in every process: fields in the order of the class, keys of dicts and
elements of frozensets sorted, no spaces, defaults written out. A whole number in a float field is written as a float,
because mypy accepts `5` for `5.0` and a replayed state must be equal byte for byte. The one exception is 0.0 and -0.0,
which are equal and have different bytes.

**Read back.** msgspec writes a value as it is, not as its field was declared: NaN as null, a bool in place of an int.
In a log, that would be an unreadable event. So the codec decodes everything before it returns it, and raises BadInput
if the result differs. Decoding costs no more than a check of the values.

**Strict.** Decoding raises BadInput, with the path and the reason, for anything but one value: wrong types, unknown
fields (a misspelt option must not silently mean its default), a key or an element given twice (two readers could
differ), NaN and infinity, in a message integers of more than 20 digits (a digest has 64 bits; longer ones could
overflow), text that is not UTF-8, unlimited nesting. Spaces and the order of keys are free, and fields with a default
may be left out, so that a person can write a message by hand. The transport limits the length.

**Change.** A later version may add a field with a default, or a class; `pliant.wire.protocol` has the rule for messages
between versions. It may not give an old name another meaning: an incompatible event gets a new name. An incompatible
state gets the next `STATE_VERSION`, and code that reads the previous one.

A field may have these types: bool, int, float, str, NewTypes of those, enums with string values, None, literals,
tuples, frozensets of sortable values, dicts with string keys, dataclasses of such fields, and unions of these with at
most one dataclass. Any other type is a TypeError when the codec is created, not with the first message.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from pliant.errors import BadInput

__all__ = [
    "STATE_VERSION",
    "UNREADABLE",
    "Body",
    "Codec",
    "UnknownMessage",
    "decode_state",
    "encode_reply",
    "encode_state",
]

STATE_VERSION = 1
_INT_DIGITS_MAX = 20

T = TypeVar("T")

_encode: Callable[[object], bytes] = msgspec.json.Encoder(order="deterministic").encode
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)  # raised by msgspec for bytes it refuses


class UnknownMessage(BadInput):
    """A message of a type that this version does not know."""


class Codec(Generic[T]):
    """Encodes and decodes a family of dataclasses. Create it once, when the program starts.

    Use `Codec[Event](get_args(Event))` for a union. The name of a class is its tag: renaming a class changes the
    format.
    """

    __slots__ = ("_by_class", "_by_tag")

    def __init__(self, types: Sequence[type[T]]) -> None:
        self._by_class: dict[type, _Shape[Any]] = {}
        self._by_tag: dict[bytes, _Shape[Any]] = {}
        for cls in types:
            shape = _Shape(cls, {"type": cls.__name__})
            if shape.tag in self._by_tag:
                raise TypeError(f"Two classes named {cls.__name__} in one family; the name is the tag.")
            self._by_class[cls] = self._by_tag[shape.tag] = shape

    def encode(self, message: T) -> bytes:
        """Encode one message of the family; BadInput if JSON cannot carry one of its values unchanged."""
        shape = self._by_class.get(type(message))
        if shape is None:
            raise TypeError(f"{type(message).__name__} is not one of {self._known()}.")
        data = shape.encode(message)
        _refuse_long_integers(data)
        return data

    def decode(self, data: bytes, *, from_newer: bool = False) -> T:
        """Decode untrusted bytes; BadInput if they are not exactly one message of the family.

        `from_newer`: a newer version sent them, so unknown fields are ignored. Of a type that this version does not
        know, `UnknownMessage` is raised.
        """
        shape = None
        if data.startswith(b'{"type":"'):  # the canonical start; `decode` checks the tag again
            shape = self._by_tag.get(data[9 : data.find(b'"', 9)])
        if shape is None:
            tag = _head(data, _MessageHead).type
            shape = self._by_tag.get(tag.encode("utf-8", "replace"))
            if shape is None:
                raise UnknownMessage(f"The type {_short(tag)} is not one of {self._known()}.")
        decoded: T = shape.decode(data, from_newer)
        _refuse_long_integers(data)
        return decoded

    def _known(self) -> str:
        return ", ".join(sorted(cls.__name__ for cls in self._by_class)) or "none"


class Body(Generic[T]):
    """Encodes and decodes one class that both sides agree on, as strictly as a message."""

    __slots__ = ("_shape",)

    def __init__(self, cls: type[T]) -> None:
        self._shape: _Shape[T] = _Shape(cls, {})

    def encode(self, value: T) -> bytes:
        """Encode a value of the class; BadInput if JSON cannot carry it unchanged."""
        data = self._shape.encode(value)
        _refuse_long_integers(data)
        return data

    def decode(self, data: bytes, *, from_newer: bool = False) -> T:
        """Decode untrusted bytes; BadInput if they are not exactly one value of the class.

        `from_newer`: a newer version sent them, so unknown fields are ignored.
        """
        value = self._shape.decode(data, from_newer)
        _refuse_long_integers(data)
        return value


def encode_reply(reply: object) -> bytes:
    """Encode an answer made of values that were checked on input; it is not read back."""
    return _encode(reply)


def encode_state(state: object) -> bytes:
    """Encode one whole value to be stored, such as a job's record."""
    return _state_shape(type(state)).encode(state)


def decode_state(data: bytes, cls: type[T]) -> T:
    """Decode a stored value. BadInput if it is damaged, of another type, or of an unsupported version."""
    shape = _state_shape(cls)
    if not data.startswith(shape.prefix):
        head = _head(data, _StateHead)
        if head.v != STATE_VERSION:
            raise BadInput(f"This state has format version {head.v}; this version of Pliant reads {STATE_VERSION}.")
        if head.type != cls.__name__:
            raise BadInput(f"This is the state of a {_short(head.type)}, not of a {cls.__name__}.")
    decoded: T = shape.decode(data)
    return decoded


class _Shape(Generic[T]):
    """The encoding of one class, with some constant keys in front."""

    __slots__ = ("_decode", "cls", "prefix", "tag")

    def __init__(self, cls: type[T], front: dict[str, object]) -> None:
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls!r} is not a dataclass.")
        _require_plain(inspect.type_info(cls), cls.__name__, set())
        fields = {field.name for field in dataclasses.fields(cls)}
        if taken := fields & front.keys():
            raise TypeError(f"{cls.__name__} has a field {min(taken)!r}, which the format needs for itself.")
        self.cls = cls
        self.tag = cls.__name__.encode()
        # A value's own JSON, without its opening brace, follows this: faster than building another dict.
        self.prefix = msgspec.json.encode(front)[:-1] + (b"," if front and fields else b"")
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(cls).decode

    def encode(self, value: T) -> bytes:
        try:
            back = self._decode(_encode(value))
            if back == value:
                return self.prefix + _encode(back)[1:]  # `back`, not `value`: its floats are floats
        except (*UNREADABLE, TypeError) as error:
            raise BadInput(f"This {self.cls.__name__} cannot be encoded as JSON: {error}") from error
        raise BadInput(f"This {self.cls.__name__} would change when decoded from JSON; is a number NaN?")

    def decode(self, data: bytes, from_newer: bool = False) -> T:
        try:
            value = self._decode(data)
            canonical = self.prefix + _encode(value)[1:]
        except UNREADABLE as error:
            raise BadInput(f"This is not a {self.cls.__name__}: {error}") from error
        # Bytes that this codec wrote are canonical: for them the strict check is one comparison.
        if data != canonical:
            _refuse_surplus(data, canonical, from_newer)
        return value


_states: dict[type, _Shape[Any]] = {}  # created on first use; depends on the class only


def _state_shape(cls: type) -> _Shape[Any]:
    shape = _states.get(cls)
    if shape is None:
        shape = _states[cls] = _Shape(cls, {"v": STATE_VERSION, "type": cls.__name__})
    return shape


# ------------------------------------------------------------------------------------------ strict with bytes


class _MessageHead(msgspec.Struct):
    type: str


class _StateHead(msgspec.Struct):
    v: int
    type: str


H = TypeVar("H", bound=msgspec.Struct)


def _head(data: bytes, cls: type[H]) -> H:
    try:
        return msgspec.json.decode(data, type=cls)
    except UNREADABLE as error:
        raise BadInput(f"This is not a Pliant message: {error}") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _refuse_surplus(data: bytes, canonical: bytes, from_newer: bool) -> None:
    """Raise if `data` contains anything that its decoded value, written as `canonical`, does not."""
    try:
        given = json.loads(data.decode(), object_pairs_hook=_without_duplicates)
        _compare(given, json.loads(canonical), "$", from_newer)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a number of absurd length
        raise BadInput(f"This is not a Pliant message: {error}") from error


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise BadInput(f"The key {_short(key)} is given twice.")
        found[key] = value
    return found


def _compare(given: object, kept: object, path: str, from_newer: bool) -> None:
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                _compare(value, kept[key], f"{path}.{key[:40]}", from_newer)
            elif not from_newer:
                raise BadInput(f"There is no field {_short(key)} at {path}.")
    elif isinstance(given, list) and isinstance(kept, list):
        if len(given) != len(kept):  # only a set can shrink
            raise BadInput(f"An element is given twice at {path}.")
        for i, (one, other) in enumerate(zip(given, kept, strict=True)):
            _compare(one, other, f"{path}[{i}]", from_newer)


_DIGITS = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_LONG = b"0" * (_INT_DIGITS_MAX + 1)


def _refuse_long_integers(data: bytes) -> None:
    """Check JSON that has been decoded already."""
    if _LONG in data.translate(_DIGITS):  # rare; the digits may also be in a string or a fraction
        json.loads(data, parse_int=_short_integer)


def _short_integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _INT_DIGITS_MAX:
        raise BadInput(f"The integer {_short(digits)} has more than {_INT_DIGITS_MAX} digits.")
    return int(digits)


# ------------------------------------------------------------------------------------------ strict with types


def _require_plain(info: inspect.Type, where: str, seen: set[type]) -> None:
    """TypeError unless values of that type have exactly one form in JSON."""
    match info:
        case inspect.IntType() | inspect.FloatType() | inspect.StrType() | inspect.BoolType():
            pass
        case inspect.NoneType() | inspect.LiteralType():
            pass
        case inspect.EnumType(cls=cls):
            if not all(isinstance(each.value, str) for each in cls):
                raise TypeError(f"{where} is an enum whose values are not all strings.")
        case inspect.VarTupleType(item_type=item):
            _require_plain(item, where, seen)
        case inspect.FrozenSetType(item_type=item):
            _require_order(item, where)
            _require_plain(item, where, seen)
        case inspect.DictType(key_type=inspect.StrType() | inspect.EnumType() as key, value_type=item):
            _require_order(key, where)
            _require_plain(item, where, seen)
        case inspect.TupleType(item_types=items) | inspect.UnionType(types=items):
            for item in items:
                _require_plain(item, where, seen)
        case inspect.DataclassType(cls=cls, fields=fields):
            if cls not in seen:
                seen.add(cls)
                for field in fields:
                    _require_plain(field.type, f"{cls.__name__}.{field.name}", seen)
        case _:
            raise TypeError(f"{where} has a type that messages cannot carry: {type(info).__name__}.")


def _require_order(info: inspect.Type, where: str) -> None:
    """TypeError unless the elements of a set can be sorted: otherwise each process would write its own order."""
    match info:
        case inspect.IntType() | inspect.FloatType() | inspect.StrType():
            pass
        case inspect.EnumType(cls=cls) if issubclass(cls, str):
            pass
        case inspect.TupleType(item_types=items):
            for item in items:
                _require_order(item, where)
        case inspect.DataclassType(cls=cls) if any("__lt__" in vars(base) for base in cls.__mro__[:-1]):
            pass
        case _:
            raise TypeError(f"{where} has elements or keys without an order (an enum must be a StrEnum).")
