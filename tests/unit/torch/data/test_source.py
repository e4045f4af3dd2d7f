"""The samples of an epoch: orders that user code draws, samplers, and epochs of another length than the data."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.records import open_records
from pliant.train.data.loader import MicroBatch
from pliant.train.live.data.source import DataSource
from unit.torch.data.loading import TOOLS, open_source

DATA = TensorDataset(torch.arange(100))


def epoch_of(source: DataSource, epoch: int = 0, seed: int = 5) -> list[int]:
    """The samples of an epoch, as the steps of a job hold them."""
    grid = Grid(source.samples, source.samples, 1, epoch + 1)
    samples: list[int] = source.indices(grid, seed).of_micro_batch(MicroBatch(epoch + 1, (0,))).tolist()
    return samples


def test_growing_data_is_refused_with_the_mode_that_takes_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(BadInput, match=r"Open it without growing=True, or train with a task queue"):
        open_source(open_records(tmp_path, growing=True))


class Endless(Sampler[int]):
    """A sampler without a length, as detection code has."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(100).tolist()


class Turned(Sampler[int]):
    """A sampler that follows the epoch it was given."""

    def __init__(self) -> None:
        self.epoch = 99

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        return iter(np.roll(np.arange(100), self.epoch).tolist())


class Drifting(Sampler[int]):
    """A sampler with a generator that is hidden, so that each draw differs from the one before."""

    def __init__(self) -> None:
        self.hidden = np.random.default_rng(0)

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        return iter(self.hidden.permutation(100).tolist())


weights = torch.tensor([1.0] * 50 + [9.0] * 50)
DRAWN: dict[str, tuple[Callable[[], Any], int]] = {
    "weighted": (lambda: WeightedRandomSampler(weights.tolist(), 80), 80),
    "weighted, without replacement": (lambda: WeightedRandomSampler(weights.tolist(), 30, replacement=False), 30),
    "with replacement": (lambda: RandomSampler(DATA, replacement=True, num_samples=250), 250),
    "without replacement": (lambda: RandomSampler(DATA), 100),
    "of a subset": (lambda: SubsetRandomSampler([3, 7, 9, 11]), 4),
    "with a generator of its own": (lambda: RandomSampler(DATA, generator=torch.Generator()), 100),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_sampler_draws_the_same_on_every_member_and_anew_in_every_epoch(kind: str) -> None:
    make, samples = DRAWN[kind]
    torch.manual_seed(1)
    here = open_source(DATA, sampler=make(), seed=5)
    first = [epoch_of(here, epoch) for epoch in (0, 1, 2)]
    torch.manual_seed(2)
    there = open_source(DATA, sampler=make(), seed=5)  # a member that joins in epoch 2, and draws nothing before
    assert epoch_of(there, 2) == first[2]
    assert epoch_of(open_source(DATA, sampler=make(), seed=6), 0, 6) != first[0]
    assert [len(each) for each in first] == [samples] * 3
    assert first[0] != first[1] != first[2]


def test_a_weighted_sampler_draws_by_its_weights() -> None:
    drawn = epoch_of(open_source(DATA, sampler=WeightedRandomSampler(weights.tolist(), 4000), seed=5))
    assert 0.87 < sum(sample >= 50 for sample in drawn) / 4000 < 0.93


def test_drawing_an_order_does_not_move_the_generators_of_the_script() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    wanted = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(8))
    own = sampler.generator
    epoch_of(open_source(DATA, sampler=sampler))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == wanted
    assert sampler.generator is own
    assert own.initial_seed() == 8


@pytest.mark.parametrize("draw", [torch.randperm, np.random.permutation, lambda n: random.sample(range(n), n)])
def test_an_order_function_may_draw_from_the_usual_generators(draw: Callable[[int], Any]) -> None:
    torch.manual_seed(1)
    here = open_source(DATA, order=lambda epoch: draw(100)[:40], seed=5)
    first = [epoch_of(here, epoch) for epoch in (0, 1)]
    torch.manual_seed(2)
    assert epoch_of(open_source(DATA, order=lambda epoch: draw(100)[:40], seed=5), 1) == first[1] != first[0]
    assert len(first[0]) == 40


