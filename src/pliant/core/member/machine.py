"""The machine itself: which signal leads where."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core.data.ledger import Lineage
from pliant.core.member import checkpoint, join, leave, recover, step
from pliant.core.member import signals as s
from pliant.core.member.common import (
    LINES_MAX,
    STALE_TICKS,
    Out,
    dispute,
    is_reporter,
    report,
    say_stopped,
    say_unwirable,
    stop_in_world,
    tell_joiners,
    tell_leavers,
    wire_next_world,
    world_of,
)
from pliant.core.member.control_words import Purpose, disagreement
from pliant.core.member.state import Machine, Phase
from pliant.core.messages import Raised
from pliant.core.messages.describe import describe_slots
from pliant.core.model.job import FailingSlots
from pliant.core.model.world import WorldKind

_AT_REST = frozenset({Phase.STOPPED, Phase.HOLDING, Phase.LINGERING, Phase.OUTSIDE})
_WAITING = frozenset({Phase.DONE, Phase.LINGERING})
TRANSFER_TICKS = 3  # ticks without a stripe before the transfer is started again
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
    """What a member does on a signal. Total: a signal that comes too late changes nothing."""
    if machine.phase is Phase.GONE:
        return machine, ()
    m = machine.copy()
    out: Out = []
    match signal:
        case s.Computed():
            step.computed(m, out, signal)
        case s.Returned():
            _returned(m, out, signal)
        case s.Boundary():
            step.boundary(m, out, signal)
        case s.ViewReceived():
            _told(m, out, signal)
        case s.Durable():
            _durable(m, out, signal)
        case s.Tick():
            _tick(m, out)
        case s.Failed():
            _failed(m, out, signal)
        case s.Wired():
            _wired(m, out, signal)
        case s.WireFailed():
            _wire_failed(m, out, signal)
        case s.Restored():
            recover.restored(m, out, signal)
        case s.RestoreFailed():
            recover.unread(m, out, signal)
        case s.Gradient():
            recover.gradient(m, out, signal)
        case s.Stripe():
            join.stripe(m, out, signal)
        case s.TransferBroken():
            _transfer_broken(m, out, signal)
        case s.Installed():
            join.installed(m, out, signal)
        case s.Admission():
            join.let_in(m, out, signal)
        case s.Released():
            leave.released(m, out, signal)
        case s.DrainNotice():
            leave.notice(m, out, signal)
        case s.GraceShort():
            leave.grace_short(m, out)
        case s.GraceOver():
            leave.grace_over(m, out)
        case s.WriteDone():
            checkpoint.written(m, out, signal)
        case s.WriteFailed():
            checkpoint.not_written(m, out, signal)
        case s.UserCodeRaised():
            _slot_raised(m, out, signal)
        case _:
            assert_never(signal)
    if m.wired:
        _greet_if_at_rest(m, out)
    waited = isinstance(signal, s.WriteDone | s.WriteFailed | s.Tick) and m.phase in _WAITING
    if (waited or m.world is not machine.world) and m.view is not None:
        leave.heed_view(m, out, m.view)  # what was told before we entered holds for this world, too
    return m, tuple(out)


def _returned(m: Machine, out: Out, signal: s.Returned) -> None:
    """A collective of this world completed: the world works, and its words lead on."""
    if not m.in_flight or signal.generation != m.number:
        return
    m.in_flight = False
    first = not m.entered
    m.entered = True
    tell_leavers(m, out)
    match signal.words[m.rank].purpose:
        case Purpose.STEP if signal.disputes and not disagreement(signal.words, m.number, Purpose.STEP, m.terms.grid):
            dispute(m, out, signal.disputes)
        case Purpose.HELLO:
            recover.compared(m, out, signal.words)
        case Purpose.CLOSE:
            step.closed(m, out, signal.words)
        case Purpose.STEP if m.holds:
            step.reduced(m, out, signal.words)
        case Purpose.STEP:
            join.followed(m, out, signal.words)
    view = m.view
    if m.phase in _REPORTING and is_reporter(m) and (first or _holders_news(m)) and view is not None:
        report(m, out)


def _holders_news(m: Machine) -> bool:
    world = world_of(m)
    return m.view is not None and m.view.holders != frozenset(world.members[rank] for rank in m.holders)


def _failed(m: Machine, out: Out, signal: s.Failed) -> None:
    """The operation returned an error: now it is safe to stop (rule 10)."""
    if not m.in_flight or signal.generation != m.number:
        return
    m.in_flight = False
    if m.stopping:
        leave.come_to_rest(m, out)
    else:
        stop_in_world(m, out, "a collective failed", signal.peer)


def _told(m: Machine, out: Out, signal: s.ViewReceived) -> None:
    if m.view is not None and signal.view.revision <= m.view.revision:
        return
    m.view = signal.view
    _drop_lines(m, signal.view.durable)
    checkpoint.heed_view(m, out, signal.view)
    leave.heed_view(m, out, signal.view)
    if m.phase is not Phase.GONE:
        wire_next_world(m, out)


def _durable(m: Machine, out: Out, signal: s.Durable) -> None:
    """Progress wakes no watch, so this is how lines are dropped while nothing else happens."""
    if m.view is None or signal.revision < m.view.revision:
        return
    m.view = replace(m.view, durable=signal.lineage)
    behind = len(m.committed_lines) > LINES_MAX
    if _drop_lines(m, signal.lineage) and behind and m.phase in _REPORTING and m.entered and is_reporter(m):
        report(m, out)  # the rest of what did not fit into one report


def _drop_lines(m: Machine, durable: Lineage) -> bool:
    """Forget the lines that the coordinator has; whether there were any."""
    if not m.committed_lines or m.committed_lines[0].lineage.step > durable.step:
        return False
    m.committed_lines = tuple(line for line in m.committed_lines if line.lineage.step > durable.step)
    m.stale_ticks = 0
    return True


def _wired(m: Machine, out: Out, signal: s.Wired) -> None:
    """A group is built. A recovery world is entered once we came to rest (see `react`), a planned one by the words."""
    if signal.generation != m.wiring or m.view is None:
        return
    m.wiring = 0
    world = next((w for w in m.view.worlds if w.number == signal.generation), None)
    if world is None:
        wire_next_world(m, out)  # sealed meanwhile
        return
    m.wired = (*m.wired, world)
    if m.admission is not None and m.admission.generation == world.number:
        join.let_in(m, out, m.admission)


def _greet_if_at_rest(m: Machine, out: Out) -> None:
    """Enter the newest recovery world that is wired, as soon as nothing of the last one is under way (rule 10)."""
    if m.phase not in _AT_REST or m.view is None:
        return
    world = next((w for w in reversed(m.wired) if w.kind is not WorldKind.PLANNED), None)
    if world is not None and world.number > max(m.number, m.view.sealed):
        recover.greet(m, out, world)


def _wire_failed(m: Machine, out: Out, signal: s.WireFailed) -> None:
    if signal.generation != m.wiring:
        return
    m.wiring = 0
    m.unwirable = signal.generation
    m.failed_peer = signal.peer
    say_unwirable(m, out)
    wire_next_world(m, out)


def _transfer_broken(m: Machine, out: Out, signal: s.TransferBroken) -> None:
    if m.phase is Phase.CATCHING_UP and signal.spoilt:
        m.stateless = len(m.donors) == 1  # else the next comparison shows which of the donors is not what it says
        stop_in_world(m, out, "the state received is not the one that was promised")
    elif m.phase is Phase.CATCHING_UP and m.holds:
        stop_in_world(m, out, "the donor of a gradient is out of reach")
    elif m.fetching and signal.spoilt and m.in_flight:
        # The others wait for us in this collective: only another one can show whose state is wrong.
        m.stopping = m.stopping or "the donors' states differ"
        out.append(s.Break(m.number))
    elif m.fetching:
        join.restart(m, out)


def _slot_raised(m: Machine, out: Out, signal: s.UserCodeRaised) -> None:
    """No goodbye: it could overtake the word of what happened, and this is no planned leave."""
    why = f"{describe_slots(signal.slots)} of step {signal.step} raised: {signal.error}"
    out.append(s.Send(Raised(FailingSlots(signal.step, signal.slots, signal.samples, m.id, signal.error))))
    m.phase = Phase.GONE
    out.append(s.Exit(1, why))


def _tick(m: Machine, out: Out) -> None:
    """Say again whatever may have been lost, in the order of its weight."""
    if m.phase is Phase.STOPPED:
        say_stopped(m, out)
    if m.unwirable > max(m.number, m.view.sealed if m.view else 0):
        say_unwirable(m, out)
    if m.previous_world is not None and not m.entered:
        tell_joiners(m, out)
    if m.fetching:
        m.quiet_ticks += 1
        if m.quiet_ticks >= TRANSFER_TICKS:
            join.restart(m, out)
    if m.committed_lines:
        m.stale_ticks += 1
    if m.phase in _REPORTING and m.entered and (is_reporter(m) or m.stale_ticks > STALE_TICKS):
        report(m, out)
    checkpoint.say_again(m, out)
    if m.unpublished_part is not None and m.view is not None and m.view.state.ended:
        m.end_ticks += 1
