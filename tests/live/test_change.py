"""Members come and go while a script trains, and it comes to what it would have come to alone."""

from pathlib import Path

import pytest

from live.crowd import Crowd, ForkServer
from live.plain import plain
from live.scenes import Plan

SHORT = {"samples": 45, "batch": 8, "epochs": 3}  # the last step of an epoch has 5 samples


def weights_without_pliant(**plan: object) -> list[float]:
    return plain(Plan("", **plan))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)])
def test_every_size_comes_to_the_weights_of_plain_pytorch(home: Path, fork_server: ForkServer, size: int) -> None:
    with Crowd(home, fork_server, target=size, size_min=size, **SHORT) as crowd:
        members = crowd.start(size)
        end = crowd.finished(*members)[0]
        weights, losses = plain(Plan("", **SHORT))  # type: ignore[arg-type]
        assert end["weights"] == pytest.approx(weights, abs=1e-10)
        for member in members:
            assert [each["loss"] for each in member.steps] == pytest.approx(losses, abs=1e-10)
            assert [each["step"] for each in member.steps] == list(range(1, 19))


def test_members_join_and_leave_in_the_middle(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=1) as crowd:
        (a,) = crowd.start(1)
        a.in_world_of(1)
        crowd.resize(2)
        b = crowd.join()
        a.in_world_of(2)
        crowd.resize(3)
        c = crowd.join()
        c.in_world_of(3)
        crowd.drain(a)  # rank 0, who brought the state
        assert a.ended() == 0
        assert a.said("on_leave")
        b.in_world_of(2)
        ends = crowd.finished(b, c)
        assert ends[0]["weights"] == pytest.approx(weights_without_pliant(), abs=1e-9)
        assert [each["step"] for each in b.steps] == list(range(b.steps[0]["step"], 101))
        assert b.steps[0]["step"] > 1


def test_the_others_train_on_while_a_worker_computes_its_first_item(home: Path, fork_server: ForkServer) -> None:
    """The first item of a process takes long: kernels are loaded, or torch.compile compiles."""
    with Crowd(home, fork_server, target=2) as crowd:
        (a,) = crowd.start(1)
        crowd.wait(lambda: crowd.status.durable.step >= 3, "three durable steps", a)
        b = crowd.join(hold_first=True)
        assert b.tells("first_item")["first_item"] > 3
        a.reached(a.steps[-1]["step"] + 5)
        assert [line.id for line in crowd.status.members] == [a.name]
        crowd.go()
        a.in_world_of(2)
        ends = crowd.finished(a, b)
        assert ends[0]["weights"] == pytest.approx(weights_without_pliant(), abs=1e-9)
        assert crowd.audit().code == 0


def test_a_worker_joins_at_once_while_the_only_member_drains(home: Path, fork_server: ForkServer) -> None:
    """It is the one that can take the state, within the grace period."""
    with Crowd(home, fork_server, target=1) as crowd:
        (a,) = crowd.start(1)
        crowd.wait(lambda: crowd.status.durable.step >= 3, "three durable steps", a)
        crowd.drain(a)
        b = crowd.join(hold_first=True)
        crowd.wait(lambda: b.name in [line.id for line in crowd.status.members], "the replacement to join", b)
        crowd.go()
        assert a.ended() == 0
        b.in_world_of(1)
        assert b.steps[0]["step"] > 3
        crowd.finished(b)


def test_a_script_that_leaves_its_loop_in_the_first_item_joins_to_say_so(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=2) as crowd:
        (a,) = crowd.start(1)
        a.reached(1)
        b = crowd.join(leave_backward=1)
        assert b.ended() == 1
        assert "left" in b.log
        crowd.finished(a)
