"""The members and ranks of the next world, or the reason to wait (rules 4, 5, 11, 16)."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.assignment import desired_workers
from pliant.core.job.next_world import (
    BAD_PAIR_FAILURES,
    OPEN_MAX,
    KeepWorlds,
    NoWorldYet,
    members_left_out,
    next_consequence,
    next_world,
)
from pliant.core.model.job import Accusation, Job, JobState, Member, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from unit.core.build import (
    NAMES,
    NOW,
    A,
    B,
    C,
    D,
    E,
    F,
    X,
    Y,
    Z,
    after,
    drain,
    evolved,
    formed,
    gathered,
    join,
    made,
    new_job,
    pump,
    report,
    running,
    stopped,
    with_spec,
    world,
)


def planned(job: Job) -> World:
    verdict = next_world(job)
    assert isinstance(verdict, World), verdict
    return verdict


def changed(job: Job, *commands: m.Command) -> Job:
    """The job with these commands decided, and nothing drawn from them yet."""
    for command in commands:
        job = evolved(job, *made(job, command))
    return job


# ------------------------------------------------------------------------------------------ stable ranks


def test_survivors_keep_their_order_and_newcomers_fill_the_holes_by_age() -> None:
    job = changed(running(4), drain(B), drain(C), join(E), join(F))
    assert planned(job).members == (A, E, F, D)


def test_newcomers_beyond_the_holes_go_to_the_end_by_age() -> None:
    job = changed(running(3), drain(A), join(D), join(E), join(F))
    assert planned(job).members == (D, B, C, E, F)


def test_without_newcomers_the_rest_move_up() -> None:
    assert planned(changed(running(4), drain(A), drain(C))).members == (B, D)


def test_a_recovery_keeps_the_ranks_too() -> None:
    job = after(running(4), drain(B))
    assert formed(job, 2).members == (A, C, D)
    job = after(job, m.Expire(C))
    # B lingers: it is not in the newest world, so it takes the hole there.
    assert job.worlds[0].members == (A, B, D)


def test_weights_go_with_their_members() -> None:
    """H27: weights live in the world record and change only with a generation."""
    job = pump(new_job(), join(A, weight=2), join(B, weight=3), join(C, weight=5))[0]
    assert formed(job, 1).weights == (2, 3, 5)
    job = after(job, report(job, A, 1, holders=(A, B, C)))
    assert planned(changed(job, drain(A), join(D, weight=7))).weights == (7, 3, 5)


def test_every_world_has_the_next_number() -> None:
    job = after(running(2), join(C), join(D), m.Expire(C))
    assert [one.number for one in job.worlds] == [1, 2, 3, 4]
    assert after(job, stopped(A, 1)).worlds[0].number == 5


def test_a_planned_world_s_base_is_what_is_durable() -> None:
    job = running(2, steps=4)
    assert planned(changed(job, join(C))).base == job.durable
    assert job.durable.step == 4


# --------------------------------------------------------------------------------------- sizes and spares


def test_wanted_is_the_least_of_target_max_and_slots() -> None:
    job = running(1, new_job(1, 6, 4))
    assert job.wanted_size == 4
    assert replace(job, target=Target(9)).wanted_size == 6  # max
    assert replace(with_spec(job, size_max=8), target=Target(8)).wanted_size == 6  # slots
    assert replace(new_job(1, 8), target=Target(8)).wanted_size == 8  # no terms yet


def test_spares_wait_in_order_of_age() -> None:
    job = after(running(2, new_job(1, 6, 2)), join(C), join(D), join(E))
    assert len(job.worlds) == 1
    job = after(job, m.Resize(Target(4)))
    assert formed(job, 2).members == (A, B, C, D)


def test_a_member_that_is_at_work_stays_there_however_young() -> None:
    job = after(running(3), m.Resize(Target(2)), m.Resize(Target(3)), join(D))
    job = after(job, report(job, A, 3))
    assert C in job.members  # older than D, ready, and not needed
    assert [one.members for one in job.worlds] == [(A, B, D)]


def test_members_beyond_the_slots_would_own_nothing() -> None:
    job = new_job(1, 8, 8)
    job, _ = pump(job, *(join(MemberId(f"m{number}")) for number in range(8)))
    assert len(formed(job, 1).members) == 6


# ------------------------------------------------------------------------------------ placement by agent


def placed(*counts: tuple[AgentId, int]) -> Target:
    return Target(sum(count for _, count in counts), counts)


def test_a_placement_takes_so_many_from_each_agent() -> None:
    job = after(new_job(2), m.Resize(placed((X, 1), (Y, 2))))
    job, _ = pump(job, join(A, X), join(B, X), join(C, Y), join(D, Z), join(E, Y), join(F, Y))
    assert formed(job, 1).members == (A, C, E)


def test_a_placement_may_take_no_member_from_an_agent() -> None:
    job = after(new_job(1), m.Resize(placed((X, 0), (Y, 1))))
    job, _ = pump(job, join(A, X), join(B, Y))
    assert formed(job, 1).members == (B,)


def test_a_placement_is_cut_at_the_number_of_slots() -> None:
    job = after(new_job(1, 8, 8), m.Resize(placed((X, 4), (Y, 4))))
    joins = [join(MemberId(f"m{number}"), X if number % 2 else Y) for number in range(8)]
    job, _ = pump(job, *joins)
    assert formed(job, 1).members == tuple(MemberId(f"m{number}") for number in range(6))


def test_a_placement_without_workers_waits() -> None:
    job = after(new_job(2), m.Resize(placed((X, 2))), join(A, X), join(B, Y))
    assert (job.state, job.why) == (JobState.WAITING, "1 of the 2 workers needed; the job starts")


# ------------------------------------------------------------------------------------ no member is taken back


def test_left_out_is_whom_a_later_open_world_does_not_have() -> None:
    assert members_left_out(()) == frozenset()
    assert members_left_out((world(1, A, B, C),)) == frozenset()
    assert members_left_out((world(1, A, B, C), world(2, A, B))) == {C}
    assert members_left_out((world(1, A, B), world(2, A, B, C))) == frozenset()
    assert members_left_out((world(1, A, B, C), world(2, A, B), world(3, B, D))) == {A, C}
    assert members_left_out((world(1, A, B, C), world(2, A, B, D), world(3, A, B))) == {C, D}


def test_a_later_planned_world_takes_no_member_back() -> None:
    """Rule 5: C may have left already; only a new life may join (H29)."""
    job = after(running(3), m.Resize(Target(2)))
    assert formed(job, 2).members == (A, B)
    job, events = pump(job, m.Resize(Target(3)))
    assert events == (m.TargetChanged(NOW, Target(3)),)
    job = after(job, join(D))
    assert formed(job, 3).members == (A, B, D)


def test_once_the_switch_is_known_a_member_that_is_still_there_may_come_in_again() -> None:
    job = after(running(3), m.Resize(Target(2)), m.Resize(Target(3)))
    job = after(job, report(job, A, 2))
    assert formed(job, 3).members == (A, B, C)


# ------------------------------------------------------------------------ replacing every member, last holder


def test_replacing_every_member_takes_two_worlds() -> None:
    """Rule 16: old and new together, then new alone (H11)."""
    job = after(running(2), drain(A), drain(B), join(C))
    bridge = formed(job, 3)
    assert formed(job, 2).members == (B,)
    assert (bridge.members, bridge.kind, bridge.hold, bridge.why) == ((B, C), WorldKind.PLANNED, False, "c joins")
    job = after(job, report(job, B, 3, holders=(B,)))
    assert job.newest == bridge
    job = after(job, report(job, B, 3, holders=(B, C)))
    assert formed(job, 4).members == (C,)
    assert formed(job, 4).why == "b leaves"


def test_every_member_on_one_notice_is_bridged_by_all_of_them() -> None:
    job, _ = pump(running(2), drain(A), drain(B), join(C), join(D))
    assert formed(job, 2).members == (A, B, C, D)
    assert formed(job, 2).why == "c, d join"


def test_a_bridge_may_exceed_the_target() -> None:
    """Rule 15: joiners without state are not counted against max."""
    job, _ = pump(running(2, new_job(2, 2)), drain(A), drain(B), join(C), join(D))
    assert formed(job, 2).members == (A, B, C, D)


def test_only_holders_make_a_bridge() -> None:
    job = after(running(3), join(D))
    job = after(job, report(job, A, 2, holders=(A, B)))
    job, _ = pump(job, drain(A), drain(B), drain(C), drain(D), join(E))
    assert formed(job, 3).members == (A, B, E)


def test_a_bridge_takes_no_member_back() -> None:
    job = after(running(3), drain(C))
    job, _ = pump(job, drain(A), drain(B), join(D))
    assert formed(job, 3).members == (A, B, D)


def test_no_bridge_is_needed_while_a_member_that_stays_holds_the_state() -> None:
    job, _ = pump(running(3), drain(A), drain(B), join(D), join(E))
    assert formed(job, 2).members == (D, E, C)


def test_no_member_is_let_go_before_it_is_known_who_holds_the_state() -> None:
    job = gathered(2)
    job = after(job, report(job, A, 1))
    assert job.holders == frozenset()
    assert (job.state, job.why) == (JobState.RUNNING, "waiting for a report of the members that hold the state")
    job = after(job, drain(A))
    assert len(job.worlds) == 1
    job = after(job, report(job, A, 1, holders=(A, B)))
    assert formed(job, 2).members == (B,)


def test_every_member_leaving_with_no_member_to_come_is_said() -> None:
    job = changed(running(2), drain(A), drain(B))
    assert next_world(job) == KeepWorlds("every member is leaving, and no other member can take over the state")


# --------------------------------------------------------------------------------------- holding below min


def test_a_planned_world_below_min_holds_and_says_so() -> None:
    job = after(running(3, new_job(3)), drain(C))
    hold = formed(job, 2)
    assert (hold.members, hold.hold, hold.why) == ((A, B), True, "2 of the 3 workers needed; c leaves")
    assert job.state is JobState.RUNNING  # generation 1 still trains


def test_a_planned_world_of_exactly_min_trains() -> None:
    job = after(running(3, new_job(2)), drain(C))
    assert not formed(job, 2).hold
    assert formed(job, 2).why == "c leaves"


def test_a_hold_that_is_entered_is_a_wait() -> None:
    job = after(running(3, new_job(3)), drain(C))
    job, events = pump(job, report(job, A, 2))
    assert events[1:] == (m.StateChanged(NOW, JobState.WAITING, "2 of the 3 workers needed"),)


def test_a_hold_ends_with_a_recovery_when_there_are_enough_again() -> None:
    """Without steps there are no words to switch by."""
    job = after(running(3, new_job(3)), drain(C))
    job = after(job, report(job, A, 2), m.Leave(C, 2, "left"))
    job, events = pump(job, join(D))
    recovery = world(3, A, B, D, kind=WorldKind.RECOVERY, why="enough members again")
    assert events[1:] == (
        m.WorldFormed(NOW, recovery),
        m.StateChanged(NOW, JobState.RUNNING, "enough members again"),
    )
    assert job.sealed == 2


def test_a_hold_ends_with_every_member_in_it_those_who_leave_too() -> None:
    job = after(running(3, new_job(3)), drain(C))
    job = after(job, report(job, A, 2), m.Leave(C, 2, "left"), drain(B), join(D))
    assert (job.state, job.why) == (JobState.WAITING, "2 of the 3 workers needed")
    job = after(job, join(E))
    assert job.worlds == (world(3, A, B, D, E, kind=WorldKind.RECOVERY, why="enough members again"),)


def test_a_hold_is_not_ended_by_whom_it_leaves_out() -> None:
    job = after(running(3, new_job(2)), drain(C), drain(B))
    assert (formed(job, 2).hold, formed(job, 3).hold) == (False, True)
    job = after(job, report(job, A, 3))
    assert (job.state, job.why) == (JobState.WAITING, "1 of the 2 workers needed")


def test_a_hold_that_loses_a_member_holds_with_the_others() -> None:
    job = after(running(3, new_job(3)), drain(C))
    job = after(job, report(job, A, 2), m.Leave(C, 2, "left"), m.Expire(B))
    why = "1 of the 3 workers needed; b was lost: its lease ran out"
    assert (job.why, job.worlds) == (why, (world(3, A, kind=WorldKind.RECOVERY, hold=True, why=why),))
    job = after(job, join(D), join(E), report(job, A, 3))
    assert job.worlds == (world(4, A, D, E, kind=WorldKind.RECOVERY, why="enough members again"),)


def test_a_hold_not_entered_yet_is_outnumbered_by_a_world_that_trains() -> None:
    job = after(running(3, new_job(3)), drain(C), join(D))
    assert (formed(job, 3).members, formed(job, 3).hold) == ((A, B, D), False)
    assert formed(job, 3).kind is WorldKind.PLANNED


def test_the_same_members_hold_when_min_would_be_missed_and_train_when_not() -> None:
    """Only the hold differs: the members are the same, yet another world is due."""
    job = after(running(2, new_job(2)), join(C))
    holding = replace(formed(job, 2), hold=True)
    job = replace(job, worlds=(formed(job, 1), holding))
    assert planned(job) == world(3, A, B, C, why="the same members, wired again")


# -------------------------------------------------------------------------------------- too many, bad pair


def busy(count: int) -> Job:
    """A job with that many open worlds, none of the planned ones entered."""
    job = after(running(2), join(C), *(m.WiringFailed(A, number, None) for number in range(2, count)))
    assert len(job.worlds) == count
    return job


def test_planned_worlds_may_pile_up_to_a_limit() -> None:
    job = busy(OPEN_MAX)
    assert [one.number for one in job.worlds] == list(range(1, OPEN_MAX + 1))
    assert {one.kind for one in job.worlds[1:]} == {WorldKind.PLANNED}


def test_one_world_too_many_is_a_recovery_that_seals_them_all() -> None:
    job, events = pump(busy(OPEN_MAX), m.WiringFailed(B, OPEN_MAX, None))
    why = f"{OPEN_MAX} planned worlds could not be entered; the same members, wired again"
    recovery = world(OPEN_MAX + 1, A, B, C, kind=WorldKind.RECOVERY, why=why)
    assert events[1] == m.WorldFormed(NOW, recovery)
    assert (job.worlds, job.sealed) == ((recovery,), OPEN_MAX)


def accused(count: int, holders: tuple[MemberId, ...] = (A, B)) -> Job:
    """A job in which A and C could not reach one another in that many generations."""
    job = after(running(2), join(C))
    job = replace(job, holders=frozenset(holders))
    return replace(job, accusations=(Accusation(A, C, tuple(range(2, 2 + count))),))


def test_a_pair_is_parted_after_exactly_k_failed_wirings() -> None:
    """Rule 11 (H19)."""
    assert BAD_PAIR_FAILURES == 3
    assert next_consequence(accused(2), NOW) == ()
    [barred] = next_consequence(accused(3), NOW)
    assert barred == m.MemberGone(NOW, C, "barred", "3 wirings failed between c and a; c is left out")


def test_the_younger_of_two_holders_is_left_out() -> None:
    for holders in ((A, B, C), (A, B), (B,)):
        [barred] = next_consequence(accused(3, holders), NOW)
        assert isinstance(barred, m.MemberGone)
        assert barred.member == C


def test_a_member_that_alone_holds_the_state_stays() -> None:
    [barred] = next_consequence(accused(3, (B, C)), NOW)
    assert barred == m.MemberGone(NOW, A, "barred", "3 wirings failed between a and c; a is left out")


def test_a_pair_that_never_meets_is_parted_by_its_own_complaints() -> None:
    job = after(running(2), join(C))
    for number in (2, 3):
        job = after(job, m.WiringFailed(A, number, C))
        assert C in job.members
    job, events = pump(job, m.WiringFailed(C, 4, A))
    barred = m.MemberGone(NOW, C, "barred", "3 wirings failed between c and a; c is left out")
    assert events[2] == barred
    assert events[3] == m.WorldFormed(NOW, world(5, A, B, why="c leaves"))
    assert (job.gone, job.accusations, job.broken) == ((C,), (), "")


def test_of_several_accusations_the_first_that_is_enough_counts() -> None:
    job = replace(accused(3), accusations=(Accusation(A, B, (2, 3)), Accusation(B, C, (2, 3, 4, 5))))
    [barred] = next_consequence(job, NOW)
    assert isinstance(barred, m.MemberGone)
    assert (barred.member, barred.how) == (C, "barred")


# ------------------------------------------------------------------------------------ verdicts and reasons


def test_a_job_no_member_joined_waits() -> None:
    assert next_world(new_job()) == NoWorldYet("no member has joined yet")


def test_a_settled_job_stays_settled() -> None:
    for job in (new_job(), gathered(2), running(3), after(running(3, new_job(3)), m.Expire(C))):
        assert next_consequence(job, NOW) == ()


def test_a_world_on_its_way_is_the_reason_for_what_there_is() -> None:
    assert next_world(gathered(2)) == KeepWorlds("the job starts")
    assert next_world(running(2)) == KeepWorlds("the job starts")
    recovering = after(running(3), stopped(A, 1))
    assert next_world(recovering) == KeepWorlds("a stopped in 1: the socket closed")


def test_a_job_is_starting_until_the_first_report() -> None:
    assert gathered(2).state is JobState.STARTING
    assert running(2).state is JobState.RUNNING


def test_only_another_state_or_reason_is_said() -> None:
    job = running(2)
    assert next_consequence(replace(job, why="stale"), NOW) == (
        m.StateChanged(NOW, JobState.RUNNING, "the job starts"),
    )
    assert next_consequence(replace(job, state=JobState.WAITING), NOW) == (
        m.StateChanged(NOW, JobState.RUNNING, "the job starts"),
    )


def test_long_lists_of_names_are_cut() -> None:
    job = running(6)
    four = planned(changed(job, *(drain(name) for name in NAMES[:4])))
    assert four.why == "a, b, c, d leave"
    five = planned(changed(job, *(drain(name) for name in NAMES[:5])))
    assert five.why == "a, b, c, d and 1 more leave"


def test_joins_and_leaves_are_both_named() -> None:
    assert planned(changed(running(2), drain(B), join(C))).why == "c joins; b leaves"


def test_a_faulty_world_is_formed_again() -> None:
    job = after(running(2), join(C))
    assert planned(replace(job, unenterable_generations=frozenset({2}))) == world(
        3, A, B, C, why="the same members, wired again"
    )
    assert next_world(replace(job, unenterable_generations=frozenset({1}))) == KeepWorlds("c joins")


def test_a_rollback_while_members_live_says_why() -> None:
    job = replace(running(2, steps=2), broken="the state is damaged", stateless=True)
    assert planned(job) == world(
        2,
        A,
        B,
        kind=WorldKind.ROLLBACK,
        base=GENESIS,
        why="the state is damaged: back to step 0, 2 steps are recomputed",
    )


# ---------------------------------------------------------------------------------- how many workers where


def offered(target: Target, *room: tuple[AgentId, int]) -> Job:
    job = after(new_job(1, 6, 6), m.Resize(target))
    return after(job, *(m.AgentJoin(agent, capacity) for agent, capacity in room))


def test_workers_are_spread_one_more_to_the_agent_with_the_fewest() -> None:
    assert desired_workers(offered(Target(5), (X, 9), (Y, 9))) == {X: 3, Y: 2}
    assert desired_workers(offered(Target(1), (X, 9), (Y, 9), (Z, 9))) == {X: 1, Y: 0, Z: 0}


def test_no_agent_gets_more_than_it_has_room_for() -> None:
    assert desired_workers(offered(Target(6), (X, 1), (Y, 0), (Z, 9))) == {X: 1, Y: 0, Z: 5}
    assert desired_workers(offered(Target(6), (X, 2), (Y, 2))) == {X: 2, Y: 2}
    assert desired_workers(offered(Target(2), (X, 0), (Y, 0))) == {X: 0, Y: 0}
    assert desired_workers(with_spec(offered(Target(2), (X, 2), (Y, 2)), spares=1)) == {X: 2, Y: 1}


def test_without_agents_no_member_is_asked_for_workers() -> None:
    assert desired_workers(offered(Target(2))) == {}


def test_a_placement_is_taken_as_it_is_as_far_as_there_is_room() -> None:
    target = Target(6, ((X, 2), (Y, 4)))
    assert desired_workers(offered(target, (X, 5), (Y, 3), (Z, 5))) == {X: 2, Y: 3, Z: 0}


@pytest.mark.parametrize("joined", [0, 3])
def test_who_has_joined_does_not_change_what_is_wanted(joined: int) -> None:
    job = offered(Target(4), (X, 4), (Y, 4))
    job = after(job, *(join(name) for name in NAMES[:joined]))
    assert desired_workers(job) == {X: 2, Y: 2}


def test_members_are_numbered_not_their_names_compared() -> None:
    old, young = MemberId("zz"), MemberId("aa")
    job = pump(new_job(1, 2, 1), join(old), join(young))[0]
    assert formed(job, 1).members == (old,)
    assert job.members[old] == Member(old, 1, X)
