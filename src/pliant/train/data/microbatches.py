"""Division of a member's slots into micro-batches."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.core.data.grid import Grid, deal_slots, idle_slot
from pliant.core.member import Machine
from pliant.train.data.loader import MicroBatch, check_changed_batch, cut_micro_batches

LADDER = 4  # each size of a micro-batch is this many times the next smaller one


class MicroBatcher:
    """Cuts slots into micro-batches. `micro_batch` caps their samples; `one_slot` makes each slot its own."""

    def __init__(self, grid: Grid, micro_batch: int | None, *, one_slot: bool) -> None:
        self._grid = grid
        self._micro_batch = micro_batch
        self._one_slot = one_slot

    def set_grid(self, grid: Grid) -> None:
        """Cut the steps of a grid whose batch has changed."""
        self._grid = grid

    def check_batch(self, batch: int) -> None:
        """Raise BadInput if steps of this batch could not be cut."""
        check_changed_batch(self._grid.slots, batch, self._micro_batch)

    def cut(self, step: int, slots: Iterable[int]) -> tuple[MicroBatch, ...]:
        """Return the micro-batches of these slots, without slots that hold no samples."""
        if not self._one_slot:
            return cut_micro_batches(self._grid, step, slots, self._micro_batch)
        filled = len(self._grid.filled(step))
        changes = self._grid.changes_at(step)
        return tuple([MicroBatch(step, (slot,), changes) for slot in sorted(slots) if slot < filled])

    def idle(self, step: int, slot: int) -> MicroBatch:
        """Return a real slot, with neighbours up to two samples: a batch of one breaks BatchNorm (rule 22)."""
        filled = len(self._grid.filled(step))
        first = last = slot
        enough = min(2, self._micro_batch or 2)
        while (
            sum(len(self._grid.slot(step, each)) for each in range(first, last + 1)) < enough
            and last - first + 1 < filled
        ):
            first, last = (first, last + 1) if last + 1 < filled else (first - 1, last)
        return MicroBatch(step, tuple(range(first, last + 1)), self._grid.changes_at(step))

    def first_items(self, step: int, size: int) -> list[MicroBatch]:
        """Return an item that does not count, and the first of a member's part in a world of that size."""
        share = deal_slots(self._grid.slots, [1] * size)[-1]
        return [self.idle(step, idle_slot(self._grid, step, 0)), *self.cut(step, share)[:1]]

    def ahead(self, machine: Machine, step: int, count: int) -> list[MicroBatch]:
        """Return what this member will read after `step` if nothing changes, for data workers to prefetch."""
        found: list[MicroBatch] = []
        if not count or machine.world is None:
            return found
        weights = [w if rank in machine.holders else 0 for rank, w in enumerate(machine.world.weights)]
        if not sum(weights):
            return found
        mine = deal_slots(self._grid.slots, weights)[machine.rank]
        for later in range(step + 1, self._grid.total_steps + 1):
            found += self.cut(later, mine)
            if len(found) >= count:
                break
        return found


class LadderBatcher(MicroBatcher):
    """Cuts slots into micro-batches of few sizes, whatever the world: a compiler sees every shape before the join.

    A micro-batch has 1, 4, 16, ... slots of equal size, and at most `micro_batch` samples.
    """

    def cut(self, step: int, slots: Iterable[int]) -> tuple[MicroBatch, ...]:
        filled = len(self._grid.filled(step))
        sizes = {slot: len(self._grid.slot(step, slot)) for slot in sorted(slots) if slot < filled}
        found: list[MicroBatch] = []
        changes = self._grid.changes_at(step)
        for size in dict.fromkeys(sizes.values()):
            equal = [slot for slot, each in sizes.items() if each == size]
            at = 0
            while at < len(equal):
                count = max(each for each in self._counts(size) if each <= len(equal) - at)
                found.append(MicroBatch(step, tuple(equal[at : at + count]), changes))
                at += count
        return tuple(sorted(found, key=lambda part: part.slots[0]))

    def _counts(self, size: int) -> list[int]:
        """Return the possible numbers of slots of this size."""
        if self._one_slot:
            return [1]
        found, most = [1], (self._micro_batch or self._grid.newest_batch) // size
        while found[-1] * LADDER <= most:
            found.append(found[-1] * LADDER)
        return found

    def idle(self, step: int, slot: int) -> MicroBatch:
        """Return one slot: its shape is one of those that were compiled."""
        return MicroBatch(step, (slot,), self._grid.changes_at(step))

    def shapes(self) -> list[MicroBatch]:
        """Return one micro-batch of each number of samples that `cut` can return."""
        found: dict[int, MicroBatch] = {}
        for step in {1, min(self._grid.steps_per_epoch, self._grid.total_steps)}:
            sizes = [len(self._grid.slot(step, slot)) for slot in self._grid.filled(step)]
            for size in dict.fromkeys(sizes):
                equal = [slot for slot, each in enumerate(sizes) if each == size]
                for count in self._counts(size):
                    if count <= len(equal):
                        found.setdefault(size * count, MicroBatch(step, tuple(equal[:count])))
        return [found[size] for size in sorted(found)]
