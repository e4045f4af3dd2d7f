"""Streams: items numbered as they come, the same on every member and after every restart."""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.loader import MicroBatch, SampleError
from pliant.train.live.data import stream as module
from pliant.train.live.data.loader import LiveLoader as Loader
from unit.torch.data.loading import TOOLS, beginning, open_source

CPU = torch.device("cpu")


class Numbers(IterableDataset[Any]):
    """A stream of its own numbers, with what it drew and the pass it was given."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths or (20,)
        self.passes: list[int] = []

    def set_epoch(self, number: int) -> None:
        self.passes.append(number)

    def __iter__(self) -> Iterator[Any]:
        number = self.passes[-1]
        for item in range(self.lengths[min(number, len(self.lengths) - 1)]):
            yield torch.tensor([item, number]), random.random()


class Shuffled(Numbers):
    """A stream that shuffles in a buffer, as most do."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[Any] = []
        for item in super().__iter__():
            buffer.append(item)
            if len(buffer) == 5:
                yield buffer.pop(random.randrange(5))
        yield from buffer


class Divided(Numbers):
    """A stream that divides itself among data workers, as torch's documentation teaches."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for at, item in enumerate(super().__iter__()):
            if info is None or at % info.num_workers == info.id:
                yield item


class Sized(Numbers):
    def __len__(self) -> int:
        return 20


GRID = Grid(20, 8, 4, 2)  # 8, 8 and 4 items


def loader(dataset: Any, grid: Grid = GRID, num_workers: int = 0, **options: Any) -> Loader:
    source = open_source(dataset, seed=2, **options)
    assert source.samples == grid.samples
    return source.loader(source.indices(grid, 2), seed=2, num_workers=num_workers, tools=TOOLS)


def steps(ours: Loader, grid: Grid, first: int, last: int) -> list[tuple[list[int], float]]:
    parts = [MicroBatch(step, tuple(grid.filled(step))) for step in range(first, last + 1)]
    found = []
    ours.start()
    try:
        for at, part in enumerate(parts):
            ours.expect(parts[at : at + 3])
            items, drawn = ours.load(part).data
            found += list(zip(items.tolist(), drawn.tolist(), strict=True))
    finally:
        ours.close()
    return found


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Numbers, Shuffled, Divided, Sized])
def test_an_epoch_is_one_pass_over_the_stream_wherever_it_is_read(kind: type[Numbers], num_workers: int) -> None:
    alone = steps(loader(kind()), GRID, 1, 6)
    assert [sorted(item for item, _ in epoch) for epoch in (alone[:20], alone[20:])] == [
        [[item, number] for item in range(20)] for number in (0, 1)
    ]
    assert len({drawn for _, drawn in alone}) == 40
    assert steps(loader(kind(), num_workers=num_workers), GRID, 1, 6) == alone
    assert steps(loader(kind(), num_workers=num_workers), GRID, 5, 6) == alone[28:]  # a member that joins later


def test_slots_of_other_members_are_skipped_and_can_be_taken_over_in_the_same_step() -> None:
    dataset = Shuffled()
    alone = [item for item, _ in steps(loader(Shuffled()), GRID, 1, 3)]
    ours = loader(dataset)
    opened = len(dataset.passes)
    assert ours.load(MicroBatch(1, (2, 3))).data[0].tolist() == alone[4:8]
    assert ours.load(MicroBatch(1, (0,))).data[0].tolist() == alone[:2]  # the slot of a lost member
    assert ours.load(MicroBatch(2, (3,))).data[0].tolist() == alone[14:16]
    assert ours.load(MicroBatch(3, (0,))).data[0].tolist() == alone[16:18]
    assert len(dataset.passes) == opened + 1
    assert ours.load(MicroBatch(1, (0,))).data[0].tolist() == alone[:2]  # back by more than is kept
    assert len(dataset.passes) == opened + 2


def test_an_endless_stream_goes_on_from_epoch_to_epoch_and_from_pass_to_pass() -> None:
    grid = Grid(15, 5, 5, 4)
    dataset = Numbers(20, 7, 50)
    row = [[item, number] for number, length in enumerate((20, 7, 50)) for item in range(length)][:60]
    assert [item for item, _ in steps(loader(dataset, grid, samples_per_epoch=15), grid, 1, 12)] == row
    later = steps(loader(Numbers(20, 7, 50), grid, samples_per_epoch=15), grid, 8, 12)
    assert [item for item, _ in later] == row[35:]


def test_a_stream_without_a_length_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, logger="pliant"):
        assert open_source(Numbers(600)).samples == 600
    assert [record.getMessage() for record in caplog.records] == [
        "counting the items of Numbers (samples_per_epoch=N skips this): 256 so far",
        "counting the items of Numbers (samples_per_epoch=N skips this): 512 so far",
        "Numbers has 600 items",
    ]


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ((20, 19), "Numbers ended after 19 of 20 items in pass 1: it must yield as many each time"),
        ((20, 21), "Numbers has more than 20 items in pass 1: it must yield as many each time"),
    ],
)
def test_a_pass_of_another_length_is_named(lengths: tuple[int, ...], says: str) -> None:
    with pytest.raises(SampleError, match=says):
        steps(loader(Numbers(*lengths)), GRID, 1, 6)


def test_an_endless_stream_that_runs_dry_is_named() -> None:
    grid = Grid(15, 5, 5, 4)
    with pytest.raises(SampleError, match="Numbers yielded no item in pass 1"):
        steps(loader(Numbers(20, 0), grid, samples_per_epoch=15), grid, 1, 12)


class Once(Numbers):
    """A stream that is opened when it is created."""

    def __init__(self) -> None:
        super().__init__()
        self.items = iter(range(100))

    def __iter__(self) -> Iterator[Any]:
        return self.items


class Unseeded(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        return iter([self.hidden.random() for _ in range(20)])


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (lambda: iter([1, 2]), "list_iterator can be iterated only once: pass an IterableDataset"),
        (Once, "Once yielded other items when it was iterated again, so its items cannot be numbered"),
        (Unseeded, "Unseeded yielded other items when it was iterated again"),
        (lambda: Numbers(0), r"dataset has no samples \(a Numbers without items\)"),
        (lambda: DataLoader(Sized()), "pass the data set itself, not a DataLoader"),
        (
            object,
            "object is no data set: pass one with __len__ and __getitem__, an IterableDataset, or one with shards",
        ),
    ],
)
def test_what_cannot_be_numbered_is_refused(dataset: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(dataset())


@pytest.mark.parametrize("wrong", [{"sampler": [1]}, {"order": lambda epoch: [1]}])
def test_an_order_of_ones_own_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="Numbers is read in sequence"):
        open_source(Numbers(), **wrong)


class Items(IterableDataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Thing:
    pass


def test_members_compare_the_first_items() -> None:
    found = [
        Items(1, 2, 3),
        Items(1, 2, 4),
        Items(1.0, 2, 3),
        Items("1", 2, 3),
        Items(torch.tensor([1, 2])),
        Items(torch.tensor([1, 3])),
        Items(torch.tensor([[1, 2]])),
        Items(torch.tensor([1.0, 2.0], dtype=torch.bfloat16)),
        Items(np.array([1, 2])),
        Items(np.array([1, 2], dtype=np.int32)),
        Items({"x": [1, (2, None)]}),
        Items({"x": [1, (2, b"")]}),
        Items(Thing()),
        Items(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,), check_invariants=True)),
    ]
    assert len({beginning(each, 0) for each in found}) == len(found)
    assert beginning(Items(Thing()), 0) == beginning(Items(Thing()), 0)


def test_opening_a_stream_does_not_move_the_generators_of_the_script() -> None:
    random.seed(3)
    wanted = random.random()
    random.seed(3)
    open_source(Numbers())
    assert random.random() == wanted


def test_a_map_style_data_set_that_can_be_iterated_is_no_stream() -> None:
    class Both(Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert open_source(Both()).order == "shuffled"
