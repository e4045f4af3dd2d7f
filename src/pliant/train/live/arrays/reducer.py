"""Reduction of arrays in floating point: one all-reduce of one wire, with the control words at its end.

There are two wires in turn, because a member that missed the last step needs its sum (rule 13). The weighted sum of a
step's earlier parts is kept apart, so that a step that fails half-way can be completed (rules 9, 14).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.errors import BadInput
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import Group
from pliant.train.live.arrays.frame import Array, Frame, Gradients, Layout, aligned, multiply_into
from pliant.train.live.arrays.hashing import arrays_hash
from pliant.train.live.arrays.moves import ArrayMoves
from pliant.train.reduce.control_row import ROW_FLOATS, ControlRow, pack, rows_room, unpack, weighted_means
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck


@dataclass
class SummedArrays:
    """A step's global gradient before division: the sums, the changes of moving values, and the total weight."""

    flat: Array | None  # None: a world of one whose only part has the gradient already, as `own`
    moves: Array
    marks: list[float]  # number of members with a gradient, by trained array
    weight: float
    means: tuple[float, ...] = ()
    disputed: tuple[SpotCheck, ...] = ()
    own: Any = None
    own_arrays: Gradients = ()
    own_weight: float = 0.0
    is_shared: bool = field(default=True)


class ArrayReducer(ABC):
    """The gradients of one run. The training thread makes all calls."""

    def __init__(self, frame: Frame, moves: ArrayMoves, logged: StepMetrics) -> None:
        self._frame = frame
        self._moves = moves
        self._logged = logged
        self.layout = Layout(frame.shapes, frame.dtype)
        self._count = len(self.layout.shapes)
        self._grads: Any = None
        self._now: Gradients | None = None  # of the current part, once requested
        self._factor = 0.0
        self._hashes: dict[int, int] = {}  # gradient hashes by slot, of slots that two members compute
        self._turn = 0
        self.offered: SummedArrays | None = None

    @property
    def weight(self) -> float:
        return self._factor

    @property
    def has_sent(self) -> bool:
        return False  # there is nothing to overlap with: gradients come all at once

    def begin_part(  # a subclass uses the other parameters
        self,
        part: MicroBatch,  # noqa: ARG002
        factor: float,
        group: Any,  # noqa: ARG002
        shares: Shares,  # noqa: ARG002
        *,
        idle: bool,  # noqa: ARG002
    ) -> None:
        self._factor, self._grads, self._now = factor, None, None

    def prepare(self, size: int) -> None:  # noqa: B027  # only a sum in floating point has so much memory at once
        """Allocate what the first reduction in a world of that size needs, so that no member waits for it then."""

    def weigh(self, factor: float) -> None:
        if not 0 <= factor < float("inf"):
            raise BadInput(
                f"The weight must be the number of samples or tokens that the loss is a mean over, got {factor}."
            )
        self._factor = factor

    def take(self, grads: Any) -> None:
        """Take a part's gradients, as the framework has them."""
        self._grads, self._now = grads, None

    def part_arrays(self) -> Gradients:
        """Return the gradients of the current part; all None if it has none."""
        if self._now is None:
            self._now = [None] * self._count if self._grads is None else self._frame.arrays(self._grads)
            found = [None if grad is None else tuple(grad.shape) for grad in self._now]
            for number, (has, wanted) in enumerate(zip(found, self.layout.shapes, strict=True)):
                if has is not None and has != wanted:
                    raise BadInput(
                        f"Gradient {number} has the shape {has}, but trained array {number} has {wanted}. Pass the "
                        "gradients to run.step in the order of the trained arrays."
                    )
        return self._now

    def drop_part(self) -> None:
        self._grads, self._now = None, None

    def keep_spot_hash(self, slot: int) -> None:
        if not self._factor:
            self.drop_part()  # like the owner of the slot
        self._hashes[slot] = self._gradients_hash()
        self.drop_part()

    def _gradients_hash(self) -> int:
        arrays = self.part_arrays()
        marks = bytes(grad is not None for grad in arrays)
        return arrays_hash([grad for grad in arrays if grad is not None], struct.pack("<d", self._factor) + marks)

    def write_gradients(self, reduced: SummedArrays) -> None:
        self.offered = reduced

    def swap_buffers(self) -> None:
        self._turn ^= 1

    def set_grid(self, grid: Grid) -> None:
        """Reduce the steps of a grid whose batch has changed. Only a tree over the slots depends on it."""
        self._grid = grid

    def close(self) -> None:
        """Let go of the current part's gradients."""
        self.drop_part()

    @abstractmethod
    def end_part(self) -> None: ...
    @abstractmethod
    def drop_kept(self) -> None: ...
    @abstractmethod
    def abandon(self) -> None: ...
    @abstractmethod
    def reduce(
        self,
        group: Group[Array],
        row: ControlRow,
        shares: Shares,
        checks: Sequence[SpotCheck] = (),
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], SummedArrays]: ...


