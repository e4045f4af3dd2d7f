"""A member that leaves: it stops, lingers, is drained, is fenced or finishes."""

from __future__ import annotations

from pliant.core.job.launches import FENCED_CODE
from pliant.core.member.checkpoint import is_first_saver, is_pending, is_saved, save_alone, save_last
from pliant.core.member.common import Out, leave_job, stop_in_world
from pliant.core.member.control_words import CALM, LEAVING, OUT_OF_TIME
from pliant.core.member.signals import Break, DrainNotice, Released, Send, StartGrace
from pliant.core.member.state import IN_USER_CODE, Machine, Phase
from pliant.core.messages import Drain
from pliant.core.model.job import JobState
from pliant.core.model.view import View
from pliant.core.model.world import WorldKind

GRACE_MARGIN = 0.2  # fraction of the grace period, at most GRACE_MARGIN_MAX_S, that is left when the member leaves
GRACE_MARGIN_MAX_S = 3.0
SAVE_MARGIN = 1.25  # a save may take this much longer than the one before
ALONE_TICKS = 3  # wait for the others' parts of the last checkpoint, before one member writes all of it
END_TICKS = 30  # wait for the coordinator to confirm the last part of a checkpoint after the job ended


def grace_margin_s(grace_s: float, save_s: float) -> float:
    """Return how long before the end of its grace period a member must start to save and leave.

    `save_s` is the measured duration of a save; 0 if none was measured.
    """
    usual_s = min(GRACE_MARGIN * grace_s, GRACE_MARGIN_MAX_S)
    return max(usual_s, min(SAVE_MARGIN * save_s + usual_s, grace_s)) if save_s else usual_s


def reason_to_stop(m: Machine, view: View) -> str:
    """Return what in the coordinator's view ends this member's part in its world; empty if nothing does."""
    if not view.known:
        return "fenced: the coordinator no longer counts this member"
    if view.state.ended:
        return f"the job is {view.state.value}: {view.why}"
    world = m.world
    if world is None:
        return ""
    if view.sealed >= world.number:
        return f"generation {world.number} is sealed"
    if world.number in view.unenterable_generations:
        return f"generation {world.number} cannot be entered by all its members"
    if view.gone_in_open_worlds and not view.gone_in_open_worlds.isdisjoint(world.members):
        return f"{', '.join(sorted(view.gone_in_open_worlds.intersection(world.members)))} is gone"
    return ""


def apply_view(m: Machine, out: Out, view: View) -> None:
    """Act on a view: at once where nothing runs, else at the next safe moment."""
    if view.draining:
        _start_grace(m, out, view.grace_s)
    if view.draining and view.immediate:
        m.drain_urgency = OUT_OF_TIME
    if m.phase is Phase.LINGERING and _may_leave(m, view):
        return leave_job(m, out, 0, "left as planned")
    if m.phase is Phase.STOPPED and view.current > m.generation > view.sealed:
        return leave_job(
            m, out, 0, "left as planned"
        )  # the others switched without this member, as agreed in the words
    if m.phase is Phase.HOLDING and m.drain_urgency and not is_pending(m) and _is_saved_or_in_vain(m, view):
        return leave_job(m, out, 0, "left as planned")
    if m.phase is Phase.OUTSIDE and m.drain_urgency:
        return leave_job(m, out, 0, "drained before it was needed")
    why = reason_to_stop(m, view)
    if not why:
        return None
    m.stop_reason = m.stop_reason or why
    if m.in_flight:
        out.append(Break(m.generation))
    elif m.phase not in IN_USER_CODE and m.phase not in (Phase.RESTORING, Phase.INSTALLING):
        stop_or_leave(m, out)
    return None


def stop_or_leave(m: Machine, out: Out) -> None:
    """At a safe moment, with a reason to stop: leave for good, or wait for a recovery world."""
    view = m.view
    if view is not None and not view.known:
        leave_job(m, out, FENCED_CODE, reason_to_stop(m, view))
    elif view is not None and view.state.ended:
        _finish_job(m, out, view)
    elif m.phase is not Phase.STOPPED and m.world is not None:
        stop_in_world(m, out, m.stop_reason)


