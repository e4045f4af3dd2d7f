"""The supervisor: how many workers an agent runs, and how it goes (rule 19)."""

from dataclasses import replace

import pytest

from pliant.core.hangs import STOPPED_S, WorkerSample
from pliant.core.job.launches import FENCED_CODE
from pliant.core.messages import (
    AgentJoin,
    AgentLeave,
    Cancel,
    DrainAgent,
    Exited,
    MemberGone,
    MemberJoined,
    StateChanged,
)
from pliant.core.model.job import JobState
from pliant.core.model.names import AgentId, MemberId
from pliant.core.ps.messages import ServerJoined
from pliant.core.supervisor import Supervisor, next_deadline, supervise
from pliant.core.supervisor.endings import BACKOFF_FIRST_S, BACKOFF_MAX_S, ENDS_KEPT, KILLED_MAX
from pliant.core.supervisor.live import KILLED
from pliant.core.supervisor.signals import (
    Action,
    Announce,
    Finish,
    GraceExpired,
    JobEvent,
    Kill,
    MachineGoing,
    OrdersReceived,
    ReadEvents,
    Recheck,
    SendCommand,
    Signal,
    Start,
    StopWithin,
    Terminate,
    WorkerEnded,
    WorkersSampled,
)
from pliant.core.supervisor.state import GRACE_S, MARGIN_S
from pliant.core.tasks.messages import TaskMemberJoined
from pliant.core.tasks.model import TaskTerms
from unit.core.build import TERMS, member

AGENT = AgentId("x")
NOW = 100.0
HELLO = AgentJoin(AGENT, 4, run_id="1a")


def name(number: int, life: str = "1a") -> MemberId:
    return MemberId(f"x-{life}.{number}")


ONE, TWO, THREE, FOUR, FIVE = (name(number) for number in range(1, 6))


def fresh(capacity: int = 4) -> Supervisor:
    return Supervisor(AGENT, "1a", capacity)


def wanted(
    count: int,
    *draining: MemberId,
    members: frozenset[MemberId] = frozenset(),
    ended: bool = False,
    finished: bool = False,
) -> OrdersReceived:
    return OrdersReceived(count, members, frozenset(draining), ended or finished, finished=finished)


def after(state: Supervisor, *signals: Signal, now: float = NOW) -> tuple[Supervisor, list[Action]]:
    done: list[Action] = []
    for signal in signals:
        state, actions = supervise(state, signal, now)
        done += actions
    return state, done


def joins(*members: MemberId) -> list[Signal]:
    return [JobEvent(MemberJoined(NOW, member(each, 1), TERMS)) for each in members]


def gone(member: MemberId, how: str = "lost") -> JobEvent:
    return JobEvent(MemberGone(NOW, member, how, "its lease ran out"))


def becomes(state: JobState) -> JobEvent:
    return JobEvent(StateChanged(NOW, state, "a reason"))


def with_workers(count: int, capacity: int = 4) -> Supervisor:
    """Workers that have joined."""
    state = after(fresh(capacity), wanted(count))[0]
    return after(state, *joins(*sorted(state.workers)))[0]


# ------------------------------------------------------------------------------------------ enough workers


def test_before_it_is_told_how_many_an_agent_starts_no_member() -> None:
    assert fresh().wanted == 0
    assert after(fresh(), Recheck())[1] == [SendCommand(HELLO)]


def test_missing_workers_are_started_under_names_never_used_before() -> None:
    state, actions = after(fresh(), wanted(2))
    assert actions == [Start(ONE), Start(TWO)]
    assert state == replace(fresh(), wanted=2, workers=frozenset({ONE, TWO}), started=2, order=wanted(2))
    state, actions = after(state, *joins(ONE), gone(ONE, "left"), WorkerEnded(ONE, 0), wanted(3))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(THREE), Start(FOUR)]


