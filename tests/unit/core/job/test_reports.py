"""Reports, checkpoints, and the fence they must pass (P6, rules 1, 5, 17, 24)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, has_consequences
from pliant.core.messages import Code, Command, Event, Rejection
from pliant.core.model.job import Job, JobSpec, JobState, Target
from pliant.core.model.names import MemberId
from unit.core.build import (
    GRID,
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    X,
    after,
    checkpoint,
    drain,
    evolved,
    formed,
    gathered,
    join,
    lines,
    made,
    member,
    new_job,
    pump,
    refused,
    report,
    running,
    stopped,
    world,
)

Asking = Callable[[Job, MemberId, int], Command]

FENCED: dict[str, Asking] = {
    "report": lambda job, by, number: m.Report(by, 0, number, ()),
    "stopped": lambda job, by, number: stopped(by, number),
    "wiring failed": lambda job, by, number: m.WiringFailed(by, number, None),
    "publish": lambda job, by, number: m.Publish(by, number, checkpoint(job.durable)),
}
fenced = pytest.mark.parametrize("ask", FENCED.values(), ids=FENCED.keys())


history = pytest.mark.parametrize("ask", [FENCED["report"], FENCED["publish"]], ids=["report", "publish"])
trouble = pytest.mark.parametrize("ask", [FENCED["stopped"], FENCED["wiring failed"]], ids=["stopped", "wiring failed"])


@trouble
def test_trouble_in_a_generation_that_is_over_is_no_news(ask: Asking) -> None:
    """It may be over by that very word, said again because its answer was lost."""
    job = after(running(3), stopped(B, 1))
    assert made(job, ask(job, B, 1)) == ()
    left = after(running(3), drain(C))
    left = after(left, report(left, A, 2))
    assert made(left, ask(left, A, 1)) == ()
    assert refused(job, ask(job, D, 1)).code is Code.SEALED  # no member's word


@history
def test_nothing_labelled_with_a_sealed_generation_is_accepted(ask: Asking) -> None:
    job = after(running(3), drain(C), stopped(B, 1))
    assert (job.sealed, job.worlds[0].number) == (2, 3)
    for number in (-1, 0, 1, 2):
        why = f"generation {number} is sealed; 3 is the lowest open one"
        assert refused(job, ask(job, A, number)) == Rejection(Code.SEALED, why)
    made(job, ask(job, A, 3))


@history
def test_a_generation_that_was_left_behind_is_not_open_any_more(ask: Asking) -> None:
    job = after(running(3), drain(C))
    made(job, ask(job, A, 1))
    job = after(job, report(job, A, 2))
    assert refused(job, ask(job, A, 1)) == Rejection(Code.PAST, "generation 1 is not open; 2 is current")
    made(job, ask(job, A, 2))


@fenced
def test_a_generation_that_does_not_exist_yet_is_not_open(ask: Asking) -> None:
    assert refused(running(3), ask(running(3), A, 2)) == Rejection(Code.PAST, "generation 2 is not open; 1 is current")


@fenced
def test_only_live_members_are_heard(ask: Asking) -> None:
    job = after(running(3), m.Expire(C))
    assert refused(job, ask(job, C, 2)) == Rejection(Code.GONE, "c is gone for good; join as a new member")
    assert refused(job, ask(job, D, 2)) == Rejection(Code.UNKNOWN, "d is not a member of demo; it never joined")


@pytest.mark.parametrize("rank", [-1, 0, 2, 3])
def test_a_report_comes_from_the_rank_it_says(rank: int) -> None:
    job = running(3)
    assert refused(job, m.Report(B, rank, 1, ())) == Rejection(Code.UNKNOWN, f"b is not rank {rank} of 1")


def test_a_member_that_is_not_in_a_world_cannot_report_for_it() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    for rank in (-1, 0, 1, 2):
        assert refused(job, m.Report(C, rank, 1, ())).code is Code.UNKNOWN


# ------------------------------------------------------------------------------------------------ progress


def test_committed_steps_become_durable() -> None:
    job = running(2)
    done = lines(job.durable, 1, 3)
    events = made(job, m.Report(B, 1, 1, done))
    assert events == (m.StepsCommitted(NOW, 1, B, done),)
    assert evolved(job, *events).durable == done[-1].lineage


def test_a_report_that_comes_twice_counts_once() -> None:
    """Rule 24: two members report each step where there are two."""
    job = running(2)
    done = lines(job.durable, 1, 3)
    job = after(job, m.Report(A, 0, 1, done))
    assert made(job, m.Report(A, 0, 1, done)) == ()
    assert made(job, m.Report(B, 1, 1, done)) == ()
    assert made(job, m.Report(B, 1, 1, done[2:])) == ()
    assert made(job, m.Report(B, 1, 1, done[:2])) == ()


def test_of_a_report_that_overlaps_only_what_is_new_counts() -> None:
    job = running(2)
    done = lines(job.durable, 1, 5)
    job = after(job, m.Report(A, 0, 1, done[:3]))
    assert made(job, m.Report(B, 1, 1, done[1:])) == (m.StepsCommitted(NOW, 1, B, done[3:]),)
    assert made(job, m.Report(B, 1, 1, done[3:4])) == (m.StepsCommitted(NOW, 1, B, done[3:4]),)


def test_another_history_of_a_durable_step_is_refused() -> None:
    """Rule 2: lineages are compared, never steps alone (H10)."""
    job = after(running(2), drain(B))
    first = lines(job.durable, 1, 2)
    job = after(job, m.Report(A, 0, 1, first))
    other = lines(first[0].lineage, 2, 2)
    why = "step 2 is durable with another history"
    assert refused(job, m.Report(A, 0, 2, other)) == Rejection(Code.MISMATCH, why)
    assert refused(job, m.Report(A, 0, 2, (first[1], other[0]))) == Rejection(Code.MISMATCH, why)


def test_a_gap_is_refused() -> None:
    job = running(2)
    done = lines(job.durable, 1, 4)
    assert refused(job, m.Report(A, 0, 1, done[1:])) == Rejection(Code.NOT_NEXT, "step 2 does not follow step 0")
    assert refused(job, m.Report(A, 0, 1, (*done[:2], done[3]))) == Rejection(
        Code.NOT_NEXT, "step 4 does not follow step 2"
    )


def test_a_line_that_was_altered_is_refused() -> None:
    job = running(2)
    [first] = lines(job.durable, 1, 1)
    for altered in (replace(first, samples=9), replace(first, position=1), replace(first, digest=0)):
        assert refused(job, m.Report(A, 0, 1, (altered,))).code is Code.NOT_NEXT


def test_a_step_on_top_of_another_history_is_refused() -> None:
    job = after(running(2), drain(B))
    first = lines(job.durable, 1, 1)
    other = lines(job.durable, 2, 2)
    job = after(job, m.Report(A, 0, 1, first))
    assert refused(job, m.Report(A, 0, 2, other[1:])) == Rejection(Code.NOT_NEXT, "step 2 does not follow step 1")


def test_a_recovery_world_may_report_what_was_applied_before_it() -> None:
    """Rules 12, 13: the winner's last step, applied in a sealed generation, is committed by the hello."""
    job = running(2)
    [last] = lines(job.durable, 1, 1)
    job = after(job, stopped(A, 1))
    [following] = lines(last.lineage, 2, 1)
    job = after(job, m.Report(A, 0, 2, (last, following)))
    assert job.durable == following.lineage


