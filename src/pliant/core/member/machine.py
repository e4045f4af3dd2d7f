"""Dispatch of signals to the phases of the member state machine."""

from __future__ import annotations

from bisect import bisect_right
from typing import assert_never

from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import checkpoint, join, leave, recover, step
from pliant.core.member import signals as s
from pliant.core.member.common import (
    LINES_MAX,
    STALE_TICKS,
    Out,
    admit_joiners,
    is_reporter,
    release_leavers,
    report_progress,
    report_stopped,
    report_unwirable,
    stop_in_world,
    stop_on_dispute,
    wire_next_world,
    world_of,
)
from pliant.core.member.control_words import Purpose, disagreement, is_ending
from pliant.core.member.state import Machine, Phase
from pliant.core.messages import Raised
from pliant.core.messages.describe import describe_failing
from pliant.core.model.copies import change
from pliant.core.model.job import FailingSlots
from pliant.core.model.world import WorldKind

_AT_A_STOP = frozenset({Phase.STOPPED, Phase.HOLDING, Phase.LINGERING, Phase.OUTSIDE})
_WAITING = frozenset({Phase.DONE, Phase.LINGERING, Phase.HOLDING})
TRANSFER_TICKS = 3  # ticks without a stripe before the transfer restarts
_REPORTING = frozenset(
    {
        Phase.COMPUTING,
        Phase.COLLECTING,
        Phase.APPLIED,
        Phase.CATCHING_UP,
        Phase.INSTALLING,
        Phase.HOLDING,
        Phase.DONE,
    }
)


def react(machine: Machine, signal: s.Signal) -> tuple[Machine, tuple[s.Action, ...]]:
    """Return the machine after a signal, and the actions to perform. A signal that arrives too late changes nothing."""
    if machine.phase is Phase.GONE or _is_known(machine, signal):
        return machine, ()
    m, out = machine.copy(), Out()
    match signal:
        case s.Computed():
            step.on_computed(m, out, signal)
        case s.LoopEnded():
            step.on_loop_ended(m, out, signal)
        case s.Returned():
            _on_returned(m, out, signal)
        case s.Boundary():
            step.on_boundary(m, out, signal)
        case s.ViewReceived():
            _on_view(m, out, signal)
        case s.Durable():
            _on_durable(m, out, signal)
        case s.Tick():
            _on_tick(m, out)
        case s.Failed():
            _on_failed(m, out, signal)
        case s.Wired():
            _on_wired(m, out, signal)
        case s.WireFailed():
            _on_wire_failed(m, out, signal)
        case s.Restored():
            recover.on_restored(m, out, signal)
        case s.RestoreFailed():
            recover.on_restore_failed(m, out, signal)
        case s.Gradient():
            recover.on_gradient(m, out, signal)
        case s.Stripe():
            join.on_stripe(m, out, signal)
        case s.TransferBroken():
            _on_transfer_broken(m, out, signal)
        case s.Installed():
            join.on_installed(m, out, signal)
        case s.Admission():
            join.on_admission(m, out, signal)
        case s.Released():
            leave.on_released(m, out, signal)
        case s.DrainNotice():
            leave.on_drain_notice(m, out, signal)
        case s.GraceShort():
            leave.on_grace_short(m)
        case s.GraceOver():
            leave.on_grace_over(m, out)
        case s.WriteDone():
            checkpoint.on_written(m, out, signal)
        case s.WriteFailed():
            checkpoint.on_write_failed(m, out, signal)
        case s.UserCodeRaised():
            _on_user_code_raised(m, out, signal)
        case _:
            assert_never(signal)
    _settle(m, out)
    waited = isinstance(signal, s.WriteDone | s.WriteFailed | s.Tick) and m.phase in _WAITING
    if (waited or m.world is not machine.world) and m.view is not None:
        leave.apply_view(m, out, m.view)  # an earlier view may concern this world, too
    return m, tuple(out)


def _is_known(m: Machine, signal: s.Signal) -> bool:
    """Return whether the coordinator told nothing new: most renewals find the same durable step."""
    match signal:
        case s.ViewReceived(view):
            return m.view is not None and view.revision <= m.view.revision
        case s.Durable(revision, lineage):
            return m.view is None or revision < m.view.revision or lineage == m.view.durable
        case _:
            return False


def _on_returned(m: Machine, out: Out, signal: s.Returned) -> None:
    """Handle a completed collective: the world works, and its words decide the next action."""
    if not m.in_flight or signal.generation != m.generation:
        return
    m.in_flight = False
    first = not m.entered
    m.entered = True
    release_leavers(m, out)
    match signal.words[m.rank].purpose:
        case Purpose.STEP if is_ending(signal.words) and not disagreement(
            signal.words, m.generation, Purpose.STEP, m.terms.grid
        ):
            step.on_ending(m, out, signal.words)
        case Purpose.STEP if signal.disputes and not disagreement(
            signal.words, m.generation, Purpose.STEP, m.terms.grid
        ):
            stop_on_dispute(m, out, signal.disputes)
        case Purpose.HELLO:
            recover.on_compared(m, out, signal.words)
        case Purpose.CLOSE:
            step.on_closed(m, out, signal.words)
        case Purpose.STEP if m.holds_state:
            step.on_reduced(m, out, signal.words)
        case Purpose.STEP:
            join.on_followed(m, out, signal.words)
    view = m.view
    if m.phase in _REPORTING and is_reporter(m) and (first or _holders_changed(m)) and view is not None:
        report_progress(m, out)


