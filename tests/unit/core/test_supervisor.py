"""The supervisor: how many workers an agent runs, and how it goes (rule 19)."""

from dataclasses import replace

import pytest

from pliant.core.job.launches import FENCED_CODE
from pliant.core.messages import AgentJoin, AgentLeave, DrainAgent, Exited
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    ENDS_KEPT,
    KILLED,
    Action,
    Finish,
    GraceExpired,
    Kill,
    MachineGoing,
    Orders,
    Recheck,
    SendCommand,
    Signal,
    Start,
    Supervisor,
    Terminate,
    WorkerEnded,
    supervise,
)

AGENT = AgentId("x")
NOW = 100.0
HELLO = AgentJoin(AGENT, 4, run_id="1a")


def name(number: int, life: str = "1a") -> MemberId:
    return MemberId(f"x-{life}.{number}")


ONE, TWO, THREE, FOUR, FIVE = (name(number) for number in range(1, 6))


def fresh(capacity: int = 4) -> Supervisor:
    return Supervisor(AGENT, "1a", capacity)


def wanted(count: int, *draining: MemberId, members: frozenset[MemberId] = frozenset(), ended: bool = False) -> Orders:
    return Orders(count, members, frozenset(draining), ended)


def after(state: Supervisor, *signals: Signal, now: float = NOW) -> tuple[Supervisor, list[Action]]:
    done: list[Action] = []
    for signal in signals:
        state, actions = supervise(state, signal, now)
        done += actions
    return state, done


def with_workers(count: int, capacity: int = 4) -> Supervisor:
    return after(fresh(capacity), wanted(count))[0]


# ------------------------------------------------------------------------------------------ enough workers


def test_before_it_is_told_how_many_an_agent_starts_nobody() -> None:
    assert fresh().wanted == 0
    assert after(fresh(), Recheck())[1] == [SendCommand(HELLO)]


def test_missing_workers_are_started_under_names_never_used_before() -> None:
    state, actions = after(fresh(), wanted(2))
    assert actions == [Start(ONE), Start(TWO)]
    assert state == replace(fresh(), wanted=2, workers=frozenset({ONE, TWO}), started=2, order=wanted(2))
    state, actions = after(state, WorkerEnded(ONE, 0), wanted(3))
    assert actions == [SendCommand(Exited(ONE, 0)), Start(THREE), Start(FOUR)]


def test_enough_workers_are_enough() -> None:
    state, actions = after(with_workers(2), wanted(2))
    assert (state, actions) == (with_workers(2), [])


def test_too_many_workers_are_left_alone() -> None:
    """Whoever is left out of a world ends by itself; that is not the agent's business."""
    state, actions = after(with_workers(3), wanted(1))
    assert actions == []
    assert state.workers == {ONE, TWO, THREE}


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


def test_the_end_of_a_stranger_is_nobody_s_business() -> None:
    assert after(with_workers(1), WorkerEnded(THREE, 1)) == (with_workers(1), [])


# -------------------------------------------------------------------------------------------------- backoff


@pytest.mark.parametrize("code", [0, -9, -15, FENCED_CODE])
def test_a_worker_that_was_made_to_end_is_replaced_at_once(code: int) -> None:
    state, actions = after(with_workers(1), WorkerEnded(ONE, code))
    assert actions == [SendCommand(Exited(ONE, code)), Start(TWO)]
    assert (state.failures, state.not_before) == (0, 0.0)


@pytest.mark.parametrize("code", [1, 74, 76])
def test_a_worker_that_failed_is_replaced_after_a_while(code: int) -> None:
    state, actions = after(with_workers(1), WorkerEnded(ONE, code))
    assert actions == [SendCommand(Exited(ONE, code))]
    assert (state.failures, state.not_before) == (1, NOW + BACKOFF_FIRST_S)
    assert after(state, wanted(1), now=NOW + 0.999)[1] == []
    assert after(state, wanted(1), now=NOW + 1.0)[1] == [Start(TWO)]


def test_every_failure_in_a_row_doubles_the_wait_up_to_a_limit() -> None:
    state, now, waits = with_workers(1), NOW, []
    for number in range(1, 9):
        state, _ = after(state, WorkerEnded(name(number), 1), now=now)
        waits.append(state.not_before - now)
        now = state.not_before
        state, actions = after(state, Recheck(), now=now)
        assert actions[1:] == [Start(name(number + 1))]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert BACKOFF_MAX_S == 30.0


def test_an_orderly_end_ends_the_row_but_not_the_wait() -> None:
    state, _ = after(with_workers(3), WorkerEnded(ONE, 1), WorkerEnded(TWO, 0))
    assert (state.failures, state.not_before) == (0, NOW + 1.0)
    state, _ = after(state, WorkerEnded(THREE, 1), now=NOW + 0.5)
    assert (state.failures, state.not_before) == (1, NOW + 1.5)


# --------------------------------------------------------------------------------------- what was lost


def test_time_and_again_the_agent_says_that_it_is_there() -> None:
    assert after(with_workers(1, capacity=3), Recheck())[1] == [SendCommand(AgentJoin(AGENT, 3, run_id="1a"))]


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
    state, _ = after(with_workers(3), WorkerEnded(ONE, 0), WorkerEnded(TWO, 3, "ValueError: no"))
    again = wanted(1, members=frozenset({ONE, TWO, THREE}))
    assert after(state, again)[1] == [SendCommand(Exited(ONE, 0)), SendCommand(Exited(TWO, 3, "ValueError: no"))]


def test_of_a_thousand_ends_the_last_hundred_are_remembered() -> None:
    state = with_workers(1)
    for count in range(1_000):
        state, _ = after(replace(state, workers=frozenset({name(count)})), WorkerEnded(name(count), 0))
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


def test_a_second_notice_changes_nothing() -> None:
    state, _ = after(with_workers(2), MachineGoing(30.0, "spot notice"))
    assert after(state, MachineGoing(1.0, "SIGTERM")) == (state, [])


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


def test_whoever_is_still_there_when_time_is_up_is_killed() -> None:
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
    state = Supervisor(AgentId("x"), "1", 1, workers=frozenset({MemberId("w")}), failures=5000)
    assert supervise(state, WorkerEnded(MemberId("w"), 1), 7.0)[0].not_before == 37.0
