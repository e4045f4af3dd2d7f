"""Every framework through every change of its membership, with real processes: one suite for all adapters."""

from pathlib import Path
from typing import Any

import pytest

from live.crowd import JOB, Crowd, ForkServer, Member
from pliant.cli.audit.command import _audit

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SMALL: dict[str, Any] = {"samples": 45, "batch": 8, "slots": 4, "epochs": 10}  # 60 steps


@pytest.fixture
def plan(framework: str) -> dict[str, Any]:
    """Return a plan whose steps take long enough for a member to import its framework and compile beside them."""
    return {**SMALL, "pace_s": 0.1} if framework == "fake" else {**SMALL, "pace_s": 3.0, "patience_s": 600.0}


def steps_once(member: Member) -> None:
    """Its own post-step code ran once for each step it was there for: none twice, none left out."""
    steps = [each["step"] for each in member.steps]
    assert steps == list(range(steps[0], steps[-1] + 1))


def compiled_by(member: Member) -> int:
    """Return how often a member compiled something after its first step."""
    return sum(each.get("compiled", 0) for each in member.steps[1:])


def test_join_kill_drain_and_the_replacement_of_all(home: Path, members: ForkServer, plan: dict[str, Any]) -> None:
    with Crowd(home, members, target=2, size_min=2, **plan) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        b.kill()
        assert b.ended() == -9
        c = crowd.join()  # meanwhile the other one waits: it is alone, below the least number
        c.in_world_of(2)
        crowd.resize(3)
        d = crowd.join()
        d.in_world_of(3)
        crowd.drain(a)
        assert a.ended() == 0
        ends = crowd.finished(c, d)
        assert crowd.audit().code == 0
        for member in (a, c, d):
            steps_once(member)
            assert compiled_by(member) == 0
        assert ends[0]["weights"] == pytest.approx(ends[1]["weights"])


def test_the_coordinator_is_killed_then_everybody(home: Path, members: ForkServer, plan: dict[str, Any]) -> None:
    with Crowd(home, members, target=2, size_min=2, verify=5, **plan) as crowd:
        a, b = crowd.start(2)
        a.reached(6)
        crowd.kill_coordinator()
        crowd.restart_coordinator()
        crowd.wait(lambda: crowd.status.checkpoint is not None, "a checkpoint", a)
        a.kill()
        b.kill()
        assert (a.ended(), b.ended()) == (-9, -9)
        c, d = crowd.start(2)
        crowd.finished(c, d)
        assert c.steps[0]["step"] > 1
        assert crowd.audit().code == 0


def test_deterministic_bits_are_those_of_one_member(home: Path, members: ForkServer, plan: dict[str, Any]) -> None:
    (home / "one").mkdir()
    (home / "many").mkdir()
    with Crowd(home / "one", members, target=1, size_min=1, deterministic=True, **plan) as crowd:
        (alone,) = crowd.start(1)
        bits = crowd.finished(alone)[0]["digest"]
    with Crowd(home / "many", members, target=3, size_min=2, deterministic=True, **plan) as crowd:
        a, b = crowd.start(2)
        c = crowd.join()
        c.in_world_of(3)
        b.kill()
        c.in_world_of(2)
        ends = crowd.finished(a, c)
        assert crowd.audit().code == 0
    assert ends[0]["digest"] == bits


def test_a_changing_batch_has_the_bits_of_one_member(home: Path, members: ForkServer, plan: dict[str, Any]) -> None:
    plan = {**plan, "epochs": 5, "deterministic": True, "batches": [[3, 12], [9, 6]]}
    (home / "one").mkdir()
    (home / "many").mkdir()
    with Crowd(home / "one", members, target=1, size_min=1, **plan) as crowd:
        (alone,) = crowd.start(1)
        bits = crowd.finished(alone)[0]["digest"]
    with Crowd(home / "many", members, target=2, size_min=1, **plan) as crowd:
        a, b = crowd.start(2)
        a.reached(7)
        b.kill()
        c = crowd.join()
        c.in_world_of(2)
        ends = crowd.finished(a, c)
        _, found = _audit(crowd.client, JOB)
    assert ends[0]["digest"] == bits
    assert (found.ok, found.samples, found.steps) == (True, 225, 34)  # 4 of 8, 6 of 12, and 24 of 6 samples at most


def test_each_member_averages_its_own_model_and_all_end_with_the_centre(
    home: Path, members: ForkServer, plan: dict[str, Any]
) -> None:
    with Crowd(home, members, target=2, size_min=1, averages=0.2, **plan) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        b.kill()
        assert b.ended() == -9
        a.in_world_of(1)
        c = crowd.join()
        c.in_world_of(2)
        c.reached(c.steps[-1]["step"] + 3)
        ends = crowd.finished(a, c)
        assert crowd.audit().code == 0
        for member in (a, c):
            steps_once(member)
            assert compiled_by(member) == 0
    assert min(end["distance"] for end in ends) > 1e-4  # two models lie opposite each other around the centre
