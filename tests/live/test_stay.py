"""Members that must wait, go, or never come in, and what they are told."""

import signal
from pathlib import Path
from typing import Any

import pytest

from live.crowd import Crowd, ForkServer
from live.plain import plain
from live.scenes import Plan
from pliant.core.model.job import JobState

SMALL: dict[str, Any] = {"samples": 45, "batch": 8, "epochs": 10}


def require_plain(end: dict[str, Any], **plan: Any) -> None:
    assert end["weights"] == pytest.approx(plain(Plan("", **plan))[0], abs=1e-9)


def test_whole_world_replaced(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        a, b = crowd.start(2)
        b.in_world_of(2)
        c, d = crowd.join(), crowd.join()
        c.tells("joined")
        d.tells("joined")
        crowd.drain(a)
        crowd.drain(b)
        assert [a.ended(), b.ended()] == [0, 0]
        assert a.said("on_leave")
        assert b.said("on_leave")
        d.in_world_of(2)
        require_plain(crowd.finished(c, d)[0])


def test_below_min_holds_says_so_and_goes_on(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2, size_min=2) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        b.kill()
        a.logged("waiting:")
        crowd.wait(lambda: crowd.status.job.state is JobState.WAITING, "the job to wait")
        assert "2" in crowd.status.job.why
        c = crowd.join()
        before = a.steps[-1]["step"]
        a.reached(before + 2)
        require_plain(crowd.finished(a, c)[0])


def test_members_beyond_the_slots_are_spares(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3, slots=2) as crowd:
        a, b = crowd.start(2)
        b.in_world_of(2)
        c = crowd.join()
        c.tells("joined")
        crowd.wait(lambda: {str(m.state) for m in crowd.status.members} == {"active", "spare"}, "a spare")
        b.kill()
        c.in_world_of(2)
        require_plain(crowd.finished(a, c)[0], slots=2)


def test_spare_never_needed_leaves_as_planned(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=1, **SMALL) as crowd:
        (a,) = crowd.start(1)
        b = crowd.join()
        b.tells("joined")
        crowd.finished(a)
        assert b.ended() == 0
        assert b.said("on_leave")
        assert not b.said("done")


def test_frozen_beyond_its_lease_wakes_up_fenced(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2, lease_ttl_s=1.5) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        b.signal(signal.SIGSTOP)
        a.in_world_of(1)
        b.signal(signal.SIGCONT)
        assert b.ended() == 75
        assert b.said("on_leave")
        assert not b.said("done")
        require_plain(crowd.finished(a)[0])


def test_training_goes_on_while_the_coordinator_is_away(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        a, b = crowd.start(2)
        generation = a.in_world_of(2)["generation"]
        crowd.kill_coordinator()
        a.logged("the coordinator is unreachable")
        reached = a.steps[-1]["step"]
        a.reached(reached + 3)
        crowd.restart_coordinator()
        a.logged("the coordinator is reachable again")
        assert a.steps[-1]["generation"] == generation, "no member was lost, and nothing changed"
        crowd.resize(3)
        c = crowd.join()
        c.in_world_of(3)
        require_plain(crowd.finished(a, b, c)[0])


def test_killed_while_the_coordinator_is_away(home: Path, fork_server: ForkServer) -> None:
    """The others hold what they have until a member can say how to go on."""
    with Crowd(home, fork_server, target=2) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        crowd.kill_coordinator()
        b.kill()
        a.logged("the coordinator is unreachable")
        crowd.restart_coordinator()
        a.in_world_of(1)
        require_plain(crowd.finished(a)[0])


def test_sigterm_is_a_notice(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        b.signal(signal.SIGTERM)
        assert b.ended() == 0
        assert b.said("on_leave")
        generation = a.in_world_of(1)["generation"]
        steps = [each["step"] for each in a.steps]
        assert steps == list(range(1, steps[-1] + 1))
        assert generation > 1
        require_plain(crowd.finished(a)[0])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"samples": 46}, ["46", "45", "samples"]),
        ({"hidden": 9}, ["model", "parameters"]),
        ({"activation": "ReLU"}, ["layers", "1 ReLU", "1 Tanh"]),
        ({"seed": 8}, ["seed", "8", "7"]),
        ({"batch": 9}, ["batch", "9", "8"]),
    ],
)
def test_what_differs_is_named_at_join(
    wrong: dict[str, Any], named: list[str], mismatched: Crowd, home: Path, fork_server: ForkServer
) -> None:
    other = mismatched.join(**wrong)
    assert other.ended() == 1
    for text in named:
        assert text in other.log.splitlines()[-1], other.log


@pytest.fixture(scope="module")
def mismatched(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Any:
    with Crowd(tmp_path_factory.mktemp("mismatched"), fork_server, target=1, pace_s=5.0, **SMALL) as crowd:
        crowd.start(1)
        yield crowd
        crowd.finished(crowd.members[0])


def test_sample_that_raises_on_two_members_fails_the_job(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3, bad_sample=17, **SMALL) as crowd:
        members = crowd.start(2)
        members.append(crowd.join())
        assert all(member.ended() for member in members)
        crowd.wait(lambda: crowd.status.job.state is JobState.FAILED, "the job to fail")
        assert "17" in crowd.status.job.why
        assert "rotten" in crowd.status.job.why


def test_exception_on_one_member_is_its_own_failure(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2, **SMALL) as crowd:
        (a,) = crowd.start(1)
        b = crowd.join(raises={"backward": 6})
        assert b.ended() == 1
        assert "RuntimeError: the script's own mistake in backward" in b.log
        a.in_world_of(1)
        require_plain(crowd.finished(a)[0], **SMALL)
        steps = [each["step"] for each in a.steps]
        assert steps == list(range(1, 61))


def test_rates_that_differ_fail_the_job_and_say_so(home: Path, fork_server: ForkServer) -> None:
    """`scheduler.step()` on one member alone: the members would drift apart in silence."""
    with Crowd(home, fork_server, target=2, size_min=2, **SMALL) as crowd:
        a = crowd.join()
        a.tells("joined")
        b = crowd.join(lr_of=0.01)
        assert a.ended() != 0
        assert b.ended() != 0
        assert "another state" in crowd.status.job.why
