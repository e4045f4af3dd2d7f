"""Refusals of reports about sealed worlds and disowned steps (rules 5, 11, 17, 18)."""

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, LedgerLine
from pliant.core.messages import Code, Command, Rejection
from pliant.core.model.job import Job, JobState, Target
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    A,
    B,
    C,
    D,
    E,
    X,
    Y,
    after,
    checkpoint,
    drain,
    join,
    lines,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    stopped,
)


def with_a_spare() -> Job:
    """A and B at work, C a spare."""
    return after(running(2, new_job(1, 6, 2)), join(C))


@pytest.mark.parametrize(
    "command",
    [stopped(C, 1), m.Publish(C, 1, checkpoint(GENESIS)), m.WiringFailed(C, 1, A)],
    ids=lambda command: type(command).__name__,
)
def test_only_members_of_a_world_speak_for_it(command: Command) -> None:
    assert refused(with_a_spare(), command) == Rejection(Code.UNKNOWN, "c is not in generation 1")


@pytest.mark.parametrize("peer", [A, D])
def test_no_member_is_barred_by_an_accusation_that_makes_no_sense(peer: str) -> None:
    """Neither of oneself, nor of a member that is not in that world."""
    job = after(running(3, new_job(1, 6, 3)), join(D))
    for _ in range(4):
        job = after(job, m.WiringFailed(A, job.worlds[-1].number, peer))  # type: ignore[arg-type]
    assert set(job.members) == {A, B, C, D}
    assert job.accusations == ()


def test_a_report_brings_no_step_of_a_generation_above_its_own() -> None:
    job = running(2)
    above = lines(job.durable, 9, 1)
    assert refused(job, m.Report(A, 0, 1, above)) == Rejection(Code.MISMATCH, "step 1 was applied in 9, not in 1 to 1")


def rolled_back() -> tuple[Job, tuple[LedgerLine, ...]]:
    """Generation 1 reported two steps; then no member held the state, and generation 2 began afresh."""
    job = running(2)
    old = lines(job.durable, 1, 2)
    job = after(job, m.Report(A, 0, 1, old), stopped(A, 1, stateless=True))
    assert (job.worlds[0].kind, job.durable, job.rollback_generation) == (WorldKind.ROLLBACK, GENESIS, 2)
    return job, old


def test_what_a_rollback_disowned_is_not_taken_again_as_progress() -> None:
    """Rule 18: the steps would even fit, since both histories begin at the same base."""
    job, old = rolled_back()
    assert refused(job, m.Report(A, 0, 2, old)) == Rejection(Code.MISMATCH, "step 1 was applied in 1, not in 2 to 2")


def test_what_a_rollback_disowned_is_not_published() -> None:
    """Rule 17: the newest checkpoint is the newest on the current lineage."""
    job, old = rolled_back()
    job = after(job, report(job, A, 2, 3))
    assert refused(job, m.Publish(A, 2, checkpoint(old[1].lineage))) == Rejection(
        Code.MISMATCH, "step 2 of 1 was rolled back by 2"
    )
    own = job.durable
    assert made(job, m.Publish(A, 2, checkpoint(own))) == (m.CheckpointPublished(NOW, 2, checkpoint(own)),)


def test_a_checkpoint_that_comes_while_waiting_for_a_rollback_changes_what_is_waited_for() -> None:
    job = running(2, new_job(2), steps=3)
    job = after(job, m.Expire(B), stopped(A, 2, stateless=True))
    assert job.state is JobState.WAITING
    assert "back to step 0" in job.why
    job = after(job, m.Publish(A, 2, checkpoint(job.durable)))
    assert "back to step 3" in job.why


def test_old_and_new_together_hold_if_they_are_too_few() -> None:
    """Rule 16 asks for both in one world, and min for more than that: it must not train."""
    job = after(running(4, new_job(4)), drain(A), drain(B), drain(C), drain(D), join(E))
    newest = job.worlds[-1]
    assert (newest.members, newest.hold) == ((D, E), True)
    assert newest.why.startswith("2 of the 4 workers needed")


def test_a_placement_on_another_agent_hands_the_state_over_first() -> None:
    job = pump(new_job(), join(A, X), join(B, X))[0]
    job = after(job, report(job, A, 1, holders=(A, B)))
    job = after(job, m.Resize(Target(2, ((Y, 2),))), join(C, Y), join(D, Y))
    assert job.worlds[-1].members == (A, B, C, D)
    job = after(job, report(job, A, job.worlds[-1].number, holders=(A, B, C, D)))
    assert set(job.worlds[-1].members) == {C, D}


def test_a_placement_names_each_agent_once() -> None:
    assert refused(new_job(1), m.Resize(Target(4, ((X, 2), (X, 2))))) == Rejection(
        Code.BAD, "a placement must name each agent once"
    )


@pytest.mark.parametrize("grace_s", [-1.0, float("inf"), float("nan"), 30 * 86400.0 + 1])
def test_a_grace_period_is_a_time_one_can_wait(grace_s: float) -> None:
    job = after(running(2), m.AgentJoin(X, 2))
    why = f"a grace period must be 0 to 2.592e+06 s; got {grace_s}"
    assert refused(job, m.Drain(A, grace_s, "x")) == Rejection(Code.BAD, why)
    assert refused(job, m.DrainAgent(X, grace_s, "x")) == Rejection(Code.BAD, why)


@pytest.mark.parametrize("grace_s", [0.0, 30 * 86400.0])
def test_the_shortest_and_the_longest_grace_period_are_taken(grace_s: float) -> None:
    assert made(running(2), m.Drain(A, grace_s, "x"))[0] == m.MemberDraining(NOW, A, grace_s, "x")
