"""A member without state: let in, following the others' steps, receiving the state aside (rule 15)."""

from __future__ import annotations

from pliant.core.member.common import Out, collect, disagree, enter, fetch, start_step, wire_next_world, world_of
from pliant.core.member.control_words import Purpose, Words, disagreement
from pliant.core.member.signals import Admission, Install, Installed, Stripe
from pliant.core.member.state import FollowedStep, KeptGradients, Machine, Phase
from pliant.core.member.step import heed, onward, step_line

HEARD_MAX = 8  # steps a joiner replays at most; with more it takes a newer state instead


def let_in(m: Machine, out: Out, signal: Admission) -> None:
    """The others entered a planned world we wired: follow them there."""
    if m.phase is not Phase.OUTSIDE or signal.generation <= m.number:
        return
    world = next((world for world in m.wired if world.number == signal.generation), None)
    if world is None:
        m.admission = signal  # our own wiring has not returned yet
        return
    enter(m, world)
    m.donors = signal.donors
    m.holders = frozenset(rank for rank, member in enumerate(world.members) if member in signal.donors)
    m.followed_lineage = signal.lineage
    fetch(m, out, signal.donors)
    if world.hold or m.followed_lineage.step >= m.terms.grid.total_steps:
        collect(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)
    wire_next_world(m, out)


def followed(m: Machine, out: Out, words: Words) -> None:
    """A step went by that we had no part in. Remember it: it is replayed on the state that is on its way."""
    why = disagreement(words, m.number, Purpose.STEP, m.terms.grid)
    if why:
        disagree(m, out, words, why)
        return
    line = step_line(m, words)
    state = next(word.state for word in words if word.holds)
    heed(m, words)
    m.followed_steps = (*m.followed_steps, FollowedStep(line, state))[-HEARD_MAX:]
    m.followed_lineage = line.lineage
    if not _install(m, out):
        _follow_on(m, out)


def _follow_on(m: Machine, out: Out) -> None:
    if m.stopping or m.switch_to:
        onward(m, out)
    elif m.closing or m.followed_lineage.step == m.terms.grid.total_steps:
        collect(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)


def _install(m: Machine, out: Out) -> bool:
    """Install what lies aside, if a step that was heard proves it whole and leads on from it."""
    aside = m.received_state
    if aside is None or m.stopping:
        return False
    for index, heard in enumerate(m.followed_steps):
        if heard.line.parent == aside.lineage:
            if heard.state != aside.state:
                break
            replay = tuple(later.line for later in m.followed_steps[index:])
            m.phase = Phase.INSTALLING
            m.committed_lines = tuple(line for line in (*aside.lines, *replay[:-1]) if _is_news(m, line.lineage.step))
            m.applied_line = replay[-1]
            m.lineage = m.applied_line.lineage
            out.append(Install(aside.lineage, replay))
            return True
    if aside.lineage != m.followed_steps[-1].line.lineage:
        restart(m, out)  # too old, or not what the others have
    return False


def _is_news(m: Machine, step: int) -> bool:
    return m.view is None or step > m.view.durable.step


def stripe(m: Machine, out: Out, signal: Stripe) -> None:
    """A stripe arrived. All must carry one label; one that does not means starting again."""
    if not m.fetching:
        return
    m.quiet_ticks = 0
    if any(not _same_label(known, signal) for known in m.stripes):
        restart(m, out)
        return
    if all(known.index != signal.index for known in m.stripes):
        m.stripes = (*m.stripes, signal)
    if len(m.stripes) < signal.count:
        return
    m.fetching = False
    m.received_state = signal
    if m.phase is Phase.CATCHING_UP:
        _catch_up_aside(m, out, signal)


def _same_label(a: Stripe, b: Stripe) -> bool:
    return (a.lineage, a.state, a.count) == (b.lineage, b.state, b.count)


def _catch_up_aside(m: Machine, out: Out, aside: Stripe) -> None:
    """A laggard has a state of its own, which stays until the other one is whole (rule 13).

    So does a recovery world's member that has none: nobody takes a step before it holds.
    """
    if aside.lineage != m.catch_up_to:
        restart(m, out)
    else:
        m.committed_lines = tuple(line for line in aside.lines if _is_news(m, line.lineage.step))
        m.applied_line = (
            m.committed_lines[-1] if m.committed_lines and m.committed_lines[-1].lineage == aside.lineage else None
        )
        m.committed_lines = m.committed_lines[:-1] if m.applied_line is not None else m.committed_lines
        m.lineage = aside.lineage
        m.catch_up_to = None
        m.phase = Phase.INSTALLING
        out.append(Install(aside.lineage, ()))


def installed(m: Machine, out: Out, signal: Installed) -> None:
    """We hold the state. From the next words on everybody knows."""
    if m.phase is not Phase.INSTALLING:
        return
    m.holds = True
    m.state = signal.state
    m.kept_gradients = KeptGradients(base=m.lineage)
    m.received_state = None
    m.stripes = ()
    m.followed_steps = ()
    onward(m, out)


def restart(m: Machine, out: Out) -> None:
    """Receive the state from the beginning, from whoever holds it now."""
    world = world_of(m)
    holding = tuple(world.members[rank] for rank in sorted(m.holders) if rank != m.rank)
    fetch(m, out, m.donors if m.catch_up_to is not None or not holding else holding)