def _holders_changed(m: Machine) -> bool:
    world = world_of(m)
    return m.view is not None and m.view.holders != frozenset(world.members[rank] for rank in m.holders)


def _on_failed(m: Machine, out: Out, signal: s.Failed) -> None:
    """Stop: the operation returned an error, so its buffers are free (rule 10)."""
    if not m.in_flight or signal.generation != m.generation:
        return
    m.in_flight = False
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    else:
        stop_in_world(m, out, "a collective failed", signal.peer)


def _on_view(m: Machine, out: Out, signal: s.ViewReceived) -> None:
    m.view = signal.view
    _drop_lines(m, signal.view.durable)
    checkpoint.apply_view(m, out, signal.view)
    leave.apply_view(m, out, signal.view)
    if m.phase is not Phase.GONE:
        wire_next_world(m, out)


def _on_durable(m: Machine, out: Out, signal: s.Durable) -> None:
    """Drop reported lines. Progress wakes no watch, so no view arrives while nothing else changes."""
    assert m.view is not None
    m.view = change(m.view, durable=signal.lineage)
    behind = len(m.committed_lines) > LINES_MAX
    if _drop_lines(m, signal.lineage) and behind and m.phase in _REPORTING and m.entered and is_reporter(m):
        report_progress(m, out)  # the lines that did not fit into the previous report


def _drop_lines(m: Machine, durable: Lineage) -> bool:
    """Drop the lines that the coordinator has stored. Return whether there were any."""
    if not m.committed_lines or m.committed_lines[0].lineage.step > durable.step:
        return False
    m.committed_lines = m.committed_lines.without_first(bisect_right(m.committed_lines, durable.step, key=_step))
    m.stale_ticks = 0
    return True


def _step(line: LedgerLine) -> int:
    return line.lineage.step


def _on_wired(m: Machine, out: Out, signal: s.Wired) -> None:
    """Record a built group. `react` enters a recovery world once this member stopped; the words enter a planned one."""
    if signal.generation != m.wiring_generation or m.view is None:
        return
    m.wiring_generation = 0
    world = next((w for w in m.view.worlds if w.number == signal.generation), None)
    if world is None:
        wire_next_world(m, out)  # it was sealed meanwhile
        return
    m.wired_worlds = (*m.wired_worlds, world)
    if m.admission is not None and m.admission.generation == world.number:
        join.on_admission(m, out, m.admission)


def _settle(m: Machine, out: Out) -> None:
    """Do what may be due after any signal."""
    _enter_recovery_if_stopped(m, out)
    leave.save_before_deadline(m, out)


def _enter_recovery_if_stopped(m: Machine, out: Out) -> None:
    """Enter the newest wired recovery world once nothing of the last world is in progress (rule 10)."""
    if not m.wired_worlds or m.phase not in _AT_A_STOP or m.view is None:
        return
    world = next((w for w in reversed(m.wired_worlds) if w.kind is not WorldKind.PLANNED), None)
    if world is not None and world.number > max(m.generation, m.view.sealed):
        recover.enter_recovery(m, out, world)


def _on_wire_failed(m: Machine, out: Out, signal: s.WireFailed) -> None:
    if signal.generation != m.wiring_generation:
        return
    m.wiring_generation = 0
    m.unwirable_generation = signal.generation
    m.unwirable_peer = signal.peer
    report_unwirable(m, out)
    wire_next_world(m, out)


def _on_transfer_broken(m: Machine, out: Out, signal: s.TransferBroken) -> None:
    if m.phase is Phase.CATCHING_UP and signal.wrong_state:
        m.stateless = len(m.donors) == 1  # else the next comparison finds the wrong donor
        stop_in_world(m, out, "the received state does not match its label")
    elif m.phase is Phase.CATCHING_UP and m.holds_state:
        stop_in_world(m, out, "the donor of a gradient cannot be reached")
    elif m.fetching and signal.wrong_state and m.in_flight:
        # The others wait for this member in the collective; only a new comparison shows which state is wrong.
        m.stop_reason = m.stop_reason or "the donors' states differ"
        out.append(s.Break(m.generation))
    elif m.fetching:
        join.restart_fetch(m, out, one_donor=signal.values_differ)


def _on_user_code_raised(m: Machine, out: Out, signal: s.UserCodeRaised) -> None:
    """Exit without a `Leave`: it could overtake the report of the error, and this is not a planned leave."""
    why = f"{describe_failing(signal.step, signal.slots)} raised: {signal.error}"
    out.append(s.Send(Raised(FailingSlots(signal.step, signal.slots, signal.samples, m.id, signal.error))))
    m.phase = Phase.GONE
    out.append(s.Exit(1, why))


def _on_tick(m: Machine, out: Out) -> None:
    """Repeat every message that may have been lost, in order of importance."""
    if m.phase is Phase.STOPPED:
        report_stopped(m, out)
    if m.unwirable_generation > max(m.generation, m.view.sealed if m.view else 0):
        report_unwirable(m, out)
    if m.previous_world is not None and not m.entered:
        admit_joiners(m, out)
    if m.fetching:
        m.quiet_ticks += 1
        if m.quiet_ticks >= TRANSFER_TICKS:
            join.restart_fetch(m, out)
    if m.committed_lines:
        m.stale_ticks += 1
    if m.phase in _REPORTING and m.entered and (is_reporter(m) or m.stale_ticks > STALE_TICKS):
        report_progress(m, out)
    checkpoint.report_pending(m, out)
    if m.unpublished_part is not None and m.view is not None and m.view.state.ended:
        m.end_ticks += 1
