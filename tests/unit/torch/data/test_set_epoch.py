"""A data set with `set_epoch` is told the epoch of the samples that are read next, in every process that reads."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

import pliant.torch as pliant
from pliant.core.data.grid import Grid
from pliant.torch.data.workers import DEPTH
from pliant.train.data.loader import MicroBatch, SampleError, SampleIndices
from unit.torch.data.loading import Loader

GRID = Grid(6, 3, 3, 4)  # two steps in an epoch


class Following(Dataset[Any]):
    """A data set whose samples tell the epoch that it was told, and what it drew then."""

    def __init__(self) -> None:
        self.told = [-1]
        self.drawn = 0.0

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.drawn = torch.rand(1).item()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, sample: int) -> Any:
        return torch.tensor(self.told[-1]), torch.tensor(self.drawn), torch.tensor(float(sample))


def loader(dataset: Any, num_workers: int) -> Loader:
    indices = SampleIndices(GRID, seed=1)
    return Loader(dataset, indices, GRID, seed=1, num_workers=num_workers, device=torch.device("cpu"))


def whole(step: int) -> MicroBatch:
    return MicroBatch(step, (0, 1, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epoch_is_told_before_its_first_sample_also_to_those_who_read_ahead(num_workers: int) -> None:
    drawn: dict[int, set[float]] = {}
    ours = loader(Following(), num_workers)
    ours.start()
    try:
        # Back to epoch 0 in the middle, as after a rollback, while epoch 2 is read ahead.
        for step in (1, 2, 3, 4, 5, 1, 2, 8, 7):
            ahead = [whole(later) for later in range(step, min(step + 2 * DEPTH, GRID.total_steps + 1))]
            ours.expect(ahead)
            told, numbers, _ = ours.load(whole(step)).data
            epoch = GRID.cursor(step).epoch
            assert told.tolist() == [epoch] * 3
            drawn.setdefault(epoch, set()).update(numbers.tolist())
    finally:
        ours.close()
    # Every process draws the same in set_epoch, and another number in each epoch.
    assert [len(each) for each in drawn.values()] == [1] * 4
    assert len(set.union(*drawn.values())) == 4


def test_the_epoch_is_told_once() -> None:
    dataset = Following()
    ours = loader(dataset, 0)
    for step in range(1, 7):
        for slot in range(3):
            ours.load(MicroBatch(step, (slot,)))
    assert dataset.told == [-1, 0, 1, 2]


def test_the_epoch_is_told_through_wrappers() -> None:
    one, two, three = Following(), Following(), Following()
    parts: Dataset[Any] = ConcatDataset([Subset(one, [0, 1, 2]), Subset(ConcatDataset([two]), [3, 4, 5])])
    ours = loader(StackDataset(StackDataset(x=parts), three), 0)
    ours.load(whole(3))
    assert one.told == two.told == three.told == [-1, 1]


class Raising(Following):
    def set_epoch(self, epoch: int) -> None:
        raise KeyError("no such epoch")


def test_a_set_epoch_that_raises_is_named_with_its_samples() -> None:
    with pytest.raises(SampleError, match="no such epoch"):
        loader(Raising(), 0).load(whole(1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_a_training_loop_every_batch_is_of_its_epoch(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    model = nn.Linear(1, 1)
    seen: list[tuple[int, list[int]]] = []
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = job.train(model, optimizer, Following(), batch_size=3, epochs=3, num_workers=num_workers)
        for told, _, x in run:
            model(x[:, None]).mean().backward()
            seen.append((run.epoch, told.tolist()))
            run.step()
    assert seen == [(epoch, [epoch] * 3) for epoch in (0, 0, 1, 1, 2, 2)]
