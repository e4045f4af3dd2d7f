"""The batch by the noise scale: a classifier comes to the same accuracy in fewer steps."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

import pliant.torch as pliant  # noqa: E402

SAMPLES, EPOCHS, SMALLEST, LARGEST = 4096, 8, 16, 128


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def points(count: int, seed: int) -> tuple[Any, Any]:
    """Return points of two classes that overlap: no classifier gets all of them right."""
    chance = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=chance)
    return torch.randn(count, 20, generator=chance) + 0.35 * (2.0 * y[:, None] - 1.0), y


def trained(*, changes: bool) -> tuple[float, int, set[int]]:
    """Train, and return the accuracy on other data, the number of steps, and the batches."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noise, batch, batches = pliant.NoiseScale(0.95), pliant.BatchSize(), set()
    with pliant.join() as job:
        state: dict[str, Any] = {"noise": noise, "batch": batch}
        data = torch.utils.data.TensorDataset(*points(SAMPLES, 1))
        limits: dict[str, Any] = {"slots": 16, "micro_batch": 9, "epochs": EPOCHS}
        run = job.train(model, optimizer, data, batch_size=SMALLEST, state=state, **limits)
        for x, y in run:
            for group in optimizer.param_groups:
                group["lr"] = pliant.scaled_rate(0.01, found_with=SMALLEST, batch=run.batch_size)
            run.backward(cross_entropy(model(x), y))
            if run.step():
                batches.add(run.batch_size)
                if changes and run.step_number % 20 == 0:
                    batch.set(pliant.batch_by_noise(noise.value, batch.value, smallest=SMALLEST, largest=LARGEST))
    x, y = points(20_000, 2)
    return float((model(x).argmax(1) == y).float().mean()), run.total_steps, batches


@pytest.mark.long
def test_the_same_accuracy_in_fewer_steps() -> None:
    fixed, steps, _ = trained(changes=False)
    changed, fewer, batches = trained(changes=True)
    print(f"batch {SMALLEST}: {fixed:.4f} in {steps} steps; by noise: {changed:.4f} in {fewer}, batches {batches}")
    assert steps == EPOCHS * SAMPLES // SMALLEST
    assert fewer < steps / 2
    assert changed > fixed - 0.005
    assert max(batches) > SMALLEST
