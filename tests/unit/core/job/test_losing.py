"""Losing members, and the recovery that follows (rules 11, 18, 19)."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Command
from pliant.core.model.job import Job, JobState
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NOW,
    A,
    B,
    C,
    D,
    E,
    after,
    checkpoint,
    drain,
    formed,
    gathered,
    join,
    lines,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    stopped,
    world,
)


def test_an_expired_member_is_lost_and_a_recovery_world_seals_what_it_was_in() -> None:
    before = running(3, steps=2)
    job, events = pump(before, m.Expire(B))
    recovery = world(2, A, C, kind=WorldKind.RECOVERY, base=before.durable, why="b was lost: its lease ran out")
    assert events == (
        m.MemberGone(NOW, B, "lost", "its lease ran out"),
        m.WorldFormed(NOW, recovery),
        m.StateChanged(NOW, JobState.RUNNING, "b was lost: its lease ran out"),
    )
    assert job.worlds == (recovery,)
    assert (job.generation, job.sealed, job.current) == (2, 1, 1)
    assert (job.broken, job.gone_in_open_worlds, job.unenterable_generations) == ("", frozenset(), frozenset())
    assert job.durable == before.durable
    assert job.holders == {A, C}


def test_an_expired_member_cannot_commit() -> None:
    """P6: its report reaches us after it was lost; what it says is not history."""
    job = running(3)
    late = m.Report(B, 1, 1, lines(job.durable, 1, 1))
    job = after(job, m.Expire(B))
    assert refused(job, late).code is m.Code.SEALED
    assert refused(job, m.Report(B, 1, 2, lines(job.durable, 2, 1))).code is m.Code.GONE


@pytest.mark.parametrize("gone", [m.Expire(B), m.Exited(B, -9), m.Leave(B, 0, "bye")])
def test_losing_a_member_twice_is_losing_them_once(gone: Command) -> None:
    assert made(after(running(3), gone), gone) == ()


def test_a_lost_spare_disturbs_no_member() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    job, events = pump(job, m.Expire(C))
    assert events == (m.MemberGone(NOW, C, "lost", "its lease ran out"),)
    assert (job.broken, job.gone_in_open_worlds, [one.number for one in job.worlds]) == ("", frozenset(), [1])


def test_a_lost_joiner_costs_the_planned_world_and_not_the_one_that_trains() -> None:
    """Rule 5: the planned world is not withdrawn, only outnumbered; the present one goes on."""
    job = after(running(2), join(C))
    job, events = pump(job, m.Expire(C))
    again = world(3, A, B, why="c leaves")
    assert events == (
        m.MemberGone(NOW, C, "lost", "its lease ran out"),
        m.WorldFormed(NOW, again),
        m.StateChanged(NOW, JobState.RUNNING, "c leaves"),
    )
    assert [one.number for one in job.worlds] == [1, 2, 3]
    assert (job.current, job.sealed, job.broken) == (1, 0, "")
    assert job.unenterable_generations == {2}
    assert job.gone_in_open_worlds == {C}


def test_entering_a_world_that_lost_a_member_breaks_it_at_once() -> None:
    """The switch to 2 had happened before any member knew: 2 becomes current, and a recovery is due there."""
    job = after(running(2), join(C), m.Expire(C))
    job, events = pump(job, report(job, A, 2))
    assert events[:2] == (
        m.WorldEntered(NOW, 2),
        m.WorldFormed(NOW, world(4, A, B, kind=WorldKind.RECOVERY, why="c is gone")),
    )
    assert (job.current, job.sealed, job.unenterable_generations, job.gone_in_open_worlds) == (
        2,
        3,
        frozenset(),
        frozenset(),
    )


def test_entering_a_world_beyond_a_faulty_one_is_well() -> None:
    job = after(running(2), join(C), m.Expire(C))
    job, events = pump(job, report(job, A, 3))
    assert events == (m.WorldEntered(NOW, 3),)
    assert [one.number for one in job.worlds] == [3]
    assert (job.broken, job.unenterable_generations, job.gone_in_open_worlds) == ("", frozenset(), frozenset())


def test_recovery_takes_lingering_leavers_too() -> None:
    """Rule 11: the leaver may be the only one who applied the last step."""
    job = after(running(3), drain(B))
    assert formed(job, 2).members == (A, C)
    job = after(job, m.Expire(C))
    assert (job.worlds[0].kind, job.worlds[0].members) == (WorldKind.RECOVERY, (A, B))


def test_recovery_takes_joiners_of_open_worlds_too() -> None:
    job = after(running(2), join(C), stopped(A, 1))
    assert job.worlds[0].members == (A, B, C)
    assert job.worlds[0].kind is WorldKind.RECOVERY


def test_recovery_leaves_spares_where_they_are_when_there_are_enough() -> None:
    job = after(running(3, new_job(2, 6, 3)), join(D), m.Expire(C))
    assert job.worlds[0].members == (A, B)
    entered = after(job, report(job, A, 2))
    assert formed(entered, 3).members == (A, B, D)


def test_recovery_takes_spares_to_reach_min_and_no_more() -> None:
    job = after(running(3, new_job(3, 6, 3)), join(D), join(E), m.Expire(A))
    assert job.worlds[0] == world(2, D, B, C, kind=WorldKind.RECOVERY, why="a was lost: its lease ran out")


def test_survivors_below_min_form_a_world_that_holds_and_say_what_for() -> None:
    """Rule 16: they commit and save what they have, so that a second loss costs nothing."""
    before = running(3, new_job(3), steps=2)
    job, events = pump(before, m.Expire(C))
    why = "2 of the 3 workers needed; c was lost: its lease ran out"
    holds = world(2, A, B, kind=WorldKind.RECOVERY, base=before.durable, hold=True, why=why)
    assert events[1:] == (m.WorldFormed(NOW, holds), m.StateChanged(NOW, JobState.WAITING, why))
    assert (job.broken, sorted(job.holders)) == ("", [A, B])
    job = after(job, report(job, A, 2))
    assert (job.state, job.why) == (JobState.WAITING, "2 of the 3 workers needed")
    job, events = pump(job, join(D))
    onward = world(3, A, B, D, kind=WorldKind.RECOVERY, base=before.durable, why="enough members again")
    assert events[1:] == (
        m.WorldFormed(NOW, onward),
        m.StateChanged(NOW, JobState.RUNNING, "enough members again"),
    )


def test_spares_that_are_not_enough_for_min_do_not_hold_with_the_survivors() -> None:
    job = pump(after(running(3, new_job(3, 6, 3), steps=1), join(D)), m.Expire(A), m.Expire(B))[0]
    assert (job.worlds[0].members, job.worlds[0].hold) == ((C,), True)
    assert job.why == "2 of the 3 workers needed; a was lost: its lease ran out"


def test_a_member_that_comes_while_survivors_enter_their_holding_world_is_taken_afterwards() -> None:
    job = after(running(2, new_job(2), steps=1), m.Expire(B))
    job, events = pump(job, join(C))
    assert [type(event) for event in events] == [m.MemberJoined]
    job, events = pump(job, report(job, A, 2))
    assert events[0] == m.WorldEntered(NOW, 2)
    assert (job.worlds[-1].members, job.worlds[-1].hold, job.state) == ((A, C), False, JobState.RUNNING)


def test_a_second_loss_below_min_makes_the_next_world_that_holds() -> None:
    job = after(running(4, new_job(4)), m.Expire(C), m.Expire(D))
    why = "2 of the 4 workers needed; d was lost: its lease ran out"
    assert job.worlds == (world(3, A, B, kind=WorldKind.RECOVERY, hold=True, why=why),)
    assert (job.state, job.why, job.sealed) == (JobState.WAITING, why, 2)


def test_what_broke_a_world_first_stays_the_reason() -> None:
    job = pump(running(4, new_job(4)), m.Expire(C), m.Expire(D))[0]
    assert job.why == "2 of the 4 workers needed; c was lost: its lease ran out"


def test_a_loss_on_the_way_into_a_recovery_makes_the_next_one() -> None:
    job = after(running(4), m.Expire(B), m.Expire(C))
    assert job.worlds == (world(3, A, D, kind=WorldKind.RECOVERY, why="c was lost: its lease ran out"),)
    assert (job.sealed, job.current) == (2, 1)


def test_nothing_is_planned_while_members_are_on_their_way_into_a_recovery() -> None:
    job, events = pump(after(running(3), m.Expire(B)), join(D))
    assert [type(event) for event in events] == [m.MemberJoined]
    job, events = pump(job, report(job, C, 2))
    assert events[0] == m.WorldEntered(NOW, 2)
    assert formed(job, 3).members == (A, C, D)


# ------------------------------------------------------------------------------------------ no member is left


def everybody_lost(job: Job) -> Job:
    return pump(job, *(m.Expire(name) for name in job.worlds[-1].members))[0]


def test_when_every_member_is_lost_the_job_waits_for_members_to_start_again_with() -> None:
    job = everybody_lost(running(2, steps=3))
    assert (job.state, job.members) == (JobState.WAITING, {})
    assert job.why == "0 of the 1 workers needed; all workers have left: back to step 0, 3 steps are recomputed"
    assert job.durable.step == 3  # nothing is given up before there is a world to roll back


def test_without_a_checkpoint_the_next_world_starts_from_nothing_and_says_what_is_gone() -> None:
    job, events = pump(everybody_lost(running(2, steps=3)), join(C))
    why = "all workers have left: back to step 0, 3 steps are recomputed"
    assert events[1:] == (
        m.WorldFormed(NOW, world(2, C, kind=WorldKind.ROLLBACK, base=GENESIS, why=why)),
        m.StateChanged(NOW, JobState.RUNNING, why),
    )
    assert (job.durable, job.sealed, job.holders) == (GENESIS, 1, frozenset())


def test_with_a_checkpoint_the_next_world_starts_from_it() -> None:
    """Rules 4, 17: the newest manifest in the store on the current lineage."""
    job = running(2, steps=3)
    kept = checkpoint(job.durable)
    job = after(job, m.Publish(A, 1, kept), report(job, A, 1, 2))
    job = after(everybody_lost(job), join(C))
    assert job.worlds[0].base == kept.lineage
    assert job.worlds[0].why == "all workers have left: back to step 3, 2 steps are recomputed"
    assert (job.durable, job.checkpoint) == (kept.lineage, kept)


def test_with_a_checkpoint_of_the_last_step_nothing_is_gone() -> None:
    job = running(2, steps=3)
    job = after(job, m.Publish(A, 1, checkpoint(job.durable)))
    job = after(everybody_lost(job), join(C))
    assert job.worlds[0].why == "all workers have left: back to step 3, nothing is lost"


def test_spares_start_again_when_every_member_at_work_is_lost() -> None:
    job = after(running(2, new_job(1, 6, 2), steps=1), join(C))
    job = everybody_lost(job)
    assert (job.worlds[0].kind, job.worlds[0].members) == (WorldKind.ROLLBACK, (C,))


def test_a_rollback_needs_min_members() -> None:
    job = after(everybody_lost(running(2, new_job(2), steps=1)), join(C))
    assert job.state is JobState.WAITING
    assert job.why == "1 of the 2 workers needed; all workers have left: back to step 0, 1 step is recomputed"
    assert after(job, join(D)).worlds[0].members == (C, D)


def test_a_member_that_is_leaving_is_not_rolled_back_with_the_others() -> None:
    job = after(running(3, steps=1), drain(B), stopped(A, 1, stateless=True))
    assert (job.worlds[0].kind, job.worlds[0].members) == (WorldKind.ROLLBACK, (A, C))


# ------------------------------------------------------------------------------------ stopping, suspicions


def test_a_member_that_stopped_ends_the_generation_and_no_member_is_lost() -> None:
    """Rules 10, 11: a closed socket or a peer's complaint ends a generation; it makes no member lost (H18)."""
    job, events = pump(running(3), stopped(B, 1, peer=C))
    why = "b stopped in 1 (c): the socket closed"
    assert events == (
        m.WorldBroken(NOW, 1, entered=True, why=why),
        m.WorldFormed(NOW, world(2, A, B, C, kind=WorldKind.RECOVERY, why=why)),
        m.StateChanged(NOW, JobState.RUNNING, why),
    )
    assert list(job.members) == [A, B, C]


