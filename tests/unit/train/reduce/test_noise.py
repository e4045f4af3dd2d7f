"""The noise scale of a run, measured over arrays on data whose answer is known."""

from typing import Any

import numpy as np
import pytest

from frames import fake
from pliant.errors import BadInput
from pliant.train.live.data.tools import Arrays
from pliant.train.reduce.noise import NoiseScale, noise_scale_of

MEAN, SPREAD, SAMPLES = 2.0, 3.0, 2048


def trained(monkeypatch: pytest.MonkeyPatch, decay: float = 0.99, **given: Any) -> tuple[NoiseScale, list[set[str]]]:
    """Train with gradients that are the samples themselves, and a rate of 0."""
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    rows = np.random.Generator(np.random.PCG64(3)).normal(MEAN, SPREAD, size=(SAMPLES, 4))
    noise = NoiseScale(decay)
    shown = []
    with fake.join() as job:
        run = job.train(fake.FakeFrame(4, 0.0, 0), Arrays(rows), batch_size=64, state={"noise": noise}, **given)
        for (x,) in run:
            run.log(loss=x.mean())
            if run.step([x.mean(axis=0), None]):
                shown.append({*run.metrics})
    return noise, shown


@pytest.mark.parametrize("how", [{"slots": 8, "part": 8}, {"slots": 8, "deterministic": True}], ids=["parts", "slots"])
def test_it_is_the_variance_of_a_sample_over_the_square_of_the_mean(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, shown = trained(monkeypatch, epochs=8, **how)
    assert noise.measured == 8 * SAMPLES // 64
    assert noise.gradient_square == pytest.approx(4 * MEAN**2, rel=0.1)
    assert noise.variance == pytest.approx(4 * SPREAD**2, rel=0.1)
    assert noise.value == pytest.approx(SPREAD**2 / MEAN**2, rel=0.2)
    assert shown == [{"loss"}] * noise.measured


def test_a_step_with_one_item_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, _ = trained(monkeypatch, slots=1)
    assert (noise.measured, noise.value) == (0, None)


def test_its_state_is_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, _ = trained(monkeypatch, slots=8, part=8)
    other = NoiseScale(0.5)
    other.load_state_dict(noise.state_dict())
    assert other.state_dict() == noise.state_dict()
    assert other.value == noise.value


@pytest.mark.parametrize("decay", [1.0, -0.1, "0.9"])
def test_a_decay_that_makes_no_sense_is_refused(decay: Any) -> None:
    with pytest.raises(BadInput, match="decay must be a number from 0 to below 1"):
        NoiseScale(decay)


def test_one_run_has_one() -> None:
    assert noise_scale_of([object()]) is None
    with pytest.raises(BadInput, match="state= has 2 objects of NoiseScale"):
        noise_scale_of([NoiseScale(), NoiseScale()])
