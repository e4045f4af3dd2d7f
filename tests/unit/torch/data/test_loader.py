"""Loading parts in the training process: what a batch is, what it costs the data set, what is refused."""

import random
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.loader import MicroBatch, SampleError, SampleIndices, cut_micro_batches
from unit.torch.data.loading import Loader

CPU = torch.device("cpu")
META = torch.device("meta")  # a device that every machine has and that is not the CPU
SAMPLES = 53
GRID = Grid(SAMPLES, 16, 8, 2)
Pair = namedtuple("Pair", ["left", "right"])


def same(one: Any, other: Any) -> bool:
    """Return whether two batches are equal in values, types and containers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def loader(dataset: Any, *, device: torch.device = CPU, **options: Any) -> Loader:
    return Loader(dataset, SampleIndices(GRID, seed=7), GRID, seed=7, device=device, **options)


def parts_of(micro_batch: int | None = 6) -> list[MicroBatch]:
    return [
        part
        for step in range(1, GRID.total_steps + 1)
        for part in cut_micro_batches(GRID, step, range(GRID.slots), micro_batch)
    ]


class Squares(Dataset[Any]):
    """A data set that counts how often each sample is read, and insists on Python's integers."""

    def __init__(self, form: Callable[[int], Any] = lambda sample: (torch.full((2, 3), sample), sample)) -> None:
        self.form = form
        self.reads: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> Any:
        assert type(sample) is int
        self.reads.append(sample)
        return self.form(sample)


class Batched(Squares):
    """A data set that is read through torch's batched protocol, as Hugging Face's are."""

    def __getitems__(self, samples: list[int]) -> list[Any]:
        assert all(type(sample) is int for sample in samples)
        self.reads += samples
        return [self.form(sample) for sample in samples]

    def __getitem__(self, sample: int) -> Any:
        raise AssertionError("a data set with __getitems__ is not read one by one")


