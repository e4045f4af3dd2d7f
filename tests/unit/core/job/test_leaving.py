"""Draining and leaving: planned, so nothing is lost (P2)."""

import pytest

from pliant.core import messages as m
from pliant.core.job.assignment import desired_workers
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import Job, JobState, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState, member_state
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    A,
    B,
    C,
    D,
    X,
    Y,
    Z,
    after,
    drain,
    evolved,
    formed,
    join,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    world,
)


def test_a_draining_member_is_left_out_of_the_next_world_and_trains_on_in_this_one() -> None:
    before = running(3, steps=2)
    job, events = pump(before, drain(B, 30.0, "spot notice"))
    next_world = world(2, A, C, base=before.durable, why="b leaves")
    assert events == (
        m.MemberDraining(NOW, B, 30.0, "spot notice"),
        m.CheckpointRequested(NOW, 2, "a member is leaving"),
        m.WorldFormed(NOW, next_world),
        m.StateChanged(NOW, JobState.RUNNING, "b leaves"),
    )
    record = job.members[B]
    assert (record.draining, record.grace_s, record.why) == (True, 30.0, "spot notice")
    assert job.worlds == (formed(before, 1), next_world)
    assert member_state(job, B) is MemberState.DRAINING
    assert B in job.holders


def test_a_second_notice_does_not_stretch_the_deadline() -> None:
    job = after(running(3), drain(B, 30.0))
    assert made(job, drain(B, 90.0)) == ()
    assert job.members[B].grace_s == 30.0


def test_only_members_can_be_drained() -> None:
    job = after(running(3), m.Expire(C))
    assert refused(job, drain(C)) == Rejection(Code.GONE, "c is gone for good; join as a new member")
    assert refused(job, drain(D)) == Rejection(Code.UNKNOWN, "d is not a member of demo; it never joined")


def test_a_spare_that_drains_moves_no_world() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    job, events = pump(job, drain(C))
    assert events == (m.MemberDraining(NOW, C, 30.0, "spot notice"),)
    assert member_state(job, C) is MemberState.DRAINING


def on_agents(*agents: AgentId) -> Job:
    """A running job with one member on each of these agents."""
    job = new_job()
    job, _ = pump(job, *(join(name, agent) for name, agent in zip((A, B, C), agents, strict=True)))
    return after(job, report(job, A, 1, holders=(A, B, C)))


def test_an_agent_that_drains_takes_every_member_on_it_along() -> None:
    job = after(on_agents(X, Y, X), drain(C, 9.0))
    assert made(job, m.DrainAgent(X, 9.0, "maintenance")) == (m.MemberDraining(NOW, A, 9.0, "maintenance"),)
    assert made(job, m.DrainAgent(Y, 9.0, "maintenance")) == (m.MemberDraining(NOW, B, 9.0, "maintenance"),)
    job = after(job, m.DrainAgent(X, 9.0, "maintenance"))
    assert [name for name, one in job.members.items() if one.draining] == [A, C]
    assert [job.members[A].grace_s, job.members[C].grace_s] == [9.0, 9.0]
    assert made(job, m.DrainAgent(X, 99.0, "maintenance")) == ()


def test_a_later_shorter_grace_period_replaces_a_longer_one() -> None:
    job = after(on_agents(X, Y, X), m.AgentJoin(X, 4), m.DrainAgent(X, 30.0, "spot", immediate=True, leave=True))
    assert made(job, m.DrainAgent(X, 30.0, "spot", leave=True)) == ()
    assert made(job, drain(A, 31.0)) == ()
    assert made(job, drain(A, 5.0)) == (m.MemberDraining(NOW, A, 5.0, "spot notice", immediate=True),)
    job = after(job, m.DrainAgent(X, 8.0, "now", leave=True))
    assert [job.members[name].grace_s for name in (A, C)] == [8.0, 8.0]
    assert job.members[A].immediate  # as before: less time is no reason to train on
    assert [(agent.draining, agent.grace_s) for agent in job.agents] == [(True, 8.0)]


def test_an_agent_of_a_live_job_leaves_only_if_that_is_asked_for() -> None:
    job = after(on_agents(X, Y, X), m.AgentJoin(X, 4), m.AgentJoin(Y, 4))
    stays = after(job, m.DrainAgent(X, 9.0, "maintenance"))
    assert [agent.draining for agent in stays.agents] == [False, False]
    assert made(job, m.DrainAgent(X, 9.0, "maintenance", leave=True))[0] == m.AgentDraining(NOW, X, 9.0, "maintenance")
    leaves = after(job, m.DrainAgent(X, 9.0, "maintenance", leave=True))
    assert [agent.draining for agent in leaves.agents] == [True, False]
    assert desired_workers(stays) == {X: 3, Y: 3}
    assert desired_workers(leaves) == {X: 0, Y: 4}
    assert desired_workers(after(leaves, m.AgentJoin(X, 4, run_id="another"))) == {X: 3, Y: 3}