def test_enough_workers_are_enough() -> None:
    state, actions = after(with_workers(2), wanted(2))
    assert (state, actions) == (with_workers(2), [])


def test_too_many_workers_are_left_alone() -> None:
    """The member that is left out of a world ends by itself; that is not the agent's business."""
    state, actions = after(with_workers(3), wanted(1))
    assert actions == []
    assert state.workers == {ONE, TWO, THREE}


def test_a_worker_of_a_task_queue_that_joined_and_ended_well_does_not_end_the_job() -> None:
    state = after(fresh(), wanted(2))[0]
    joined = (JobEvent(TaskMemberJoined(NOW, each, AGENT, 1, 0, TaskTerms(9, 3))) for each in (ONE, TWO))
    state, actions = after(state, *joined, wanted(1), gone(ONE, "left"), WorkerEnded(ONE, 0))
    assert (state.gave_up, actions) == ("", [SendCommand(Exited(ONE, 0))])
    assert state.joined == {TWO}


def test_parameter_servers_run_beside_the_workers_and_are_replaced() -> None:
    state, actions = after(replace(fresh(2), server_count=2), wanted(2))
    first, second = MemberId("x-1a.ps1"), MemberId("x-1a.ps2")
    assert actions == [Start(first, is_server=True), Start(second, is_server=True), Start(ONE), Start(TWO)]
    joined = [JobEvent(ServerJoined(NOW, each, AGENT, 1, 0, "h:1")) for each in (first, second, MemberId("y-1.ps1"))]
    state, actions = after(state, *joined, gone(first), WorkerEnded(first, -9))
    assert not state.script_joins
    assert actions == [SendCommand(Exited(first, -9)), Start(MemberId("x-1a.ps3"), is_server=True)]
    ended = WorkerEnded(MemberId("x-1a.ps3"), 0, events_read=True)
    assert after(state, ended)[0].gave_up == "", "the script is not to blame for a server that ended before it joined"


def test_an_agent_runs_no_more_than_it_has_room_for() -> None:
    assert after(fresh(2), wanted(9))[1] == [Start(ONE), Start(TWO)]
    assert after(fresh(0), wanted(9))[1] == []


def test_a_draining_worker_is_replaced_before_it_is_gone() -> None:
    state, actions = after(with_workers(2, capacity=2), wanted(2, ONE))
    assert actions == [Start(THREE)]
    assert state.draining == {ONE}
    assert state.workers == {ONE, TWO, THREE}


def test_old_and_new_fit_side_by_side_and_no_more() -> None:
    state, actions = after(with_workers(2, capacity=2), wanted(2, ONE, TWO))
    assert actions == [Start(THREE), Start(FOUR)]
    state, actions = after(state, wanted(2, ONE, TWO, THREE, FOUR))
    assert actions == []
    state, actions = after(state, WorkerEnded(ONE, 0))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(FIVE)]


def test_a_worker_that_ended_drains_no_more() -> None:
    state, _ = after(with_workers(2), wanted(2, ONE), WorkerEnded(ONE, 0))
    assert state.draining == frozenset()
    assert ONE not in state.workers


def test_the_end_of_a_stranger_is_no_member_s_business() -> None:
    assert after(with_workers(1), WorkerEnded(THREE, 1)) == (with_workers(1), [])


# -------------------------------------------------------------------------------------------------- backoff


@pytest.mark.parametrize("code", [-9, -15, FENCED_CODE])
def test_a_worker_that_was_made_to_end_is_replaced_at_once(code: int) -> None:
    state, actions = after(with_workers(1), WorkerEnded(ONE, code))
    assert actions == [SendCommand(Exited(ONE, code)), Start(TWO)]
    assert (state.failures, state.not_before) == (0, 0.0)


def test_a_worker_that_left_is_replaced_at_once() -> None:
    state, actions = after(with_workers(1), gone(ONE, "left"), WorkerEnded(ONE, 0))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(TWO)]
    assert (state.failures, state.not_before, state.left) == (0, 0.0, frozenset())