class FloatingArrayReducer(ArrayReducer):
    """Reduction in floating point."""

    def __init__(self, frame: Frame, moves: ArrayMoves, logged: StepMetrics) -> None:
        super().__init__(frame, moves, logged)
        self._wires: list[Array] = []
        self._kept: list[Array] = []
        self._in_kept: set[int] = set()

    def end_part(self) -> None:
        if not self._kept:
            self._kept = self.layout.views(aligned(self.layout.numel, self.layout.dtype))
        for index, (grad, kept) in enumerate(zip(self.part_arrays(), self._kept, strict=True)):
            if grad is None:
                continue
            if index in self._in_kept:
                np.add(kept, np.multiply(grad, kept.dtype.type(self._factor), dtype=kept.dtype), out=kept)
            else:
                multiply_into(grad, self._factor, kept)
                self._in_kept.add(index)
        self.drop_part()

    def drop_kept(self) -> None:
        self._in_kept.clear()

    def abandon(self) -> None:
        """The all-reduce has returned: it is waited for in `reduce`."""

    def reduce(  # a floating-point sum does not depend on the shares
        self,
        group: Group[Array],
        row: ControlRow,
        shares: Shares,  # noqa: ARG002
        checks: Sequence[SpotCheck] = (),  # noqa: ARG002
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], SummedArrays]:
        if group.size == 1 and not self._in_kept:
            return (row,), self._alone(row)
        numel, moving = self.layout.numel, self._moves.numel
        wire = self._wire(group.size)
        tail = wire[numel:]
        tail[moving:] = 0
        if follow:
            wire[: numel + moving] = 0
        else:
            tail[moving : moving + self._count] = self._fill(wire)
            self._moves.fill(tail[:moving])
        at = moving + self._count + group.rank * ROW_FLOATS
        tail[at : at + ROW_FLOATS] = pack(row)
        group.all_reduce(wire)
        rows = unpack(tail[moving + self._count :].astype(np.float32), group.size)
        marks = tail[moving : moving + self._count].tolist()
        weight = sum(each.weight for each in rows)
        means = weighted_means(rows)
        return rows, SummedArrays(wire[:numel], tail[:moving], marks, weight, means, is_shared=group.size > 1)

    def prepare(self, size: int) -> None:
        if size > 1:
            self._wire(size)
            for wire in self._wires:
                wire[...] = 0  # the system gives memory when it is written to

    def _wire(self, size: int) -> Array:
        """Return this turn's wire, for a world of that size.

        There is room for larger worlds: fresh memory takes longer than a reduction. The sums of the last steps stay.
        """
        length = self.layout.numel + self._moves.numel + self._count + size * ROW_FLOATS
        if not self._wires or len(self._wires[0]) < length:
            room = length + (rows_room(size) - size) * ROW_FLOATS
            old, self._wires = self._wires, [aligned(room, self.layout.dtype) for _ in range(2)]
            for before, now in zip(old, self._wires, strict=False):
                now[: self.layout.numel] = before[: self.layout.numel]
        return self._wires[self._turn][:length]

    def _fill(self, wire: Array) -> list[float]:
        """Write the weighted gradients, and return a mark for each trained array that has one."""
        marks = []
        for index, (grad, view) in enumerate(zip(self.part_arrays(), self.layout.views(wire), strict=True)):
            if grad is not None:
                multiply_into(grad, self._factor, view)
                if index in self._in_kept:
                    np.add(view, self._kept[index], out=view)
            elif index in self._in_kept:
                view[...] = self._kept[index]
            else:
                view[...] = 0
            marks.append(float(grad is not None or index in self._in_kept))
        return marks

    def _alone(self, row: ControlRow) -> SummedArrays:
        """Reduce in a world of one with one part: its gradients are the mean already, and stay in the framework."""
        moves = np.zeros(self._moves.numel, self.layout.dtype)
        self._moves.fill(moves)
        arrays = self.part_arrays()
        return SummedArrays(
            None,
            moves,
            [float(grad is not None) for grad in arrays],
            row.weight,
            weighted_means((row,)),
            own=self._grads,
            own_arrays=arrays,
            own_weight=self._factor,
            is_shared=False,
        )
