"""The supervisor of workers that are launched together: what it starts, stops, says and offers, and when."""

from dataclasses import replace

import pytest

from pliant.core.hangs import WorkerSample
from pliant.core.messages import AgentJoin, AgentLeave, DrainAgent, Exited, MemberJoined, StateChanged
from pliant.core.model.job import JobState
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import Supervisor, supervise
from pliant.core.supervisor.decide import AWAY_S
from pliant.core.supervisor.endings import BACKOFF_MAX_S, STEADY_S, YOUNG_S
from pliant.core.supervisor.signals import (
    Action,
    Announce,
    Finish,
    GraceExpired,
    JobEvent,
    Kill,
    MachineGoing,
    Offer,
    OrdersReceived,
    Recheck,
    SendCommand,
    Signal,
    Start,
    StartSeat,
    StopOverdue,
    Terminate,
    WorkerEnded,
    WorkersSampled,
)
from pliant.core.supervisor.state import STOP_S
from unit.core.build import TERMS, member

AGENT = AgentId("x")
NOW = 100.0
HELLO = SendCommand(AgentJoin(AGENT, 2, "10.0.0.1", "home", "7"))
NONE: frozenset[MemberId] = frozenset()
JOB_OVER = JobEvent(StateChanged(NOW, JobState.CANCELLED, "enough"))


def name(number: int, index: int) -> MemberId:
    return MemberId(f"x-g{number}.{index}")


def launch(number: int, seats: int = 2, *, over: str = "", ends: tuple[SeatEnd, ...] = ()) -> Launch:
    """Two seats on another agent, and so many on ours."""
    own = [Seat(name(number, index), AGENT, "worker", f"10.0.0.1:{20000 + index}") for index in range(seats)]
    others = [Seat(MemberId(f"w-g{number}.{index}"), AgentId("w"), "worker", "10.0.0.9:1") for index in range(2)]
    return Launch(number, (*others, *own), "the job starts", over=over, ends=ends)


def order(given: Launch | None, **settings: object) -> OrdersReceived:
    return replace(OrdersReceived(2, NONE, NONE, live=False, launch=given), **settings)  # type: ignore[arg-type]


def fresh(capacity: int = 2) -> Supervisor:
    return Supervisor(AGENT, "7", capacity, "10.0.0.1", "home")


def after(state: Supervisor, *signals: Signal, now: float = NOW) -> tuple[Supervisor, list[Action]]:
    done: list[Action] = []
    for signal in signals:
        state, actions = supervise(state, signal, now)
        done += actions
    return state, done


ONE, TWO = name(1, 0), name(1, 1)
FIRST = launch(1)
OVER = launch(1, over="w leaves")


def joins(*members: MemberId) -> list[Signal]:
    return [JobEvent(MemberJoined(NOW, member(each, 1), TERMS)) for each in members]


def started() -> Supervisor:
    return after(fresh(), order(FIRST))[0]


# ------------------------------------------------------------------------------------- starting and stopping


def test_the_seats_of_a_launch_are_started_together_and_once() -> None:
    state, actions = after(fresh(), order(FIRST))
    assert actions == [StartSeat(FIRST, ONE), StartSeat(FIRST, TWO)]
    assert (state.workers, state.launched, state.launched_at) == (frozenset({ONE, TWO}), 1, NOW)
    assert after(state, order(FIRST), Recheck())[1] == [HELLO]


def test_an_agent_registers_again_after_orders_for_its_earlier_run_which_it_ignores() -> None:
    known = order(FIRST, install_id="home", run_id="7")
    state = after(fresh(), known)[0]
    assert after(state, known, Recheck())[1] == []
    assert after(state, order(FIRST, install_id="home", run_id="6"), Recheck())[1] == [HELLO]


def test_before_the_first_launch_ports_are_offered() -> None:
    state, actions = after(fresh(), order(None))
    assert actions == [Offer(0)]
    assert after(state, order(None, ready=True), Recheck())[1] == [HELLO]


def test_an_offer_that_was_lost_is_made_again() -> None:
    state, _ = after(fresh(), order(None))
    assert after(state, Recheck())[1] == [HELLO, Offer(0)]


def test_an_agent_without_room_has_nothing_to_offer() -> None:
    assert after(fresh(0), order(None))[1] == []


def test_an_agent_without_a_seat_offers_ports_for_the_next_launch() -> None:
    assert after(fresh(), order(launch(3, seats=0)))[1] == [Offer(3)]