def test_a_worker_that_quits_is_replaced_after_a_while() -> None:
    """Its script ended before the job was finished. The event that it left may still be on its way."""
    state, actions = after(with_workers(1), WorkerEnded(ONE, 0))
    assert actions == [ReadEvents(WorkerEnded(ONE, 0))]
    assert state == with_workers(1)
    quits, actions = after(state, WorkerEnded(ONE, 0, events_read=True))
    assert actions == [SendCommand(Exited(ONE, 0))]
    assert (quits.failures, quits.not_before) == (1, NOW + BACKOFF_FIRST_S)
    left, actions = after(state, gone(ONE, "left"), WorkerEnded(ONE, 0, events_read=True))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(TWO)]
    assert (left.failures, left.not_before) == (0, 0.0)


@pytest.mark.parametrize("code", [1, 74, 76, -6, -11])
def test_a_worker_that_failed_is_replaced_after_a_while(code: int) -> None:
    state, actions = after(with_workers(1), WorkerEnded(ONE, code))
    assert actions == [SendCommand(Exited(ONE, code))]
    assert (state.failures, state.not_before) == (1, NOW + BACKOFF_FIRST_S)
    assert after(state, wanted(1), now=NOW + 0.999)[1] == []
    assert after(state, wanted(1), now=NOW + 1.0)[1] == [Start(TWO)]


def test_every_failure_in_a_row_doubles_the_wait_up_to_a_limit() -> None:
    state, now, waits = with_workers(1), NOW, []
    for number in range(1, 9):
        state, _ = after(state, *joins(name(number)), WorkerEnded(name(number), 1), now=now)
        waits.append(state.not_before - now)
        now = state.not_before
        state, actions = after(state, Recheck(), now=now)
        assert actions[1:] == [Start(name(number + 1))]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert BACKOFF_MAX_S == 30.0


def test_an_orderly_end_ends_the_row_but_not_the_wait() -> None:
    state, _ = after(with_workers(3), WorkerEnded(ONE, 1), gone(TWO, "left"), WorkerEnded(TWO, 0))
    assert (state.failures, state.not_before) == (0, NOW + 1.0)
    state, _ = after(state, WorkerEnded(THREE, 1), now=NOW + 0.5)
    assert (state.failures, state.not_before) == (1, NOW + 1.5)


# --------------------------------------------------------------------------------------- what was lost


def test_time_and_again_the_agent_says_that_it_is_there() -> None:
    assert after(with_workers(1, capacity=3), Recheck())[1] == [SendCommand(AgentJoin(AGENT, 3, run_id="1a"))]


def test_an_agent_registers_until_the_orders_are_for_its_run() -> None:
    known = replace(wanted(0), run_id="1a")
    state = after(fresh(), known)[0]
    assert after(state, Recheck())[1] == []
    assert after(state, replace(known, run_id="1"), Recheck())[1] == [SendCommand(HELLO)]
    assert after(state, wanted(0), Recheck())[1] == [SendCommand(HELLO)]


def test_an_agent_whose_request_was_refused_registers_again() -> None:
    state = after(fresh(), replace(wanted(0), run_id="1a"))[0]
    assert after(state, Recheck(refused=True))[1] == [SendCommand(HELLO)]


def test_time_and_again_it_looks_whether_a_worker_is_missing() -> None:
    state = replace(fresh(), wanted=1)
    assert after(state, Recheck())[1] == [SendCommand(HELLO), Start(ONE)]


def test_a_death_that_was_not_heard_of_is_said_again() -> None:
    """A worker never outlives its agent: a name of ours that we do not run is a process that ended."""
    ghosts = {name(7), name(3, "0z")}
    counted_on = frozenset({ONE, *ghosts})
    state, actions = after(with_workers(1), wanted(1, members=counted_on))
    assert actions == [SendCommand(Exited(name(3, "0z"), KILLED)), SendCommand(Exited(name(7), KILLED))]
    assert KILLED == -9
    assert state == replace(with_workers(1), order=wanted(1, members=counted_on))


