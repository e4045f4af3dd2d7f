"""The stall watchdog sees all code of the user between two items, and nothing else."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.torch.reduce.floating import FloatingReducer


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_code_after_each_call_of_a_run_is_watched_and_the_calls_are_not() -> None:
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(8, 4))
    outside: dict[str, bool] = {}  # by call: whether it is watched

    def spied(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **more: Any) -> Any:
            outside[name] = is_watched()
            return real(*args, **more)

        return act

    def is_watched() -> bool:
        return run._loop.in_user_code_since is not None

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reduce = spied("reduce", FloatingReducer.reduce)
    with mock.patch.object(FloatingReducer, "reduce", reduce), pliant.join() as job:
        run = job.train(model, optimizer, data, batch_size=8, micro_batch=4, epochs=3)
        optimizer.register_step_pre_hook(lambda *_: outside.update(apply=is_watched()))
        for (x,) in run:
            assert is_watched()
            if run.step_number == 2:
                break
            model(x).sum().backward()
            more_follows = not run.reduce()
            assert is_watched()
            if more_follows:
                continue
            run.apply()
            assert is_watched()
        assert outside.pop("reduce") is False
    # The members reduce once more when a loop is left, to agree that it ends.
    assert outside == {"reduce": False, "apply": False}
