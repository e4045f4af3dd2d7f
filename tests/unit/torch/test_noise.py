"""The noise scale of a PyTorch training, on data whose answer is known."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pliant.torch as pliant  # noqa: E402
from pliant.errors import BadInput  # noqa: E402

MEAN, SPREAD, SAMPLES = 2.0, 3.0, 2048


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def trained(**given: Any) -> pliant.NoiseScale:
    """Train a model whose gradient is the mean of its inputs."""
    chance = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(MEAN + SPREAD * torch.randn(SAMPLES, 4, generator=chance))
    model = torch.nn.Linear(4, 1, bias=False)
    noise = pliant.NoiseScale(0.99)
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        run = job.train(model, optimizer, data, batch_size=64, state={"noise": noise}, slots=8, epochs=8, **given)
        for (x,) in run:
            run.backward(model(x).mean())
            run.step()
    return noise


@pytest.mark.parametrize(
    "how",
    [
        {"micro_batch": 8},
        {"deterministic": True},
        {"micro_batch": 8, "scaler": torch.amp.GradScaler("cpu", init_scale=1024.0)},
    ],
    ids=["items", "slots", "scaled"],
)
def test_it_is_the_variance_of_a_sample_over_the_square_of_the_mean(how: dict[str, Any]) -> None:
    noise = trained(**how)
    assert noise.measured == 8 * SAMPLES // 64
    assert noise.gradient_square == pytest.approx(4 * MEAN**2, rel=0.1)
    assert noise.value == pytest.approx(SPREAD**2 / MEAN**2, rel=0.2)


def test_optimizers_that_take_turns_have_no_common_noise_scale() -> None:
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2))
    turns = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in ("a", "b")}
    with pytest.raises(BadInput, match="NoiseScale measures one gradient"), pliant.join() as job:
        job.train(model, turns, data, batch_size=2, state={"noise": pliant.NoiseScale()})
