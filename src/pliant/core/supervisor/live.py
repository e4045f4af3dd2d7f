"""The workers of a live job: start those that are missing, kill those that are lost, and end all with the job."""

from __future__ import annotations

from pliant.core.hangs import STOPPED_S, find_stopped
from pliant.core.messages import Exited
from pliant.core.model.copies import change
from pliant.core.model.names import MemberId, worker_name
from pliant.core.supervisor.signals import Action, Announce, Finish, Kill, SendCommand, Start, Terminate
from pliant.core.supervisor.state import (
    MARGIN_S,
    SERVER_MARK,
    Decision,
    Supervisor,
    exited,
    is_permitted,
    is_server,
)

KILLED = -9  # reported for a worker whose own exit status is unknown


def report_dead(state: Supervisor, counted_on: frozenset[MemberId]) -> tuple[Action, ...]:
    """Report again how workers ended that the coordinator still counts on.

    The first report may be lost, or the worker died with an earlier run of this agent. A worker never outlives its
    agent, so a name of this agent that it does not run is a process that ended, or one that it may still start.
    """
    ours = f"{state.id}-"
    gone = counted_on - state.workers - set(_unused_permits(state))
    dead = sorted(member for member in gone if member.startswith(ours))
    known = {end.member: exited(end) for end in state.ends}
    return tuple(SendCommand(known.get(member, Exited(member, KILLED))) for member in dead)


def start_missing(state: Supervisor, actions: tuple[Action, ...], now: float) -> Decision:
    """Start workers up to the wanted number. A draining worker does not count, but takes up room until it is gone.

    In a queue, each start needs a permit. The agent returns a permit that it does not need, so that its slot is free.
    """
    if state.leaving or state.ended:
        state, returned = _return_permits(state)
        done = (Finish(),) if state.ended and not state.workers else ()
        return state, actions + returned + done
    if now < state.not_before:
        return state, actions
    state, servers = _start_servers(state)
    actions += servers
    workers = frozenset(member for member in state.workers if not is_server(member))
    staying = len(workers - state.draining - state.stopping)
    missing = max(0, min(state.wanted, state.capacity) - staying)
    room = 2 * state.capacity - len(workers)  # old and new run side by side while all are replaced
    count = min(missing, room) if not is_permitted(state) else min(missing, room, len(_unused_permits(state)))
    for _ in range(count):
        member = worker_name(state.id, state.run_id, state.started + 1)
        state = change(state, started=state.started + 1, workers=state.workers | {member})
        actions += (Start(member),)
    if count < missing:
        return state, actions
    state, returned = _return_permits(state)
    return state, actions + returned


def _start_servers(state: Supervisor) -> Decision:
    """Start parameter servers up to the number of this agent."""
    running = sum(is_server(member) for member in state.workers - state.draining - state.stopping)
    actions: tuple[Action, ...] = ()
    for _ in range(state.server_count - running):
        member = MemberId(f"{state.id}-{state.run_id}.{SERVER_MARK}{state.servers_started + 1}")
        state = change(state, servers_started=state.servers_started + 1, workers=state.workers | {member})
        actions += (Start(member, is_server=True),)
    return state, actions


def _unused_permits(state: Supervisor) -> list[MemberId]:
    """Return the workers that this run of the agent may start and has not started."""
    order = state.order
    if order is None or order.permitted is None or order.run_id != state.run_id:
        return []
    numbers = range(state.started + 1, order.permitted + 1)
    return [worker_name(state.id, state.run_id, number) for number in numbers]


def _return_permits(state: Supervisor) -> Decision:
    unused = _unused_permits(state)
    if not unused:
        return state, ()
    return change(state, started=state.started + len(unused)), tuple(SendCommand(Exited(each, 0)) for each in unused)


def kill_lost(state: Supervisor, now: float) -> Decision:
    """Kill workers that were declared lost (rule 11) and still run after the grace period.

    Lost is final, and a worker that learns of it ends by itself; one that is frozen does not.
    """
    if not state.lost:
        return state, ()
    overdue = {member for member, since in state.lost if now - since >= state.grace_s}
    lost = tuple((member, now if member in overdue else since) for member, since in state.lost)
    actions: tuple[Action, ...] = ()
    for member in sorted(overdue):
        text = f"{member} was lost to the job and did not end within {state.grace_s:g} s; killed it"
        actions += (Announce(text), Kill(member))
    return change(state, lost=lost), actions


def kill_stopped(state: Supervisor, now: float) -> Decision:
    """Kill workers that are stopped (SIGSTOP) while other workers of the job wait for them.

    A stopped process proves that it makes no progress; silence alone would not, and must last for a lease. A worker
    that hangs otherwise has a watchdog of its own.
    """
    stopped = find_stopped(state.activity, now) & state.joined - state.left
    if state.ended or not (state.joined | state.elsewhere) - stopped:
        return state, ()
    actions: tuple[Action, ...] = ()
    for member in sorted(stopped):
        text = f"{member} was stopped (SIGSTOP) for {STOPPED_S:g} s while the other workers waited for it; killed it"
        actions += (Announce(text), Kill(member))
    return change(state, activity=tuple(each for each in state.activity if each.member not in stopped)), actions


def end_live_job(state: Supervisor, now: float) -> Decision:
    """After a finished job, stop workers that never joined; after one that ended badly, set a limit for all."""
    if not state.finished:
        deadline = now + state.grace_s + MARGIN_S
        return (change(state, kill_at=deadline) if state.kill_at is None else state), ()
    unneeded = state.workers - state.joined - state.stopping  # still importing, most likely
    state = change(state, stopping=state.stopping | unneeded, kill_at=None)
    return state, tuple(Terminate(member, state.grace_s) for member in sorted(unneeded))
