"""An agent of a job in a queue: each start needs a permit of the coordinator."""

from __future__ import annotations

from dataclasses import replace

from pliant.core.messages import AgentJoin, AgentLeave, Exited
from pliant.core.model.names import MemberId
from pliant.core.supervisor import Supervisor
from pliant.core.supervisor.signals import (
    Finish,
    MachineGoing,
    OrdersReceived,
    Recheck,
    SendCommand,
    Start,
    Terminate,
    WorkerEnded,
)
from unit.core.supervisor.test_live import AGENT, FIVE, FOUR, NOW, ONE, THREE, TWO, after, fresh, joins


def orders(count: int, permitted: int, *draining: MemberId, members: tuple[MemberId, ...] = ()) -> OrdersReceived:
    return OrdersReceived(count, frozenset(members), frozenset(draining), permitted=permitted, run_id="1a")


def with_workers(count: int) -> Supervisor:
    state = after(fresh(), orders(count, count))[0]
    return after(state, *joins(*sorted(state.workers)))[0]


def returned(*workers: MemberId) -> list[SendCommand]:
    return [SendCommand(Exited(worker, 0)) for worker in workers]


def test_an_agent_starts_no_more_workers_than_it_has_permits_for() -> None:
    state, done = after(fresh(), orders(3, 2))
    assert done == [Start(ONE), Start(TWO)]
    assert after(state, orders(3, 2))[1] == []
    assert after(state, orders(3, 3))[1] == [Start(THREE)]


def test_a_worker_that_crashes_is_replaced_only_with_another_permit() -> None:
    state, done = after(with_workers(2), WorkerEnded(ONE, -9))
    assert done == [SendCommand(Exited(ONE, -9))]
    assert after(state, Recheck())[1] == []
    again = AgentJoin(AGENT, 4, run_id="1a", started=2, workers=(TWO,))
    assert after(state, Recheck(refused=True))[1] == [SendCommand(again)]
    assert after(state, orders(2, 3, members=(TWO, THREE)))[1] == [Start(THREE)]


def test_late_orders_start_nothing_twice() -> None:
    state = with_workers(3)
    state = after(state, orders(1, 3, TWO, THREE), WorkerEnded(TWO, 0), WorkerEnded(THREE, 0))[0]
    assert after(state, orders(3, 3))[1] == []


def test_a_permit_that_is_not_needed_any_more_is_returned_once() -> None:
    state, done = after(fresh(), orders(1, 3))
    assert done == [Start(ONE), *returned(TWO, THREE)]
    assert after(state, orders(1, 3))[1] == []
    assert after(state, orders(2, 4))[1] == [Start(FOUR)]


def test_permits_wait_while_there_is_no_room_for_the_workers() -> None:
    state = after(fresh(1), orders(1, 1), *joins(ONE), orders(1, 2, ONE))[0]
    state, done = after(state, orders(1, 3, ONE, TWO))
    assert done == []  # two processes where one has room
    assert after(state, WorkerEnded(ONE, 0))[1][-1] == Start(THREE)


def test_permits_wait_while_starts_fail() -> None:
    state = after(with_workers(1), WorkerEnded(ONE, 1))[0]
    state, done = after(state, orders(1, 2, members=(TWO,)))
    assert done == []
    assert after(state, Recheck(), now=NOW + 30)[1][-1] == Start(TWO)


def test_a_permit_is_not_reported_as_a_dead_worker_before_it_was_used() -> None:
    state = after(with_workers(1), WorkerEnded(ONE, 1))[0]  # it waits before the next start
    assert after(state, orders(1, 2, members=(TWO,)))[1] == []
    assert after(state, orders(1, 2, members=(ONE, TWO)))[1] == [SendCommand(Exited(ONE, 1))]


def test_permits_of_another_run_of_the_agent_do_not_count() -> None:
    assert after(fresh(), replace(orders(2, 2), run_id="0z"))[1] == []
    assert after(fresh(), replace(orders(2, 2), run_id=""))[1] == []


def test_an_agent_that_leaves_returns_its_permits() -> None:
    state, done = after(with_workers(1), MachineGoing(30.0, "spot notice"))
    assert Terminate(ONE, 30.0) in done
    assert after(state, orders(2, 2, ONE))[1] == returned(TWO)
    assert after(state, WorkerEnded(ONE, 0))[1][-2:] == [SendCommand(AgentLeave(AGENT)), Finish()]


def test_an_agent_returns_its_permits_when_the_job_has_ended() -> None:
    over = replace(orders(0, 5), ended=True, finished=True)
    assert after(fresh(), over)[1] == [*returned(ONE, TWO, THREE, FOUR, FIVE), Finish()]