def test_a_member_may_stop_without_blaming_any_member() -> None:
    [broken] = made(running(3), stopped(B, 1))
    assert broken == m.WorldBroken(NOW, 1, True, "b stopped in 1: the socket closed", stateless=False)


def test_the_second_to_stop_has_nothing_new_to_say() -> None:
    job = after(running(3), stopped(B, 1))
    assert made(job, stopped(A, 1)) == ()


def test_the_newest_reason_for_stopping_is_shown_while_waiting() -> None:
    job = after(running(2, new_job(2)), m.Expire(B))
    job = after(job, stopped(A, 2))
    assert job.why == "1 of the 2 workers needed; a stopped in 2: the socket closed"


def test_a_comparison_that_finds_no_usable_state_rolls_back() -> None:
    """Rule 12: below the durable step the world stops and says which steps are gone."""
    job = after(running(3, steps=4), m.Expire(C))
    job, events = pump(job, stopped(A, 2, stateless=True))
    why = "a stopped in 2: the socket closed: back to step 0, 4 steps are recomputed"
    assert events[1:] == (
        m.WorldFormed(NOW, world(3, A, B, kind=WorldKind.ROLLBACK, base=GENESIS, why=why)),
        m.StateChanged(NOW, JobState.RUNNING, why),
    )
    assert (job.stateless, job.broken, job.holders, job.durable) == (False, "", frozenset(), GENESIS)


