"""States to write and read: of every kind that a tree knows, and with tensors of every shape that is awkward."""

from __future__ import annotations

import math
import struct
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from pliant.core.data.ledger import Lineage
from pliant.core.data.sample_order import Cursor
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.train.checkpoint import CheckpointFacts, PieceWriter, Storage, write_manifest
from pliant.train.state.flat import Leaf, State, flatten

LINEAGE = Lineage(3, 40, 2**64 - 1)
FACTS = CheckpointFacts(at=1_800_000_000.25, job="demo", generation=3, members=("a-1", "b-1"), cursor=Cursor(1, 128))


@dataclass(frozen=True)
class Blob:
    """A stand-in for a framework's tensor."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


def as_leaf(value: object) -> Leaf | None:
    return Leaf(value.dtype, value.shape, memoryview(value.content)) if isinstance(value, Blob) else None


def from_leaf(dtype: str, shape: tuple[int, ...], content: memoryview) -> Blob:
    return Blob(dtype, shape, bytes(content))


def numbers(count: int, seed: int = 0) -> Blob:
    """So many float32."""
    return Blob("float32", (count,), struct.pack(f"<{count}f", *(float(seed * 1000 + at) for at in range(count))))


def training(width: int = 64, seed: int = 0) -> State:
    """As a small training has it: a model, Adam, a scheduler."""
    value = {
        "model": {"layer.0.weight": numbers(width, seed), "layer.0.bias": numbers(3, seed + 1)},
        "optimizers": [
            {
                "state": {0: {"step": Blob("float32", (), b"\0\0\x80?"), "exp_avg": numbers(width, seed + 2)}},
                "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}],
            }
        ],
        "others": {"scheduler": {"last_epoch": seed}},
        "moving": ["bn.mean"],
    }
    return flatten(value, as_leaf)


def strange() -> dict[Any, Any]:
    """Everything that may be in a state."""
    (payload,) = struct.unpack(">d", bytes.fromhex("7ff80000deadbeef"))
    return {
        "none": None,
        "flags": [True, False],
        "integers": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**200)],
        "floats": [0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan, payload],
        "text": ["", "plain", 'quote " and \\', "\u2028 line", "\0", "snow \u2603", "\U0001f600"],
        "bytes": [b"", b"\0\xff", bytes(range(256))],
        "complex": [1 + 2j, complex(math.nan, -0.0), complex(-math.inf, 1.0)],
        "tuple": ((), (1, (2, [3]))),
        "set": {1, 2, 3},
        "sets": {"a", ("b", 1)},
        "deque": [deque([1, 2], maxlen=3), deque(), deque([(1,)], maxlen=0)],
        "counter": Counter({"a": 3, 1: 2}),
        "keys": {1: "int", "1": "string", 2.5: "float", None: "none", (1, "x"): "tuple", b"k": "bytes", 2**70: "big"},
        "dollars": {"$tensor": "no tensor", "plain": 1},
        "empty": {},
        "nested": {"a.b": numbers(2), "a": {"b": numbers(3)}, "": {"": numbers(1)}, "__metadata__": numbers(1)},
        "__metadata__": {"deep": [numbers(5)]},
        "tensors": [
            Blob("float32", (), b"\0\0\x80?"),
            Blob("float64", (0, 3), b""),
            Blob("bool", (3,), b"\1\0\1"),
            Blob("int64", (1,), bytes(8)),
            Blob("bfloat16@device", (2, 2), bytes(8)),
            Blob("complex64", (2,), bytes(16)),
            Blob("complex128@device", (1, 1), bytes(16)),
            Blob("quint4x2", (3,), b"\1\2"),
            Blob("float8_e4m3fn", (2,), b"\1\2"),
            Blob("strange", (0,), b""),
            Blob("float32", (4,), b""),
        ],
        "in a tuple": (numbers(1), {numbers(1)}, deque([numbers(1)]), {(1, 2): numbers(1)}, {b"k": numbers(1)}),
    }


def write(place: Storage, name: str, state: State, count: int = 1, chunk: int = 0) -> tuple[Piece, ...]:
    """Write all pieces of a state, each by a member of its own."""
    pieces: list[Piece] = []
    for index in range(count):
        writer = PieceWriter(place, name, state.tree, index, count, f"m-{index}")
        for leaf in writer.leaves:
            content = state.leaves[leaf].content
            step = chunk or content.nbytes or 1
            for at in range(0, content.nbytes, step):
                writer.write(content[at : at + step])
        pieces += writer.finish()
    return tuple(pieces)


def publish(place: Storage, name: str, state: State, count: int = 1, lineage: Lineage = LINEAGE) -> Checkpoint:
    """Write a whole checkpoint, with its manifest."""
    checkpoint = Checkpoint(lineage, name, 77, write(place, name, state, count))
    write_manifest(place, checkpoint, FACTS)
    return checkpoint
