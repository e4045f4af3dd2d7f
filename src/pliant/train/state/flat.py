"""A state as bytes: a tree of plain values and the tensors beside it, without pickle.

A transfer and a checkpoint carry the *tree* (msgpack: numbers, strings, lists, dictionaries, and a note for each
tensor) and the tensors' own bytes, one after another. A framework's adapter turns its tensors into `Leaf` and back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from pliant.errors import BadInput

_INT_MAX = 2**63


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor: dtype, shape and bytes. The bytes are the live tensor's, not a copy."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview

    @property
    def nbytes(self) -> int:
        return self.content.nbytes


@dataclass(frozen=True, slots=True)
class LeafOutline(Leaf):
    """A tensor whose bytes are requested later."""

    size: int = 0

    @property
    def nbytes(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class State:
    """A whole state: its tree and its leaves, in the order of the tree's notes."""

    tree: bytes
    leaves: tuple[Leaf, ...]

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)


AsLeaf = Callable[[object], Leaf | None]
"""Returns a leaf for a tensor of the framework, None for anything else."""

FromLeaf = Callable[[str, tuple[int, ...], memoryview], object]


def flatten(value: object, as_leaf: AsLeaf, where: str = "state") -> State:
    """Return the state of a value. Raises BadInput, naming the position, for a value that cannot be sent."""
    leaves: list[Leaf] = []
    notes = _note(value, as_leaf, leaves, where)
    return State(msgspec.msgpack.encode(notes), tuple(leaves))


def restore(tree: bytes, contents: Sequence[memoryview], from_leaf: FromLeaf) -> Any:
    """Return the value, with tensors made from the contents."""
    with _damage_reported():
        return _read(msgspec.msgpack.decode(tree), contents, from_leaf)


def leaf_sizes(tree: bytes) -> tuple[int, ...]:
    """Return the number of bytes of each leaf, in order, to allocate memory before they arrive."""
    found: list[int] = []
    with _damage_reported():
        _collect_sizes(msgspec.msgpack.decode(tree), found)
    return tuple(found)


@contextmanager
def _damage_reported() -> Iterator[None]:
    """Turn the errors of a tree that another process damaged into BadInput."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadInput(f"The state's tree cannot be read: {error}.") from error


# Every value is encoded as [kind, ...], so the encoding is unambiguous.
def _note(value: object, as_leaf: AsLeaf, leaves: list[Leaf], where: str) -> list[Any]:
    leaf = as_leaf(value)
    if leaf is not None:
        leaves.append(leaf)
        return ["tensor", len(leaves) - 1, leaf.dtype, list(leaf.shape), leaf.nbytes]
    match value:
        case None | bool():
            return ["value", value]
        case int():  # also subclasses, such as enum values; they come back as plain numbers
            return ["value", int(value)] if -_INT_MAX <= value < _INT_MAX else ["integer", str(int(value))]
        case float():
            return ["value", float(value)]
        case str():
            return ["value", str(value)]
        case bytes():
            return ["value", bytes(value)]
        case complex():
            return ["complex", value.real, value.imag]
        case tuple():
            return ["tuple", [_note(each, as_leaf, leaves, f"{where}[{at}]") for at, each in enumerate(value)]]
        case list():
            return ["list", [_note(each, as_leaf, leaves, f"{where}[{at}]") for at, each in enumerate(value)]]
        case deque():
            notes = [_note(each, as_leaf, leaves, f"{where}[{at}]") for at, each in enumerate(value)]
            return ["deque", notes, value.maxlen]
        case set() | frozenset():
            return ["set", [_note(each, as_leaf, leaves, where) for each in sorted(value, key=repr)]]
        case Mapping() if type(value) in _MAPPINGS:
            pairs = [
                [_note(key, as_leaf, leaves, where), _note(each, as_leaf, leaves, f"{where}[{key!r}]")]
                for key, each in value.items()
            ]
            return [_MAPPINGS[type(value)], pairs]
        case _ if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return _note(value.item(), as_leaf, leaves, where)  # a numpy scalar
        case _:
            raise BadInput(
                f"{where} is a {type(value).__name__}, which cannot be sent to another member: "
                "state_dict() may contain numbers, strings, lists, dictionaries and tensors."
            )


_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "dict", Counter: "counter", defaultdict: "dict"}


def _read(note: Any, contents: Sequence[memoryview], from_leaf: FromLeaf) -> Any:
    match note:
        case ["tensor", int(at), str(dtype), list(shape), int(nbytes)] if 0 <= at < len(contents):
            if contents[at].nbytes != nbytes:
                raise BadInput(f"Tensor {at} of the state has {contents[at].nbytes} bytes, not {nbytes}.")
            return from_leaf(dtype, tuple(shape), contents[at])
        case ["value", value]:
            return value
        case ["integer", str(digits)]:
            return int(digits)
        case ["complex", real, imag]:
            return complex(real, imag)
        case ["tuple", list(notes)]:
            return tuple(_read(each, contents, from_leaf) for each in notes)
        case ["list", list(notes)]:
            return [_read(each, contents, from_leaf) for each in notes]
        case ["deque", list(notes), maxlen]:
            return deque((_read(each, contents, from_leaf) for each in notes), maxlen)
        case ["set", list(notes)]:
            return {_read(each, contents, from_leaf) for each in notes}
        case ["dict" | "counter" as kind, list(pairs)]:
            made: dict[Any, Any] = Counter() if kind == "counter" else {}
            for key, value in pairs:
                made[_read(key, contents, from_leaf)] = _read(value, contents, from_leaf)
            return made
        case _:
            raise BadInput("The state's tree cannot be read: another version wrote it, or it is damaged.")


def _collect_sizes(note: Any, found: list[int]) -> None:
    match note:
        case ["tensor", int(at), _, _, int(nbytes)]:
            if at != len(found) or nbytes < 0:
                raise BadInput("The state's tree lists its tensors out of order: it is damaged.")
            found.append(nbytes)
        case ["tuple" | "list" | "set", list(notes)] | ["deque", list(notes), _]:
            for each in notes:
                _collect_sizes(each, found)
        case ["dict" | "counter", list(pairs)]:
            for key, value in pairs:
                _collect_sizes(key, found)
                _collect_sizes(value, found)
        case _:
            pass


def stripe_leaves(nbytes: Sequence[int], index: int, count: int) -> range:
    """Return the leaves of stripe `index` of `count`: runs of leaves with about equally many bytes each."""
    total = sum(nbytes) or 1
    before, firsts = 0, [0] * (count + 1)
    at = 0
    for leaf, size in enumerate(nbytes):
        while at < count and before * count >= at * total:
            firsts[at] = leaf
            at += 1
        before += size
    for rest in range(at, count):
        firsts[rest] = len(nbytes)
    firsts[count] = len(nbytes)
    return range(firsts[index], firsts[index + 1])
