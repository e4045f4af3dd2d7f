"""The workers of a launch: started together, stopped together, killed when they all hang."""

from __future__ import annotations

from pliant.core.hangs import describe_hang
from pliant.core.model.copies import change
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant.core.supervisor.signals import (
    Action,
    Announce,
    Finish,
    Offer,
    OrdersReceived,
    SendCommand,
    StartSeat,
    Terminate,
)
from pliant.core.supervisor.state import Decision, Supervisor, exited, kill_all


def run_launch(state: Supervisor, order: OrdersReceived, actions: tuple[Action, ...], now: float) -> Decision:
    """Stop workers without a seat, start those of new seats, and offer ports when none runs."""
    launch = order.launch
    if state.ended and not state.workers:
        return state, (*actions, Finish())
    if launch is not None and launch.number > state.launched:
        state = change(state, launched=launch.number, launched_at=now, begun_seats=frozenset(), ends=())
    seats = _own_seats(state, launch)
    stray = state.workers - seats
    asked = tuple(Terminate(member, state.stop_s) for member in sorted(stray - state.stopping))
    state = change(state, stopping=state.stopping | stray)
    if stray or state.ended or state.leaving:
        return state, actions + asked
    if launch is None or launch.over or not any(seat.agent == state.id for seat in launch.seats):
        if unreported := _unreported_ends(state, launch):
            return state, actions + unreported
        if order.ready or not state.capacity or now < state.not_before:
            return state, actions
        return state, (*actions, Offer(launch.number if launch is not None else 0))
    actions += _unreported_ends(state, launch)
    fresh = seats - state.begun_seats
    if state.begun_seats and now < state.not_before:
        return state, actions  # refilled seats wait as a launch would
    state = change(state, begun_seats=state.begun_seats | fresh, workers=state.workers | fresh)
    ordered = (seat.member for seat in launch.seats if seat.member in fresh)
    return state, actions + tuple(StartSeat(launch, member) for member in ordered)


def _unreported_ends(state: Supervisor, launch: Launch | None) -> tuple[Action, ...]:
    """Report again the ends that the coordinator does not have: it decides from them whose failure it was."""
    if launch is None:
        return ()
    unheard = {seat.member for seat in launch.seats} - {end.member for end in launch.ends}
    return tuple(SendCommand(exited(end)) for end in state.ends if end.member in unheard)


def _own_seats(state: Supervisor, launch: Launch | None) -> frozenset[MemberId]:
    """Return the workers that should run here."""
    if launch is None or launch.over or state.ended or state.leaving or launch.number != state.launched:
        return frozenset()
    ended = {end.member for end in launch.ends} | {end.member for end in state.ends}
    return frozenset(seat.member for seat in launch.seats if seat.agent == state.id and seat.member not in ended)


def have_seats_ended_well(state: Supervisor) -> bool:
    """Return whether every worker of a launch that this agent had to run has ended well."""
    launch = state.order.launch if state.order is not None else None
    if launch is None or state.workers:
        return False
    own = {seat.member for seat in launch.seats if seat.agent == state.id}
    return bool(own) and own <= launch.done | {end.member for end in state.ends if end.code == 0}


def kill_hung(state: Supervisor, now: float) -> Decision:
    """Kill launched workers that hang, so that they are launched again."""
    launch = state.order.launch if state.order is not None else None
    if not state.stall_s or launch is None:
        return state, ()
    elsewhere = any(seat.agent != state.id and seat.member not in launch.done for seat in launch.seats)
    why = describe_hang(state.activity, now, state.stall_s, all_here=not elsewhere)
    if not why:
        return state, ()
    return change(state, activity=()), (Announce(f"{why}; killed all workers here"), *kill_all(state))
