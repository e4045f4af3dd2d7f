"""A PyTorch training that changes its batch, alone: what it reads, how it ends, resumes and repeats (ADR 0051)."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, IterableDataset  # noqa: E402

import pliant.torch as pliant  # noqa: E402
from pliant.errors import BadInput  # noqa: E402
from pliant.train.data import batch_size  # noqa: E402
from pliant.train.data.batch_size import BatchSize  # noqa: E402

SAMPLES = 40


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


class Numbered(Dataset[Any]):
    """Data that tells which samples it was asked for."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), 1.0]), index


def trained(sets: dict[int, int], *, dataset: Any = None, **given: Any) -> tuple[list[list[int]], list[int], Any]:
    """Train, and set a batch after each of these steps. Return samples and batch of each step, and the model."""
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    batch = pliant.BatchSize()
    arguments: dict[str, Any] = {"batch_size": 8, "slots": 4, "epochs": 2} | given
    reads: list[list[int]] = [[]]
    batches: list[int] = []
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        run = job.train(model, optimizer, dataset or Numbered(), state={"batch": batch}, **arguments)
        for x, index in run:
            reads[-1] += index.tolist()
            run.backward(model(x).square().mean())
            if run.step():
                batches.append(run.batch_size)
                reads.append([])
                if run.step_number in sets:
                    batch.set(sets[run.step_number])
                    assert batch.value == sets[run.step_number]
        assert run.step_number == run.total_steps
    return reads[:-1], batches, model


def epochs_of(reads: list[list[int]]) -> list[list[int]]:
    """Return the samples of each epoch, sorted."""
    read = [index for step in reads for index in step]
    return [sorted(read[begin : begin + SAMPLES]) for begin in range(0, len(read), SAMPLES)]


@pytest.mark.parametrize(
    "how",
    [{}, {"micro_batch": 6}, {"deterministic": True}, {"num_workers": 1}, {"verify": 1}],
    ids=["plain", "items", "deterministic", "workers", "verified"],
)
def test_the_batch_changes_two_steps_after_it_was_set_and_every_sample_is_read_once(how: dict[str, Any]) -> None:
    reads, batches, _ = trained({1: 16, 4: 5}, **how)
    assert batches == [8, 8, 16, 16, 16, 5, 5, 5, 5, 5]  # the fourth ends an epoch, with 8 samples
    assert [len(step) for step in reads] == [8, 8, 16, 8, 16, 5, 5, 5, 5, 4]
    assert epochs_of(reads) == [list(range(SAMPLES))] * 2


def test_a_script_that_sets_the_batch_it_has_changes_nothing() -> None:
    reads, batches, _ = trained({1: 8, 3: 8})
    assert batches == [8] * 10
    assert reads == trained({})[0]


def test_data_that_is_read_in_sequence_is_read_once_with_any_batch() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter((torch.tensor([float(index), 1.0]), index) for index in range(SAMPLES))

    reads, _, _ = trained({1: 16, 4: 5}, dataset=Stream())
    assert reads[:3] == [list(range(8)), list(range(8, 16)), list(range(16, 32))]
    assert epochs_of(reads) == [list(range(SAMPLES))] * 2


def test_nested_epochs_end_where_the_data_ends() -> None:
    model = torch.nn.Linear(2, 1)
    batch = pliant.BatchSize()
    steps = []
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        run = job.train(model, optimizer, Numbered(), batch_size=8, slots=4, epochs=3, state={"batch": batch})
        for epoch in run.epochs():
            count = 0
            for x, _ in epoch:
                run.backward(model(x).mean())
                count += run.step()
                if run.step_number == 2:
                    batch.set(20)
            steps.append((epoch.number, count))
    assert steps == [(0, 4), (1, 2), (2, 2)]  # 8, 8, 8 and 16; then 20 and 20


@pytest.mark.parametrize("stop_after", [2, 3, 5], ids=["set", "agreed", "changed"])
def test_it_resumes_from_a_checkpoint_with_the_batches_of_its_history(tmp_path: Path, stop_after: int) -> None:
    where = {"checkpoint_dir": tmp_path, "deterministic": True}
    reads, batches, model = trained({2: 16, 6: 5}, deterministic=True)
    first, _, _ = trained({2: 16, 6: 5}, max_steps=stop_after, **where)  # it saves the state at its end
    again, later, resumed = trained({2: 16, 6: 5}, **where)
    assert later == batches[stop_after:]
    assert first + again == reads
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (3, "4 slots cannot share a batch of 3 samples. Pass slots="),
        (2**50, "4 slots cannot share a batch"),
        ("16", "must be a whole number"),
        (16.0, "must be a whole number"),
        (20, "a slot holds up to 6 samples and cannot be split"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_where_it_is_set(value: Any, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        trained({1: value}, micro_batch=5)


def test_it_is_set_after_a_step_only() -> None:
    model, batch = torch.nn.Linear(2, 1), pliant.BatchSize()
    with pytest.raises(BadInput, match="belongs to no run"):
        batch.set(16)
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        run = job.train(model, optimizer, Numbered(), batch_size=8, slots=4, state={"batch": batch})
        for x, _ in run:
            with pytest.raises(BadInput, match="set within a step"):
                batch.set(16)
            run.backward(model(x).mean())
            run.step()


def test_a_run_has_one_batch() -> None:
    model = torch.nn.Linear(2, 1)
    state = {"a": BatchSize(), "b": BatchSize()}
    with pytest.raises(BadInput, match="2 objects of BatchSize"), pliant.join() as job:
        job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), Numbered(), batch_size=8, state=state)


def test_the_number_of_changes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "CHANGES_MAX", 1)
    with pytest.raises(BadInput, match="changed 1 times"):
        trained({1: 16, 4: 5})
