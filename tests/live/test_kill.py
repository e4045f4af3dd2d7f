"""Members are killed in every place, and the others go on as if the dead had never been."""

from pathlib import Path
from typing import Any

import pytest

from live.crowd import Crowd, ForkServer, Member
from live.plain import plain
from live.scenes import Plan

SMALL: dict[str, Any] = {"samples": 45, "batch": 8, "epochs": 10}  # 60 steps


def require_plain(end: dict[str, Any], **plan: Any) -> None:
    assert end["weights"] == pytest.approx(plain(Plan("", **plan))[0], abs=1e-10)


def steps_once(member: Member) -> None:
    """Its own post-step code ran once for each step it was there for: none twice, none left out."""
    steps = [each["step"] for each in member.steps]
    assert steps == list(range(steps[0], steps[-1] + 1))


@pytest.mark.parametrize(
    ("where", "micro_batch"),
    [
        ("forward", None),
        ("backward", None),
        ("reduce", None),
        ("apply", None),
        ("after", None),
        ("backward", 1),
        ("reduce", 1),
    ],
)
def test_killed_in(where: str, micro_batch: int | None, home: Path, fork_server: ForkServer) -> None:
    """With micro-batches survivors keep the sums of several parts, and are given the victim's on top."""
    with Crowd(home, fork_server, target=3, size_min=2, micro_batch=micro_batch, **SMALL) as crowd:
        a, c = crowd.start(2)
        victim = crowd.join(kill={where: 6})
        assert victim.ended() == -9
        assert victim.said("killed")
        a.in_world_of(2)
        ends = crowd.finished(a, c)
        require_plain(ends[0], **SMALL)
        steps_once(a)
        steps_once(c)


def test_rank_0_killed_and_replaced(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        a, b = crowd.start(2)
        b.in_world_of(2)
        a.kill()
        b.in_world_of(1)
        c = crowd.join()
        assert b.in_world_of(2)["rank"] in (0, 1)
        steps_once(b)
        ends = crowd.finished(b, c)
        require_plain(ends[0])


def test_all_but_one_killed_at_once(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3) as crowd:
        a, b, c = crowd.start(3)
        b.in_world_of(3)
        a.kill()
        c.kill()
        b.in_world_of(1)
        require_plain(crowd.finished(b)[0])
        steps_once(b)


def test_killed_with_data_workers(home: Path, fork_server: ForkServer) -> None:
    """They hold its sockets: the others must hear of its end all the same, and soon (H20)."""
    with Crowd(home, fork_server, target=2, num_workers=2, **SMALL) as crowd:
        (a,) = crowd.start(1)
        b = crowd.join(kill={"backward": 8})
        assert b.ended() == -9
        a.in_world_of(1)
        require_plain(crowd.finished(a)[0], **SMALL)


def test_joiner_killed_while_wiring(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        (a,) = crowd.start(1)
        a.reached(2)
        crowd.resize(3)
        b = crowd.join(kill={"wiring": 1})
        assert b.ended() == -9
        c = crowd.join()
        c.in_world_of(2)
        require_plain(crowd.finished(a, c)[0])
        steps_once(a)


def test_survivor_killed_while_wiring_the_recovery(home: Path, fork_server: ForkServer) -> None:
    """Two at once, the second in the middle of the repair."""
    with Crowd(home, fork_server, target=3, size_min=1) as crowd:
        a = crowd.join()
        a.tells("joined")
        b = crowd.join()
        b.in_world_of(2)
        generation = b.steps[-1]["generation"]
        c = crowd.join(kill={"wiring": generation + 2})
        c.in_world_of(3)
        b.kill()
        assert c.ended() == -9
        a.in_world_of(1)
        require_plain(crowd.finished(a)[0])
        steps_once(a)


def test_donor_killed_while_sending_the_state(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        (a,) = crowd.start(1)
        a.reached(2)
        b = crowd.join(kill={"sending": 1})
        b.in_world_of(2)
        crowd.resize(3)
        c = crowd.join()
        assert b.ended() == -9
        c.in_world_of(2)
        require_plain(crowd.finished(a, c)[0])
        steps_once(a)


def test_joiner_killed_while_receiving_the_state(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2, norm=True, double=False) as crowd:
        a, b = crowd.start(2)
        b.in_world_of(2)
        crowd.resize(3)
        assert crowd.join(kill={"receiving": 1}).ended() == -9
        c = crowd.join()
        c.in_world_of(3)
        crowd.finished(a, b, c)
        steps_once(a)
        steps_once(b)


def test_last_step_of_an_epoch_killed_before_the_rate_changes(home: Path, fork_server: ForkServer) -> None:
    """The nested form: code after the inner loop belongs to the epoch's last step, and runs once everywhere (H7)."""
    plan = {**SMALL, "nested": True, "epochs": 8, "evaluate": True}
    with Crowd(home, fork_server, target=3, size_min=2, **plan) as crowd:
        a, c = crowd.start(2)
        victim = crowd.join(kill={"apply": 1}, fault_every=6)
        assert victim.ended() == -9
        ends = crowd.finished(a, c)
        assert ends[0]["scheduler"] == 8
        require_plain(ends[0], **plan)
        for member in (a, c):
            assert [each["epoch"] for each in member.said("rate") if "done" not in each] == list(range(8))
