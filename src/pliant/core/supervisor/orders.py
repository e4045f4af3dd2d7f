"""The coordinator's orders and the job's events: which of them count, and what follows from them."""

from __future__ import annotations

from pliant.core.messages import AgentLeave, MemberGone, MemberJoined, StateChanged
from pliant.core.model.copies import change
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.ps.messages import ServerJoined
from pliant.core.supervisor.launched import run_launch
from pliant.core.supervisor.live import report_dead, start_missing
from pliant.core.supervisor.signals import (
    Action,
    Finish,
    FollowedEvent,
    OrdersReceived,
    SendCommand,
    StopWithin,
    Terminate,
)
from pliant.core.supervisor.state import Decision, Supervisor
from pliant.core.tasks.messages import TaskMemberJoined


def follow_orders(state: Supervisor, order: OrdersReceived, now: float) -> Decision:
    """Take new orders, and carry them out."""
    is_known = (order.install_id, order.run_id) == (state.install_id, state.run_id)
    state = change(state, known=is_known)
    if not order.live and _is_old(state, order):
        return state, ()
    stolen = _is_for_another(state, order)
    ended = order.ended or stolen
    state = change(
        state, wanted=order.count, draining=order.draining, order=order, ended=ended, finished=order.finished
    )
    if order.live and stolen:
        return start_missing(state, (), now)  # the members of the other agent are not this agent's to report
    sooner = order.leaving and order.grace_s < state.leaves_within_s
    if sooner and not state.ended and not _is_for_earlier_run(state, order):
        state, leaving = leave(state, order.grace_s)
        return state, (report_dead(state, order.members) if order.live else ()) + leaving
    if order.live:
        return start_missing(state, report_dead(state, order.members), now)
    return run_launch(state, order, (), now)


def _is_old(state: Supervisor, order: OrdersReceived) -> bool:
    """Return whether orders are for an earlier run of this agent, or from before the newest launch."""
    before_launch = order.launch is not None and order.launch.number < state.launched
    return before_launch or _is_for_earlier_run(state, order)


def _is_for_earlier_run(state: Supervisor, order: OrdersReceived) -> bool:
    return order.install_id == state.install_id and order.run_id not in ("", state.run_id)


def _is_for_another(state: Supervisor, order: OrdersReceived) -> bool:
    """Return whether another machine's agent took this name meanwhile: this agent has no part in the job any more."""
    return bool(order.install_id and state.install_id) and order.install_id != state.install_id


def follow_event(state: Supervisor, event: FollowedEvent, revision: int, now: float) -> Decision:
    """Note an event of the job: members that joined or are gone, and the end of the job."""
    match event:
        case MemberJoined(member=member):
            if member.agent != state.id:
                state = change(state, elsewhere=state.elsewhere | {member.id})
            return _with_joined(state, member.id), ()
        case TaskMemberJoined(member=name):
            return _with_joined(state, name), ()
        case ServerJoined(member=name) if name in state.workers:
            return change(state, joined=state.joined | {name}), ()
        case MemberGone(member=gone, how="left") if gone in state.workers:
            return change(state, left=state.left | {gone}), ()
        case MemberGone(member=gone) if gone in state.workers:
            return change(state, lost=(*state.lost, (gone, now))), ()
        case MemberGone(member=gone):
            return change(state, elsewhere=state.elsewhere - {gone}), ()
        case StateChanged(state=job_state) if job_state.ended and not _is_overtaken(state, revision):
            finished = job_state is JobState.FINISHED
            return apply_orders(change(state, ended=True, finished=finished), (), now)
        case _:
            return state, ()


def _with_joined(state: Supervisor, member: MemberId) -> Supervisor:
    state = change(state, script_joins=True, trains=True)
    if member not in state.workers:
        return state
    return change(state, joined=state.joined | {member}, never_joined=0, killed_unjoined=0)


def _is_overtaken(state: Supervisor, revision: int) -> bool:
    """Return whether newer orders than the event arrived: the end of an attempt must not end the next one."""
    return state.order is not None and 0 < revision <= state.order.revision


def apply_orders(state: Supervisor, actions: tuple[Action, ...], now: float) -> Decision:
    """Carry out the newest orders as far as that is still to do."""
    if state.order is None or state.order.live:
        return start_missing(state, actions, now)
    return run_launch(state, state.order, actions, now)


def leave(state: Supervisor, grace_s: float, *said: SendCommand) -> Decision:
    """Let all workers end within a grace period, after sending commands; no effect unless it is shorter than before."""
    if grace_s >= state.leaves_within_s:
        return state, ()
    state, was_leaving = change(state, leaves_within_s=grace_s), state.leaving
    if was_leaving:
        return state, (*said, *(StopWithin(member, grace_s) for member in sorted(state.workers)))
    fresh = sorted(state.workers - state.stopping)  # a second SIGTERM may mean "now" to the others
    state = change(state, leaving=True, draining=state.workers, stopping=state.stopping | state.workers)
    if not state.workers:
        return state, (SendCommand(AgentLeave(state.id)), Finish())
    return state, (*said, *(Terminate(member, grace_s) for member in fresh))
