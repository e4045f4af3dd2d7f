"""Reduction of arrays along a fixed tree over the slots: the same bits, whichever member computed which (rule 23).

Each part is one slot, and its weighted gradient is a leaf. A member adds the nodes within its own slots and keeps them
until the step is applied. Every rank is then responsible for one stretch: it receives all nodes of that stretch, adds
them to the root, and sends it to the others. Small data is gathered last: control words, marks, weights and logged
values by slot, and the nodes of moving values in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import fsum
from typing import Any

import numpy as np

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import Group, GroupBroken, PendingOperation
from pliant.train.live.arrays.frame import Array, Frame, aligned, multiply_into
from pliant.train.live.arrays.moves import ArrayMoves
from pliant.train.live.arrays.reducer import ArrayReducer, SummedArrays
from pliant.train.reduce.control_row import (
    LOGGED_MAX,
    ROW_CELLS,
    ControlRow,
    pack_cells,
    require_same_names,
    unpack_cells,
)
from pliant.train.reduce.exchange_plan import ExchangePlan, plan_of
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck
from pliant.train.reduce.tree import SlotTree, fold

_BY_SLOT = 2 + LOGGED_MAX  # a slot's weight, the weight of its logged values, and these values
_SPARE = 1024  # numbers after the gradients: stretches have equal lengths, which takes less than one for each rank


def _add(left: Array, right: Array) -> Array:
    left += right
    return left


class TreeArrayReducer(ArrayReducer):
    """A reduction whose result does not depend on the membership."""

    def __init__(
        self,
        frame: Frame,
        moves: ArrayMoves,
        logged: StepMetrics,
        grid: Grid,
        is_checked: Callable[[int, int], bool] = lambda _step, _slot: False,
    ) -> None:
        super().__init__(frame, moves, logged)
        self._grid = grid
        self._is_checked = is_checked
        self._spare: list[Array] = []
        self._nodes: SlotTree[Array] = SlotTree(1, self._combine)
        self._moved: SlotTree[Array] = SlotTree(1, _add)
        self._results: list[Array | None] = [None, None]  # roots of the last two steps, alternating
        self._weights: dict[int, float] = {}  # by kept slot
        self._marked: set[int] = set()
        self._slot: int | None = None
        self._hash_it = False
        self._pending: list[PendingOperation] = []

    # ---------------------------------------------------------------------------------------------- a part

    def begin_part(self, part: MicroBatch, factor: float, group: Any, shares: Shares, *, idle: bool) -> None:
        super().begin_part(part, factor, group, shares, idle=idle)
        self._slot = None if idle else part.slots[0]
        if not idle:
            self._begin_step(len(self._grid.filled(part.step)))
            self._hash_it = len(shares) > 1 and self._is_checked(part.step, part.slots[0])

    def _begin_step(self, filled: int) -> None:
        if self._nodes.filled != filled:
            self._spare += self._nodes.take_all()
            self._nodes, self._moved = SlotTree(filled, self._combine), SlotTree(filled, _add)

    def _combine(self, left: Array, right: Array) -> Array:
        left += right
        self._spare.append(right)
        return left

    def _take_room(self) -> Array:
        return self._spare.pop() if self._spare else aligned(self.layout.numel + _SPARE, self.layout.dtype)

    def end_part(self) -> None:
        self._keep_part()
        self.drop_part()

    def _keep_part(self) -> None:
        """Make the part's gradients a leaf. They are weighted, then added: the same two roundings everywhere."""
        if self._slot is None:
            return
        leaf = self._take_room()
        arrays = self.part_arrays()
        for grad, view in zip(arrays, self.layout.views(leaf), strict=True):
            if grad is None:
                view[...] = 0
            else:
                multiply_into(grad, self._factor, view)
        if self._hash_it:
            self._hashes[self._slot] = self._gradients_hash()
        self._weights[self._slot] = self._factor
        self._marked |= {index for index, grad in enumerate(arrays) if grad is not None}
        if self._moves.numel:
            moved = np.zeros(self._moves.numel)
            self._moves.fill(moved)
            self._moves.drop_staged()
            self._moved.put_slot(self._slot, moved)
        self._nodes.put_slot(self._slot, leaf)
        self._slot = None

    def drop_kept(self) -> None:
        self._spare += self._nodes.take_all()
        self._moved.take_all()
        self._weights.clear()
        self._marked.clear()
        self._hashes.clear()
        self._slot = None

    # ------------------------------------------------------------------------------------------ the reduction

    def abandon(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            with suppress(GroupBroken):
                each.wait()

    @contextmanager
    def _under_way(self, group: Group[Array]) -> Iterator[None]:
        """Ensure that all operations have returned at the end of the block, even after an exception."""
        try:
            yield
        except GroupBroken:
            raise
        except BaseException:  # why: after Ctrl-C, for example, this member leaves, and its operations must return now
            group.break_off()
            raise
        finally:
            self.abandon()

    def reduce(
        self,
        group: Group[Array],
        row: ControlRow,
        shares: Shares,
        checks: Sequence[SpotCheck] = (),
        *,
        follow: bool = False,  # noqa: ARG002  # then its share is empty
    ) -> tuple[tuple[ControlRow, ...], SummedArrays]:
        if not any(shares):
            group.break_off()
            raise GroupBroken("this member does not know the shares of the step")
        plan = plan_of(shares)
        self._begin_step(plan.filled)
        self._keep_part()
        result = self._take_room()
        with self._under_way(group):
            self._sum(group, plan, result)
            rows = [np.frombuffer(each, np.uint64) for each in group.gather(self._tail(row, plan, checks, group.rank))]
        if (old := self._results[self._turn]) is not None:
            self._spare.append(old)
        self._results[self._turn] = result
        return self._read(rows, plan, checks, result, is_shared=group.size > 1)

    def _sum(self, group: Group[Array], plan: ExchangePlan, result: Array) -> None:
        """Write the root of all members' nodes to `result`."""
        mine, numel = self._nodes.values, self.layout.numel
        if group.size == 1:
            np.copyto(result, mine[0])
            return
        if plan.is_one_sum:
            result[:numel] = mine[0][:numel]
            group.all_reduce(result[:numel])
            return
        length = -(-numel // group.size)
        given = []
        for number in range(plan.sendings):
            sending = [length if number < len(each) else 0 for each in plan.nodes]
            own = sending[group.rank]
            data = mine[number][: length * group.size] if own else np.zeros(0, self.layout.dtype)
            arriving = np.empty(sum(sending), self.layout.dtype)
            self._wait(group.start_all_to_all(arriving, data, sending, [own] * group.size))
            senders = [each for each in plan.nodes if number < len(each)]
            given += [(each[number], arriving[at * length : (at + 1) * length]) for at, each in enumerate(senders)]
        root = fold(given, plan.filled, _add)
        self._wait(group.start_all_gather(result[: length * group.size], root))

    def _wait(self, pending: PendingOperation) -> None:
        self._pending.append(pending)
        pending.wait()
        self._pending.remove(pending)

    def _tail(self, row: ControlRow, plan: ExchangePlan, checks: Sequence[SpotCheck], rank: int) -> bytes:
        """Return this rank's small data, in 64-bit cells; equally long on every rank."""
        slots = np.zeros((plan.slots_max, _BY_SLOT))
        names = self._logged.names
        for at, slot in enumerate(sorted(self._weights)):
            logged = self._logged.of(slot)
            values = [logged.values.get(name, 0.0) for name in names] if logged.values else []
            slots[at, : 2 + len(values)] = (self._weights[slot], logged.weight, *values)
        moves = np.zeros((plan.sendings, self._moves.numel))
        for at, moved in enumerate(self._moved.values):
            moves[at] = moved
        marks = np.zeros(self._count, np.uint64)
        marks[list(self._marked)] = 1
        hashes = np.zeros(len(checks), np.uint64)
        for at, check in enumerate(checks):
            if rank in (check.owner, check.second):
                hashes[at] = self._hashes.get(check.slot, 0)
        cells = [pack_cells(row), marks, hashes, slots.reshape(-1).view(np.uint64), moves.reshape(-1).view(np.uint64)]
        return np.concatenate(cells).tobytes()

    def _read(
        self,
        gathered: Sequence[Array],
        plan: ExchangePlan,
        checks: Sequence[SpotCheck],
        result: Array,
        *,
        is_shared: bool,
    ) -> tuple[tuple[ControlRow, ...], SummedArrays]:
        edges = np.cumsum([ROW_CELLS, self._count, len(checks), plan.slots_max * _BY_SLOT])
        words, marks, hashes, slots, moves = zip(*(np.split(each, edges) for each in gathered), strict=True)
        rows = unpack_cells(np.stack(words))
        require_same_names(rows)
        by_slot = np.zeros((plan.filled, _BY_SLOT))
        given = []
        for rank, share in enumerate(plan.shares):
            by_slot[list(share)] = slots[rank].view(np.float64).reshape(plan.slots_max, _BY_SLOT)[: len(share)]
            moved = moves[rank].view(np.float64).reshape(plan.sendings, self._moves.numel)
            given += [(node, np.array(moved[at])) for at, node in enumerate(plan.nodes[rank])]
        total = fold(given, plan.filled, _add) if self._moves.numel else np.zeros(0)
        # Rounded only once: the order of slots does not matter, nor the Python version, whose sum changed in 3.12.
        weight, log_weight, *logged = map(fsum, by_slot.T.tolist())
        means = tuple(value / log_weight for value in logged) if log_weight else ()
        pairs = [(check, hashes[check.owner][at], hashes[check.second][at]) for at, check in enumerate(checks)]
        disputed = tuple(check for check, one, other in pairs if one and other and one != other)
        counts = np.sum(np.stack(marks), axis=0).tolist()
        flat = result[: self.layout.numel]
        return rows, SummedArrays(flat, total, counts, weight, means, disputed, is_shared=is_shared)
