"""A member without state: admitted, following the steps of the others, receiving the state (rule 15)."""

from __future__ import annotations

from pliant.core.data.line_run import LineRun
from pliant.core.member.common import (
    Out,
    enter_world,
    start_collective,
    start_fetch,
    start_step,
    stop_on_disagreement,
    wire_next_world,
    world_of,
)
from pliant.core.member.control_words import Purpose, Words, disagreement, ranks_with_another_batch
from pliant.core.member.signals import Admission, Install, Installed, Stripe
from pliant.core.member.state import FollowedStep, KeptGradients, Machine, Phase
from pliant.core.member.step import on_other_batch, pass_boundary, read_words, step_line, take_batch

FOLLOWED_MAX = 8  # steps a joiner replays at most; beyond them it fetches a newer state


def on_admission(m: Machine, out: Out, signal: Admission) -> None:
    """Follow the others into a planned world that this member has wired."""
    if m.phase is not Phase.OUTSIDE or signal.generation <= m.generation:
        return
    world = next((world for world in m.wired_worlds if world.number == signal.generation), None)
    if world is None:
        m.admission = signal  # this member's own wiring has not returned yet
        return
    enter_world(m, world)
    m.donors = signal.donors
    m.holders = frozenset(rank for rank, member in enumerate(world.members) if member in signal.donors)
    m.followed_lineage = signal.lineage
    m.terms = m.terms.with_changes(signal.changes)
    start_fetch(m, out, signal.donors)
    if world.hold or m.followed_lineage.step >= m.terms.grid.total_steps:
        start_collective(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)
    wire_next_world(m, out)


def on_followed(m: Machine, out: Out, words: Words) -> None:
    """Record a step that the others took. It is replayed on the state that this member is receiving."""
    why = disagreement(words, m.generation, Purpose.STEP, m.terms.grid)
    if why:
        stop_on_disagreement(m, out, words, why)
        return
    if ranks_with_another_batch(words):
        on_other_batch(m, out, words)
        return
    line = step_line(m, words)
    take_batch(m, line)
    state = next(word.state for word in words if word.holds)
    read_words(m, words)
    m.followed_steps = (*m.followed_steps, FollowedStep(line, state))[-FOLLOWED_MAX:]
    m.followed_lineage = line.lineage
    if not _install_if_proven(m, out):
        _keep_following(m, out)


def _keep_following(m: Machine, out: Out) -> None:
    if m.stop_reason or m.switch_to:
        pass_boundary(m, out)
    elif m.closing or m.is_at_end:
        start_collective(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)


def _install_if_proven(m: Machine, out: Out) -> bool:
    """Install the received state if a followed step proves it correct and continues from it."""
    aside = m.received_state
    if aside is None or m.stop_reason:
        return False
    for index, heard in enumerate(m.followed_steps):
        if heard.line.parent == aside.lineage:
            if heard.state_hash != aside.state:
                break
            replay = tuple(later.line for later in m.followed_steps[index:])
            m.phase = Phase.INSTALLING
            m.committed_lines = LineRun(
                line for line in (*aside.lines, *replay[:-1]) if _is_undurable(m, line.lineage.step)
            )
            m.applied_line = replay[-1]
            m.lineage = m.applied_line.lineage
            out.append(Install(aside.lineage, replay))
            return True
    if aside.lineage != m.followed_steps[-1].line.lineage:
        restart_fetch(m, out)  # too old, or not the state of the others
    return False


def _is_undurable(m: Machine, step: int) -> bool:
    return m.view is None or step > m.view.durable.step


def on_stripe(m: Machine, out: Out, signal: Stripe) -> None:
    """Record a stripe. All stripes must carry the same label; otherwise the fetch restarts."""
    if not m.fetching:
        return
    m.quiet_ticks = 0
    if any(not _same_label(known, signal) for known in m.stripes):
        restart_fetch(m, out)
        return
    if all(known.index != signal.index for known in m.stripes):
        m.stripes = (*m.stripes, signal)
    if len(m.stripes) < signal.count:
        return
    m.fetching = False
    m.received_state = signal
    if m.phase is Phase.CATCHING_UP:
        _install_winner(m, out, signal)


def _same_label(a: Stripe, b: Stripe) -> bool:
    return (a.lineage, a.state, a.count) == (b.lineage, b.state, b.count)


def _install_winner(m: Machine, out: Out, aside: Stripe) -> None:
    """Install the winner's state in a recovery world.

    A laggard keeps its own state until the other one is complete (rule 13). A member without state is treated alike: no
    member takes a step before it holds the state.
    """
    if aside.lineage != m.catch_up_to:
        restart_fetch(m, out)
    else:
        lines = [line for line in aside.lines if _is_undurable(m, line.lineage.step)]
        m.applied_line = lines.pop() if lines and lines[-1].lineage == aside.lineage else None
        m.committed_lines = LineRun(lines)
        m.lineage = aside.lineage
        m.terms = m.terms.with_changes(m.donor_changes)
        m.catch_up_to = None
        m.phase = Phase.INSTALLING
        out.append(Install(aside.lineage, ()))


def on_installed(m: Machine, out: Out, signal: Installed) -> None:
    """Mark this member as a holder. The next words tell the others."""
    if m.phase is not Phase.INSTALLING:
        return
    m.holds_state = True
    m.state_hash = signal.state
    m.kept_gradients = KeptGradients(base=m.lineage)
    m.received_state = None
    m.stripes = ()
    m.followed_steps = ()
    pass_boundary(m, out)


def restart_fetch(m: Machine, out: Out, *, one_donor: bool = False) -> None:
    """Receive the state from the beginning, from the current holders.

    `one_donor` is for values of user code that differ between members, for as long as they like. Stripes of several
    donors would never match.
    """
    world = world_of(m)
    holding = tuple(world.members[rank] for rank in sorted(m.holders) if rank != m.rank)
    donors = m.donors if m.catch_up_to is not None or not holding else holding
    start_fetch(m, out, donors[:1] if one_donor else donors)
