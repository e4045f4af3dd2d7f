"""Evaluation: the totals of a direct computation, whichever member computed them, and no trace left behind."""

import copy
import queue
import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.core.data.ledger import Lineage
from pliant.errors import BadInput
from pliant.torch.evaluation_mode import evaluation_mode
from pliant.torch.run import Run
from pliant.train.live.evaluate import (
    KEPT_MAX,
    BatchTotals,
    Evaluation,
    EvaluationId,
    EvaluationResults,
    compute_batch,
)
from pliant.train.session import Session

KEY = EvaluationId(Lineage(1, 3, 9), 1, 10, 4)


def read(samples: range, key: int) -> list[int]:
    return list(samples)


def as_array(value: Any) -> Any:
    return Run._as_array(object.__new__(Run), value)


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_totals_are_those_of_a_direct_computation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,)))

    def sums(batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        x, y = batch
        out = model(x)
        assert not model.training
        assert not out.requires_grad
        confusion = torch.zeros(3, 3, dtype=torch.long)
        confusion.index_put_((y, out.argmax(1)), torch.ones(len(y), dtype=torch.long), accumulate=True)
        return {"loss": cross_entropy(out, y, reduction="sum"), "count": len(y), "confusion": confusion}

    checked = 0
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=8)
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
            before = [tensor.clone() for tensor in model.state_dict().values()]
            drawn = torch.get_rng_state()
            totals = run.evaluate(sums, data, batch_size=5)
            assert torch.equal(torch.get_rng_state(), drawn)
            assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
            assert model.training
            model.eval()
            with torch.no_grad():
                direct = sums(tuple(data.tensors))  # type: ignore[arg-type]
            model.train()
            assert totals["loss"] == pytest.approx(float(direct["loss"]), rel=1e-5)
            assert totals["count"] == 23
            assert torch.equal(totals["confusion"], direct["confusion"].double())
            checked += 1
    assert checked == 3


def test_modes_of_parts_of_a_model_are_put_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()  # a frozen BatchNorm stays frozen

    def fail() -> None:
        with evaluation_mode(model):
            assert not model[0].training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    assert torch.is_grad_enabled()


class Ema:
    """An average of the weights as many scripts write it: no module itself, and a copy inside."""

    def __init__(self, model: nn.Module) -> None:
        self.copy = copy.deepcopy(model)

    def state_dict(self) -> dict[str, Any]:
        return self.copy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.copy.load_state_dict(state)


def test_copies_in_the_state_and_modules_that_are_named_are_in_evaluation_mode_too() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(4, 4), torch.zeros(4, dtype=torch.long))
    ema, average, teacher = Ema(model), AveragedModel(model), nn.Dropout()
    modules = [model, ema.copy, average, average.module, teacher]
    seen: list[bool] = []

    def sums(batch: Any) -> dict[str, int]:
        seen.extend(module.training for module in modules)
        return {"n": 1}

    with pliant.join() as job:
        state: dict[str, Any] = {"ema": ema, "average": average}
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4, state=state)
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
            run.evaluate(sums, data, batch_size=4, modules=[teacher])
    assert seen == [False] * 5
    assert all(module.training for module in modules)


@pytest.mark.parametrize("value", [2**24 + 1, 0.1, 1e300, torch.tensor(0.1, dtype=torch.float64), True])
def test_numbers_are_not_rounded(value: Any) -> None:
    """A count of samples past 2**24 is an ordinary thing."""
    sums = compute_batch(KEY, 0, lambda _: {"n": value}, read, as_array)
    assert sums.values["n"] == ((), (float(value),))


def test_each_batch_holds_its_samples() -> None:
    seen: list[list[int]] = []

    def sums(batch: list[int]) -> dict[str, int]:
        seen.append(batch)
        return {"n": len(batch)}

    for number in range(3):
        compute_batch(KEY, number, sums, read, as_array)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("given", [3.0, [1, 2], None])
def test_a_function_that_gives_no_dictionary_is_refused(given: Any) -> None:
    with pytest.raises(BadInput, match="dictionary of sums"):
        compute_batch(KEY, 0, lambda _: given, read, as_array)


def evaluate_too_early(model: nn.Module, data: TensorDataset) -> None:
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
        for _ in run:
            run.evaluate(lambda _: {"n": 1}, data, batch_size=2)


def test_in_the_middle_of_a_step_it_is_refused() -> None:
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    with pytest.raises(BadInput, match=r"after run.step\(\)"):
        evaluate_too_early(nn.Linear(4, 2), data)


def test_after_the_loop_it_works_as_well() -> None:
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(9, 4), torch.zeros(9, dtype=torch.long))
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
        assert run.evaluate(lambda batch: {"n": len(batch[1])}, data, batch_size=2) == {"n": 9.0}


def sums_of(number: int, key: EvaluationId = KEY) -> BatchTotals:
    return BatchTotals(key, number, {"n": ((), (1.0,))})


def test_sums_travel() -> None:
    board = EvaluationResults()
    board.receive(msgspec.msgpack.encode(BatchTotals(KEY, 2, {"m": ((2, 1), (0.1, 1e300))})))
    assert board.batches(KEY)[2].values == {"m": ((2, 1), (0.1, 1e300))}


def test_a_batch_that_two_computed_counts_once() -> None:
    board = EvaluationResults()
    board.add(sums_of(0))
    board.add(BatchTotals(KEY, 0, {"n": ((), (99.0,))}))
    assert board.batches(KEY)[0].values["n"] == ((), (1.0,))


def test_news_wake_whoever_waits() -> None:
    board = EvaluationResults()
    board.add(sums_of(0))
    assert board.wait_for_more(KEY, 0, 0.0)
    assert not board.wait_for_more(KEY, 1, 0.01)
    done: queue.Queue[bool] = queue.Queue()
    threading.Thread(target=lambda: done.put(board.wait_for_more(KEY, 1, 20.0)), daemon=True).start()
    board.add(sums_of(1))
    assert done.get(timeout=20.0)


class OneByOne(EvaluationResults):
    """Totals of a peer that arrive one by one, the last batch first. Counts what is asked about single batches."""

    def __init__(self, key: EvaluationId, numbers: range) -> None:
        super().__init__()
        self.coming = [sums_of(number, key) for number in numbers]
        self.asked = 0

    def has(self, key: EvaluationId, number: int) -> bool:
        self.asked += 1
        return super().has(key, number)

    def wait_for_more(self, key: EvaluationId, known: int, timeout_s: float) -> bool:
        self.add(self.coming.pop())
        return super().wait_for_more(key, known, timeout_s)


def test_the_work_of_an_evaluation_grows_with_its_batches_and_not_with_their_square() -> None:
    count = 400
    key = EvaluationId(KEY.lineage, 1, count, 1)
    board = OneByOne(key, range(count // 2, count))
    machine = SimpleNamespace(world=SimpleNamespace(members=("a", "b")), rank=0, stop_reason="")
    session = cast(Session, SimpleNamespace(machine=machine))
    evaluation = Evaluation(session, board, lambda _: None, key, lambda number: sums_of(number, key), lambda: None)
    assert evaluation.run() == {"n": float(count)}
    assert board.asked <= 3 * count


def test_peers_that_are_ahead_do_not_push_out_what_is_under_way() -> None:
    """A step may be followed by any number of evaluations, and a peer may be through with all of them."""
    board = EvaluationResults()
    board.start(KEY)
    board.add(sums_of(0))
    for turn in range(2, KEPT_MAX + 4):
        board.add(sums_of(0, EvaluationId(KEY.lineage, turn, 10, 4)))
    assert board.has(KEY, 0)
