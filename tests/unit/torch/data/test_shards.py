"""Data in shards: read in sequence, opened again where the reading goes on, and never beyond what was promised."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pliant.core.data.grid import Grid, deal_slots
from pliant.errors import BadInput
from pliant.train.data.loader import MicroBatch, SampleError, cut_micro_batches
from pliant.train.live.data.loader import LiveLoader as Loader
from pliant.train.live.data.shards import OPEN_MAX, ShardDataset
from unit.torch.data.loading import TOOLS, open_source

CPU = torch.device("cpu")


class Files:
    """Shards whose samples are (shard, position, epoch), with a record of every opening and reading."""

    def __init__(self, sizes: Any, longer: int = 0) -> None:
        self.shards = sizes
        self.longer = longer
        self.opened: list[tuple[int, int]] = []
        self.closed = 0
        self.reads = 0
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def read(self, shard: int, start: int) -> Iterator[Any]:
        self.opened.append((shard, start))
        try:
            for position in range(start, self.shards[shard] + self.longer):
                self.reads += 1
                yield torch.tensor([shard, position, self.epoch])
        finally:
            self.closed += 1


def loader(files: Any, batch: int = 8, slots: int = 8, epochs: int = 2, **options: Any) -> tuple[Loader, Grid]:
    source = open_source(files, seed=4, **options)
    grid = Grid(source.samples, batch, slots, epochs)
    return source.loader(source.indices(grid, 4), seed=4, tools=TOOLS), grid


def rows(ours: Loader, parts: Iterator[MicroBatch] | list[MicroBatch]) -> list[tuple[int, ...]]:
    return [tuple(row) for part in parts for row in ours.load(part).data.tolist()]


def test_an_epoch_holds_every_sample_of_every_shard_once() -> None:
    files = Files([13, 0, 7, 30, 2])
    ours, grid = loader(files)
    for epoch in range(2):
        steps = range(epoch * grid.steps_per_epoch + 1, (epoch + 1) * grid.steps_per_epoch + 1)
        read = rows(ours, [MicroBatch(step, tuple(grid.filled(step))) for step in steps])
        assert sorted(read) == [(shard, at, epoch) for shard, size in enumerate(files.shards) for at in range(size)]


@pytest.mark.parametrize("members", [1, 2, 4])
def test_a_member_reads_its_own_samples_and_no_others(members: int) -> None:
    """No sample is read twice and dropped, as long as the world stays as it is."""
    everything = []
    for mine in deal_slots(16, [1] * members):
        files = Files([100, 300, 50, 190])
        ours, grid = loader(files, batch=32, slots=16, epochs=1)
        read = rows(
            ours, [p for step in range(1, grid.total_steps + 1) for p in cut_micro_batches(grid, step, mine, 8)]
        )
        everything += read
        assert files.reads == len(read)
        assert len(files.opened) <= len(mine) + 4  # once for each lane, and again where a shard begins in it
    assert sorted(everything) == [(s, at, 0) for s, size in enumerate((100, 300, 50, 190)) for at in range(size)]


def test_a_member_that_takes_over_opens_the_shards_where_they_are() -> None:
    files = Files([64, 64])
    ours, _ = loader(files, batch=8, slots=4, epochs=1)
    rows(ours, [MicroBatch(step, (0, 1)) for step in range(1, 9)])
    before = files.reads
    read = rows(ours, [MicroBatch(step, (0, 1, 2, 3)) for step in range(9, 17)])
    assert len(read) == files.reads - before == 64
    assert [start for _, start in files.opened] == [0, 32, 16, 48]


def test_samples_that_other_members_read_are_skipped_within_a_step() -> None:
    files = Files([100])
    dataset = ShardDataset(files, [100], reach=10)
    assert [dataset[at].tolist()[1] for at in (0, 1, 9, 40)] == [0, 1, 9, 40]
    assert files.opened == [(0, 0), (0, 40)]
    assert files.reads == 11


def test_the_number_of_open_iterators_is_limited() -> None:
    files = Files([1000])
    dataset = ShardDataset(files, [1000], reach=0)
    for at in range(0, 2 * OPEN_MAX * 3, 3):
        dataset[at]
    assert len(files.opened) == 2 * OPEN_MAX
    assert files.closed == OPEN_MAX
    dataset.set_epoch(1)
    assert files.closed == 2 * OPEN_MAX


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (lambda: Files([5, 5], longer=1), "shard [01] has more than the 5 samples that Files.shards says"),
        (lambda: Files([5, 5], longer=-1), "shard [01] ended after 4 samples, but Files.shards says 5"),
    ],
)
def test_a_shard_of_another_length_is_named(files: Callable[[], Files], says: str) -> None:
    ours, _ = loader(files(), batch=10, slots=1)
    with pytest.raises(SampleError, match=says):
        rows(ours, [MicroBatch(1, (0,))])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_slot_stays_with_its_data_worker(num_workers: int) -> None:
    """Otherwise every data worker would open every shard again in every step."""
    source = open_source(Counting([200, 200]), seed=4)
    grid = Grid(400, 8, 4, 1)
    ours = source.loader(source.indices(grid, 4), seed=4, tools=TOOLS, num_workers=num_workers)
    ours.start()
    try:
        parts = [MicroBatch(step, slots) for step in range(1, 51) for slots in ((0, 1), (2, 3))]
        read = []
        for at, part in enumerate(parts):
            ours.expect(parts[at : at + 5])
            read += ours.load(part).data.tolist()
    finally:
        ours.close()
    assert sorted(each[0] for each in read) == list(range(400))
    assert max(each[1] for each in read) <= 4  # openings of one process


class Counting(Files):
    def read(self, shard: int, start: int) -> Iterator[Any]:
        self.opened.append((shard, start))
        for position in range(start, self.shards[shard]):
            yield torch.tensor([200 * shard + position, len(self.opened)])


def test_epochs_of_another_length_go_on_through_the_shards() -> None:
    files = Files([13, 7, 30])
    ours, grid = loader(files, epochs=5, samples_per_epoch=20)
    read = rows(ours, [MicroBatch(step, tuple(grid.filled(step))) for step in range(1, grid.total_steps + 1)])
    counts = {row[:2]: [other[:2] for other in read].count(row[:2]) for row in read}
    assert (len(read), len(counts), set(counts.values())) == (100, 50, {2})


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (5, r"Files.shards must be a list with the number of samples of each shard, got 5"),
        (["a.tar", "b.tar"], "must be a list with the number of samples of each shard, got"),
        ([4, -1], "Files.shards has a shard of -1 samples"),
        ([0, 0], r"dataset has no samples \(Files has 2 shards, all empty\)"),
    ],
)
def test_shards_without_sizes_are_refused(sizes: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(Files(sizes))


@pytest.mark.parametrize("wrong", [{"sampler": [1]}, {"order": lambda epoch: [1]}, {"order": "random"}])
def test_an_order_of_ones_own_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="Files is read in sequence, so order= and sampler= cannot choose its samples"):
        open_source(Files([5]), **wrong)