def test_when_a_launch_is_over_its_workers_are_asked_to_end_and_then_ports_are_offered() -> None:
    state, actions = after(started(), order(OVER))
    assert actions == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    assert after(state, order(OVER))[1] == []  # asked once
    state, actions = after(state, WorkerEnded(ONE, -15))
    assert actions == []
    state, actions = after(state, WorkerEnded(TWO, 1))
    assert actions == [Offer(1)]
    assert (state.workers, state.stopping, state.ends, state.failures) == (NONE, NONE, (), 0)


def test_how_long_workers_have_to_end_is_the_agent_s_to_say() -> None:
    state = replace(started(), stop_s=3.0)
    assert after(state, order(OVER))[1] == [Terminate(ONE, 3.0), Terminate(TWO, 3.0)]


def test_who_does_not_end_in_time_is_killed() -> None:
    state, _ = after(started(), order(OVER))
    assert after(state, StopOverdue(ONE))[1] == [Kill(ONE)]
    state, _ = after(state, WorkerEnded(ONE, -15))
    assert after(state, StopOverdue(ONE))[1] == []
    assert after(state, GraceExpired())[1] == [Kill(TWO)]


def test_an_agent_that_missed_launches_stops_the_old_workers_before_it_starts_new_ones() -> None:
    seven = launch(7)
    state, actions = after(started(), order(seven))
    assert actions == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    state, actions = after(state, WorkerEnded(ONE, 0))
    assert actions == []
    state, actions = after(state, WorkerEnded(TWO, 0))
    assert actions == [StartSeat(seven, name(7, 0)), StartSeat(seven, name(7, 1))]
    assert state.launched == 7


def test_a_launch_that_was_over_before_it_was_heard_of_is_not_started() -> None:
    state, actions = after(fresh(), order(OVER))
    assert actions == [Offer(1)]
    assert (state.launched, state.begun_seats) == (1, NONE)


def test_a_seat_that_is_refilled_gets_a_worker_of_another_name() -> None:
    state, actions = after(started(), WorkerEnded(ONE, -9))
    assert actions == [SendCommand(Exited(ONE, -9))]
    seats = [replace(seat, member=MemberId("x-g1.2.1")) if seat.member == ONE else seat for seat in FIRST.seats]
    refilled = replace(FIRST, seats=tuple(seats), ends=(SeatEnd(ONE, -9),))
    state, actions = after(state, order(refilled))
    assert actions == [StartSeat(refilled, MemberId("x-g1.2.1"))]
    assert state.workers == {MemberId("x-g1.2.1"), TWO}


def test_a_seat_that_is_done_is_not_started_again_by_an_agent_that_was() -> None:
    done = launch(1, ends=(SeatEnd(ONE, 0), SeatEnd(TWO, 0)))
    assert after(fresh(), order(done))[1] == []


def test_without_its_coordinator_an_agent_ends_when_its_workers_have_ended_well() -> None:
    away = Recheck(AWAY_S)
    done = [WorkerEnded(ONE, 0), WorkerEnded(TWO, 0)]
    assert after(after(started(), *done)[0], away)[1] == [Finish()]
    assert Finish() not in after(after(started(), *done)[0], Recheck(AWAY_S - 1))[1], "it may come back"
    assert Finish() not in after(after(started(), done[0])[0], away)[1], "one still runs"
    assert Finish() not in after(after(started(), done[0], WorkerEnded(TWO, 1))[0], away)[1], "one failed"
    assert Finish() not in after(fresh(), away)[1]
    assert Finish() not in after(fresh(), order(launch(1, seats=0)), away)[1], "it had nothing to run"


# -------------------------------------------------------------------------------------------- what is said


def test_an_end_no_member_asked_for_is_said_with_what_the_worker_said_last() -> None:
    state, actions = after(started(), WorkerEnded(ONE, 1, "ValueError"))
    assert actions == [SendCommand(Exited(ONE, 1, "ValueError", early=True))]
    assert state.ends == (SeatEnd(ONE, 1, "ValueError", early=True),)


def test_an_end_that_was_not_heard_is_said_again_and_again() -> None:
    state, _ = after(started(), WorkerEnded(ONE, 0))
    assert after(state, Recheck())[1] == [HELLO, SendCommand(Exited(ONE, 0))]
    assert after(state, order(FIRST))[1] == [SendCommand(Exited(ONE, 0))]
    state, actions = after(state, order(launch(1, ends=(SeatEnd(ONE, 0, "told shorter"),))))
    assert actions == []
    assert after(state, Recheck())[1] == [HELLO]