def test_how_a_worker_ended_is_said_again_as_it_was() -> None:
    """It left in good order, or failed by itself: called killed, it would count as lost, or not count at all."""
    state, _ = after(with_workers(3), gone(ONE, "left"), WorkerEnded(ONE, 0), WorkerEnded(TWO, 3, "ValueError: no"))
    again = wanted(1, members=frozenset({ONE, TWO, THREE}))
    assert after(state, again)[1] == [SendCommand(Exited(ONE, 0)), SendCommand(Exited(TWO, 3, "ValueError: no"))]


def test_of_a_thousand_ends_the_last_hundred_are_remembered() -> None:
    state = with_workers(1)
    for count in range(1_000):
        state, _ = after(
            replace(state, workers=frozenset({name(count)})), *joins(name(count)), WorkerEnded(name(count), -9)
        )
    assert len(state.ends) == ENDS_KEPT + 1
    assert state.ends[-1].member == name(999)


def test_a_stranger_s_death_is_not_ours_to_say() -> None:
    others = frozenset({MemberId("y-1a.1"), MemberId("xx-1a.1"), MemberId("x")})
    assert after(with_workers(1), wanted(1, members=others))[1] == []


def test_deaths_are_said_before_anything_is_started() -> None:
    assert after(fresh(), wanted(1, members=frozenset({name(1, "0z")})))[1] == [
        SendCommand(Exited(name(1, "0z"), KILLED)),
        Start(ONE),
    ]


# -------------------------------------------------------------------------------------------- the way out


def test_a_machine_that_goes_drains_its_workers_and_starts_none() -> None:
    state, actions = after(with_workers(2), MachineGoing(30.0, "spot notice"))
    assert actions == [
        SendCommand(DrainAgent(AGENT, 30.0, "spot notice")),
        Terminate(ONE, 30.0),
        Terminate(TWO, 30.0),
    ]
    assert state.leaving
    assert state.draining == {ONE, TWO}
    assert after(state, wanted(4, ONE, TWO), Recheck())[1] == []


def test_a_second_notice_changes_nothing_unless_it_leaves_less_time() -> None:
    state, _ = after(with_workers(2), MachineGoing(30.0, "spot notice"))
    assert after(state, MachineGoing(30.0, "SIGTERM")) == (state, [])
    state, actions = after(state, MachineGoing(1.0, "SIGTERM"))
    assert actions == [
        SendCommand(DrainAgent(AGENT, 1.0, "SIGTERM")),
        StopWithin(ONE, 1.0),  # no second SIGTERM, which may mean "now" to a worker
        StopWithin(TWO, 1.0),
    ]
    assert after(state, MachineGoing(30.0, "spot notice")) == (state, [])


def test_an_agent_of_a_live_job_that_is_asked_to_leave_starts_none_and_goes_after_its_last_worker() -> None:
    leave = replace(wanted(0, ONE, members=frozenset({ONE, name(9)})), leaving=True, grace_s=9.0)
    state, actions = after(with_workers(1), leave)
    assert actions == [SendCommand(Exited(name(9), KILLED)), Terminate(ONE, 9.0)]
    assert state.leaving
    assert after(state, leave)[1] == [SendCommand(Exited(name(9), KILLED))]
    assert after(state, wanted(3), Recheck())[1] == []
    assert after(state, replace(leave, grace_s=2.0))[1][-1] == StopWithin(ONE, 2.0)
    assert after(state, WorkerEnded(ONE, 0))[1] == [
        SendCommand(Exited(ONE, 0)),
        SendCommand(AgentLeave(AGENT)),
        Finish(),
    ]


