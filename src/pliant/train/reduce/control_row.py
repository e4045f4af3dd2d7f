"""Encoding of control words in a gradient bucket: exact small integers in floating-point numbers.

A rank's row is a fixed number of 64-bit cells: the word of rule 6, the weight of its gradients, and its logged values.
Each rank has its own position in the bucket, where the others have zeros, so the sum holds the rows of all ranks side
by side. A cell is cut into 16-bit pieces: a float32 holds each one exactly, and adding zeros does not change it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pliant.core.data.ledger import Lineage
from pliant.core.member.control_words import Purpose, Word
from pliant.errors import BadInput

Floats: TypeAlias = npt.NDArray[np.float32]
Cells: TypeAlias = npt.NDArray[np.uint64]

LOGGED_MAX = 8  # names per step
_NOT_LOGGED = (0.0,) * LOGGED_MAX
_WORD = 13
_BATCH = 16  # the first bit of the next batch among the flags; `grid.BATCH_MAX` fits above it
_ROW = struct.Struct(f"={_WORD + 1}Q{2 + LOGGED_MAX}d")  # the word, the hash of the names, two weights, the values
ROW_CELLS = _WORD + 3 + LOGGED_MAX
"""Cells in a row."""
ROW_FLOATS = ROW_CELLS * 4
"""Floating-point numbers in a row."""
_ROWS_MIN = 16  # rows that there is room for at least


@dataclass(frozen=True, slots=True)
class ControlRow:
    """One rank's word, the weight of its gradients and the weighted sums it logged.

    `names_hash` is a hash of the logged names, to detect members that log different ones; 0 if nothing was logged.
    `log_weight` is the weight of the micro-batches that logged something.
    """

    word: Word
    weight: float = 0.0
    names_hash: int = 0
    log_weight: float = 0.0
    logged: tuple[float, ...] = ()


def rows_room(size: int) -> int:
    """Return the number of rows to allocate memory for in a world of that size. It rarely changes with the size."""
    return max(_ROWS_MIN, 1 << (size - 1).bit_length())


def pack(row: ControlRow) -> Floats:
    """Return a row for a bucket of floating-point numbers."""
    return pack_cells(row).view(np.uint16).astype(np.float32)


def pack_cells(row: ControlRow) -> Cells:
    """Return a row for a transport that keeps bits unchanged."""
    if len(row.logged) > LOGGED_MAX:
        raise BadInput(f"A step can log at most {LOGGED_MAX} values, got {len(row.logged)}.")
    word = row.word
    packed = _ROW.pack(
        word.generation,
        word.step,
        word.lineage.generation,
        word.lineage.step,
        word.lineage.digest,
        _flags(word),
        word.state,
        word.wired,
        word.wired_needed,
        word.slots,
        word.samples,
        word.slot_checksum,
        word.digest,
        row.names_hash,
        row.weight,
        row.log_weight,
        *row.logged,
        *_NOT_LOGGED[len(row.logged) :],
    )
    return np.frombuffer(packed, dtype=np.uint64)


def _flags(word: Word) -> int:
    flags = (
        word.holds | word.failed << 1 | word.drain_urgency << 2 | word.wants_checkpoint << 4 | (not word.can_save) << 5
    )

    return flags | word.ending << 6 | (word.purpose is Purpose.STEP) << 8 | word.next_batch << _BATCH


def unpack(floats: Floats, size: int) -> tuple[ControlRow, ...]:
    """Return the rows of all ranks. Foreign data, such as another kind of collective, yields rows that disagree."""
    with np.errstate(invalid="ignore"):  # NaN becomes an arbitrary number, which no rank can have sent
        whole = floats.astype(np.int64).astype(np.uint16)
    return unpack_cells(whole.view(np.uint64).reshape(size, ROW_CELLS))


def unpack_cells(cells: Cells) -> tuple[ControlRow, ...]:
    """Return the rows of all ranks from the results of `pack_cells`."""
    return tuple(_row(*values) for values in _ROW.iter_unpack(cells.tobytes()))


def _row(  # in the order of `pack_cells`
    generation: int,
    step: int,
    in_generation: int,
    at_step: int,
    digest: int,
    flags: int,
    state: int,
    wired: int,
    wired_needed: int,
    slots: int,
    samples: int,
    slot_checksum: int,
    read: int,
    names_hash: int,
    weight: float,
    log_weight: float,
    *logged: float,
) -> ControlRow:
    word = Word(
        purpose=Purpose.STEP if flags >> 8 & 1 else Purpose.CLOSE,
        generation=generation,
        step=step,
        lineage=Lineage(in_generation, at_step, digest),
        holds=bool(flags & 1),
        failed=bool(flags & 2),
        drain_urgency=flags >> 2 & 3,
        wants_checkpoint=bool(flags >> 4 & 1),
        can_save=not flags >> 5 & 1,
        ending=flags >> 6 & 3,
        state=state,
        wired=wired,
        wired_needed=wired_needed,
        slots=slots,
        samples=samples,
        slot_checksum=slot_checksum,
        digest=read,
        next_batch=flags >> _BATCH,
    )
    return ControlRow(word, weight, names_hash, log_weight, logged)


def weighted_means(rows: Sequence[ControlRow]) -> tuple[float, ...]:
    """Return the means of the logged values of a step, in the order of the names. They are the same on every member."""
    require_same_names(rows)
    logging = [row for row in rows if row.names_hash]
    weight = sum(row.log_weight for row in logging)
    if not weight:
        return ()
    return tuple(sum(row.logged[at] for row in logging) / weight for at in range(len(logging[0].logged)))


def require_same_names(rows: Sequence[ControlRow]) -> None:
    """Raise BadInput if members log different names in one step."""
    if len({row.names_hash for row in rows if row.names_hash}) > 1:
        raise BadInput("Members log different names in one step. Call run.log with the same names on every member.")
