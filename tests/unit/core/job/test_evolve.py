"""The effect of each event on each field of a job: `evolve` never refuses."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.evolve import FAILING_SLOTS_KEPT, evolve
from pliant.core.model.job import Accusation, Agent, Job, JobSpec, JobState, Member, Target, WorkerFailure
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import MemberId
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    X,
    Y,
    checkpoint,
    evolved,
    lines,
    member,
    new_job,
    poison,
    world,
)

ONE = world(1, A, B, C, kind=WorldKind.ROLLBACK)
TWO = world(2, A, B)
THREE = world(3, A, B, D)


def job(**changes: object) -> Job:
    """Three members train in 1; 2 leaves C out, 3 takes D in."""
    base = Job(
        "demo",
        JobSpec(1, 6),
        Target(6),
        terms=TERMS,
        state=JobState.RUNNING,
        members={name: member(name, number) for number, name in enumerate((A, B, C, D), 1)},
        joined=4,
        generation=3,
        current=1,
        worlds=(ONE, TWO, THREE),
        holders=frozenset({A, B, C}),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_first_event_creates_the_job() -> None:
    made = evolve(None, m.JobCreated(NOW, "demo", JobSpec(2, 4, Target(3), 60.0, 5)))
    assert made == Job("demo", JobSpec(2, 4, Target(3), 60.0, 5), Target(3), created_at=NOW, state_since=NOW)


@pytest.mark.parametrize("onward", [True, False])
def test_a_later_attempt_is_the_same_job(onward: bool) -> None:
    first = m.JobCreated(NOW, "demo", JobSpec(2, 4, Target(3), 60.0, 5))
    again = evolve(evolve(None, first), replace(first, at=NOW + 1.0, attempt=2, resumes=onward))
    assert (again.attempt, again.created_at) == (2, NOW)


def test_nothing_can_happen_before_a_job_is_created() -> None:
    with pytest.raises(ValueError, match="the first event of a job must be JobCreated"):
        evolve(None, m.TargetChanged(NOW, Target(1)))


SIMPLE: list[tuple[m.Event, dict[str, object]]] = [
    (m.TargetChanged(NOW, Target(2)), {"target": Target(2)}),
    (
        m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 3)),
        {"durable": lines(GENESIS, 1, 3)[2].lineage, "furthest_step": 3},
    ),
    (m.AgentJoined(NOW, X, 3), {"agents": (Agent(X, 3),)}),
    (m.HoldersChanged(NOW, 1, frozenset({B})), {"holders": frozenset({B})}),
    (m.CheckpointPublished(NOW, 1, checkpoint(GENESIS)), {"checkpoint": checkpoint(GENESIS)}),
    (m.SlotRaised(NOW, poison(A)), {"failing_slots": (poison(A),)}),
    (m.WorkerFailed(NOW, A, 1), {"failures": (WorkerFailure(NOW, 0),)}),
    (
        m.StateChanged(NOW, JobState.WAITING, "for you"),
        {"state": JobState.WAITING, "why": "for you", "state_since": NOW},
    ),
    (m.WorldBroken(NOW, 1, True, "torn"), {"broken": "torn"}),
    (m.WorldBroken(NOW, 1, True, "torn", stateless=True), {"broken": "torn", "stateless": True}),
    (m.WorldBroken(NOW, 2, False, "torn"), {"unenterable_generations": frozenset({2})}),
    (m.PairAccused(NOW, 2, A, B), {"accusations": (Accusation(A, B, (2,)),)}),
]


@pytest.mark.parametrize(("event", "changes"), SIMPLE, ids=lambda value: type(value).__name__)
def test_an_event_changes_what_it_says_and_nothing_else(event: m.Event, changes: dict[str, object]) -> None:
    assert evolve(job(), event) == job(**changes)


EARLIER = WorkerFailure(NOW - 9.0, 0)


def test_what_comes_again_is_added_or_replaced() -> None:
    then = evolved(
        job(failures=(EARLIER,), failing_slots=(poison(A),), unenterable_generations=frozenset({2})),
        m.WorkerFailed(NOW, A, 1),
        m.SlotRaised(NOW, poison(B)),
        m.WorldBroken(NOW, 3, False, "torn"),
    )
    assert then == job(
        failures=(EARLIER, WorkerFailure(NOW, 0)),
        failing_slots=(poison(A), poison(B)),
        unenterable_generations=frozenset({2, 3}),
    )


def test_only_a_step_further_than_ever_is_progress() -> None:
    """A job that goes back and comes as far again has made none."""
    three, four = (m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, count)) for count in (3, 4))
    behind = job(furthest_step=3, losses_without_progress=2)
    again = evolve(behind, three)
    assert (again.durable.step, again.furthest_step, again.losses_without_progress) == (3, 3, 2)
    further = evolve(behind, four)
    assert (further.durable.step, further.furthest_step, further.losses_without_progress) == (4, 4, 0)


def test_an_agent_that_joins_again_is_there_once() -> None:
    then = evolved(job(), m.AgentJoined(NOW, X, 3), m.AgentJoined(NOW, Y, 1), m.AgentJoined(NOW, X, 2))
    assert then == job(agents=(Agent(Y, 1), Agent(X, 2)))
    assert evolve(then, m.AgentGone(NOW, Y, "bye")) == job(agents=(Agent(X, 2),))


def test_something_that_happens_to_a_launch_needs_one() -> None:
    over = m.LaunchOver(NOW, 2, "x leaves")
    with pytest.raises(ValueError, match="no launch 2"):
        evolve(job(), over)
    other = job(launch=Launch(1, (), "the job starts"))
    with pytest.raises(ValueError, match="no launch 2"):
        evolve(other, over)


def test_a_launch_of_a_live_job_is_not_touched_by_what_agents_do() -> None:
    seats = (Seat(MemberId("x-g1.0"), X, "worker", "10.0.0.1:1"),)
    before = job(launch=Launch(1, seats, "the job starts"), agents=(Agent(X, 1),))
    for event in (m.AgentGone(NOW, X, "its lease ran out", lost=True), m.AgentJoined(NOW, X, 1, run_id="2")):
        assert evolve(before, event).launch == before.launch


def test_a_member_joins() -> None:
    fresh = Member(MemberId("late"), 9, Y, weight=2)
    before = replace(job(), terms=None)
    then = evolve(before, m.MemberJoined(NOW, fresh, TERMS))
    assert then == job(members={**job().members, fresh.id: fresh}, joined=9)


def test_a_member_drains() -> None:
    then = evolve(job(), m.MemberDraining(NOW, B, 30.0, "spot"))
    drained = Member(B, 2, X, draining=True, grace_s=30.0, why="spot")
    assert then == job(members={**job().members, B: drained})
    assert list(then.members) == [A, B, C, D]


def test_statelessness_is_not_forgotten_by_the_next_break() -> None:
    then = evolve(job(stateless=True), m.WorldBroken(NOW, 1, True, "torn", stateless=False))
    assert then == job(stateless=True, broken="torn")


# ------------------------------------------------------------------------------------------- a member goes


def without(name: MemberId) -> dict[MemberId, Member]:
    return {other: record for other, record in job().members.items() if other != name}


def test_a_member_that_goes_breaks_the_current_world_and_spoils_the_planned_ones() -> None:
    then = evolve(job(), m.MemberGone(NOW, B, "lost", "its lease ran out"))
    assert then == job(
        members=without(B),
        gone=(B,),
        holders=frozenset({A, C}),
        broken="b was lost: its lease ran out",
        unenterable_generations=frozenset({2, 3}),
        gone_in_open_worlds=frozenset({B}),
        losses_without_progress=1,
    )
    assert evolve(job(), m.MemberGone(NOW, B, "left", "as planned")).losses_without_progress == 0


def test_a_planned_world_that_was_entered_is_broken_like_any_other() -> None:
    before = job(worlds=(TWO, THREE), current=2)
    then = evolve(before, m.MemberGone(NOW, B, "lost", "gone"))
    assert (then.broken, then.unenterable_generations, then.gone_in_open_worlds) == (
        "b was lost: gone",
        frozenset({3}),
        frozenset({B}),
    )


def test_a_member_that_goes_from_a_planned_world_alone_breaks_nothing() -> None:
    then = evolve(job(), m.MemberGone(NOW, D, "left", "bye"))
    assert then == job(
        members=without(D), gone=(D,), unenterable_generations=frozenset({3}), gone_in_open_worlds=frozenset({D})
    )


def test_a_member_that_goes_from_a_sealing_world_breaks_it_entered_or_not() -> None:
    recovery = world(4, A, B, kind=WorldKind.RECOVERY)
    before = job(worlds=(recovery,), generation=4, sealed=3)
    then = evolve(before, m.MemberGone(NOW, A, "lost", "gone"))
    assert (then.broken, then.unenterable_generations, then.gone_in_open_worlds) == (
        "a was lost: gone",
        frozenset(),
        frozenset({A}),
    )


def test_a_member_that_goes_from_no_world_leaves_all_as_it_is() -> None:
    spare = job(worlds=(ONE, TWO), generation=2)
    then = evolve(spare, m.MemberGone(NOW, D, "left", "bye"))
    assert then == replace(spare, members=without(D), gone=(D,))


def test_the_first_reason_is_kept() -> None:
    then = evolve(job(broken="torn before"), m.MemberGone(NOW, A, "lost", "gone"))
    assert then.broken == "torn before"


def test_earlier_faults_and_deaths_are_kept() -> None:
    before = job(unenterable_generations=frozenset({2}), gone_in_open_worlds=frozenset({MemberId("x")}))
    then = evolve(before, m.MemberGone(NOW, D, "lost", "gone"))
    assert then.unenterable_generations == {2, 3}
    assert then.gone_in_open_worlds == {MemberId("x"), D}


def test_a_member_that_is_gone_is_not_accused_any_more() -> None:
    about = (Accusation(A, B, (2,)), Accusation(B, C, (2,)), Accusation(C, D, (3,)))
    then = evolve(job(accusations=about), m.MemberGone(NOW, B, "lost", "gone"))
    assert then.accusations == about[2:]


def test_the_departed_are_remembered_newest_last() -> None:
    many = tuple(MemberId(f"m{number}") for number in range(88))
    then = evolve(job(gone=many), m.MemberGone(NOW, D, "left", "bye"))
    assert then.gone == (*many[1:], D)
    assert evolve(job(gone=many[1:]), m.MemberGone(NOW, D, "left", "bye")).gone == (*many[1:], D)


# ------------------------------------------------------------------------------------------------- worlds


def test_a_planned_world_joins_the_open_ones() -> None:
    four = world(4, A)
    before = job(broken="torn", unenterable_generations=frozenset({3}), gone_in_open_worlds=frozenset({D}))
    assert evolve(before, m.WorldFormed(NOW, four)) == replace(before, generation=4, worlds=(ONE, TWO, THREE, four))


def torn() -> Job:
    return job(
        broken="torn",
        stateless=True,
        unenterable_generations=frozenset({3}),
        gone_in_open_worlds=frozenset({D}),
        durable=lines(GENESIS, 1, 2)[-1].lineage,
        accusations=(Accusation(A, B, (2,)),),
    )


def test_a_recovery_world_seals_every_lower_number() -> None:
    """Rule 4. What was durable stays, and so does what is known of pairs that cannot meet (rule 11)."""
    recovery = world(4, A, B, D, kind=WorldKind.RECOVERY, base=torn().durable)
    assert evolve(torn(), m.WorldFormed(NOW, recovery)) == replace(
        torn(),
        generation=4,
        sealed=3,
        worlds=(recovery,),
        broken="",
        stateless=False,
        unenterable_generations=frozenset(),
        gone_in_open_worlds=frozenset(),
        holders=frozenset({A, B}),
    )


def test_a_rollback_world_goes_back_to_its_base_and_no_member_holds_the_state() -> None:
    rollback = world(4, A, B, D, kind=WorldKind.ROLLBACK)
    assert evolve(torn(), m.WorldFormed(NOW, rollback)) == replace(
        torn(),
        generation=4,
        sealed=3,
        rollback_generation=4,
        worlds=(rollback,),
        broken="",
        stateless=False,
        unenterable_generations=frozenset(),
        gone_in_open_worlds=frozenset(),
        holders=frozenset(),
        durable=GENESIS,
    )


def test_entering_a_world_closes_the_ones_below_and_seals_nothing() -> None:
    before = job(
        broken="torn", stateless=True, unenterable_generations=frozenset({3}), gone_in_open_worlds=frozenset({C, D})
    )
    assert evolve(before, m.WorldEntered(NOW, 2)) == job(
        current=2, worlds=(TWO, THREE), unenterable_generations=frozenset({3}), gone_in_open_worlds=frozenset({D})
    )


def test_entering_a_faulty_world_breaks_it() -> None:
    before = job(unenterable_generations=frozenset({2, 3}), gone_in_open_worlds=frozenset({D}))
    assert evolve(before, m.WorldEntered(NOW, 3)) == job(
        current=3, worlds=(THREE,), broken="d is gone", gone_in_open_worlds=frozenset({D})
    )


def test_entering_a_world_that_could_not_be_wired_breaks_it() -> None:
    before = job(unenterable_generations=frozenset({3}))
    assert evolve(before, m.WorldEntered(NOW, 3)).broken == "not every member could enter it"


def test_entering_a_recovery_that_lost_a_member_leaves_it_broken() -> None:
    before = job(worlds=(world(3, A, C, kind=WorldKind.RECOVERY),), broken="c lost", gone_in_open_worlds=frozenset({C}))
    assert evolve(before, m.WorldEntered(NOW, 3)).broken == "c is gone"


def test_entering_a_world_ends_the_quarrels_of_pairs_within_it() -> None:
    about = (Accusation(A, B, (2,)), Accusation(A, C, (2,)), Accusation(C, D, (2,)), Accusation(B, D, (2,)))
    then = evolve(job(accusations=about), m.WorldEntered(NOW, 2))
    assert then.accusations == about[1:]
    assert evolve(then, m.WorldEntered(NOW, 3)).accusations == about[1:3]


# -------------------------------------------------------------------------------------------- accusations


def test_a_pair_is_accused_once_for_a_generation() -> None:
    then = evolved(job(), *(m.PairAccused(NOW, number, A, B) for number in (2, 2, 3)))
    assert then.accusations == (Accusation(A, B, (2, 3)),)


def test_every_pair_has_its_own_count() -> None:
    then = evolved(
        job(),
        m.PairAccused(NOW, 2, A, B),
        m.PairAccused(NOW, 2, A, C),
        m.PairAccused(NOW, 2, B, C),
        m.PairAccused(NOW, 3, A, B),
    )
    assert then.accusations == (
        Accusation(A, C, (2,)),
        Accusation(B, C, (2,)),
        Accusation(A, B, (2, 3)),
    )


def test_of_slots_that_raised_the_newest_are_kept() -> None:
    job = new_job()
    for step in range(1, FAILING_SLOTS_KEPT + 3):
        job = evolve(job, m.SlotRaised(NOW, poison(A, step)))
    assert [each.step for each in job.failing_slots] == list(range(3, FAILING_SLOTS_KEPT + 3))


def test_another_reason_of_the_same_state_does_not_change_since_when_it_is_in_it() -> None:
    waiting = evolve(job(), m.StateChanged(NOW, JobState.WAITING, "for a"))
    assert evolve(waiting, m.StateChanged(NOW + 9, JobState.WAITING, "for b")).state_since == NOW
    assert evolve(waiting, m.StateChanged(NOW + 9, JobState.RUNNING, "b joined")).state_since == NOW + 9