def test_orders_to_leave_that_an_earlier_run_of_the_agent_received_do_not_count() -> None:
    leave = replace(wanted(1), leaving=True, grace_s=9.0, run_id="0z")
    assert after(fresh(), leave)[1] == [Start(ONE)]
    assert not after(fresh(), leave)[0].leaving


def test_an_agent_without_workers_goes_at_once() -> None:
    state, actions = after(fresh(), MachineGoing(30.0, "SIGTERM"))
    assert actions == [SendCommand(AgentLeave(AGENT)), Finish()]
    assert state.leaving


def test_an_agent_goes_after_its_last_worker() -> None:
    state, _ = after(with_workers(2), MachineGoing(30.0, "spot notice"))
    state, actions = after(state, WorkerEnded(ONE, 0))
    assert actions == [SendCommand(Exited(ONE, 0))]
    state, actions = after(state, WorkerEnded(TWO, -9))
    assert actions == [SendCommand(Exited(TWO, -9)), SendCommand(AgentLeave(AGENT)), Finish()]


def test_a_member_that_is_still_there_when_time_is_up_is_killed() -> None:
    state, _ = after(with_workers(2), MachineGoing(30.0, "spot notice"))
    assert after(state, GraceExpired()) == (state, [Kill(ONE), Kill(TWO)])
    assert after(fresh(), GraceExpired())[1] == []


def test_when_the_job_is_over_no_worker_is_started_and_the_last_one_s_end_is_the_agent_s() -> None:
    state, actions = after(with_workers(1), wanted(0, ended=True))
    assert actions == []
    assert state.ended
    assert after(state, Recheck())[1] == [SendCommand(HELLO)]
    assert after(replace(state, wanted=3), Recheck())[1] == [SendCommand(HELLO)]
    assert after(state, WorkerEnded(ONE, 0))[1] == [SendCommand(Exited(ONE, 0)), Finish()]


def test_an_agent_without_workers_ends_with_the_job() -> None:
    assert after(fresh(), wanted(0, ended=True))[1] == [Finish()]


def test_a_worker_that_fails_for_ever_is_started_again_every_half_minute() -> None:
    only = frozenset({MemberId("w")})
    state = Supervisor(AgentId("x"), "1", 1, workers=only, joined=only, failures=5000)
    assert supervise(state, WorkerEnded(MemberId("w"), 1), 7.0)[0].not_before == 37.0


# ------------------------------------------------------------------------------------- workers that never join


def unjoined(count: int, **settings: object) -> Supervisor:
    """Workers of a job that no worker has joined yet."""
    return after(replace(fresh(), **settings), wanted(count))[0]  # type: ignore[arg-type]


def never_joined(member: MemberId, code: int) -> WorkerEnded:
    return WorkerEnded(member, code, log="/logs/it.log", events_read=True)


def test_the_end_of_a_worker_that_may_have_joined_waits_for_the_events_before_it() -> None:
    ended = WorkerEnded(ONE, 1)
    state = unjoined(1)
    assert after(state, ended) == (state, [ReadEvents(ended)])
    state, actions = after(state, *joins(ONE), replace(ended, events_read=True))
    assert actions == [SendCommand(Exited(ONE, 1))]
    assert state.never_joined == 0


def test_a_script_that_ends_well_and_never_joins_is_given_up_at_once() -> None:
    state, actions = after(unjoined(2), never_joined(ONE, 0))
    why = state.gave_up
    assert "x-1a.1 ended with exit code 0 and had never joined the job" in why
    assert actions == [
        SendCommand(Cancel(why, failed=True)),
        SendCommand(Exited(ONE, 0)),
        SendCommand(DrainAgent(AGENT, GRACE_S, why)),
        Terminate(TWO, GRACE_S),
    ]
    assert after(state, WorkerEnded(TWO, -15, events_read=True))[1] == [
        SendCommand(Exited(TWO, -15)),
        SendCommand(AgentLeave(AGENT)),
        Finish(),
    ]


