"""Live training without a framework: members join, leave and are killed, and every promise holds."""

from pathlib import Path
from typing import Any

import pytest

from frames import fake, fake_scenes
from frames.story import FEATURES, FramePlan, points
from live.crowd import JOB, Crowd, ForkServer
from pliant.cli.audit.command import _audit

SMALL: dict[str, Any] = {"samples": 45, "batch": 8, "epochs": 5}  # 30 steps, of which every sixth has 5 samples


def alone(monkeypatch: pytest.MonkeyPatch, **plan: Any) -> dict[str, Any]:
    """Return what one member comes to without a coordinator."""
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    told: dict[str, Any] = {}
    monkeypatch.setattr("frames.story.say", lambda **what: told.update(what))
    monkeypatch.setattr("frames.fake_scenes.say", lambda **what: None)
    fake_scenes.train(FramePlan("", pace_s=0.0, **plan))
    return told


def test_a_member_alone_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    first = alone(monkeypatch, **SMALL)
    assert first["digest"] == alone(monkeypatch, **SMALL)["digest"]
    plan = FramePlan("", **SMALL)
    x, y = points(plan)
    frame = fake.FakeFrame(FEATURES, 0.05, 0)
    before = frame.gradients(x, y)[0]
    frame.arrays_now = [first["weights"][:FEATURES], first["weights"][FEATURES : FEATURES + 1]]
    assert frame.gradients(x, y)[0] < before / 4


@pytest.mark.parametrize("where", ["forward", "backward", "after"])
def test_killed_in(where: str, home: Path, fakes: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Crowd(home, fakes, target=3, size_min=2, **SMALL) as crowd:
        a, b = crowd.start(2)
        victim = crowd.join(kill={where: 6})
        assert victim.ended() == -9
        a.in_world_of(2)
        ends = crowd.finished(a, b)
        assert crowd.audit().code == 0
    assert ends[0]["weights"] == pytest.approx(alone(monkeypatch, **SMALL)["weights"], abs=0.02)  # noise by part


def test_deterministic_bits_are_equal_alone_with_two_three_and_after_kills(
    home: Path, fakes: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = alone(monkeypatch, deterministic=True, slots=4, **SMALL)["digest"]
    with Crowd(home, fakes, target=2, size_min=1, deterministic=True, slots=4, **SMALL) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        crowd.resize(3)
        c = crowd.join()
        c.in_world_of(3)
        b.kill()
        c.in_world_of(2)
        ends = crowd.finished(a, c)
        assert crowd.audit().code == 0
    assert ends[0]["digest"] == bits  # the noise scale is part of it
    assert ends[0]["noise"]["measured"] == 30


def test_a_changing_batch_has_the_same_bits_alone_and_after_a_kill(
    home: Path, fakes: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {**SMALL, "slots": 4, "deterministic": True, "batches": [[3, 12], [9, 6]]}
    first = alone(monkeypatch, **plan)
    with Crowd(home, fakes, target=2, size_min=1, **plan) as crowd:
        a, b = crowd.start(2)
        a.reached(7)
        b.kill()
        c = crowd.join()
        c.in_world_of(2)
        ends = crowd.finished(a, c)
        _, found = _audit(crowd.client, JOB)
    assert ends[0]["digest"] == first["digest"]
    assert ends[0]["noise"] == first["noise"]
    assert (found.ok, found.samples, found.steps) == (True, 225, 34)  # 4 of 8, 6 of 12, and 24 of 6 samples at most
    assert found.steps != 30  # with one batch


def test_everybody_is_killed_and_the_job_resumes_from_its_checkpoint(home: Path, fakes: ForkServer) -> None:
    with Crowd(home, fakes, target=2, size_min=1, evaluate=True, verify=5, **SMALL) as crowd:
        a, b = crowd.start(2)
        a.reached(11)
        (evaluated,) = a.said("evaluated")
        assert evaluated["count"] == 45
        crowd.drain(b)
        assert b.ended() == 0
        crowd.wait(lambda: crowd.status.checkpoint is not None, "a checkpoint")
        a.kill()
        assert a.ended() == -9
        c = crowd.join()
        c.reached(14)
        crowd.finished(c)
        assert crowd.audit().code == 0
