"""Bodies for a route: plausible ones, which get as far as a decision, and ones that no strict reader takes."""

import dataclasses
import json
import types
import typing
from typing import Any

from hypothesis import strategies as st

from e2e.examples import value_of
from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.wire.codec import Body

NAMES = st.sampled_from(["m1", "m2", "m3", "a1", "a2", "", "no/name", "x" * 64, "\u00e9", "a\nb", "\u2028", "../x"])
INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 100_000, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), 10**19])
FLOATS = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 60.0, 1e9, 1e300, 5e-324, -1e300])
DEEP = 20_000
LARGE = 1024 * 1024

HOPELESS: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"   \n",
    "an array": b"[]",
    "an array around it": b"[{}]",
    "a number": b"1",
    "null": b"null",
    "a string": b'"m1"',
    "half": b'{"member":',
    "two": b"{}{}",
    "not a number": b"NaN",
    "infinity": b'{"grace_s":Infinity,"ttl_s":-Infinity,"after_s":NaN}',
    "a comment": b'{"member":"m1"/* hello */}',
    "single quotes": b"{'member':'m1'}",
    "not UTF-8": b'{"member":"\xff\xfe"}',
    "an overlong form": b'{"member":"\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"member":"\xed\xa0\x80"}',
    "UTF-16": '{"member":"m1"}'.encode("utf-16"),
    "a mark in front": b'\xef\xbb\xbf{"member":"m1"}',
    "a zero byte": b'{"member":"m1"}\x00',
    "deep arrays": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "closed deep arrays": b'{"target":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep and unknown": b'{"unknown":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "many digits": b'{"capacity":' + b"9" * 100_000 + b"}",
    "many digits of a fraction": b'{"grace_s":0.' + b"9" * 100_000 + b"}",
    "a huge exponent": b'{"grace_s":1e999999999}',
    "many keys": b"{" + b",".join(b'"k%d":0' % number for number in range(20_000)) + b"}",
    "a long string": b'{"why":"' + b"x" * (LARGE - 100) + b'"}',
    "a little too much": b'{"why":"' + b"x" * LARGE + b'"}',
    "far too much": b" " * (3 * LARGE),
}
"""What no route takes."""


def plausible(kind: type) -> st.SearchStrategy[bytes]:
    """Bodies of the right shape; what they say may make no sense."""
    return _values(kind).map(lambda value: json.dumps(value).encode())


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, typing.NewType):
        return _values(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        usual = typing.cast(dict[str, Any], json.loads(Body(typing.cast(type, kind)).encode(value_of(kind))))
        fields = {name: st.one_of(st.just(usual[name]), _values(hint)) for name, hint in hints.items()}
        if kind is Grid:
            return st.one_of(st.just(usual), st.fixed_dictionaries(fields))
        return st.fixed_dictionaries(fields)
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return st.sampled_from([str(each) for each in kind])  # type: ignore[attr-defined]  # an enum of strings
    args = typing.get_args(kind)
    match typing.get_origin(kind):
        case types.UnionType | typing.Union:
            return st.one_of(*(st.none() if arg is type(None) else _values(arg) for arg in args))
        case origin if origin is tuple and args[-1] is not Ellipsis:
            return st.tuples(*map(_values, args)).map(list)
        case origin if origin in (tuple, frozenset):
            return st.lists(_values(args[0]), max_size=3)
        case _:
            return {int: INTEGERS, float: FLOATS, str: NAMES, bool: st.booleans()}[kind]


def broken(kind: type) -> st.SearchStrategy[bytes]:
    """Bodies with one thing wrong: a field too many, missing, given twice or of another type, or hopeless ones."""
    usual: dict[str, Any] = json.loads(Body(kind).encode(value_of(kind)))
    needed = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    first = dataclasses.fields(kind)[0].name
    without = [{key: value for key, value in usual.items() if key != name} for name in needed]

    def text(value: dict[str, Any]) -> bytes:
        return json.dumps(value).encode()

    twice = text(usual)[:-1] + b"," + json.dumps(first).encode() + b":" + json.dumps(usual[first]).encode() + b"}"
    spoilt = st.one_of(
        st.sampled_from(without) if without else st.nothing(),
        st.sampled_from(["", "unknown", "Member", "__class__", "member ", "\ud800"]).map(
            lambda name: usual | {name: 1}
        ),
        st.sampled_from([True, False]).map(lambda value: usual | {first: [value]}),
        st.sampled_from([10**21, -(10**21), float("nan"), float("inf"), {}, [[]], {"size": "1"}]).map(
            lambda value: usual | {first: value}
        ),
        st.just(usual | {first: "\ud800"}),
    ).map(text)
    return st.one_of(
        spoilt.filter(lambda data: not _is_taken(kind, data)), st.just(twice), st.sampled_from(_hopeless(kind))
    )


def _hopeless(kind: type) -> list[bytes]:
    return [data for data in HOPELESS.values() if len(data) > LARGE or not _is_taken(kind, data)]


def _is_taken(kind: type, data: bytes) -> bool:
    try:
        Body(kind).decode(data)
    except BadInput:
        return False
    return True