VALUES = torch.arange(SAMPLES * 6, dtype=torch.float32).reshape(SAMPLES, 2, 3)
KINDS: dict[str, Callable[[], Any]] = {
    "tuples of a tensor and a number": Squares,
    "batched": Batched,
    "dicts": lambda: Squares(lambda i: {"x": torch.tensor([i, i]), "name": f"sample {i}", "deep": {"y": float(i)}}),
    "named tuples": lambda: Squares(lambda i: Pair(np.full(3, i), torch.tensor(i))),
    "numbers": lambda: Squares(float),
    "arrays": lambda: Squares(lambda i: np.full((2, 2), i, dtype=np.float32)),
    "strings": lambda: Squares(str),
    "a list": lambda: [torch.tensor([i]) for i in range(SAMPLES)],
    "a list of pairs": lambda: [(i, -i) for i in range(SAMPLES)],
    "an array": lambda: np.arange(SAMPLES * 2).reshape(SAMPLES, 2),
    "a tensor": lambda: VALUES,
    "a dict by number": lambda: {i: i * i for i in range(SAMPLES)},
    "tensors": lambda: TensorDataset(VALUES, torch.arange(SAMPLES)),
    "one tensor": lambda: TensorDataset(VALUES),
    "tensors, not contiguous": lambda: TensorDataset(VALUES.transpose(1, 2), VALUES.permute(0, 2, 1)[:, ::2]),
    "tensors of other types": lambda: TensorDataset(VALUES.bfloat16(), VALUES > 5, VALUES.to(torch.complex64)),
    "a part of tensors": lambda: Subset(TensorDataset(VALUES.repeat(2, 1, 1)), range(5, SAMPLES + 5)),
    "a part of others": lambda: Subset(Squares(), list(range(SAMPLES))[::-1]),
    "a part of batched": lambda: Subset(Batched(), list(range(SAMPLES))[::-1]),
    "several in a row": lambda: ConcatDataset([TensorDataset(VALUES[:20]), TensorDataset(VALUES[20:])]),
    "several side by side": lambda: StackDataset(x=TensorDataset(VALUES), y=Squares(lambda i: i)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_torch(kind: str) -> None:
    parts = parts_of()
    indices = SampleIndices(GRID, seed=7)
    wanted = DataLoader(KINDS[kind](), batch_sampler=[indices.of_micro_batch(part).tolist() for part in parts])
    ours = loader(KINDS[kind]())
    for part, batch in zip(parts, wanted, strict=True):
        loaded = ours.load(part)
        assert loaded.micro_batch == part
        assert same(loaded.data, batch)
        assert loaded.samples == len(indices.of_micro_batch(part))


@pytest.mark.parametrize("kind", KINDS)
def test_the_digests_of_a_step_add_up_to_what_is_expected(kind: str) -> None:
    ours = loader(KINDS[kind]())
    for step in (1, GRID.total_steps):
        loaded = [ours.load(part) for part in parts_of() if part.step == step]
        assert sum(one.digest for one in loaded) % 2**64 == SampleIndices(GRID, seed=7).expected(step)
        assert sum(one.samples for one in loaded) == GRID.size(step)


def test_a_collate_function_gets_the_samples_in_order() -> None:
    ours = loader(Squares(lambda sample: sample), collate_fn=tuple)
    part = MicroBatch(2, (1, 4))
    assert ours.load(part).data == tuple(SampleIndices(GRID, seed=7).of_micro_batch(part).tolist())


def test_tensors_with_a_collate_function_are_read_one_by_one() -> None:
    ours = loader(TensorDataset(VALUES), collate_fn=len)
    assert ours.load(MicroBatch(1, (0, 1, 2))).data == 6


def test_a_subclass_of_the_tensor_data_set_is_read_its_own_way() -> None:
    class Negative(TensorDataset):
        def __getitem__(self, sample: Any) -> Any:
            return tuple(-tensor[sample] for tensor in self.tensors)

    part = MicroBatch(1, (0, 1))
    (read,) = loader(Negative(VALUES)).load(part).data
    assert torch.equal(read, -VALUES[SampleIndices(GRID, seed=7).of_micro_batch(part)])


def test_sparse_tensors_are_read_one_by_one() -> None:
    rows = [row.to_sparse() for row in torch.eye(SAMPLES)]
    ours = loader(TensorDataset(torch.stack(rows)), collate_fn=lambda rows: [row[0].to_dense() for row in rows])
    part = MicroBatch(1, (0, 1))
    assert [int(row.argmax()) for row in ours.load(part).data] == SampleIndices(GRID, seed=7).of_micro_batch(
        part
    ).tolist()


@pytest.mark.parametrize("kind", [Squares, Batched])
def test_every_sample_of_an_epoch_is_read_exactly_once(kind: Callable[[], Squares]) -> None:
    data = kind()
    ours = loader(data)
    ours.expect(parts_of())  # reads nothing: there is no member to read ahead
    assert data.reads == []
    for part in parts_of():
        before = len(data.reads)
        assert ours.load(part).samples == len(data.reads) - before
    assert Counter(data.reads) == Counter(list(range(SAMPLES)) * GRID.epochs)


class Draws(Squares):
    """A data set that draws from every generator there is."""

    def __init__(self) -> None:
        super().__init__(lambda sample: (torch.rand(2), random.random(), np.random.rand(), np.random.randn()))


def by_sample(ours: Loader, parts: list[MicroBatch]) -> dict[tuple[int, int], Any]:
    """Return what was drawn for each sample of each epoch."""
    found = {}
    for part in parts:
        rows = list(zip(*ours.load(part).data, strict=True))
        epoch = GRID.cursor(part.step).epoch
        for sample, row in zip(SampleIndices(GRID, seed=7).of_micro_batch(part).tolist(), rows, strict=True):
            found[epoch, sample] = [value.tolist() for value in row]
    return found


def test_what_a_sample_draws_does_not_depend_on_its_part_nor_on_what_was_read_before() -> None:
    whole = by_sample(loader(Draws()), parts_of(micro_batch=None))
    assert by_sample(loader(Draws()), parts_of(micro_batch=3)[::-1]) == whole
    assert len({str(row) for row in whole.values()}) == 2 * SAMPLES


@pytest.mark.parametrize("wrapped", [lambda data: Subset(data, range(SAMPLES)), lambda data: StackDataset(data)])
def test_wrappers_do_not_take_a_sample_its_own_randomness(wrapped: Callable[[Any], Any]) -> None:
    """torch's wrappers have the batched protocol whether or not what they wrap has it."""
    if isinstance(wrapped(Draws()), StackDataset):
        ours = loader(wrapped(Draws()), collate_fn=lambda rows: default_collate([row[0] for row in rows]))
    else:
        ours = loader(wrapped(Draws()))
    assert by_sample(ours, parts_of(micro_batch=3)) == by_sample(loader(Draws()), parts_of(micro_batch=None))


def test_another_seed_draws_something_else() -> None:
    def drawn(seed: int) -> Any:
        return (
            Loader(Draws(), SampleIndices(GRID, seed=7), GRID, seed=seed, device=CPU)
            .load(MicroBatch(1, (0,)))
            .data[0]
            .tolist()
        )

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_collate_function_draws_by_step_and_first_slot() -> None:
    def drawn(part: MicroBatch) -> float:
        return float(loader(VALUES, collate_fn=lambda rows: torch.rand(1)).load(part).data)

    assert drawn(MicroBatch(1, (0, 1))) == drawn(MicroBatch(1, (0,))) != drawn(MicroBatch(1, (1,)))
    assert drawn(MicroBatch(1, (0, 1))) != drawn(MicroBatch(2, (0, 1)))


def test_a_sample_that_raises_is_named_with_slot_and_traceback() -> None:
    part = MicroBatch(2, (3, 5, 6))
    plan = SampleIndices(GRID, seed=7).plan_read(part)
    bad = plan.samples.tolist()[sum(plan.sizes[:1])]  # the first sample of slot 5

    def form(sample: int) -> int:
        if sample == bad:
            raise KeyError("no such picture")
        return sample

    with pytest.raises(SampleError, match="no such picture") as caught:
        loader(Squares(form)).load(part)
    assert (caught.value.micro_batch, caught.value.slot, caught.value.sample) == (part, 5, bad)
    assert (caught.value.slots, caught.value.samples) == ((5,), (bad,))
    assert "in form" in caught.value.trace
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("data", "collate"),
    [
        (Batched(lambda sample: [][sample]), None),
        (Squares(), lambda rows: rows[100]),
        (Squares(lambda sample: torch.zeros(sample)), None),
    ],
    ids=["batched read", "own collate", "default collate"],
)
def test_a_failure_of_several_samples_together_names_them_all(data: Any, collate: Any) -> None:
    part = MicroBatch(2, (3, 5))
    with pytest.raises(SampleError, match="2 slots from 3 on") as caught:
        loader(data, collate_fn=collate).load(part)
    assert caught.value.slots == (3, 5)
    assert list(caught.value.samples) == SampleIndices(GRID, seed=7).of_micro_batch(part).tolist()


def test_a_batched_read_that_gives_too_little_is_an_error() -> None:
    class Short(Batched):
        def __getitems__(self, samples: list[int]) -> list[Any]:
            return super().__getitems__(samples)[1:]

    with pytest.raises(SampleError, match="asked for 4 samples and gave 3"):
        loader(Short()).load(MicroBatch(1, (0, 1)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_of_different_shapes_need_a_collate_function(num_workers: int) -> None:
    ours = loader(Squares(lambda sample: torch.zeros(sample)), num_workers=num_workers)
    ours.start()
    try:
        with pytest.raises(SampleError, match=r"differ in shape and cannot be stacked: pass collate_fn= to job\.train"):
            ours.load(MicroBatch(1, (0, 1)))
    finally:
        ours.close()


def test_other_errors_of_collating_are_torchs_own() -> None:
    with pytest.raises(SampleError, match="default_collate: batch must contain"):
        loader(Squares(lambda sample: object())).load(MicroBatch(1, (0,)))

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise RuntimeError("not today")

    with pytest.raises(SampleError, match="not today"):
        loader(Squares(lambda sample: torch.zeros(1).as_subclass(Refusing))).load(MicroBatch(1, (0,)))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


@pytest.mark.parametrize(
    "data", [Stream(), iter([1, 2]), (i for i in range(3)), {1, 2}, 5], ids=lambda data: type(data).__name__
)
def test_data_without_numbered_samples_is_refused_with_what_to_do(data: Any) -> None:
    with pytest.raises(BadInput, match="is no data set: pass one with __len__ and __getitem__"):
        loader(data)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (DataLoader(Squares()), {}, "not a DataLoader"),
        ({"train": [1], "test": [2]}, {}, "a mapping of 'train', 'test': pass one of its data sets"),
        (list(range(SAMPLES - 1)), {}, "has 52 samples, but the job was set up for 53"),
        (VALUES, {"num_workers": -1}, "0 .read in the training process. or more, not -1"),
    ],
    ids=["loader", "mapping", "length", "workers"],
)
def test_mistakes_are_refused_in_words(data: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        loader(data, **options)


def test_an_order_of_another_grid_is_refused() -> None:
    with pytest.raises(BadInput, match="use one grid"):
        Loader(VALUES, SampleIndices(Grid(SAMPLES, 16, 4, 2), seed=7), GRID, seed=7, device=CPU)


def test_batches_arrive_on_the_device() -> None:
    x, y = loader(TensorDataset(VALUES, VALUES), device=META).load(MicroBatch(1, (0,))).data
    assert x.is_meta
    assert y.is_meta


def test_pinning_without_a_device_to_copy_to_changes_nothing() -> None:
    part = MicroBatch(1, (0,))
    assert same(loader(VALUES, pin_memory=True).load(part).data, loader(VALUES).load(part).data)