def _finish_job(m: Machine, out: Out, view: View) -> None:
    if view.state is JobState.FINISHED and m.holds_state and m.is_at_end:
        patience = END_TICKS if m.saves_alone or not is_first_saver(m, view) else ALONE_TICKS
        if (is_pending(m) and m.end_ticks < patience) or save_last(m, out, view):
            m.phase = Phase.DONE
            return  # the final state is being saved
        leave_job(m, out, 0, view.why, complete=True)
    else:
        code = 1 if view.state is JobState.FAILED else 0
        leave_job(m, out, code, f"the job is {view.state.value}: {view.why}")


def linger(m: Machine, out: Out) -> None:
    """Keep group and state until the next world works, or until a checkpoint of them is published (rules 9, 16)."""
    m.phase = Phase.LINGERING
    if m.view is not None and _may_leave(m, m.view):
        leave_job(m, out, 0, "left as planned")


def _may_leave(m: Machine, view: View) -> bool:
    if _recovery_needs_us(m, view) or is_pending(m):
        return False
    if m.switch_to:
        if view.current >= m.switch_to:
            m.released_by = view.current
        return m.released_by >= m.switch_to
    return _is_saved_or_in_vain(m, view)


def _is_saved_or_in_vain(m: Machine, view: View) -> bool:
    """Return whether a checkpoint has this member's state, or the member drains and waits for one in vain.

    If no holder can write one, it waits until its grace period is over: a replacement may still come for the state.
    Where it must leave at once, the whole job stops, and no replacement comes.
    """
    if view.checkpoint is not None and view.checkpoint.lineage == m.lineage:
        return True
    if not m.holds_state:
        return m.drain_urgency != CALM
    return view.immediate and not m.holders.difference(m.cannot_save_ranks)


def _recovery_needs_us(m: Machine, view: View | None) -> bool:
    """Return whether a later recovery needs this member: those in the world after its own may be lost (rule 16)."""
    worlds = view.worlds if view is not None else ()
    above = max(m.switch_to, m.generation)
    return any(w.kind is not WorldKind.PLANNED and w.number > above and m.id in w.members for w in worlds)


def on_released(m: Machine, out: Out, signal: Released) -> None:
    if (
        m.phase is Phase.LINGERING
        and m.switch_to
        and signal.generation >= m.switch_to
        and not _recovery_needs_us(m, m.view)
    ):
        m.released_by = signal.generation
        if not is_pending(m):
            leave_job(m, out, 0, "left as planned")


def on_drain_notice(m: Machine, out: Out, signal: DrainNotice) -> None:
    """Announce the drain to the coordinator, and leave at a boundary: the machine is going away (rule 16)."""
    if signal.grace_s >= m.grace_s:
        return
    _start_grace(m, out, signal.grace_s)
    out.append(Send(Drain(m.id, signal.grace_s, signal.why)))
    if m.phase is Phase.OUTSIDE:
        leave_job(m, out, 0, signal.why)


def _start_grace(m: Machine, out: Out, grace_s: float) -> None:
    """Begin to leave. A later, shorter grace period replaces a longer one, and a longer one changes nothing."""
    m.drain_urgency = max(m.drain_urgency, LEAVING)
    if grace_s < m.grace_s:
        m.grace_s = grace_s
        out.append(StartGrace(grace_s))


def on_grace_short(m: Machine) -> None:
    """Announce in the next words that time is short."""
    m.drain_urgency = OUT_OF_TIME
    m.grace_is_short = True


def save_before_deadline(m: Machine, out: Out) -> None:
    """Save alone, once, where no other member is known to have the state: time is too short to wait for one (rule 16).

    That is so while others receive the state, and while this member waits for a recovery world. In the first case the
    comparison has committed the state. In the second the coordinator commits it with the checkpoint, but where states
    are verified, none is saved that was not compared just before.
    """
    if not m.grace_is_short or not m.holds_state or m.last_chance_save == m.lineage or is_saved(m):
        return
    shares = m.compare_again and m.in_flight and m.applied_line is None
    waits = m.phase is Phase.STOPPED and not m.terms.verify
    if shares or waits:
        m.last_chance_save = m.lineage
        save_alone(m, out)


def on_grace_over(m: Machine, out: Out) -> None:
    """Leave at once. This counts as a crash, from which the others recover (rule 16).

    After the end of the run it is no crash: the final state is in place, and the others send the report.
    """
    leave_job(m, out, 0, "the grace period is over", complete=m.phase is Phase.DONE and m.holds_state)