def test_the_steps_of_several_worlds_make_one_chain() -> None:
    job = running(3, steps=2)
    job = after(job, drain(C))
    job = after(job, report(job, A, 1, 1))
    job = after(job, report(job, B, 2, 2), m.Expire(C), m.Expire(B))
    job = after(job, report(job, A, 3, 1))
    assert (job.durable.step, job.durable.generation) == (6, 3)


# --------------------------------------------------------------------------------------- entering a world


def test_the_first_report_of_a_generation_makes_it_current() -> None:
    """Rule 5: members decide the switch; the coordinator hears of it."""
    job = after(running(3), drain(C))
    job, events = pump(job, report(job, B, 2, 1))
    assert events == (m.WorldEntered(NOW, 2), m.StepsCommitted(NOW, 2, B, lines(running(3).durable, 2, 1)))
    assert (job.current, job.sealed, [one.number for one in job.worlds]) == (2, 0, [2])
    assert made(job, report(job, A, 2)) == ()


def test_members_may_skip_a_planned_world() -> None:
    """H4: 2 was outnumbered by 3 while they wired; neither was withdrawn."""
    job = after(running(4), drain(C), drain(D))
    assert [one.number for one in job.worlds] == [1, 2, 3]
    skipped = after(job, report(job, A, 3))
    assert (skipped.current, [one.number for one in skipped.worlds]) == (3, [3])
    one_by_one = after(job, report(job, A, 2))
    assert (one_by_one.current, [one.number for one in one_by_one.worlds]) == (2, [2, 3])