def test_the_next_end_repeats_those_that_were_not_heard_after_it() -> None:
    state, _ = after(started(), WorkerEnded(ONE, 0))
    assert after(state, WorkerEnded(TWO, 0))[1] == [SendCommand(Exited(TWO, 0)), SendCommand(Exited(ONE, 0))]


def test_nothing_is_offered_before_every_end_was_heard() -> None:
    """The counting of the others' failures depends on it."""
    state, _ = after(started(), WorkerEnded(ONE, -9))
    state, actions = after(state, order(OVER), WorkerEnded(TWO, -15))
    assert actions == [Terminate(TWO, STOP_S), SendCommand(Exited(ONE, -9))]
    assert after(state, Recheck())[1] == [HELLO, SendCommand(Exited(ONE, -9))]
    heard = order(launch(1, over="w leaves", ends=(SeatEnd(ONE, -9),)))
    assert after(state, heard)[1] == [Offer(1)]


def test_another_attempt_knows_nothing_of_ends_before_it() -> None:
    state, _ = after(started(), WorkerEnded(ONE, 1), WorkerEnded(TWO, 1))
    assert after(state, order(None), now=NOW + 9)[1] == [Offer(0)]


# -------------------------------------------------------------------------------------------------- backoff


def test_a_launch_that_failed_once_is_tried_again_at_once() -> None:
    state, _ = after(started(), WorkerEnded(ONE, 1), WorkerEnded(TWO, 1))
    assert (state.failures, state.not_before) == (1, NOW)
    assert after(state, order(launch(1, over="x", ends=state.ends)))[1] == [Offer(1)]


