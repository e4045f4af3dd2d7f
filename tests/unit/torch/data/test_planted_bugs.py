"""Planted bugs in loading: each shows in the digest of what was really read, and the audit says so (H15)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pliant.core.data import ledger
from pliant.core.data.audit import Audit, audit
from pliant.core.data.grid import Grid, assign_missing, deal_slots, missing_slots
from pliant.core.data.sample_order import Order
from pliant.torch.data.workers import DataWorkerPool
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, ReadPlan, SampleIndices, cut_micro_batches
from pliant.train.live.data.reader import DatasetReader
from unit.torch.data.loading import TOOLS, Loader

GRID = Grid(100, 16, 8, 2)  # the epoch's last step holds four samples, in two slots
SEED = 7
BAD_STEP = 5
DATA = [float(sample) for sample in range(GRID.samples)]

Member = Callable[[MicroBatch], LoadedMicroBatch]


def loader(**options: Any) -> Loader:
    return Loader(DATA, SampleIndices(GRID, seed=SEED), GRID, seed=SEED, device=torch.device("cpu"), **options)


def shares(step: int, world: int) -> list[tuple[MicroBatch, ...]]:
    return [cut_micro_batches(GRID, step, run, 4) for run in deal_slots(GRID.slots, [1] * world)]


def train(member: Member, shares: Callable[[int], Sequence[Sequence[MicroBatch]]]) -> Audit:
    """Let the same member load every member's parts of all steps, keep the ledger and audit it."""
    lines: list[ledger.LedgerLine] = []
    for step in range(1, GRID.total_steps + 1):
        loaded = [member(part) for parts in shares(step) for part in parts]
        parent = lines[-1].lineage if lines else ledger.GENESIS
        lines.append(
            ledger.make_line(
                parent,
                generation=1,
                step=step,
                cursor=GRID.cursor(step),
                samples=sum(one.samples for one in loaded),
                digest=sum(one.digest for one in loaded) % 2**64,
            )
        )
    return audit(GRID, Order(SEED, GRID.samples), lines, finished=True)


class Faulty(DatasetReader):
    """A reader that does not read what it was asked to, in one step; `twist` says how."""

    def __init__(self, twist: Callable[[list[int]], list[int]]) -> None:
        super().__init__(DATA, seed=SEED, tools=TOOLS)
        self.twist = twist

    def _read_each(self, plan: ReadPlan) -> tuple[list[Any], list[int], list[int]]:
        if plan.micro_batch.step != BAD_STEP:
            return super()._read_each(plan)
        samples = self.twist(plan.samples.tolist())
        # The bug is in what is read; counting happens where it is read, as in the real one.
        rows, read = [], []
        for sample in samples:
            rows.append(self.dataset[sample])
            read.append(sample)
        ends = [min(sum(plan.sizes[: at + 1]), len(read)) for at in range(len(plan.sizes))]
        ends[-1] = len(read)
        return rows, read, ends


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_a_sound_loader_passes_the_audit_in_every_world(world: int) -> None:
    found = train(loader().load, lambda step: shares(step, world))
    assert (found.ok, found.samples, found.lost, found.repeated) == (True, 200, 0, 0)


def test_a_world_of_changing_size_passes_the_audit() -> None:
    found = train(loader().load, lambda step: shares(step, 1 + step % 5))
    assert (found.ok, found.lost, found.repeated) == (True, 0, 0)


@pytest.mark.parametrize(
    "twist",
    [
        lambda samples: samples[1:],
        lambda samples: samples[:-1],
        lambda samples: [*samples, samples[-1]],
        lambda samples: [samples[1], *samples[1:]],
        lambda samples: [sample + 1 for sample in samples],
        lambda samples: samples[::-1],
    ],
    ids=["skip the first", "skip the last", "double the last", "one in place of another", "off by one", "turned"],
)
def test_a_wrong_read_is_caught(twist: Callable[[list[int]], list[int]]) -> None:
    indices = SampleIndices(GRID, seed=SEED)
    faulty = Faulty(twist)
    found = train(lambda part: faulty.read(indices.plan_read(part)), lambda step: shares(step, 2))
    assert not found.ok
    assert found.lost > 0
    assert all(f"step {BAD_STEP}" in problem for problem in found.problems)