def test_the_sampler_is_given_the_epoch() -> None:
    assert epoch_of(open_source(DATA, sampler=Turned()), 3)[3] == 0


def test_a_sequential_sampler_is_the_order_of_the_data() -> None:
    source = open_source(DATA, sampler=SequentialSampler(DATA))
    assert (source.order, epoch_of(source)) == ("sequential", list(range(100)))


def test_indices_are_the_order_of_every_epoch() -> None:
    source = open_source(DATA, sampler=[4, 4, 2])
    assert (epoch_of(source), epoch_of(source, 1)) == ([4, 4, 2], [4, 4, 2])


def test_samples_per_epoch_takes_the_first_of_each_epoch() -> None:
    assert len(epoch_of(open_source(DATA, sampler=Endless(), samples_per_epoch=130))) == 130
    assert epoch_of(open_source(DATA, order=lambda epoch: range(epoch, 50), samples_per_epoch=3), 2) == [2, 3, 4]
    assert epoch_of(open_source(DATA, order=lambda epoch: iter(range(50)), samples_per_epoch=3)) == [0, 1, 2]


def test_samples_per_epoch_of_the_seeds_order_goes_on_through_the_data() -> None:
    source = open_source(DATA, samples_per_epoch=30)
    drawn = [sample for epoch in range(10) for sample in epoch_of(source, epoch)]
    assert sorted(drawn[:100]) == sorted(drawn[100:200]) == list(range(100))


def test_an_epoch_of_another_length_than_the_first_is_refused() -> None:
    source = open_source(DATA, order=lambda epoch: range(40 - epoch))
    assert len(epoch_of(source)) == 40
    with pytest.raises(
        BadInput,
        match=r"order\(2\) returned 38 indices, but an epoch of this job has 40: return 40 for every epoch, or",
    ):
        epoch_of(source, 2)


class Nothing(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dataset": Nothing()}, r"dataset has no samples \(a Nothing of length 0\)"),
        ({"order": "sequential", "sampler": [1]}, "order= and sampler= cannot be combined"),
        ({"sampler": DistributedSampler(DATA, 2, 0)}, "DistributedSampler divides the samples among workers"),
        ({"sampler": BatchSampler(RandomSampler(DATA), 4, False)}, "BatchSampler yields whole batches"),
        ({"sampler": lambda epoch: [1]}, "must be a torch sampler or a list of indices, not function"),
        ({"sampler": Endless()}, "Endless has no length, so an epoch could be endless: pass samples_per_epoch="),
        ({"sampler": []}, "the sampler list in epoch 0 returned no index"),
        ({"sampler": [100]}, "the sampler list in epoch 0 returned index 100, but samples are numbered 0 to 99"),
        ({"order": lambda epoch: []}, r"order\(0\) returned no index"),
    ],
    ids=lambda value: value if isinstance(value, str) else "with",
)
def test_what_is_no_epoch_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(**{"dataset": DATA, **wrong})


def test_a_sampler_that_does_not_repeat_its_draw_is_refused_at_the_start() -> None:
    source = open_source(DATA, sampler=Drifting())
    with pytest.raises(
        BadInput, match="the sampler Drifting in epoch 0 returned other indices when it was called again"
    ):
        epoch_of(source)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), torch.rand(1).item()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_each_occurrence_of_a_sample_is_augmented_anew(num_workers: int) -> None:
    source = open_source(Noisy(), order=lambda epoch: [1, 1, 0, 1])
    grid = Grid(4, 4, 2, 1)
    loader = source.loader(source.indices(grid, 0), seed=0, num_workers=num_workers, tools=TOOLS)
    loader.start()
    try:
        index, first, second = loader.load(MicroBatch(1, (0, 1))).data
        again = loader.load(MicroBatch(1, (1,))).data
    finally:
        loader.close()
    assert index.tolist() == [1, 1, 0, 1]
    assert len(set(first.tolist())) == len(set(second.tolist())) == 4
    assert again[1].tolist() == first[2:].tolist()