def test_where_others_have_joined_one_that_ends_well_before_is_replaced() -> None:
    """A person ended it, most likely. A script that does so for ever is given up all the same."""
    state, _ = after(unjoined(1, max_restarts=1), *joins(MemberId("other")))
    state, actions = after(state, never_joined(ONE, 0))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(TWO)]
    state, actions = after(state, never_joined(TWO, 0))
    assert "2 workers in a row ended before they joined, x-1a.2 with exit code 0" in state.gave_up
    assert actions[0] == SendCommand(Cancel(state.gave_up, failed=True))


MISMATCH = "pliant.errors.Refused: x-1a.1 would train with batch_size 16 where the job has 32: pass the job's value"


@pytest.mark.parametrize("error", ["ModuleNotFoundError: No module named 'x'", "pliant.errors.BadInput: no", MISMATCH])
def test_a_script_that_cannot_start_is_given_up_at_once(error: str) -> None:
    state, actions = after(unjoined(1), replace(never_joined(ONE, 1), error=error))
    assert state.gave_up == f"it cannot start: x-1a.1 ended with exit code 1: {error}"
    assert actions[0] == SendCommand(Cancel(state.gave_up, failed=True))


def test_a_command_line_that_the_script_refuses_is_given_up_at_once() -> None:
    error = "train.py: error: unrecognized arguments: --rl"
    assert "it cannot start" in after(unjoined(1), replace(never_joined(ONE, 2), error=error))[0].gave_up


def test_the_same_bad_input_twice_is_given_up_and_another_error_is_tried_again() -> None:
    bad = replace(never_joined(ONE, 1), error="ValueError: --lr must be positive")
    state, _ = after(unjoined(1), bad)
    assert not state.gave_up
    state, _ = after(state, Recheck(), now=state.not_before)
    assert not after(state, replace(bad, member=TWO, error="ValueError: another"))[0].gave_up
    assert not after(state, replace(bad, member=TWO, error="ConnectionResetError"))[0].gave_up
    assert "it cannot start: x-1a.2 ended" in after(state, replace(bad, member=TWO))[0].gave_up


def test_a_machine_without_a_module_does_not_end_a_job_that_others_train() -> None:
    missing = replace(never_joined(ONE, 1), error="ModuleNotFoundError: No module named 'x'")
    assert not after(unjoined(1, trains=True), missing)[0].gave_up
    assert not after(after(unjoined(1), *joins(MemberId("other")))[0], missing)[0].gave_up


def test_workers_that_fail_before_they_join_are_restarted_so_often_and_then_given_up() -> None:
    state, now = unjoined(1, max_restarts=2), NOW
    for number in (1, 2):
        state, actions = after(state, never_joined(name(number), 1), now=now)
        assert actions == [SendCommand(Exited(name(number), 1))]
        now = state.not_before
        state, _ = after(state, Recheck(), now=now)
    state, actions = after(state, never_joined(THREE, 1), now=now)
    assert state.gave_up == (
        "3 workers in a row ended before they joined, x-1a.3 with exit code 1; its output is in /logs/it.log"
    )
    assert actions == [
        SendCommand(Cancel(state.gave_up, failed=True)),
        SendCommand(Exited(THREE, 1)),
        SendCommand(AgentLeave(AGENT)),
        Finish(),
    ]
    without_log = after(unjoined(1, max_restarts=0), replace(never_joined(ONE, 1), log=""))[0]
    assert without_log.gave_up == "1 workers in a row ended before they joined, x-1a.1 with exit code 1"


@pytest.mark.parametrize("end", [WorkerEnded(ONE, -9, events_read=True), WorkerEnded(ONE, 1, events_read=False)])
def test_a_worker_that_was_killed_or_may_have_joined_counts_for_nothing(end: WorkerEnded) -> None:
    state, actions = after(unjoined(1, max_restarts=0), end)
    assert (state.never_joined, state.gave_up) == (0, "")
    assert actions[0] == SendCommand(Exited(ONE, end.code))


