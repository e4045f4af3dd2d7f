"""Joining: who may, and what it sets in motion."""

import pytest

from pliant.core import messages as m
from pliant.core.grid import Grid
from pliant.core.ledger import GENESIS
from pliant.core.limits import WEIGHT_MAX
from pliant.core.messages import Code, Rejection
from pliant.core.model import AgentId, JobState, Kind, Member, MemberId, MemberState, Terms, member_state
from unit.core.build import (
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    X,
    Y,
    after,
    formed,
    gathered,
    join,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    world,
)

OTHER_TERMS = [
    Terms(Grid(61, 10, 6, 2), seed=7),
    Terms(TERMS.grid, seed=8),
    Terms(TERMS.grid, seed=7, checkpoint_every=1),
]


def test_the_first_member_fixes_the_terms() -> None:
    job = new_job(2)
    assert job.terms is None
    assert made(job, join(A, Y, weight=3)) == (m.MemberJoined(NOW, Member(A, 1, Y, 3), TERMS),)
    job = after(job, join(A, Y, weight=3))
    assert job.terms == TERMS
    assert (job.members, job.joined) == ({A: Member(A, 1, Y, 3)}, 1)


@pytest.mark.parametrize("terms", OTHER_TERMS)
def test_whoever_would_train_with_other_terms_is_refused(terms: Terms) -> None:
    job = after(new_job(2), join(A))
    for name in (A, B):  # also the member that is in already: its process was started anew with other data
        refusal = refused(job, join(name, terms=terms))
        assert refusal.code is Code.MISMATCH
        assert refusal.why == f"{name} would train with {terms}, the job with {TERMS}: make them equal"


def test_members_are_numbered_as_they_join_and_numbers_are_not_used_again() -> None:
    job = after(new_job(3), join(A), join(B), m.Leave(B, 0, "bye"), join(C))
    assert {name: one.number for name, one in job.members.items()} == {A: 1, C: 3}
    assert job.joined == 3


def test_joining_twice_is_joining_once() -> None:
    job = after(new_job(2), join(A))
    assert made(job, join(A)) == ()
    assert made(job, join(A, Y, weight=0)) == ()  # the answer to the first was lost; nothing is judged again


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1])
def test_a_member_must_weigh_something(weight: int) -> None:
    why = f"a member's weight is 1 to 1000000; got {weight}"
    assert refused(new_job(), join(A, weight=weight)) == Rejection(Code.BAD, why)
    assert made(new_job(), join(A, weight=WEIGHT_MAX))


def test_a_member_and_its_agent_have_names_that_fit_into_an_address() -> None:
    assert refused(new_job(), join(MemberId("a b"))).code is Code.BAD
    assert refused(new_job(), join(A, AgentId("a b"))).code is Code.BAD


def test_gone_for_good_means_not_under_that_name() -> None:
    """Rule 11: lost is final; that process may come back only as a new member without state (H10)."""
    job = after(running(3), m.Expire(C))
    assert refused(job, join(C)) == Rejection(Code.GONE, "c is gone for good; join as a new member")
    assert made(job, join(D)) == (m.MemberJoined(NOW, Member(D, 4, X), TERMS),)


def test_that_a_name_is_gone_is_said_before_anything_else() -> None:
    job = after(running(3), m.Expire(C))
    assert refused(job, join(C, terms=OTHER_TERMS[0], weight=0)).code is Code.GONE


def test_no_world_forms_below_min() -> None:
    job = new_job(3)
    for count, name in enumerate((A, B), 1):
        job, events = pump(job, join(name))
        why = f"{count} of at least 3 members; the job starts"
        assert events[1:] == (m.StateChanged(NOW, JobState.WAITING, why),)
        assert job.generation == 0


def test_the_first_world_forms_at_exactly_min_and_starts_from_nothing() -> None:
    job, events = pump(after(new_job(3), join(A), join(B, weight=2)), join(C))
    first = formed(job, 1)
    assert (first.number, first.kind, first.members) == (1, Kind.ROLLBACK, (A, B, C))
    assert (first.weights, first.base, first.hold, first.why) == ((1, 2, 1), GENESIS, False, "the job starts")
    assert events[1:] == (
        m.WorldFormed(NOW, first),
        m.StateChanged(NOW, JobState.STARTING, "the job starts"),
    )
    assert (job.generation, job.current, job.sealed) == (1, 0, 0)


def test_nobody_is_added_to_a_first_world_that_has_not_reported() -> None:
    job, events = pump(gathered(2), join(C))
    assert events == (m.MemberJoined(NOW, Member(C, 3, X), TERMS),)
    assert job.worlds == gathered(2).worlds
    assert member_state(job, C) is MemberState.JOINING


def test_the_first_report_makes_the_job_run_and_lets_the_late_in() -> None:
    job = after(gathered(2), join(C))
    job, events = pump(job, report(job, B, 1, holders=(A, B)))
    second = world(2, A, B, C, why="c in")
    assert events == (
        m.WorldEntered(NOW, 1),
        m.HoldersChanged(NOW, 1, frozenset({A, B})),
        m.WorldFormed(NOW, second),
        m.StateChanged(NOW, JobState.RUNNING, "c in"),
    )
    assert [one.number for one in job.worlds] == [1, 2]
    assert (job.current, job.sealed) == (1, 0)


def test_a_joiner_never_stops_who_trains() -> None:
    """Rules 5, 8: another membership is planned while the present one goes on, and entered by the switch."""
    before = running(2, steps=3)
    job, events = pump(before, join(C))
    assert formed(job, 2).kind is Kind.PLANNED
    assert formed(job, 2).base == before.durable
    assert formed(job, 1) == formed(before, 1)
    assert not any(isinstance(event, m.WorldBroken | m.WorldEntered) for event in events)
    assert member_state(job, C) is MemberState.JOINING
    assert member_state(job, A) is MemberState.ACTIVE


def test_who_joins_beyond_the_target_is_a_spare() -> None:
    job, events = pump(running(2, new_job(1, 6, 2)), join(C))
    assert events == (m.MemberJoined(NOW, Member(C, 3, X), TERMS),)
    assert len(job.worlds) == 1
    assert member_state(job, C) is MemberState.SPARE
