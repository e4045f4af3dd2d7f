"""A script changes its batch while members die, join and leave (ADR 0051)."""

from pathlib import Path
from typing import Any

import pytest

from live.crowd import JOB, Crowd, ForkServer
from live.plain import plain
from live.scenes import Plan
from pliant.cli.audit.command import _audit
from pliant.core.messages import RequestCheckpoint

CHANGING: dict[str, Any] = {
    "samples": 120,
    "batch": 8,
    "slots": 8,
    "epochs": 5,
    "batches": [[4, 24], [12, 10], [25, 40]],
}
LAST = 33  # of 75 steps with one batch


def require_plain(end: dict[str, Any], **plan: Any) -> None:
    weights, losses = plain(Plan("", **plan))
    assert len(losses) == LAST
    assert end["weights"] == pytest.approx(weights, abs=1e-9)


def require_sound(crowd: Crowd) -> None:
    """Audit the ledger, as the program does."""
    _, found = _audit(crowd.client, JOB)
    assert (found.ok, found.samples, found.steps, found.lost, found.repeated) == (True, 600, LAST, 0, 0)


def test_members_are_killed_and_join_while_the_batch_changes(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3, size_min=1, **CHANGING) as crowd:
        a, b = crowd.start(2)
        victim = crowd.join(kill={"reduce": 5})  # in the step that agrees on the first batch
        assert victim.ended() == -9
        a.in_world_of(2)
        c = crowd.join()
        c.reached(13)
        a.kill()  # rank 0
        ends = crowd.finished(b, c)
        require_plain(ends[0], **CHANGING)
        batches = {each["step"]: each["batch"] for each in (*a.steps, *b.steps, *c.steps)}
        assert [batches.get(step) for step in (6, 14, 27, LAST)] == [24, 10, 40, 40]
        require_sound(crowd)


def test_deterministic_bits_do_not_depend_on_the_members(home: Path, fork_server: ForkServer) -> None:
    digests = set()
    for name in ("alone", "crowd"):
        folder = home / name
        folder.mkdir()
        size = 1 if name == "alone" else 2
        with Crowd(folder, fork_server, target=size, size_min=1, deterministic=True, own_seed=0, **CHANGING) as crowd:
            members = crowd.start(size, own_seed=0)
            if size == 2:
                members[0].reached(10)
                members.pop(1).kill()
                members.append(crowd.join(own_seed=0))
                members[1].reached(16)
            digests.add(crowd.finished(*members)[0]["digest"])
            require_sound(crowd)
    assert len(digests) == 1


def test_a_job_that_lost_all_members_goes_back_with_its_batches(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=1, **CHANGING) as crowd:
        (a,) = crowd.start(1)
        a.reached(8)
        crowd.client.send(JOB, RequestCheckpoint("the test wants it so"))
        crowd.wait(lambda: crowd.status.checkpoint is not None, "a checkpoint")
        a.reached(16)  # beyond the second change
        a.kill()
        assert a.ended() == -9
        b = crowd.join()
        ends = crowd.finished(b)
        require_plain(ends[0], **CHANGING)
        require_sound(crowd)
        assert b.steps[0]["batch"] == 24


def test_a_member_that_sets_another_batch_leaves_with_the_reason(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3, size_min=1, **CHANGING) as crowd:
        a, b = crowd.start(2)
        odd = crowd.join(batches=[[4, 24], [12, 16], [25, 40]])
        assert odd.ended() == 1
        assert "this member set the batch to 16, and the others to 10" in odd.log
        ends = crowd.finished(a, b)
        require_plain(ends[0], **CHANGING)
        require_sound(crowd)