def test_who_is_in_no_open_world_any_more_is_no_longer_mourned() -> None:
    job = after(running(4), drain(D), m.Leave(D, 0, "out of time"))
    assert job.gone_in_open_worlds == frozenset()
    job = after(running(2, new_job(2)), join(C), m.Expire(C))
    assert job.gone_in_open_worlds == {C}
    assert after(job, report(job, A, 3)).gone_in_open_worlds == frozenset()


def test_a_world_that_can_be_entered_ends_the_quarrel_of_a_pair_in_it() -> None:
    """Rule 11: what counts is that they cannot reach one another; they just did."""
    job = after(running(2), join(C), m.WiringFailed(A, 2, C))
    assert [(x.a, x.b) for x in job.accusations] == [(A, C)]
    assert after(job, report(job, A, 3)).accusations == ()


def test_a_world_without_one_of_the_two_says_nothing_about_the_pair() -> None:
    job = after(running(2), join(C), m.WiringFailed(A, 2, C))
    job = after(job, drain(C))
    assert formed(job, 4).members == (A, B)
    job = after(job, report(job, A, 4))
    assert [(x.a, x.b) for x in job.accusations] == [(A, C)]


# ------------------------------------------------------------------------------------------------- holders


def test_a_report_says_who_holds_the_state() -> None:
    job = gathered(3)
    job, events = pump(job, report(job, A, 1, holders=(A, B)))
    assert events[:2] == (m.WorldEntered(NOW, 1), m.HoldersChanged(NOW, 1, frozenset({A, B})))
    assert job.holders == {A, B}
    assert made(job, report(job, A, 1, holders=(A, B))) == ()
    assert made(job, report(job, A, 1)) == ()
    assert made(job, report(job, B, 1, holders=(A, B, C))) == (m.HoldersChanged(NOW, 1, frozenset({A, B, C})),)
    assert made(job, report(job, B, 1, holders=())) == (m.HoldersChanged(NOW, 1, frozenset()),)


def test_the_gone_hold_nothing_whatever_a_late_report_says() -> None:
    job = after(running(3, new_job(3)), m.Expire(C))
    assert job.holders == {A, B}
    assert made(job, report(job, A, 2, holders=(A, B, C, D))) == (m.WorldEntered(NOW, 2),)


def test_holders_come_before_the_steps_they_hold() -> None:
    job = after(running(2), join(C))
    events = made(job, report(job, A, 2, 1, holders=(A, B, C)))
    assert [type(event) for event in events] == [m.WorldEntered, m.HoldersChanged, m.StepsCommitted]


# ------------------------------------------------------------------------------------------------- the end


def test_the_job_is_finished_when_its_last_step_is_durable_and_not_before() -> None:
    total = GRID.total_steps
    job = running(2, steps=total - 1)
    assert job.state is JobState.RUNNING
    job, events = pump(job, report(job, A, 1, 1))
    assert events[1:] == (m.StateChanged(NOW, JobState.FINISHED, f"all {total} steps are committed"),)
    assert (job.state, job.durable.step) == (JobState.FINISHED, total)


