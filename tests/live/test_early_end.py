"""Loops that end before the last step: for all members together, with the last applied step saved."""

from pathlib import Path
from typing import Any

import pytest

from live.crowd import Crowd, ForkServer, Member
from pliant.core.model.job import JobState


def require_end(crowd: Crowd, step: int, *members: Member) -> str:
    """All of them ended well with one state, that step is the last, and a checkpoint has it. Return the reason."""
    assert [member.ended() for member in members] == [0] * len(members)
    crowd.wait(lambda: crowd.status.job.state is JobState.FINISHED, "the job to be finished")
    assert len({member.tells("done")["digest"] for member in members}) == 1
    assert crowd.status.job.step == step
    crowd.wait(lambda: _saved(crowd) == step, "the checkpoint of the last step")
    return crowd.status.job.why


def _saved(crowd: Crowd) -> int:
    found = crowd.status.checkpoint
    return found.lineage.step if found is not None else 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_member_finishes_the_job_for_all(home: Path, fork_server: ForkServer, deterministic: bool) -> None:
    with Crowd(home, fork_server, target=2, size_min=2, deterministic=deterministic) as crowd:
        a = crowd.join(finish_at=6)
        b = crowd.join()
        assert require_end(crowd, 6, a, b) == "it is good enough, after step 6 of 100"


@pytest.mark.parametrize(
    "how",
    [
        {"leave_at": 8},
        {"leave_within": 9},
        pytest.param({"leave_backward": 9}, marks=pytest.mark.long),
        {"leave_at": 8, "deterministic": True},
        pytest.param({"leave_backward": 9, "deterministic": True, "slots": 4}, marks=pytest.mark.long),
    ],
)
def test_a_loop_left_by_every_member_finishes_the_job(home: Path, fork_server: ForkServer, how: dict[str, Any]) -> None:
    with Crowd(home, fork_server, target=2, size_min=2, **how) as crowd:
        a, b = crowd.join(), crowd.join()
        assert require_end(crowd, 8, a, b) == "the training loop was left, after step 8 of 100"


def test_a_loop_left_by_one_member_alone_is_an_error_and_the_others_go_on(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        a = crowd.join()
        a.tells("joined")
        b = crowd.join(leave_at=12)
        b.in_world_of(2)
        assert b.ended() == 1
        assert "left the training loop after step 12, and the others did not" in b.log
        assert "run.finish(why)" in b.log
        crowd.finished(a)


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_loop_left_by_one_member_whose_gradients_are_under_way(
    home: Path, fork_server: ForkServer, deterministic: bool
) -> None:
    with Crowd(home, fork_server, target=2, slots=4, deterministic=deterministic) as crowd:
        a = crowd.join()
        a.tells("joined")
        b = crowd.join(leave_backward=12)
        b.in_world_of(2)
        assert b.ended() == 1
        assert "left the training loop after step 11, and the others did not" in b.log
        crowd.finished(a)
        assert crowd.audit().code == 0


def test_a_loop_left_alone_in_its_world_finishes_the_job(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=1, leave_at=4) as crowd:
        (a,) = crowd.start(1)
        require_end(crowd, 4, a)


@pytest.mark.parametrize("how", ["finish_at", "leave_at"])
def test_an_early_end_after_a_kill_leaves_no_gap_in_the_history(home: Path, fork_server: ForkServer, how: str) -> None:
    with Crowd(home, fork_server, target=2, pace_s=0.5, **{how: 40}) as crowd:
        (survivor,) = crowd.start(1)
        victim = crowd.join(kill={"backward": 6})
        assert victim.ended() == -9
        survivor.in_world_of(1)
        replacement = crowd.join()
        survivor.in_world_of(2)
        crowd.fast()
        require_end(crowd, 40, survivor, replacement)
        assert crowd.audit().out.splitlines()[:2] == [
            "live: every sample used exactly once",
            "320 samples in 40 committed steps, 0 lost, 0 repeated",
        ]
