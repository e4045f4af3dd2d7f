"""Reduction along a fixed tree over the slots: the same bits, whichever member computed which slot (rule 23).

Each part is one slot, and its weighted gradient is a leaf. A member adds the nodes that lie within its own slots, and
keeps the resulting nodes until the step is applied (rule 14). The nodes of all members are combined in two phases, for
each bucket, during backward:

    scatter   every rank is responsible for one stretch of the bucket. It receives all nodes of that stretch, and adds
              them to the root of the tree
    gather    every rank sends its stretch of the root to the others

With one node on each rank these are as many bytes as in any all-reduce. Two ranks with one node each need only a sum of
two numbers, which does not depend on the order, so an ordinary all-reduce is used. Small data is gathered last, in one
message: control words, marks, weights and logged values by slot, nodes of the buffers' changes in double precision, and
the nodes of the last bucket if it is small, because then a saved message counts for more than the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import fsum

import numpy as np
import torch
from torch import Tensor, nn

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.torch.group.contract import TensorGroup
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.buckets import ReducedGradient, multiply_into
from pliant.torch.reduce.tree_buffers import StreamEvent, TreeBuffers, split_nodes
from pliant.torch.state.buffers import Buffers
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import GroupBroken, PendingOperation
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
from pliant.train.reduce.tree import SlotTree, TreeNode, fold

_BY_SLOT = 2 + LOGGED_MAX  # a slot's weight, the weight of its logged values, and these values
_AT_ONCE_BYTES = 1 << 19  # the last bucket's nodes join the small data up to this size, in a world of up to 5


class DeterministicReducer(Reducer):
    """A reduction whose result does not depend on the membership."""

    def __init__(
        self,
        model: nn.Module,
        buffers: Buffers,
        logged: StepMetrics,
        device: torch.device,
        grid: Grid,
        is_checked: Callable[[int, int], bool] = lambda _step, _slot: False,
    ) -> None:
        super().__init__(model, buffers, logged, device)
        self._grid = grid
        self._is_checked = is_checked  # returns whether a second member computes a slot of a step
        self._nodes = [TreeBuffers(bucket, grid.slots) for bucket in self._buckets]
        self._moves: SlotTree[Tensor] = SlotTree(1, torch.add)  # changes of the buffers
        self._weights: dict[int, float] = {}  # by kept slot
        self._marked: set[int] = set()  # parameters with a gradient in one of them
        self._slot: int | None = None  # slot of the current part, until it is kept
        self._joined = 0  # number of its buckets that are kept
        self._hash_it = False
        self._rank = 0
        self._checks: Sequence[SpotCheck] = ()
        self._shares: Shares = ()
        self._moving: Tensor | slice = slice(None)  # indices of the buffers' changes to send
        self._turn = 0
        self._tasks: list[Future[None]] = []
        self._pending: list[PendingOperation] = []
        self._scattered: list[Callable[[], None]] = []  # the gather of a bucket whose scatter is under way
        self._cell_memory = [torch.zeros(0, dtype=torch.int64)] * 2
        self._wire = ThreadPoolExecutor(1, thread_name_prefix="pliant-exchange")
        self.sent_bytes = 0
        """Bytes that this member has sent, for benchmarks."""

    def close(self) -> None:
        super().close()
        self._wire.shutdown(wait=False)

    # ---------------------------------------------------------------------------------------------- a part

    def begin_part(
        self, part: MicroBatch, factor: float, group: TensorGroup | None, shares: Shares, *, idle: bool
    ) -> None:
        super().begin_part(part, factor, group, shares, idle=idle)
        self._shares = shares
        self._slot = None if idle else part.slots[0]
        self._joined = 0
        if not idle:
            self._begin_step(len(self._grid.filled(part.step)))
            self._hash_it = len(shares) > 1 and self._is_checked(part.step, part.slots[0])

    def _begin_step(self, filled: int) -> None:
        for nodes in self._nodes:
            nodes.begin(filled)
        if self._moves.filled != filled:
            self._moves = SlotTree(filled, torch.add)

    def end_part(self) -> None:
        self._keep_part()
        for param in self.params:
            param.grad = None

    def _keep_part(self) -> None:
        """Add the part to the kept ones. Its `.grad` tensors stay, as memory for the result."""
        self._learn_overlap()
        if self._slot is None:
            return
        while self._joined < len(self._buckets):
            self._join(self._slot)
        if self._hash_it:
            self._hashes[self._slot] = self._gradients_hash()
        self._weights[self._slot] = self._factor
        self._marked |= {index for index, param in enumerate(self.params) if param.grad is not None}
        if self._buffers.numel:
            moves = torch.zeros(self._buffers.numel, dtype=torch.float64)
            self._buffers.fill(moves)
            self._buffers.drop_staged()
            self._moves.put_slot(self._slot, moves)
        self._slot = None

    def _join(self, slot: int) -> None:
        """Make the next bucket's gradients a leaf. They are weighted, then added: the same two roundings everywhere."""
        nodes, bucket = self._nodes[self._joined], self._buckets[self._joined]
        leaf = nodes.take()
        with torch.no_grad():
            for index, view in zip(bucket.params, leaf.views, strict=True):
                grad = self.params[index].grad
                if grad is None:
                    view.zero_()
                else:
                    multiply_into(grad, self._factor, view)
            nodes.tree.put_slot(slot, leaf)
        self._joined += 1

    def drop_kept(self) -> None:
        for nodes in self._nodes:
            nodes.clear()
        self._moves.take_all()
        self._weights.clear()
        self._marked.clear()
        self._hashes.clear()
        self._slot = None

    # ------------------------------------------------------------------------------------------ the reduction

    def reduce(
        self,
        group: TensorGroup,
        row: ControlRow,
        shares: Shares,
        checks: Sequence[SpotCheck] = (),
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        if not follow:
            self._require_untouched()
        self._shares, self._checks, self._rank = shares, checks, group.rank
        if not any(shares):
            group.break_off()
            raise GroupBroken("this member does not know the shares of the step")
        self._begin_step(sum(map(len, shares)))
        if group.size == 1:
            self._keep_part()
            return (row,), self._alone(row)
        with self._under_way(group):
            while self._sent < len(self._buckets):
                self._send(group)
            self._keep_part()
            self._do(self._gather_last)
            self._moving = self._moved_anywhere(group)
            tail = self._tail(row)
            gathered = self._cells(1, group.size * len(tail))
            self._do(lambda: self._start(group.start_all_gather(gathered, tail), tail.nbytes * (group.size - 1)))
            self._wait_all()
        return self._read(gathered.numpy().reshape(group.size, -1))

    def _wait_all(self) -> None:
        """Wait until all operations are complete."""
        for task in self._tasks:
            task.result()
        while self._pending:
            self._pending[0].wait()
            self._pending.pop(0)

    def abandon(self) -> None:
        for task in self._tasks:
            with suppress(GroupBroken):
                task.result()
        self._tasks.clear()
        for each in self._pending:
            with suppress(GroupBroken):
                each.wait()
        self._pending.clear()
        self._scattered.clear()
        self._sent = 0
        self._group = None

    def _do(self, work: Callable[[], None]) -> None:
        """Submit work to the thread that sends everything, in the order of the buckets, the same on every rank."""
        self._tasks.append(self._wire.submit(work))

    def _start(self, pending: PendingOperation, nbytes: int) -> None:
        self._pending.append(pending)
        self.sent_bytes += nbytes

    def _send(self, group: TensorGroup) -> None:
        if self._slot is not None and self._joined == self._sent:
            self._join(self._slot)
        number, shares = self._sent, self._shares
        self._sent += 1
        if number < len(self._buckets) - 1 or not self._joins_small_data():
            ready = StreamEvent(self._device)
            self._do(lambda: self._exchange(group, number, shares, ready))

    def _joins_small_data(self) -> bool:
        """Return whether the last bucket is sent with the small data."""
        plan, bucket = plan_of(self._shares), self._buckets[-1]
        nbytes = bucket.numel * bucket.dtype.itemsize * plan.sendings
        return nbytes * max(4, len(plan.shares) - 1) <= 4 * _AT_ONCE_BYTES and bucket.device.type == "cpu"

    def _exchange(self, group: TensorGroup, number: int, shares: Shares, ready: StreamEvent) -> None:
        """Scatter this bucket, then gather the previous one, whose nodes have mostly arrived by now."""
        ready.wait()
        plan = plan_of(shares)
        nodes = self._nodes[number]
        nodes.fit(group.size)
        result = nodes.take()
        nodes.set_result(self._turn, result)
        if plan.is_one_sum:
            (mine,) = nodes.tree.values
            result.data.copy_(mine.data)
            self._start(group.start_all_reduce(result.data), result.data.nbytes)
            self._gather_last()
            self._scattered.append(lambda: None)
            return
        length = -(-self._buckets[number].numel // group.size)
        arriving = self._scatter(group, nodes, plan, length)
        self._gather_last()
        self._scattered.append(lambda: self._gather(group, nodes, plan, length, arriving))

    def _scatter(
        self, group: TensorGroup, nodes: TreeBuffers, plan: ExchangePlan, length: int
    ) -> list[tuple[PendingOperation, Tensor]]:
        """Start one exchange for each node: every rank sends the stretches of a node, or nothing if it has fewer."""
        found = []
        mine = nodes.tree.values
        for number in range(plan.sendings):
            sending = [length if number < len(each) else 0 for each in plan.nodes]
            own = sending[group.rank]
            data = mine[number].data[: length * group.size] if own else nodes.scratch(plan.sendings, 0)
            arriving = nodes.scratch(number, sum(sending))
            pending = group.start_all_to_all(arriving, data, sending, [own] * group.size)
            self._start(pending, own * (group.size - 1) * data.element_size())
            found.append((pending, arriving))
        return found

    def _gather_last(self) -> None:
        if self._scattered:
            self._scattered.pop()()

    def _gather(
        self,
        group: TensorGroup,
        nodes: TreeBuffers,
        plan: ExchangePlan,
        length: int,
        arriving: list[tuple[PendingOperation, Tensor]],
    ) -> None:
        """Add the nodes of this rank's stretch, and send the sum to every rank."""
        given: list[tuple[TreeNode, Tensor]] = []
        for number, (pending, data) in enumerate(arriving):
            pending.wait()
            senders = [each for each in plan.nodes if number < len(each)]
            given += [(each[number], data[at * length : (at + 1) * length]) for at, each in enumerate(senders)]
        root = fold(given, plan.filled, lambda left, right: left.add_(right))
        result = nodes.results[self._turn]
        assert result is not None
        stretches = result.data[: length * group.size]
        mine = stretches[group.rank * length :][:length]
        mine.copy_(root)
        self._start(group.start_all_gather(stretches, mine), mine.nbytes * (group.size - 1))  # in place

    # --------------------------------------------------------------------------------------------- small data

    def _tail(self, row: ControlRow) -> Tensor:
        """Return this rank's small data, in 64-bit cells; equally long on every rank."""
        plan = plan_of(self._shares)
        slots = np.zeros((plan.slots_max, _BY_SLOT))
        names = self._logged.names
        for at, slot in enumerate(sorted(self._weights)):
            logged = self._logged.of(slot)
            values = [logged.values.get(name, 0.0) for name in names] if logged.values else []
            slots[at, : 2 + len(values)] = (self._weights[slot], logged.weight, *values)
        moves = np.zeros((plan.sendings, self._moves_numel))
        for at, moved in enumerate(self._moves.values):
            moves[at] = moved[self._moving].numpy()
        marks = np.zeros(len(self.params), dtype=np.uint64)
        marks[list(self._marked)] = 1
        hashes = np.zeros(len(self._checks), dtype=np.uint64)
        for at, check in enumerate(self._checks):
            if self._rank in (check.owner, check.second):
                hashes[at] = self._hashes.get(check.slot, 0)
        cells = [pack_cells(row), marks, hashes, slots.reshape(-1).view(np.uint64), moves.reshape(-1).view(np.uint64)]
        first, riding = sum(map(len, cells)), self._riding_cells()
        tail = self._cells(0, first + plan.sendings * riding)
        np.concatenate(cells, out=tail.numpy()[:first].view(np.uint64))
        for at, flat in enumerate(self._nodes[-1].tree.values if riding else ()):
            place = tail[first + at * riding :][:riding].view(torch.float32)
            place[: self._buckets[-1].numel].copy_(flat.data[: self._buckets[-1].numel])
        return tail

    def _moved_anywhere(self, group: TensorGroup) -> Tensor | slice:
        """Return the indices of buffers that changed on any member, as long as it is unknown which ones move."""
        spans = self._buffers.spans if self._buffers.moving is None else []
        if not spans:
            return slice(None)
        mine = torch.tensor([any(bool(moved[stop - 1]) for moved in self._moves.values) for _, stop in spans]).long()
        gathered = torch.zeros(group.size * len(spans), dtype=torch.int64)
        self._do(lambda: self._start(group.start_all_gather(gathered, mine), mine.nbytes * (group.size - 1)))
        self._wait_all()
        marks = gathered.view(group.size, -1).amax(0).tolist()
        return torch.cat(
            [torch.arange(0), *(torch.arange(*span) for span, mark in zip(spans, marks, strict=True) if mark)]
        )

    @property
    def _moves_numel(self) -> int:
        return self._buffers.numel if isinstance(self._moving, slice) else len(self._moving)

    def _cells(self, which: int, count: int) -> Tensor:
        """Return reused cells for the small data, of this rank (0) or of all (1)."""
        if len(self._cell_memory[which]) < count:
            self._cell_memory[which] = torch.zeros(count, dtype=torch.int64)
        return self._cell_memory[which][:count]

    def _riding_cells(self) -> int:
        """Return the cells of a node of the last bucket, two numbers in each; 0 if it was sent separately."""
        return -(-self._buckets[-1].numel // 2) if self._joins_small_data() else 0

    def _read(
        self, gathered: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        plan = plan_of(self._shares)
        cells = gathered.view(np.uint64)
        numel, riding = self._moves_numel, self._riding_cells()
        edges = np.cumsum(
            [ROW_CELLS, len(self.params), len(self._checks), plan.slots_max * _BY_SLOT, plan.sendings * numel]
        )
        words, marks, hashes, slots, moves, sums = np.split(cells, edges, axis=1)
        rows = unpack_cells(np.ascontiguousarray(words))
        by_slot = np.zeros((plan.filled, _BY_SLOT))
        for rank, share in enumerate(plan.shares):
            by_slot[list(share)] = slots[rank].view(np.float64).reshape(plan.slots_max, _BY_SLOT)[: len(share)]
        moved = torch.zeros(self._buffers.numel, dtype=torch.float64)
        moved[self._moving] = fold(split_nodes(moves.view(np.float64), plan, numel), plan.filled, torch.add)
        if self._joins_small_data():
            nodes, length = self._nodes[-1], self._buckets[-1].numel
            result = nodes.take()
            nodes.set_result(self._turn, result)
            given = split_nodes(sums.view(np.float32), plan, 2 * riding)
            result.data[:length] = fold(given, plan.filled, lambda left, right: left.add_(right))[:length]
        reduced = self._reduced(by_slot, moved, marks.sum(axis=0, dtype=np.uint64).tolist(), rows)
        pairs = [(check, hashes[check.owner, at], hashes[check.second, at]) for at, check in enumerate(self._checks)]
        reduced.disputed = tuple(check for check, one, other in pairs if one and other and one != other)
        return rows, reduced

    def _alone(self, row: ControlRow) -> ReducedGradient:
        """A world of one has the whole tree to itself; the rest is as everywhere."""
        for nodes in self._nodes:
            (root,) = nodes.tree.take_all()
            nodes.set_result(self._turn, root)
        by_slot = np.zeros((self._moves.filled, _BY_SLOT))
        for slot, weight in self._weights.items():
            logged = self._logged.of(slot)
            values = [logged.values.get(name, 0.0) for name in self._logged.names] if logged.values else []
            by_slot[slot, : 2 + len(values)] = (weight, logged.weight, *values)
        moved = self._moves.root if self._buffers.numel else torch.zeros(0, dtype=torch.float64)
        marks = [float(index in self._marked) for index in range(len(self.params))]
        return self._reduced(by_slot, moved, marks, (row,))

    def _reduced(
        self,
        by_slot: np.ndarray[tuple[int, int], np.dtype[np.float64]],
        moved: Tensor,
        marks: list[float],
        rows: tuple[ControlRow, ...],
    ) -> ReducedGradient:
        # Rounded only once: the order of slots does not matter, nor the Python version, whose sum changed in 3.12.
        weight, log_weight, *logged = map(fsum, by_slot.T.tolist())
        means = tuple(value / log_weight for value in logged) if log_weight else ()
        require_same_names(rows)
        results = [nodes.results[self._turn] for nodes in self._nodes]
        flats = [flat for flat in results if flat is not None]
        sums = [flat.data[: bucket.numel] for flat, bucket in zip(flats, self._buckets, strict=True)]
        return ReducedGradient(sums, moved, marks, weight, means=means, views=[flat.views for flat in flats])

    def swap_buffers(self) -> None:
        self._turn ^= 1
