"""The agent's decision on a signal."""

from __future__ import annotations

from typing import assert_never

from pliant.core.hangs import add_samples
from pliant.core.messages import AgentJoin, DrainAgent
from pliant.core.model.copies import change
from pliant.core.supervisor.endings import handle_end
from pliant.core.supervisor.launched import have_seats_ended_well, kill_hung
from pliant.core.supervisor.live import end_live_job, kill_lost, kill_stopped
from pliant.core.supervisor.orders import apply_orders, follow_event, follow_orders, leave
from pliant.core.supervisor.signals import (
    Finish,
    GraceExpired,
    JobEvent,
    Kill,
    MachineGoing,
    OrdersReceived,
    Recheck,
    SendCommand,
    Signal,
    StopOverdue,
    WorkerEnded,
    WorkersSampled,
)
from pliant.core.supervisor.state import Decision, Supervisor, is_live, is_permitted, kill_all

AWAY_S = 30.0  # an agent whose script has ended well waits so long for an absent coordinator


def supervise(state: Supervisor, signal: Signal, now: float) -> Decision:
    """Decide what the agent does on a signal."""
    state, actions = _react(state, signal, now)
    if not state.ended or not is_live(state):
        return change(state, kill_at=None), actions
    state, ending = end_live_job(state, now)
    return state, actions + ending


def _react(state: Supervisor, signal: Signal, now: float) -> Decision:
    match signal:
        case OrdersReceived():
            return follow_orders(state, signal, now)
        case JobEvent(event, revision):
            return follow_event(state, event, revision, now)
        case WorkerEnded():
            return handle_end(state, signal, now)
        case WorkersSampled(samples):
            state = change(state, activity=add_samples(state.activity, samples, state.workers))
            return kill_stopped(state, now) if is_live(state) else kill_hung(state, now)
        case StopOverdue(member):
            return state, (Kill(member),) if member in state.workers else ()
        case MachineGoing(grace_s, why, immediate):
            return leave(state, grace_s, SendCommand(DrainAgent(state.id, grace_s, why, immediate)))
        case GraceExpired():
            return state, kill_all(state)
        case Recheck():
            return _recheck(state, signal, now)
        case _:
            assert_never(signal)


def agent_join(state: Supervisor) -> AgentJoin:
    """Return the command by which an agent registers, and which it repeats until it is known."""
    here = (state.id, state.capacity, state.address, state.install_id, state.run_id, state.role)
    return AgentJoin(*here, state.started, tuple(sorted(state.workers))) if is_permitted(state) else AgentJoin(*here)


def next_deadline(state: Supervisor, now: float) -> float | None:
    """Return when `Recheck` has something to do next, if that is known; the backoff counts only once."""
    due = [since + state.grace_s for _, since in state.lost]
    due += [state.not_before] if state.not_before > now else []
    due += [state.kill_at] if state.kill_at is not None and state.workers else []
    return min(due, default=None)


def _recheck(state: Supervisor, signal: Recheck, now: float) -> Decision:
    if signal.away_s >= AWAY_S and have_seats_ended_well(state):
        return state, (Finish(),)
    state, killed = kill_lost(state, now)
    if state.kill_at is not None and now >= state.kill_at:
        state, killed = change(state, kill_at=now + state.grace_s), kill_all(state)
    registers = not state.leaving and (signal.refused or not state.known)
    return apply_orders(state, ((SendCommand(agent_join(state)),) if registers else ()) + killed, now)
