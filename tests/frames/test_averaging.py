"""Model averaging over arrays: the centre and the own models are those of KungFu's rule, through every change."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frames import fake
from frames.story import FEATURES, FramePlan, points
from live.crowd import Crowd, ForkServer, Member
from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.loader import step_seed
from pliant.train.live.arrays.frame import Array
from pliant.train.live.data.source import open_source
from pliant.train.live.data.tools import Arrays, ArrayTools

PLAN: dict[str, Any] = {"samples": 48, "batch": 8, "slots": 2, "epochs": 20}  # 120 steps of two slots of 4 samples
ALPHA = 0.2


def computed(member: Member) -> dict[int, float]:
    """Return the number of samples that a member computed in each step."""
    return {each["step"]: each["weight"] for each in member.steps}


def expected(*members: Member) -> tuple[Array, dict[str, float]]:
    """Return the centre, and each member's distance from it, by whole models in plain numpy.

    A model is the mean of all models plus its distance. A member that computed one slot of two has the slot of its
    place in `members`, which is that of its rank.
    """
    plan = FramePlan("", **PLAN)
    x, y = points(plan)
    x, y = x.astype(np.float64), y.astype(np.float64)
    grid = Grid(plan.samples, plan.batch, 2, plan.epochs)
    source = open_source(Arrays(x, y), order="shuffled", samples_per_epoch=None, seed=plan.seed, tools=ArrayTools())
    indices = source.indices(grid, plan.seed)
    frame = fake.FakeFrame(FEATURES, 0.05, 0)

    def gradient(model: Array, step: int, slot: int) -> Array:
        chosen = indices.of(step, slot)
        frame.arrays_now, frame.key = [model[:-1], model[-1:]], step_seed(plan.seed, step, slot)
        return np.concatenate(frame.gradients(x[chosen], y[chosen])[1])

    centre = np.concatenate(frame.arrays_now)
    models = {member.name: centre for member in members}
    weights = {member.name: computed(member) for member in members}
    for step in range(1, grid.total_steps + 1):
        here = [name for name in models if step in weights[name]]
        at_work = [name for name in here if weights[name][step]]
        slots = {name: [at] for at, name in enumerate(at_work)} if len(at_work) == 2 else {at_work[0]: [0, 1]}
        own: dict[str, Any] = {
            name: np.mean([gradient(models[name], step, slot) for slot in slots[name]], 0) for name in at_work
        }
        mean = np.mean([own[name] for name in at_work], 0)
        moved = centre - 0.05 * mean
        for name in here:
            kept = (1 - ALPHA) * models[name] + ALPHA * centre
            models[name] = kept - 0.05 * (own[name] if name in at_work else mean)
        centre = moved
        models |= {name: centre for name in models if name not in here}  # gone, or not yet there
    return centre, {name: float(np.linalg.norm(model - centre)) for name, model in models.items()}


@pytest.mark.parametrize("where", ["forward", "backward", "after"])
def test_centre_and_own_models_follow_the_rule_through_a_kill_a_drain_and_joins(
    where: str, home: Path, fakes: ForkServer
) -> None:
    with Crowd(home, fakes, target=2, size_min=1, averages=ALPHA, **PLAN) as crowd:
        (a,) = crowd.start(1)
        victim = crowd.join(kill={where: 6})
        assert victim.ended() == -9
        a.in_world_of(1)
        drained = crowd.join()
        drained.in_world_of(2)
        drained.reached(drained.steps[-1]["step"] + 2)
        crowd.drain(drained)
        assert drained.ended() == 0
        last = crowd.join()
        last.in_world_of(2)
        ends = crowd.finished(a, last)
        assert crowd.audit().code == 0
        centre, distances = expected(a, victim, drained, last)
    assert ends[0]["weights"][: FEATURES + 1] == pytest.approx(centre.tolist(), abs=1e-9)
    assert [end["distance"] for end in ends] == pytest.approx([distances[a.name], distances[last.name]], abs=1e-9)
    assert min(distances[a.name], distances[last.name]) > 1e-4


def refused(decay: float = 0.0, alpha: Any = ALPHA, **given: Any) -> str:
    frame = fake.FakeFrame(FEATURES, 0.05, 0)
    frame.decay = decay
    x, y = points(FramePlan("", **PLAN))
    with pytest.raises(BadInput) as found, fake.join() as job:
        job.train(frame, Arrays(x, y), batch_size=8, **given).average_models(alpha)
    return found.value.why


def test_settings_that_a_members_own_model_cannot_follow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "Remove deterministic=True" in refused(deterministic=True)
    assert "cannot be combined with clip_norm" in refused(clip_norm=1.0)
    assert "needs SGD without momentum" in refused(decay=0.9)
    assert "alpha must be a number above 0 and at most 1, got 2" in refused(alpha=2)


def test_a_skipped_step_moves_no_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    frame = fake.FakeFrame(FEATURES, 0.05, 0)
    frame.decay = 0.0
    x, y = (np.array(each, np.float64) for each in points(FramePlan("", **PLAN)))
    x[5] = np.nan
    with fake.join() as job:
        run = job.train(frame, Arrays(x, y), batch_size=8, nonfinite="skip")
        own = run.average_models(ALPHA)
        with pytest.raises(BadInput, match="Call it once, before the loop"):
            run.average_models(ALPHA)
        for batch in run:
            run.step(frame.gradients(*batch)[1])
            assert frame.shown is None
            frame.mean = np.zeros(FEATURES)
    assert own.distance == 0.0
    assert np.isfinite(frame.arrays_now[0]).all()


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_centre_is_back_after_a_loop_that_was_left_within_an_item(
    error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    frame = fake.FakeFrame(FEATURES, 0.05, 0)
    frame.decay = 0.0
    x, y = (np.array(each, np.float64) for each in points(FramePlan("", **PLAN)))
    with suppress(ValueError), fake.join() as job:
        run = job.train(frame, Arrays(x, y), batch_size=8)
        run.average_models(ALPHA)
        for _ in run:
            assert frame.shown is not None
            if error is not None:
                raise error
            break
    assert frame.shown is None
