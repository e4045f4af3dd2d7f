"""Model averaging on one member, and the settings that exclude it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pliant.torch as pliant  # noqa: E402
from pliant.errors import BadInput  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def trained(*, averages: bool, **given: Any) -> tuple[list[float], float]:
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(64, 4, generator=chance)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    distance = 0.0
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        run = job.train(model, optimizer, data, batch_size=16, epochs=3, **given)
        own = run.average_models(0.3) if averages else None
        for a, b in run:
            found = model(a) if own is None else own(a)
            run.backward(torch.nn.functional.mse_loss(found, b))
            _ = run.step() if own is None else own.step()
        distance = 0.0 if own is None else own.distance
    return [float(value) for each in model.state_dict().values() for value in each.reshape(-1)], distance


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_one_member_alone_is_the_centre(micro_batch: int | None) -> None:
    plain, _ = trained(averages=False, micro_batch=micro_batch)
    weights, distance = trained(averages=True, micro_batch=micro_batch)
    assert weights == pytest.approx(plain, abs=1e-5)
    assert distance == pytest.approx(0.0, abs=1e-5)


def test_a_skipped_step_moves_no_own_model() -> None:
    model, x = torch.nn.Linear(4, 1), torch.ones(32, 4)
    x[5] = float("nan")
    with pliant.join() as job:
        data = torch.utils.data.TensorDataset(x)
        run = job.train(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=8, epochs=2, nonfinite="skip"
        )
        own = run.average_models(0.3)
        with pytest.raises(BadInput, match="Call it once, before the loop"):
            run.average_models(0.3)
        for (batch,) in run:
            run.backward(own(batch).square().mean())
            own.step()
    assert own.distance < 1.0
    assert all(param.isfinite().all() for param in model.parameters())


def refused(optimizer: Any = None, alpha: Any = 0.1, **given: Any) -> str:
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4))
    chosen = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput) as found, pliant.join() as job:
        job.train(model, chosen, data, batch_size=4, **given).average_models(alpha)
    return found.value.why


def test_settings_that_a_members_own_model_cannot_follow_are_refused() -> None:
    assert "Remove deterministic=True" in refused(deterministic=True)
    assert "cannot be combined with clip_norm" in refused(clip_norm=1.0)
    assert "cannot be combined with scaler" in refused(scaler=torch.amp.GradScaler("cpu"))
    assert "needs SGD without momentum and weight decay" in refused(torch.optim.Adam)
    momentum = refused(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    assert "needs SGD without momentum and weight decay" in momentum
    assert "alpha must be a number above 0 and at most 1, got 0" in refused(alpha=0)