# --------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_of_a_durable_step_becomes_the_newest() -> None:
    job = running(2, steps=3)
    kept = checkpoint(job.durable)
    assert made(job, m.Publish(B, 1, kept)) == (m.CheckpointPublished(NOW, 1, kept),)
    assert after(job, m.Publish(B, 1, kept)).checkpoint == kept


def test_a_checkpoint_of_an_earlier_step_may_still_come() -> None:
    done = lines(running(2).durable, 1, 3)
    job = after(running(2), m.Report(A, 0, 1, done))
    kept = checkpoint(done[1].lineage)
    assert made(job, m.Publish(B, 1, kept)) == (m.CheckpointPublished(NOW, 1, kept),)


def test_a_checkpoint_beyond_the_durable_step_is_refused() -> None:
    """H1: only committed steps are published."""
    job = running(2, steps=3)
    ahead = lines(job.durable, 1, 1)[0].lineage
    why = "step 4 must be reported before its checkpoint"
    assert refused(job, m.Publish(A, 1, checkpoint(ahead))) == Rejection(Code.NOT_NEXT, why)


def test_a_checkpoint_of_another_history_is_refused() -> None:
    """H5: equal step, other lineage."""
    job = running(2, steps=3)
    other = replace(job.durable, digest=job.durable.digest ^ 1)
    why = "step 3 must be reported before its checkpoint"
    assert refused(job, m.Publish(A, 1, checkpoint(other))) == Rejection(Code.NOT_NEXT, why)


def test_only_a_newer_checkpoint_replaces_the_newest() -> None:
    done = lines(running(2).durable, 1, 3)
    job = after(running(2), m.Report(A, 0, 1, done), m.Publish(A, 1, checkpoint(done[1].lineage, "first")))
    for step in (0, 1):
        assert made(job, m.Publish(B, 1, checkpoint(done[step].lineage, "second"))) == ()
    later = checkpoint(done[2].lineage, "second")
    assert made(job, m.Publish(B, 1, later)) == (m.CheckpointPublished(NOW, 1, later),)


# ------------------------------------------------------------------------------- what moves the membership


def test_progress_alone_moves_no_membership() -> None:
    job = running(2, steps=1)
    committed = m.StepsCommitted(NOW, 1, A, lines(job.durable, 1, 1))
    assert not changes_membership(())
    assert not changes_membership((committed, committed))
    others: list[Event] = [
        m.CheckpointPublished(NOW, 1, checkpoint(job.durable)),
        m.JobCreated(NOW, "demo", JobSpec(1, 1, Target(1))),
        m.TargetChanged(NOW, Target(1)),
        m.AgentJoined(NOW, X, 1),
        m.MemberGone(NOW, A, "lost", ""),
        m.MemberJoined(NOW, member(A, 1), TERMS),
        m.WorldEntered(NOW, 1),
        m.WorldFormed(NOW, world(2, A)),
        m.HoldersChanged(NOW, 1, frozenset()),
        m.StateChanged(NOW, JobState.RUNNING, ""),
    ]
    for other in others:
        assert changes_membership((other,))
        assert changes_membership((committed, other, committed))
        assert has_consequences((committed, other))
    part = m.PartWritten(NOW, 1, A, checkpoint(job.durable), 0, 2)
    assert changes_membership((part,))
    assert not has_consequences((committed, part))


def test_a_checkpoint_with_a_name_that_fits_nowhere_is_refused() -> None:
    job = running(2, steps=1)
    long = m.Publish(A, 1, checkpoint(job.durable, "x" * 256))
    assert refused(job, long) == Rejection(Code.BAD, "a checkpoint's name must have up to 255 characters")
    assert made(job, m.Publish(A, 1, checkpoint(job.durable, "x" * 255)))
