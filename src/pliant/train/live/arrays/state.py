"""The whole state of a run over arrays: captured for a donor or a checkpoint, hashed, and installed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from pliant.errors import BadInput
from pliant.train.live.arrays.frame import Array, Frame
from pliant.train.live.arrays.hashing import arrays_hash
from pliant.train.live.arrays.moves import ArrayMoves
from pliant.train.state.flat import Leaf, LeafOutline, State, flatten, restore
from pliant.train.state.memory import allocate
from pliant.train.state.transfer import ReceivedState


class StatefulObject(Protocol):
    """Anything with `state_dict` and `load_state_dict`: an average of the weights, a counter, a callback's memory."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class ArrayOutline:
    """A state's small values, encoded, and its live arrays."""

    tree: bytes
    arrays: list[Array]

    def hash(self) -> int:
        return arrays_hash(self.arrays, self.tree)


class ArrayState:
    """A frame's state, its moving values and the objects named in `state=`."""

    def __init__(self, frame: Frame, moves: ArrayMoves, others: Mapping[str, StatefulObject]) -> None:
        self._frame = frame
        self._moves = moves
        self._others = others
        self._script = dict(frame.hyperparameters())

    def capture(self) -> State:
        return flatten(self._value(), as_leaf)

    def layout(self) -> tuple[bytes, list[Array]]:
        return self._outlined(lambda array: LeafOutline(kind_of(array), array.shape, memoryview(b""), array.nbytes))

    def outline(self) -> ArrayOutline:
        return ArrayOutline(*self._outlined(lambda array: Leaf(kind_of(array), array.shape, memoryview(b""))))

    def _outlined(self, leaf_of: Callable[[Array], Leaf]) -> tuple[bytes, list[Array]]:
        """Return the tree and the live arrays, in the order of the tree."""
        arrays: list[Array] = []

        def note(value: object) -> Leaf | None:
            if not isinstance(value, np.ndarray):
                return None
            arrays.append(value)
            return leaf_of(value)

        return flatten(self._value(), note).tree, arrays

    def contents(self, arrays: Sequence[Array]) -> tuple[list[Callable[[], memoryview]], bool]:
        return [partial(_content, array) for array in arrays], self._frame.keeps_values

    def content(self, array: Array) -> memoryview:
        return _content(array)

    def shared_memory(self) -> None:
        return None  # the arrays are in host memory

    def copy(self, content: memoryview) -> memoryview:
        """Copy bytes. numpy releases the interpreter lock meanwhile."""
        if not content.nbytes:
            return content
        room = np.frombuffer(allocate(content.nbytes), np.uint8, count=content.nbytes)
        np.copyto(room, np.frombuffer(content, np.uint8))
        return room.data

    def _value(self) -> dict[str, Any]:
        return {
            "frame": self._frame.value(),
            "moves": self._moves.base,
            "others": {name: other.state_dict() for name, other in self._others.items()},
        }

    def install(self, received: ReceivedState) -> None:
        value = restore(received.tree, received.contents, from_leaf)
        if not isinstance(value, dict) or value.keys() != {"frame", "moves", "others"}:
            raise BadInput("The received state is not one of this framework. Start every member with the same script.")
        self._frame.install(value["frame"])
        self._moves.install(value["moves"])
        for name, other in self._others.items():
            other.load_state_dict(value["others"][name])

    def fingerprint(self) -> int:
        rates = self._frame.hyperparameters()
        packed = struct.pack(f"<{len(rates)}d", *(rates[name] for name in sorted(rates)))
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=b"pliant rates").digest(), "little")

    def choose_hyperparameters(self, *, from_script: bool) -> list[str]:
        lines = []
        for name, found in self._frame.hyperparameters().items():
            script = self._script.get(name, found)
            if script == found:
                continue
            if from_script:
                self._frame.set_hyperparameter(name, script)
            which = (
                "script's is used" if from_script else "checkpoint's is used; pliant run --override uses the script's"
            )
            lines.append(f"{name} is {script} in the script and {found} in the checkpoint: the {which}")
        return lines


def as_leaf(value: object) -> Leaf | None:
    """Return an array as a leaf, with its live bytes; None for other values."""
    if not isinstance(value, np.ndarray):
        return None
    return Leaf(kind_of(value), value.shape, _content(value))


def kind_of(array: Array) -> str:
    """Return the name of an array's type, the same as torch's: bfloat16 is one of them."""
    return array.dtype.name


def _content(array: Array) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def from_leaf(dtype: str, shape: tuple[int, ...], content: memoryview) -> Array:
    """Return the array of a leaf, as a view of its bytes."""
    try:
        kind = np.dtype(dtype)
    except TypeError:
        try:
            import ml_dtypes  # every framework that has bfloat16 in numpy brings it

            kind = np.dtype(getattr(ml_dtypes, dtype))
        except (ImportError, AttributeError) as error:
            raise BadInput(f"An array in the state has the type {dtype}, which numpy lacks here.") from error
    return np.frombuffer(content, kind).reshape(shape) if content.nbytes else np.empty(shape, kind)
