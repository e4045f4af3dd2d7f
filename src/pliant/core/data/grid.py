"""The grid: the samples of a step, their division into slots, and the owners of the slots (rules 14, 21, 22).

A step's global batch is a fixed row of slots. The content of a slot depends on the step and the slot alone. So the
world may grow and shrink between any two steps, and the batch, the cursor and (in deterministic mode) the bits stay the
same. Only ownership follows the world: `deal_slots` for a new step, `missing_slots` and `assign_missing` for a step
that a failure interrupted.

Steps are numbered from 1; step 0 means "nothing applied yet". No step spans two epochs: the last step of an epoch is
short where the batch does not divide the data.

The batch may change while a job runs (ADR 0051). The changes are part of the grid, so everything about a step is still
a function of the grid and the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from pliant.core.data.sample_order import SAMPLES_MAX, Cursor
from pliant.errors import BadInput

BATCH_MAX = 2**47
"""One more than the largest batch that a change can name, as it travels in the control words."""

Changes = tuple[tuple[int, int], ...]
"""Changes of the batch: (the step that agreed on it, the batch of the steps after it), ascending."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps of one epoch with one batch: the first of them, where it starts, and their number."""

    first: int
    epoch: int
    position: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Grid:
    """The shape of a job's data: samples, batch, slots, epochs, and the turns of its optimizers.

    Create it when the job is specified, with at least as many slots as the largest world has members. Only `changes`
    grows later, with `change_batch`. Nothing in it depends on a world. It has no slots of Python's: it keeps the
    numbers that every step asks for several times.
    """

    samples: int
    batch: int
    slots: int
    epochs: int
    turns: int = 1  # consecutive steps on one batch: one for each optimizer that takes turns
    max_steps: int | None = None  # the job ends after so many steps, if its epochs have more
    changes: Changes = ()  # of the batch, which is that of the first step

    def __post_init__(self) -> None:
        for name in ("samples", "batch", "slots", "epochs", "turns"):
            if getattr(self, name) < 1:
                raise BadInput(f"a grid's {name} must be at least 1, not {getattr(self, name)}")
        if self.max_steps is not None and self.max_steps < 1:
            raise BadInput(f"a grid's max_steps must be at least 1, not {self.max_steps}")
        if self.samples > SAMPLES_MAX:
            raise BadInput(f"a grid holds at most 2**62 samples, not {self.samples}: check the data's length")
        if self.slots > self.batch:
            raise BadInput(
                f"{self.slots} slots cannot share a batch of {self.batch} samples: lower slots or raise batch"
            )
        before = 0
        for step, batch in self.changes:
            if step <= before or not self.slots <= batch < BATCH_MAX:
                raise BadInput(f"the change to a batch of {batch} after step {step} does not fit the grid")
            before = step

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch with the first batch, including a short last one."""
        return -(-self.samples // self.batch) * self.turns

    @cached_property
    def total_steps(self) -> int:
        """The number of the job's last step, with the changes so far."""
        return self._steps_of_epochs if self.max_steps is None else min(self._steps_of_epochs, self.max_steps)

    @cached_property
    def _steps_of_epochs(self) -> int:
        """The number of steps that all epochs have."""
        if not self.changes:
            return self.steps_per_epoch * self.epochs
        first, epoch, position, batch = [run for run in _runs(self) if run[1] < self.epochs][-1]
        batches = -(-(self.samples - position) // batch) + (self.epochs - 1 - epoch) * -(-self.samples // batch)
        return first - 1 + batches * self.turns

    def cursor(self, step: int) -> Cursor:
        """Return where this step starts. One past the last step is allowed: it is the end of the job."""
        if self.changes:
            if not 1 <= step <= self._steps_of_epochs + 1:
                raise self._no_such_step(step)
            found = self.stretch(step)
            return Cursor(found.epoch, found.position + (step - found.first) // self.turns * found.batch)
        epoch, index = divmod(step - 1, self.steps_per_epoch)
        if step < 1 or (epoch >= self.epochs and (epoch > self.epochs or index)):
            raise self._no_such_step(step)
        return Cursor(epoch, index // self.turns * self.batch)

    def stretch(self, step: int) -> Stretch:
        """Return the stretch that this step is in. Steps beyond the job's end go on through further epochs."""
        if not self.changes:
            epoch, index = divmod(step - 1, self.steps_per_epoch)
            return Stretch(step - index, epoch, 0, self.batch, self.steps_per_epoch)
        runs = _runs(self)
        at = bisect_right(runs, step, key=lambda run: run[0]) - 1
        first, epoch, position, batch = runs[at]
        rest, whole = -(-(self.samples - position) // batch) * self.turns, -(-self.samples // batch) * self.turns
        if step - first >= rest:
            later = (step - first - rest) // whole
            first, epoch, position, rest = first + rest + later * whole, epoch + 1 + later, 0, whole
        if at + 1 < len(runs):
            rest = min(rest, runs[at + 1][0] - first)
        return Stretch(first, epoch, position, batch, rest)

    def ends_epoch(self, step: int) -> bool:
        """Return whether this step is the last one of its epoch."""
        found = self.stretch(step)
        return self.stretch(step + 1).epoch > found.epoch

    def index_in_epoch(self, step: int) -> int:
        """Return which step of its epoch this step is, counted from 0."""
        found = self.stretch(step)
        while found.position:
            found = self.stretch(found.first - 1)
        return step - found.first

    def up_to(self, step: int) -> Grid:
        """Return the grid of a history that ends with this step: only the changes it has agreed on."""
        return replace(self, changes=changes_up_to(self.changes, step)) if self.changes else self

    def changes_at(self, step: int) -> Changes:
        """Return the changes that the content of this step depends on."""
        if not self.changes:
            return ()
        return tuple([change for change in self.changes if _first_after(change[0], self.turns) <= step])

    @property
    def newest_batch(self) -> int:
        """The batch after all changes so far."""
        return self.changes[-1][1] if self.changes else self.batch

    def turn(self, step: int) -> int:
        """Return which of the steps on its batch this step is, counted from 0."""
        return (step - 1) % self.turns

    def samples_up_to(self, step: int) -> int:
        """Return the number of samples in all steps up to and including this one."""
        if self.changes:
            found = self.stretch(step + 1)
            begun, turns = divmod(step + 1 - found.first, self.turns)
            position = found.position + begun * found.batch
            size = min(found.batch, self.samples - position)
            return (found.epoch * self.samples + position) * self.turns + turns * size
        epochs, index = divmod(step, self.steps_per_epoch)
        batches, turns = divmod(index, self.turns)
        within = batches * self.batch * self.turns + turns * min(self.batch, self.samples - batches * self.batch)
        return epochs * self.samples * self.turns + within

    def size(self, step: int) -> int:
        """Return the number of samples in this step: the batch, or the rest of the epoch."""
        return self._extent(step)[1]

    def slot(self, step: int, slot: int) -> range:
        """Return the positions of the epoch's order that this slot holds in this step; possibly none (rule 21).

        Slot i holds `floor(i*B/V)` to `floor((i+1)*B/V)` from the cursor on, cut at the epoch's end. If the cut leaves
        a single sample in a slot that is wider in a full step, the sample joins the slot before it, where there is one:
        a batch of one breaks BatchNorm, and the cut must not create one. A slot whose full width is one stays as it is:
        the user asked for as many slots as samples.
        """
        position, size, batch = self._extent(step)
        if not 0 <= slot < self.slots:
            raise BadInput(f"the grid has slots 0 to {self.slots - 1}, not {slot}: pass one of them")
        last = _filled(size, batch, self.slots)[-1]
        # The last slot with samples runs to the step's end. That covers both the cut and the lone sample.
        start = slot * batch // self.slots if slot <= last else size
        stop = (slot + 1) * batch // self.slots if slot < last else size
        return range(position + start, position + stop)

    def filled(self, step: int) -> tuple[int, ...]:
        """Return the slots that hold samples in this step, ascending: all of them except at an epoch's end."""
        _, size, batch = self._extent(step)
        return _filled(size, batch, self.slots)

    def _extent(self, step: int) -> tuple[int, int, int]:
        """Return the position where the step starts, its size, and the batch."""
        if not 1 <= step <= self.total_steps:
            raise self._no_such_step(step)
        if self.changes:
            found = self.stretch(step)
            position, batch = found.position + (step - found.first) // self.turns * found.batch, found.batch
        else:
            position, batch = (step - 1) % self.steps_per_epoch // self.turns * self.batch, self.batch
        return position, min(batch, self.samples - position), batch

    def _no_such_step(self, step: int) -> BadInput:
        return BadInput(f"the job has steps 1 to {self.total_steps}, not {step}: pass one of them")


def change_batch(grid: Grid, step: int, batch: int) -> Grid:
    """Return the grid in which the steps after this one have another batch.

    Where optimizers take turns on one batch, the change waits for the next batch.
    """
    return replace(grid, changes=(*grid.changes, (step, batch)))


def changes_up_to(changes: Changes, step: int) -> Changes:
    """Return the changes that a history up to this step has agreed on."""
    return tuple([change for change in changes if change[0] <= step])


def _first_after(step: int, turns: int) -> int:
    """Return the first step after this one that starts a batch."""
    return -(-step // turns) * turns + 1


@lru_cache
def _runs(grid: Grid) -> tuple[tuple[int, int, int, int], ...]:
    """Return the runs of steps with one batch: the first step of each, its epoch and position, and the batch."""
    runs = [(1, 0, 0, grid.batch)]
    for step, to in grid.changes:
        first, epoch, position, batch = runs[-1]
        begins = _first_after(step, grid.turns)
        if begins == first:
            runs[-1] = (first, epoch, position, to)
            continue
        count = (begins - first) // grid.turns
        rest, whole = -(-(grid.samples - position) // batch), -(-grid.samples // batch)
        if count < rest:
            runs.append((begins, epoch, position + count * batch, to))
        else:
            epochs, count = divmod(count - rest, whole)
            runs.append((begins, epoch + 1 + epochs, count * batch, to))
    return tuple(runs)


@lru_cache
def _filled(size: int, batch: int, slots: int) -> tuple[int, ...]:
    """Return the slots with samples in a step of this size. The last of them holds everything from its start on."""
    # Slot i starts inside the step if floor(i*B/V) < size, which is i < size*V/B.
    count = -(-size * slots // batch)
    start = (count - 1) * batch // slots
    full_width = count * batch // slots - start
    if size - start == 1 < full_width and count > 1:
        count -= 1
    return tuple(range(count))


@lru_cache(maxsize=64)
def slot_set(slots: tuple[int, ...]) -> frozenset[int]:
    """Return the slots as a set; equal slots share one set object, as most steps of a member do."""
    return frozenset(slots)


def deal_slots(slots: int, weights: Sequence[int]) -> tuple[range, ...]:
    """Deal out a grid's slots to ranks 0, 1, ... in proportion to their weights: one run of slots each.

    Call it with the weights of the world record: every member gets the same result, because nothing else goes into it.
    Each slot is in exactly one run. A run is within one slot of its exact share, and weight 0 owns nothing.
    """
    return _deal_cached(slots, tuple(weights))


@lru_cache
def _deal_cached(slots: int, weights: tuple[int, ...]) -> tuple[range, ...]:
    total = sum(weights)
    if slots < 1:
        raise BadInput(f"there must be at least 1 slot to deal out, not {slots}")
    if any(weight < 0 for weight in weights):
        raise BadInput(f"weights must be 0 or more, not {min(weights)}: give a member that owns nothing weight 0")
    if total == 0:
        raise BadInput("all weights are 0: give at least one member a weight above 0")
    runs: list[range] = []
    before = 0
    for weight in weights:
        after = before + weight
        runs.append(range(before * slots // total, after * slots // total))
        before = after
    return tuple(runs)


def missing_slots(slots: Iterable[int], kept: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """Return the slots whose gradients no member kept, ascending (rule 14).

    Call it on hello when no member applied the step, with `grid.filled(step)` and the kept sets of the members at the
    winning lineage. Check `are_disjoint` first.
    """
    return tuple(sorted(set(slots).difference(*kept)))


def are_disjoint(kept: Iterable[frozenset[int]]) -> bool:
    """Return whether no slot is in two kept sets. Otherwise the step must not continue: a slot would count twice."""
    sets = tuple(kept)
    return len(frozenset().union(*sets)) == sum(map(len, sets))


def assign_missing(missing: Sequence[int], ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Deal out the missing slots of the interrupted step, one by one in rank order (rule 14).

    Call it with the result of `missing_slots` and the ranks that can compute. Every rank has an entry, possibly empty.
    Shares differ by at most one slot. A rank's set is in general no run of slots.
    """
    slots = sorted(missing)
    order = sorted(ranks)
    if not order:
        raise BadInput("no rank can compute the missing slots: pass at least one rank")
    if len(set(order)) < len(order) or len(set(slots)) < len(slots):
        raise BadInput(f"each rank and each slot may be named once: got ranks {order} and slots {slots}")
    return {rank: tuple(slots[index :: len(order)]) for index, rank in enumerate(order)}


def idle_slot(grid: Grid, step: int, rank: int) -> int:
    """Return the slot that a member without samples in this step computes anyway (rule 22).

    It is a real slot, so that the user's code sees a batch like any other. Its result must be dropped, not multiplied
    by zero. Idle ranks are spread over the slots so that they do not all read the same samples.
    """
    if rank < 0:
        raise BadInput(f"ranks are counted from 0, not {rank}: pass the member's rank in its world")
    slots = grid.filled(step)
    return slots[rank % len(slots)]