def test_that_no_member_has_a_state_is_not_forgotten_by_a_later_stop() -> None:
    job = after(running(2, new_job(2), steps=1), m.Expire(B), stopped(A, 2, stateless=True), stopped(A, 2))
    assert job.stateless
    job = after(job, join(C))
    assert job.worlds[0].kind is WorldKind.ROLLBACK


def test_entering_another_world_forgets_what_was_wrong_with_the_one_before() -> None:
    """No member with the state is there; but the members had switched to 2 before, and 2 is well."""
    stuck = replace(after(running(3), drain(C)), broken="c left: out of time", stateless=True)
    well = after(stuck, report(stuck, A, 2))
    assert (well.broken, well.stateless, well.current) == ("", False, 2)


def test_a_suspicion_ends_the_generation_and_never_the_member() -> None:
    """Rule 19."""
    job, events = pump(running(3), m.Suspect(B))
    assert events[:2] == (
        m.WorldBroken(NOW, 1, entered=True, why="b does not answer"),
        m.WorldFormed(NOW, world(2, A, B, C, kind=WorldKind.RECOVERY, why="b does not answer")),
    )
    assert B in job.members
    assert made(job, m.Suspect(B)) == ()  # it is on its way into the recovery


def test_a_suspicion_of_a_member_that_is_not_at_work_means_nothing() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C))
    assert made(job, m.Suspect(C)) == ()
    assert made(job, m.Suspect(D)) == ()
    joining = after(running(2), join(C))
    assert C in joining.worlds[-1].members
    assert made(joining, m.Suspect(C)) == ()
    assert made(gathered(2), m.Suspect(A)) == ()


def test_a_suspicion_of_a_member_gone_means_nothing() -> None:
    job = after(running(2, new_job(2)), m.Expire(B))
    assert made(job, m.Suspect(B)) == ()
    assert made(job, m.Suspect(A)) == ()  # it is on its way into the world that holds
    job = after(job, report(job, A, 2))
    assert made(job, m.Suspect(A)) == (m.WorldBroken(NOW, 2, True, "a does not answer"),)