def test_workers_that_are_killed_before_they_join_are_started_again_for_a_while_and_then_given_up() -> None:
    """The machine may have too little memory for the imports: no restart cures that."""
    state, now = unjoined(1, max_restarts=0), NOW
    for number in range(1, KILLED_MAX):
        state, actions = after(state, never_joined(name(number), -9), now=now)
        assert actions == [SendCommand(Exited(name(number), -9)), Start(name(number + 1))]
    state, actions = after(state, never_joined(name(KILLED_MAX), -9), now=now)
    assert state.gave_up == (
        f"{KILLED_MAX} workers in a row were killed before they joined, {name(KILLED_MAX)} with signal 9; "
        "check the memory of this machine; its output is in /logs/it.log"
    )
    assert actions[0] == SendCommand(Cancel(state.gave_up, failed=True))


def test_a_worker_that_joins_ends_the_row_of_those_that_were_killed() -> None:
    state, _ = after(unjoined(2), never_joined(ONE, -9))
    assert state.killed_unjoined == 1
    assert after(state, *joins(TWO))[0].killed_unjoined == 0


def test_a_worker_that_joins_ends_the_row() -> None:
    state, _ = after(unjoined(2, max_restarts=1), never_joined(ONE, 1), *joins(TWO))
    assert state.never_joined == 0


@pytest.mark.parametrize("before", [MachineGoing(5.0, "spot notice"), wanted(0, ended=True)])
def test_nothing_is_given_up_when_the_worker_was_to_end(before: Signal) -> None:
    state, _ = after(unjoined(2, max_restarts=0), before, never_joined(ONE, 1))
    assert state.gave_up == ""


# ------------------------------------------------------------------------------------------------ lost workers


def test_a_lost_worker_that_does_not_end_is_killed_and_killed_again() -> None:
    state, actions = after(with_workers(2), gone(ONE), gone(TWO, "left"), gone(THREE))
    assert actions == []
    assert next_deadline(state, NOW) == NOW + GRACE_S
    assert after(state, Recheck(), now=NOW + GRACE_S - 0.1)[1] == [SendCommand(HELLO)]
    kill = [Announce(f"x-1a.1 was lost to the job and did not end within {GRACE_S:g} s; killed it"), Kill(ONE)]
    state, actions = after(state, Recheck(), now=NOW + GRACE_S)
    assert actions == [SendCommand(HELLO), *kill]
    assert after(state, Recheck(), now=NOW + GRACE_S + 1.0)[1] == [SendCommand(HELLO)]
    assert after(state, Recheck(), now=NOW + 2 * GRACE_S)[1] == [SendCommand(HELLO), *kill]
    state, _ = after(state, WorkerEnded(ONE, -9))
    assert (state.lost, next_deadline(state, NOW)) == ((), None)


# ------------------------------------------------------------------------------------------ the end of the job


def test_after_a_finished_job_workers_that_never_joined_are_stopped_and_others_run_on() -> None:
    state, _ = after(unjoined(2), *joins(ONE))
    for finished in (wanted(0, finished=True), becomes(JobState.FINISHED)):
        ended, actions = after(state, finished)
        assert actions == [Terminate(TWO, GRACE_S)]
        assert after(ended, finished, Recheck(), now=NOW + 1000.0)[1] == [SendCommand(HELLO)]
        ended, _ = after(ended, WorkerEnded(TWO, -15, events_read=True))
        assert ended.failed_after_end == ()
        ended, actions = after(ended, WorkerEnded(ONE, 3))
        assert actions[-1] == Finish()
        assert [(end.member, end.code) for end in ended.failed_after_end] == [(ONE, 3)]


@pytest.mark.parametrize("code", [0, FENCED_CODE])
def test_a_worker_that_ends_well_after_the_job_is_no_failure(code: int) -> None:
    state, _ = after(with_workers(1), becomes(JobState.FINISHED), WorkerEnded(ONE, code))
    assert state.failed_after_end == ()


