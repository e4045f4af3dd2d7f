"""Poison slots, workers that fail, groups that cannot be wired (rules 11, 20)."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.decide import SAMPLES_NAMED
from pliant.core.job.evolve import evolve
from pliant.core.job.failures import FAILURE_WINDOW_S, counted_failures
from pliant.core.job.launches import FENCED_CODE, STUCK_CODE
from pliant.core.job.next_world import STOP_GRACE_S
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import Accusation, FailingSlots, JobState, WorkerFailure
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    A,
    B,
    C,
    D,
    after,
    drain,
    evolved,
    formed,
    join,
    made,
    new_job,
    poison,
    pump,
    refused,
    report,
    running,
    stopped,
    world,
)
from unit.core.launched import two_by_two

RAISED = "slot 2 of step 3 raised: ValueError: bad sample"

# --------------------------------------------------------------------------------------------- poison slots


def test_a_slot_that_raises_costs_the_member_it_raised_on() -> None:
    job, events = pump(running(3), m.Raised(poison(B)))
    assert events[:4] == (
        m.SlotRaised(NOW, poison(B)),
        m.WorkerFailed(NOW, B, 1),
        m.MemberGone(NOW, B, "lost", RAISED),
        m.WorldFormed(NOW, world(2, A, C, kind=WorldKind.RECOVERY, why=f"b was lost: {RAISED}")),
    )
    assert job.failing_slots == (poison(B),)
    assert (job.state, len(job.failures)) == (JobState.RUNNING, 1)
    assert made(job, m.Exited(B, 1)) == ()  # its end was counted already


def stops(events: tuple[m.Event, ...]) -> m.StateChanged:
    """The event by which a job stops, to fail once its members have saved."""
    [change] = [event for event in events if isinstance(event, m.StateChanged)]
    assert (change.state, change.ends_as) == (JobState.STOPPING, JobState.FAILED)
    return change


def test_a_slot_that_raises_on_two_members_fails_the_job_and_names_its_samples() -> None:
    """Rule 20: the others save their state; no other member is given the slot."""
    job = after(running(3), m.Raised(poison(B)))
    why = "slot 2 of step 3 raised on b and on c; the samples are 17, 4: ValueError: bad sample"
    job, events = pump(job, m.Raised(poison(C)))
    assert events[:4] == (
        m.SlotRaised(NOW, poison(C)),
        m.MemberGone(NOW, C, "lost", "its user code raised"),
        m.StateChanged(NOW, JobState.STOPPING, why, JobState.FAILED),
        m.MemberDraining(NOW, A, STOP_GRACE_S, why, immediate=True),
    )
    assert (job.state, job.why, list(job.members)) == (JobState.STOPPING, why, [A])
    assert (job.worlds[0].kind, job.worlds[0].members) == (WorldKind.RECOVERY, (A,))
    job = after(job, m.Leave(A, 0, "left as planned"))
    assert (job.state, job.why) == (JobState.FAILED, why)


@pytest.mark.parametrize("other", [poison(C, step=4), poison(C, slot=1), poison(C, step=2, slot=3)])
def test_two_different_slots_that_raise_are_no_pattern(other: FailingSlots) -> None:
    job = after(running(4), m.Raised(poison(B)))
    assert [type(event) for event in made(job, m.Raised(other))] == [
        m.SlotRaised,
        m.WorkerFailed,
        m.MemberGone,
    ]


def test_whole_parts_that_raise_are_compared_and_what_they_share_is_named() -> None:
    """A worker computes many slots at once and cannot tell which of them raised."""
    first = FailingSlots(3, (0, 1, 2, 5), ((1, 2), (3,), (4,), (5,)), B, "ValueError")
    job = after(running(4), m.Raised(first))
    apart = FailingSlots(3, (3, 4), ((7,), (8,)), C, "ValueError")
    assert made(job, m.Raised(apart))[-1] == m.MemberGone(NOW, C, "lost", "step 3 raised: ValueError")
    shared = FailingSlots(3, (5, 3, 0), ((5,), (7,), (1, 2)), D, "KeyError: 9")
    why = "step 3 raised on b and on d; the samples are 5, 1, 2: KeyError: 9"
    assert stops(made(job, m.Raised(shared))).why == why


def test_of_very_many_samples_the_first_are_named() -> None:
    many = tuple(range(SAMPLES_NAMED + 9))
    job = after(running(4), m.Raised(replace(poison(B), samples=(many,))))
    events = made(job, m.Raised(replace(poison(C), samples=(many,))))
    assert f"the samples are {', '.join(map(str, many[:SAMPLES_NAMED]))}: Val" in stops(events).why


@pytest.mark.parametrize(("slots", "samples"), [((), ()), ((1,), ()), ((1,), ((2,), (3,)))])
def test_who_raises_says_on_which_slots_and_samples(
    slots: tuple[int, ...], samples: tuple[tuple[int, ...], ...]
) -> None:
    refusal = refused(running(3), m.Raised(FailingSlots(3, slots, samples, B, "ValueError")))
    assert refusal.code is Code.BAD
    assert refusal.why.endswith(f"got {len(slots)} slots and the samples of {len(samples)}")


def test_every_earlier_slot_is_compared_not_only_the_last() -> None:
    job = after(running(4), m.Raised(poison(B)), m.Raised(poison(C, slot=1)))
    assert len(job.failing_slots) == 2
    why = "slot 2 of step 3 raised on b and on d; the samples are 17, 4: ValueError: bad sample"
    assert stops(made(job, m.Raised(poison(D)))).why == why


def test_the_same_word_of_a_slot_twice_changes_nothing() -> None:
    job = after(running(3), m.Raised(poison(B)))
    assert made(job, m.Raised(poison(B))) == ()


def test_the_same_member_raising_again_is_not_a_second_member() -> None:
    job = replace(running(3), failing_slots=(replace(poison(B), error="KeyError"),))
    assert [type(event) for event in made(job, m.Raised(poison(B)))] == [
        m.SlotRaised,
        m.WorkerFailed,
        m.MemberGone,
    ]


def test_the_word_of_a_slot_counts_also_when_the_end_of_the_process_came_first() -> None:
    job = after(running(4), m.Exited(B, 1))
    assert made(job, m.Raised(poison(B))) == (m.SlotRaised(NOW, poison(B)),)
    job = after(job, m.Raised(poison(B)))
    assert len(job.failures) == 1
    assert stops(made(job, m.Raised(poison(C)))).why.startswith("slot 2 of step 3 raised on b and on c")


def test_a_slot_that_raised_on_two_departed_members_fails_the_job_and_loses_no_other_member() -> None:
    job = after(running(4), m.Exited(B, 1), m.Exited(C, 1), m.Raised(poison(B)))
    events = made(job, m.Raised(poison(C)))
    assert stops(events).why.startswith("slot 2 of step 3 raised on b and on c")
    assert not any(isinstance(event, m.MemberGone) for event in events)


def test_slots_that_raise_count_against_max_restarts() -> None:
    job = replace(running(3), failures=(WorkerFailure(NOW, 0),) * 3)
    why = f"it crashed 4 times (--max-restarts 3); b: {RAISED}"
    assert stops(made(job, m.Raised(poison(B)))).why == why


def test_a_stranger_cannot_raise() -> None:
    assert refused(running(3), m.Raised(poison(D))) == Rejection(
        Code.UNKNOWN, "d is not a member of demo; it never joined"
    )


# ------------------------------------------------------------------------------------------ workers that end


@pytest.mark.parametrize(
    ("code", "how"),
    [(0, "exit code 0"), (-9, "signal 9"), (-15, "signal 15"), (FENCED_CODE, "exit code 75")],
)
def test_a_worker_that_was_made_to_end_is_lost_and_nothing_is_held_against_the_job(code: int, how: str) -> None:
    job = replace(running(3), failures=(WorkerFailure(NOW, 0),) * 3)
    assert made(job, m.Exited(B, code)) == (m.MemberGone(NOW, B, "lost", f"its process ended with {how}"),)


def test_a_worker_that_was_killed_has_the_agent_s_reason() -> None:
    gone = m.MemberGone(NOW, B, "lost", "its process ended with signal 9: out of memory (limit 300 MiB)")
    assert made(running(3), m.Exited(B, -9, "out of memory (limit 300 MiB)")) == (gone,)


def test_a_worker_that_was_to_go_has_left_though_its_word_of_it_never_came() -> None:
    job = after(running(3), drain(C))
    assert job.newest is not None
    assert C not in job.newest.members
    assert made(job, m.Exited(C, 0)) == (m.MemberGone(NOW, C, "left", "its process ended with exit code 0"),)
    assert made(job, m.Exited(C, -9)) == (m.MemberGone(NOW, C, "lost", "its process ended with signal 9"),)
    alone = after(running(1), drain(A))
    assert alone.newest is not None
    assert A in alone.newest.members
    assert made(alone, m.Exited(A, 0)) == (m.MemberGone(NOW, A, "left", "its process ended with exit code 0"),)
    nobody_yet = after(new_job(2), join(A))
    assert nobody_yet.newest is None
    assert made(nobody_yet, m.Exited(A, 0)) == (m.MemberGone(NOW, A, "left", "its process ended with exit code 0"),)


STUCK = "exit code 76: its user code did not return within stall_s"


@pytest.mark.parametrize(
    ("code", "how"),
    [(1, "exit code 1"), (74, "exit code 74"), (STUCK_CODE, STUCK), (-6, "signal 6"), (-11, "signal 11")],
)
def test_a_worker_that_fails_by_itself_is_counted(code: int, how: str) -> None:
    job = running(3, steps=2)
    events = made(job, m.Exited(B, code))
    assert events == (
        m.WorkerFailed(NOW, B, code),
        m.MemberGone(NOW, B, "lost", f"its process ended with {how}"),
    )
    assert evolved(job, *events).failures == (WorkerFailure(NOW, 2),)


def test_max_restarts_failures_are_borne_and_the_next_one_fails_the_job() -> None:
    job = running(4, new_job(max_restarts=2))
    for name in (D, C):
        job = after(job, m.Exited(name, 1))
    assert (job.state, len(job.failures)) == (JobState.RUNNING, 2)
    job, events = pump(job, m.Exited(B, 3))
    why = "it crashed 3 times (--max-restarts 2); b: its process ended with exit code 3"
    assert events[:4] == (
        m.WorkerFailed(NOW, B, 3),
        m.MemberGone(NOW, B, "lost", "its process ended with exit code 3"),
        m.StateChanged(NOW, JobState.STOPPING, why, JobState.FAILED),
        m.MemberDraining(NOW, A, STOP_GRACE_S, why, immediate=True),
    )
    assert (job.worlds[0].kind, job.worlds[0].members) == (WorldKind.RECOVERY, (A,))  # to save
    job = after(job, m.Leave(A, 0, "left as planned"))
    assert (job.state, job.why, len(job.failures)) == (JobState.FAILED, why, 3)


def test_the_failure_of_the_only_holder_fails_the_job_at_once() -> None:
    job = running(1, new_job(max_restarts=0))
    why = "it crashed once (--max-restarts 0); a: its process ended with exit code 1"
    assert made(job, m.Exited(A, 1))[-1] == m.StateChanged(NOW, JobState.FAILED, why)


def test_a_job_may_refuse_any_failure() -> None:
    job = running(2, new_job(max_restarts=0))
    why = "it crashed once (--max-restarts 0); b: its process ended with exit code 1"
    assert stops(made(job, m.Exited(B, 1))).why == why


def test_old_failures_count_no_more_once_the_job_has_come_further() -> None:
    """A job that runs for a month outlives more failures than max_restarts."""
    old, young = WorkerFailure(NOW, 1), WorkerFailure(NOW + 60.0, 2)
    job = replace(running(3), failures=(old, young), furthest_step=5)
    assert counted_failures(job, NOW + FAILURE_WINDOW_S - 1.0) == (old, young)
    assert counted_failures(job, NOW + FAILURE_WINDOW_S) == (young,)
    later = NOW + FAILURE_WINDOW_S + 60.0
    assert counted_failures(job, later) == ()
    assert evolve(job, m.WorkerFailed(later, B, 1)).failures == (WorkerFailure(later, 5),)


def test_failures_at_one_step_count_however_long_the_job_takes_to_get_there() -> None:
    stuck = (WorkerFailure(NOW, 5),) * 3
    job = replace(running(3), failures=stuck, furthest_step=5)
    later = NOW + 9 * FAILURE_WINDOW_S
    assert counted_failures(job, later) == stuck
    assert stops(made(job, m.Exited(B, 1), later)).why.startswith("it crashed 4 times")


def test_every_failure_of_launched_workers_counts() -> None:
    """Their steps are not known: they may fail at the same one each time."""
    job = replace(two_by_two(), failures=(WorkerFailure(NOW, 0),))
    assert counted_failures(job, NOW + 9 * FAILURE_WINDOW_S) == job.failures


HINTS = [(-9, "signal 9; check the memory of its machine"), (0, "exit code 0; its script ended before the job was")]


@pytest.mark.parametrize(("code", "hint"), HINTS)
def test_workers_that_are_lost_again_and_again_without_a_step_fail_the_job(code: int, hint: str) -> None:
    """Each of two workers may be lost once for each of its lives: with one restart, four losses are borne."""
    job = replace(running(2, new_job(1, 2, max_restarts=1), steps=2), losses_without_progress=3)
    assert len(made(job, m.Exited(B, code))) == 1
    job = replace(job, losses_without_progress=4)
    events = made(job, m.Exited(B, code))
    assert isinstance(events[0], m.MemberGone)
    assert events[0].how == "lost"
    assert stops(events).why.startswith(f"5 workers ended without a step in between; b: its process ended with {hint}")
    assert len(made(job, m.Exited(B, FENCED_CODE))) == 1
    further = after(job, report(job, A, 1, 1))
    assert len(made(further, m.Exited(B, code))) == 1


def test_the_end_of_a_worker_that_is_no_member_is_not_held_against_the_job() -> None:
    job = after(running(3), m.Raised(poison(B)))
    assert made(job, m.Exited(B, 1)) == ()
    assert made(job, m.Exited(D, 1)) == ()


# ------------------------------------------------------------------------------------------- failed wirings


def test_a_planned_world_that_cannot_be_wired_is_outnumbered_and_training_goes_on() -> None:
    job = after(running(2), join(C))
    job, events = pump(job, m.WiringFailed(A, 2, C))
    again = world(3, A, B, C, why="the same members, wired again")
    assert events == (
        m.PairAccused(NOW, 2, A, C),
        m.WorldBroken(NOW, 2, entered=False, why="a could not reach c in 2"),
        m.WorldFormed(NOW, again),
        m.StateChanged(NOW, JobState.RUNNING, "the same members, wired again"),
    )
    assert job.unenterable_generations == {2}
    assert (job.broken, job.current, job.sealed) == ("", 1, 0)
    assert job.accusations == (Accusation(A, C, (2,)),)


def test_the_older_of_a_pair_comes_first_a_member_that_complains() -> None:
    job = after(running(2), join(C))
    assert made(job, m.WiringFailed(C, 2, A))[0] == m.PairAccused(NOW, 2, A, C)
    assert made(job, m.WiringFailed(B, 2, A))[0] == m.PairAccused(NOW, 2, A, B)


def test_a_failure_that_names_no_member_accuses_no_member() -> None:
    job = after(running(2), join(C))
    assert made(job, m.WiringFailed(A, 2, None)) == (
        m.WorldBroken(NOW, 2, entered=False, why="a could not reach its peers in 2"),
    )


def test_a_member_that_is_gone_is_not_accused() -> None:
    job = evolved(running(2), m.MemberGone(NOW, B, "lost", "its lease ran out"))
    [broken] = made(job, m.WiringFailed(A, 1, B))
    assert isinstance(broken, m.WorldBroken)


def test_a_failure_in_a_world_that_was_outnumbered_accuses_no_member() -> None:
    """In an older world the peer may just have moved on."""
    job = after(running(2), join(C), join(D))
    assert job.worlds[-1].number == 3
    assert made(job, m.WiringFailed(A, 2, C)) == (m.WorldBroken(NOW, 2, entered=False, why="a could not reach c in 2"),)


def test_a_recovery_world_that_cannot_be_wired_makes_the_next_one() -> None:
    job = after(running(3), stopped(A, 1))
    job, events = pump(job, m.WiringFailed(B, 2, C))
    why = "b could not reach c in 2"
    assert events[:3] == (
        m.PairAccused(NOW, 2, B, C),
        m.WorldBroken(NOW, 2, entered=True, why=why),
        m.WorldFormed(NOW, world(3, A, B, C, kind=WorldKind.RECOVERY, why=why)),
    )
    assert (job.sealed, job.accusations) == (2, (Accusation(B, C, (2,)),))


def test_the_first_world_that_cannot_be_wired_is_tried_again() -> None:
    job = pump(new_job(), join(A), join(B))[0]
    job, events = pump(job, m.WiringFailed(A, 1, B))
    assert isinstance(events[1], m.WorldBroken)
    assert events[1].entered
    assert (job.worlds[0].number, job.worlds[0].kind) == (2, WorldKind.RECOVERY)


def test_a_wiring_that_fails_in_the_current_planned_world_ends_it() -> None:
    job = after(running(3), drain(C))
    job = after(job, report(job, A, 2))
    assert formed(job, 2).kind is WorldKind.PLANNED
    [_, broken] = made(job, m.WiringFailed(A, 2, B))
    assert isinstance(broken, m.WorldBroken)
    assert broken.entered


def test_complaining_twice_about_one_wiring_is_complaining_once() -> None:
    job = after(running(2), join(C), m.WiringFailed(A, 2, C))
    again = after(job, m.WiringFailed(A, 2, C))
    assert again == job
    both = pump(after(running(2), join(C)), m.WiringFailed(A, 2, C), m.WiringFailed(C, 2, A))[0]
    assert both.accusations == (Accusation(A, C, (2,)),)


def test_a_member_that_repeats_its_stop_while_the_job_waits_adds_no_event() -> None:
    job = running(2)
    job = evolved(job, *made(job, stopped(A, 1)))
    for again in (stopped(A, 1), stopped(B, 1)):
        assert made(job, again) == ()
    [told] = made(job, stopped(B, 1, stateless=True))  # that is news
    assert isinstance(told, m.WorldBroken)
    assert made(evolved(job, told), stopped(B, 1, stateless=True)) == ()


def test_a_survivor_below_min_that_repeats_its_stop_in_a_world_it_never_entered_adds_no_event() -> None:
    job, _ = pump(running(2), m.Exited(A, -9))
    assert job.newest is not None
    assert job.newest.number > job.current
    told = stopped(B, job.newest.number, stateless=True)
    job = evolved(job, *made(job, told))
    assert made(job, told) == ()


def test_members_that_drifted_apart_fail_the_job() -> None:
    """There is no right state to go on with, and the next generation would meet the same difference."""
    why = "rank 1 holds another state than the ranks before it"
    job, _ = pump(running(2), m.Stopped(A, 1, GENESIS, frozenset(), why, diverged=True))
    assert job.state is JobState.FAILED
    assert job.why == (
        f"after step 0 the members hold different states ({why}): user code after run.step(), such as stepping a "
        "scheduler, must do the same on every member; put objects that change in the loop into state="
    )