class Stale(DataWorkerPool):
    """A pool that forgets to drop what it read for the world before, and serves the first thing it finds."""

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        self._waiting = list(parts)
        self._dispatch()

    def take(self, part: MicroBatch) -> LoadedMicroBatch:
        if self._ready:
            found = self._ready.pop(next(iter(self._ready)))
            assert isinstance(found, LoadedMicroBatch)
            return found
        return super().take(part)


@pytest.mark.parametrize(("kind", "caught"), [(DataWorkerPool, False), (Stale, True)])
def test_a_stale_prefetch_after_a_resize_is_caught(kind: type[DataWorkerPool], caught: bool) -> None:
    indices = SampleIndices(GRID, seed=SEED)
    pool = kind(DatasetReader(DATA, seed=SEED, tools=TOOLS), indices.plan_read, 1)
    pool.start()

    def parts(step: int) -> list[list[MicroBatch]]:
        """The world shrinks from 2 to 1 in the middle; the other member's parts come with it."""
        return [list(own) for own in shares(step, 2 if step < BAD_STEP else 1)]

    def member(part: MicroBatch) -> LoadedMicroBatch:
        if part.step == BAD_STEP - 1:
            # Read ahead for a world that will not be: one of another step lies ready when the resize comes.
            pool.expect([part, MicroBatch(BAD_STEP, (0, 1, 2))])
            loaded = pool.take(part)
            while not pool._ready:
                pool._collect(None)
            return loaded
        pool.expect([part])
        return pool.take(part)

    try:
        found = train(member, parts)
    finally:
        pool.close()
    assert found.ok is not caught


@pytest.mark.parametrize("forget", [False, True])
def test_a_victims_slot_left_out_is_caught(forget: bool) -> None:
    """Of three members the last dies in one step; two kept their gradients and redo what is missing."""

    def parts(step: int) -> list[Sequence[MicroBatch]]:
        kept = deal_slots(GRID.slots, [1, 1, 1])
        if step != BAD_STEP:
            return [cut_micro_batches(GRID, step, run, 4) for run in kept]
        again = assign_missing(missing_slots(GRID.filled(step), [frozenset(run) for run in kept[:2]]), [0, 1])
        redone = [cut_micro_batches(GRID, step, slots[forget:], 4) for slots in again.values()]
        return [*[cut_micro_batches(GRID, step, run, 4) for run in kept[:2]], *redone]

    found = train(loader().load, parts)
    assert found.ok is not forget
    assert found.repeated == 0
    if forget:
        assert found.lost > 0


def test_a_slot_computed_by_two_is_caught() -> None:
    def parts(step: int) -> list[Sequence[MicroBatch]]:
        return [*shares(step, 2), cut_micro_batches(GRID, step, [3] if step == BAD_STEP else [], None)]

    found = train(loader().load, parts)
    assert (found.ok, found.lost, found.repeated) == (False, 0, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_digest_comes_from_the_reading_not_from_the_plan(num_workers: int) -> None:
    """A plan that was twisted on its way to the reader shows, wherever it is read."""
    indices = SampleIndices(GRID, seed=SEED)
    part = MicroBatch(1, (0, 1))
    plan = indices.plan_read(part)
    twisted = ReadPlan(part, plan.epoch, plan.samples[::-1].copy(), plan.sizes)
    reader = DatasetReader(DATA, seed=SEED, tools=TOOLS)
    right = reader.read(plan)
    if num_workers:
        pool = DataWorkerPool(reader, lambda _: twisted, num_workers)
        pool.start()
        wrong = pool.take(part)
        pool.close()
    else:
        wrong = reader.read(twisted)
    assert wrong.samples == right.samples
    assert wrong.digest != right.digest