def test_after_a_job_that_ended_badly_workers_have_the_grace_period() -> None:
    state, actions = after(with_workers(1), becomes(JobState.FAILED))
    assert actions == []
    assert next_deadline(state, NOW) == NOW + GRACE_S + MARGIN_S
    assert after(state, wanted(0, ended=True))[0].kill_at == state.kill_at
    state, actions = after(state, Recheck(), now=NOW + GRACE_S + MARGIN_S)
    assert actions == [SendCommand(HELLO), Kill(ONE)]
    assert next_deadline(state, NOW) == NOW + 2 * GRACE_S + MARGIN_S
    assert next_deadline(after(state, WorkerEnded(ONE, -9))[0], NOW) is None


def test_another_attempt_lifts_the_limit() -> None:
    state, _ = after(with_workers(1), becomes(JobState.CANCELLED), wanted(1))
    assert state.kill_at is None


def test_a_job_that_goes_on_asks_nothing_of_an_agent() -> None:
    assert after(with_workers(1), becomes(JobState.RUNNING)) == (with_workers(1), [])


def test_the_backoff_is_a_deadline_until_it_is_over() -> None:
    state, _ = after(with_workers(1), WorkerEnded(ONE, 1))
    assert next_deadline(state, NOW) == NOW + BACKOFF_FIRST_S
    assert next_deadline(state, NOW + BACKOFF_FIRST_S) is None


# ------------------------------------------------------------------------------------------- stopped workers


def seen_stopped(state: Supervisor, *members: MemberId) -> tuple[Supervisor, list[Action]]:
    """These workers are stopped, for long enough; the others run."""

    def sampled(at: float) -> WorkersSampled:
        return WorkersSampled(
            tuple(
                WorkerSample(each, at, *((5.0, 0, "T") if each in members else (at, 0, "R")))
                for each in sorted(state.workers)
            )
        )

    found, early = after(state, sampled(NOW), now=NOW)
    assert early == []
    return after(found, sampled(NOW + STOPPED_S), now=NOW + STOPPED_S)


def test_a_stopped_worker_that_others_wait_for_is_killed_and_the_others_are_not() -> None:
    state, actions = seen_stopped(with_workers(3), TWO)
    text = f"{TWO} was stopped (SIGSTOP) for 2 s while the other workers waited for it; killed it"
    assert actions == [Announce(text), Kill(TWO)]
    assert [each.member for each in state.activity] == [ONE, THREE]


def test_a_stopped_worker_is_killed_where_those_that_wait_run_on_other_machines() -> None:
    elsewhere = MemberId("y-1a.1")
    joined = JobEvent(MemberJoined(NOW, replace(member(elsewhere, 9), agent=AgentId("y")), TERMS))
    state, _ = after(with_workers(1), joined)
    assert [each for each in seen_stopped(state, ONE)[1] if isinstance(each, Kill)] == [Kill(ONE)]
    state, _ = after(state, gone(elsewhere))
    assert seen_stopped(state, ONE)[1] == []


def test_a_stopped_worker_that_no_other_waits_for_is_left_alone() -> None:
    assert seen_stopped(with_workers(1), ONE)[1] == []
    assert seen_stopped(with_workers(2), ONE, TWO)[1] == []


def test_a_stopped_worker_that_has_not_joined_left_or_whose_job_ended_is_left_alone() -> None:
    starting, _ = after(fresh(), wanted(3), *joins(ONE, THREE))
    assert seen_stopped(starting, TWO)[1] == []
    left, _ = after(with_workers(3), gone(TWO, "left"))
    assert seen_stopped(left, TWO)[1] == []
    ended, _ = after(with_workers(3), becomes(JobState.FINISHED))
    assert Kill(TWO) not in seen_stopped(ended, TWO)[1]