def test_failures_in_a_row_make_the_next_launch_wait() -> None:
    state, waits = fresh(), []
    for number in range(1, 10):
        state, _ = after(state, order(launch(number)))
        state, _ = after(state, WorkerEnded(name(number, 0), 1), WorkerEnded(name(number, 1), 1))
        waits.append(state.not_before - NOW)
        over = order(launch(number, over="x", ends=state.ends))
        assert after(state, over)[1] == ([] if waits[-1] else [Offer(number)])
        assert after(state, over, now=state.not_before)[1] == [Offer(number)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_launch_that_lasted_was_sound() -> None:
    state = replace(started(), failures=6)
    assert after(state, WorkerEnded(ONE, 1), now=NOW + STEADY_S)[0].failures == 7
    steady, _ = after(state, WorkerEnded(ONE, 1), now=NOW + STEADY_S + 0.1)
    assert (steady.failures, steady.not_before) == (1, NOW + STEADY_S + 0.1)


@pytest.mark.parametrize("code", [0, -9, -15, 75])
def test_a_worker_that_was_made_to_end_makes_no_member_wait(code: int) -> None:
    state, _ = after(replace(started(), failures=3), WorkerEnded(ONE, code), now=NOW + YOUNG_S)
    assert (state.failures, state.not_before) == (3, 0.0)
    assert BACKOFF_MAX_S == 30.0


def test_one_that_is_killed_soon_after_its_start_again_and_again_is_waited_for() -> None:
    """No member counts it, but a machine that is short of memory must not be kept busy with starts."""
    first, _ = after(started(), WorkerEnded(ONE, -9), WorkerEnded(TWO, 1))
    assert (first.failures, first.not_before) == (1, NOW)
    third, _ = after(replace(started(), failures=2), WorkerEnded(ONE, -9), WorkerEnded(TWO, -9))
    assert (third.failures, third.not_before) == (3, NOW + 2.0)


def test_a_seat_that_is_refilled_waits_as_a_launch_would() -> None:
    state, _ = after(replace(started(), failures=2), WorkerEnded(ONE, 1))
    again = MemberId("x-g1.0.1")
    refilled = replace(FIRST, seats=tuple(replace(s, member=again) if s.member == ONE else s for s in FIRST.seats))
    waiting, actions = after(state, order(refilled))
    assert (actions, waiting.not_before) == ([], NOW + 2.0)
    state, actions = after(waiting, Recheck(), now=NOW + 2.0)
    assert actions == [HELLO, StartSeat(refilled, again)]
    assert after(state, WorkerEnded(again, 1), now=NOW + 3.0)[0].not_before == NOW + 3.0 + 4.0


def test_a_worker_is_asked_to_end_once() -> None:
    state, actions = after(started(), order(OVER), MachineGoing(5.0, "spot notice"))
    asked = [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    assert actions == [*asked, SendCommand(DrainAgent(AGENT, 5.0, "spot notice"))]
    assert state.leaving


def test_the_end_of_the_job_may_be_heard_with_its_events_alone() -> None:
    assert after(fresh(), JOB_OVER)[1] == [Finish()]
    state, actions = after(started(), JOB_OVER)
    assert actions == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    assert after(state, WorkerEnded(ONE, -15), WorkerEnded(TWO, -15))[1] == [Finish()]


def test_the_end_of_an_earlier_attempt_that_arrives_after_newer_orders_ends_nothing() -> None:
    state, _ = after(fresh(), order(FIRST, revision=9))
    ended = StateChanged(NOW, JobState.CANCELLED, "another attempt")
    assert after(state, JobEvent(ended, 7)) == (state, [])
    assert after(state, JobEvent(ended, 10))[1] == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]


# -------------------------------------------------------------------------------------------------- going


def test_an_agent_that_is_to_leave_stops_its_workers_and_says_goodbye() -> None:
    state, actions = after(started(), order(OVER, leaving=True, grace_s=5.0))
    assert actions == [Terminate(ONE, 5.0), Terminate(TWO, 5.0)]
    assert state.leaving
    assert after(state, order(OVER, leaving=True, grace_s=5.0), Recheck())[1] == []
    state, actions = after(state, WorkerEnded(ONE, -15), WorkerEnded(TWO, 0))
    assert actions == [SendCommand(AgentLeave(AGENT)), Finish()]


def test_an_idle_agent_that_is_to_leave_goes_at_once() -> None:
    assert after(fresh(), order(None, leaving=True))[1] == [SendCommand(AgentLeave(AGENT)), Finish()]


def test_a_machine_that_goes_says_so_first() -> None:
    state, actions = after(started(), MachineGoing(9.0, "spot notice"))
    assert actions == [SendCommand(DrainAgent(AGENT, 9.0, "spot notice")), Terminate(ONE, 9.0), Terminate(TWO, 9.0)]
    assert after(state, order(launch(2, seats=0)))[1] == []
    assert after(state, WorkerEnded(ONE, 1), WorkerEnded(TWO, -15))[1] == [SendCommand(AgentLeave(AGENT)), Finish()]


def test_when_the_job_has_ended_every_member_is_stopped_and_the_agent_ends() -> None:
    state, actions = after(started(), order(FIRST, ended=True))
    assert actions == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    state, actions = after(state, WorkerEnded(ONE, -15), WorkerEnded(TWO, -9))
    assert actions == [SendCommand(Exited(ONE, -15)), SendCommand(Exited(TWO, -9)), Finish()]
    assert after(fresh(), order(None, ended=True))[1] == [Finish()]


# ---------------------------------------------------------------------------------------------- whose orders


def test_orders_for_another_machine_s_agent_end_this_one() -> None:
    """It took our name while we were away: its seats are not ours, and neither is its goodbye to say."""
    state, actions = after(started(), order(launch(2), install_id="elsewhere", run_id="9"))
    assert actions == [Terminate(ONE, STOP_S), Terminate(TWO, STOP_S)]
    state, actions = after(state, Recheck(), WorkerEnded(ONE, -15), WorkerEnded(TWO, -15))
    assert actions == [HELLO, Finish()]


def test_orders_for_an_earlier_life_of_this_agent_are_not_ours() -> None:
    assert after(fresh(), order(FIRST, install_id="home", run_id="6")) == (fresh(), [])
    assert after(fresh(), order(FIRST, install_id="home", run_id="7"))[1] == [
        StartSeat(FIRST, ONE),
        StartSeat(FIRST, TWO),
    ]


def test_orders_that_name_no_member_are_ours() -> None:
    for given in (order(FIRST), order(FIRST, run_id="7"), order(FIRST, install_id="home")):
        assert len(after(fresh(), given)[1]) == 2
    assert len(after(replace(fresh(), install_id=""), order(FIRST, install_id="home", run_id="7"))[1]) == 2


def test_orders_from_before_the_newest_launch_are_old() -> None:
    state, _ = after(fresh(), order(launch(2)))
    assert after(state, order(FIRST)) == (state, [])


# ------------------------------------------------------------------------------------------------- live


def test_when_the_job_becomes_live_the_workers_go_on() -> None:
    live = OrdersReceived(2, frozenset({ONE}), NONE)
    state, actions = after(started(), live, *joins(ONE, TWO))
    assert actions == []
    assert state.workers == {ONE, TWO}
    state, actions = after(state, WorkerEnded(TWO, 1))
    assert actions == [SendCommand(Exited(TWO, 1))]
    assert after(state, Recheck(), now=NOW + 1.0)[1] == [HELLO, Start(MemberId("x-7.1"))]


def test_who_was_asked_to_end_before_the_job_was_live_is_replaced() -> None:
    state, _ = after(started(), order(OVER))
    state, actions = after(state, OrdersReceived(2, frozenset({ONE}), NONE))
    assert actions == [Start(MemberId("x-7.1")), Start(MemberId("x-7.2"))]
    assert after(state, *joins(ONE), WorkerEnded(ONE, -15))[1] == [SendCommand(Exited(ONE, -15))]


def test_old_orders_of_a_live_job_are_as_good_as_any() -> None:
    assert after(fresh(), OrdersReceived(1, NONE, NONE, install_id="home", run_id="6"))[1] == [Start(MemberId("x-7.1"))]


def test_who_lost_its_name_in_a_live_job_starts_no_member_and_says_nothing_of_the_other_s_members() -> None:
    state, actions = after(started(), OrdersReceived(2, NONE, NONE), *joins(ONE, TWO))
    assert actions == []
    theirs = frozenset({MemberId("x-9.1")})
    state, actions = after(state, OrdersReceived(2, theirs, NONE, install_id="elsewhere", run_id="9"))
    assert actions == []
    assert after(state, WorkerEnded(ONE, -9), WorkerEnded(TWO, 0))[1] == [
        SendCommand(Exited(ONE, -9)),
        SendCommand(Exited(TWO, 0)),
        Finish(),
    ]


# ---------------------------------------------------------------------------------------------------- hangs


ALONE = replace(FIRST, seats=FIRST.seats[2:])
STALL_S = 300.0


def idle(at: float, *members: MemberId) -> WorkersSampled:
    return WorkersSampled(tuple(WorkerSample(each, at, 5.0, 100) for each in members))


def watched(given: Launch, stall_s: float = STALL_S) -> Supervisor:
    state, _ = after(replace(fresh(), stall_s=stall_s), order(given))
    return after(state, idle(NOW, ONE, TWO))[0]


def test_launched_workers_that_all_hang_are_killed_and_have_as_long_again() -> None:
    state = watched(ALONE)
    assert after(state, idle(NOW + STALL_S - 1, ONE, TWO), now=NOW + STALL_S - 1)[1] == []
    state, actions = after(state, idle(NOW + STALL_S, ONE, TWO), now=NOW + STALL_S)
    why = "none of the 2 workers here has computed or written anything for 300 s; killed all workers here"
    assert actions == [Announce(why), Kill(ONE), Kill(TWO)]
    assert after(state, idle(NOW + STALL_S + 3, ONE, TWO), now=NOW + STALL_S + 3)[1] == []


def test_workers_may_wait_for_those_of_another_machine_until_they_are_done() -> None:
    late = idle(NOW + STALL_S, ONE, TWO)
    assert after(watched(FIRST), late, now=NOW + STALL_S)[1] == []
    done = tuple(SeatEnd(seat.member, 0) for seat in FIRST.seats[:2])
    assert len(after(watched(replace(FIRST, ends=done)), late, now=NOW + STALL_S)[1]) == 3


def test_workers_hang_for_ever_where_the_limit_is_off_or_the_job_is_live() -> None:
    late = idle(NOW + STALL_S, ONE, TWO)
    assert after(watched(ALONE, stall_s=0.0), late, now=NOW + STALL_S)[1] == []
    live = OrdersReceived(2, frozenset({ONE, TWO}), NONE)
    assert after(watched(ALONE), live, *joins(ONE, TWO), late, now=NOW + STALL_S)[1] == []
    assert after(replace(fresh(), stall_s=1.0), late)[1] == []


def test_samples_of_a_worker_that_has_ended_are_dropped() -> None:
    state, _ = after(watched(ALONE), WorkerEnded(ONE, 0), idle(NOW + 1.0, ONE, TWO))
    assert [each.member for each in state.activity] == [TWO]


def test_a_failure_long_after_the_launch_is_not_early() -> None:
    _, actions = after(started(), WorkerEnded(ONE, 1, "ValueError"), now=NOW + STEADY_S)
    assert actions == [SendCommand(Exited(ONE, 1, "ValueError"))]