def test_an_agent_without_members_drains_at_once() -> None:
    job = after(on_agents(X, X, X), m.AgentJoin(Y, 1))
    assert made(job, m.DrainAgent(Y, 9.0, "maintenance")) == ()


def test_an_agent_that_no_member_knows_cannot_be_drained() -> None:
    job = after(on_agents(X, X, X), m.AgentJoin(Y, 1))
    assert refused(job, m.DrainAgent(Z, 9.0, "maintenance")) == Rejection(
        Code.UNKNOWN, "no agent z and no member on it"
    )


def test_a_released_leaver_makes_the_next_world_current_and_breaks_nothing() -> None:
    """Rules 5, 9: a collective completed in the next world, or no member would have let it go."""
    job = after(running(3), drain(B))
    job, events = pump(job, m.Leave(B, 2, "left as planned"))
    assert events == (m.WorldEntered(NOW, 2), m.MemberGone(NOW, B, "left", "left as planned"))
    assert (job.current, [one.number for one in job.worlds]) == (2, [2])
    assert (job.broken, job.gone_in_open_worlds, job.unenterable_generations) == ("", frozenset(), frozenset())
    assert list(job.members) == [A, C]
    assert job.gone == (B,)
    assert job.holders == {A, C}


def test_a_leaver_released_by_the_current_world_does_not_enter_it_again() -> None:
    job = after(running(3), drain(B))
    job = after(job, report(job, A, 2))
    assert made(job, m.Leave(B, 2, "left as planned")) == (m.MemberGone(NOW, B, "left", "left as planned"),)


@pytest.mark.parametrize("released", [0, 7])
def test_a_member_that_leaves_without_being_released_breaks_its_world(released: int) -> None:
    """Rule 16: a drain that cannot reach a boundary in its grace period is a crash at its deadline (H26)."""
    job = after(running(3), drain(B))
    job, events = pump(job, m.Leave(B, released, "out of time"))
    recovery = world(3, A, C, kind=WorldKind.RECOVERY, why="b left: out of time")
    assert events == (
        m.MemberGone(NOW, B, "left", "out of time"),
        m.WorldFormed(NOW, recovery),
        m.StateChanged(NOW, JobState.RUNNING, "b left: out of time"),
    )
    assert (job.worlds, job.sealed) == ((recovery,), 2)


def test_a_release_by_a_sealed_generation_means_nothing() -> None:
    job = after(running(3), drain(B), m.Suspect(A))
    assert job.sealed == 2
    assert made(job, m.Leave(B, 2, "left as planned")) == (m.MemberGone(NOW, B, "left", "left as planned"),)


def test_leaving_twice_is_leaving_once() -> None:
    job = after(running(3), drain(B), m.Leave(B, 2, "left as planned"))
    assert made(job, m.Leave(B, 2, "left as planned")) == ()
    assert made(job, m.Leave(D, 2, "left as planned")) == ()


def test_a_spare_leaves_without_a_trace() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    left = after(job, m.Leave(C, 0, "no longer needed"))
    assert left.worlds == job.worlds
    assert (left.broken, left.gone_in_open_worlds, left.gone) == ("", frozenset(), (C,))


def test_a_spare_takes_a_leaver_s_place_at_one_boundary() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C), drain(A))
    assert formed(job, 2).members == (C, B)
    assert member_state(job, C) is MemberState.JOINING


def test_shrinking_leaves_out_the_youngest() -> None:
    job = after(running(4), m.Resize(Target(2)))
    assert formed(job, 2).members == (A, B)
    assert formed(job, 2).why == "c, d leave"


def test_the_departed_are_remembered_up_to_a_limit_oldest_first_forgotten() -> None:
    job = after(running(1, new_job(1, 1)))
    for number in range(69):
        name = MemberId(f"spare-{number}")
        job = evolved(job, *made(job, join(name)))
        job = evolved(job, *made(job, m.Leave(name, 0, "bye")))
    assert len(job.gone) == 68  # 64 + 4 * max
    assert (job.gone[0], job.gone[-1]) == ("spare-1", "spare-68")


def test_every_member_leaving_at_once_is_told_and_no_member_is_let_go() -> None:
    """Rule 16: no holder goes before another one, or a checkpoint, has the state (H11)."""
    job = after(running(2), drain(A))
    job, events = pump(job, drain(B))
    why = "every member is leaving, and no other member can take over the state"
    assert events[1:] == (m.StateChanged(NOW, JobState.RUNNING, why),)
    assert [one.number for one in job.worlds] == [1, 2]
