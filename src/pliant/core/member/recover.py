"""A member after a failure: enter the recovery world, compare, catch up, redo (rules 10-14)."""

from __future__ import annotations

from pliant.core.data.grid import Grid, are_disjoint, assign_missing, changes_up_to, missing_slots
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.data.line_run import LineRun
from pliant.core.member import leave
from pliant.core.member.common import (
    Out,
    commit_lineage,
    enter_world,
    start_collective,
    start_fetch,
    stop_in_world,
    stop_on_disagreement,
    wire_next_world,
    world_of,
)
from pliant.core.member.control_words import (
    FINISH,
    GOING_ON,
    Purpose,
    Words,
    agreed,
    disagreement,
    holders,
    ranks_that_cannot_save,
    winner,
)
from pliant.core.member.signals import Apply, CatchUp, Gradient, Restore, Restored, RestoreFailed, Send
from pliant.core.member.state import KeptGradients, Machine, Phase
from pliant.core.member.step import pass_boundary
from pliant.core.messages import NotReadable
from pliant.core.model.world import World, WorldKind


def enter_recovery(m: Machine, out: Out, world: World) -> None:
    """Enter a recovery or rollback world. Its first collective is the comparison (rule 12)."""
    rolls_back = world.kind is WorldKind.ROLLBACK
    if rolls_back or m.generation < world.rollback_generation:
        # This member's state is off the history, even if no member entered the world that rolled back.
        m.holds_state = False
        m.lineage = GENESIS
        m.applied_line = None
        m.committed_lines = LineRun()
        m.part_in_progress = None
        m.unpublished_part = None
        m.unreported_failure = None
        m.kept_gradients = KeptGradients()
        m.ending = GOING_ON
        m.terms = m.terms.with_changes(())
    enter_world(m, world)
    if rolls_back and m.rank == 0:  # the lowest rank loads the base for all
        m.phase = Phase.RESTORING
        changes = m.view.changes if m.view is not None else ()
        m.terms = m.terms.with_changes(changes_up_to(changes, world.base.step))
        checkpoint = m.view.checkpoint if m.view is not None and world.base != GENESIS else None
        out.append(Restore(checkpoint))
        return
    start_collective(m, out, Purpose.HELLO)


def on_restored(m: Machine, out: Out, signal: Restored) -> None:
    if m.phase is not Phase.RESTORING:
        return
    m.holds_state = True
    m.lineage = world_of(m).base
    m.kept_gradients = KeptGradients(base=m.lineage)
    m.state_hash = signal.state
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    else:
        start_collective(m, out, Purpose.HELLO)


def on_restore_failed(m: Machine, out: Out, signal: RestoreFailed) -> None:
    """Report the failure and stop: no member can continue in this world. The coordinator chooses another base."""
    if m.phase is not Phase.RESTORING:
        return
    name = m.view.checkpoint.name if m.view is not None and m.view.checkpoint is not None else ""
    out.append(Send(NotReadable(m.id, m.generation, name, signal.why, signal.damaged)))
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    else:
        m.stateless = True
        stop_in_world(m, out, f"the checkpoint cannot be read: {signal.why}")


def on_compared(m: Machine, out: Out, words: Words) -> None:
    """Act on the comparison: the highest lineage wins, and members behind it catch up.

    If a member holds no state, all compare again once it does. Only then are slots assigned, so that no member computes
    for those that are still receiving. Otherwise the interrupted step continues at once.
    """
    world = world_of(m)
    why = disagreement(words, world.number, Purpose.HELLO, m.terms.grid)
    if why:
        stop_on_disagreement(m, out, words, why)
        return
    best = winner(words)
    if best is None or world.base.newer_than(best):
        m.stateless = True
        if best is None:
            found = "no member holds the state"
        else:
            found = f"the newest state left is of step {best.step}, and the history is at step {world.base.step}"
        stop_in_world(m, out, found)
        return
    m.holders = holders(words)
    m.cannot_save_ranks = ranks_that_cannot_save(words)
    lineage = agreed(words)
    if lineage is not None:
        commit_lineage(m, out, lineage)
    m.donor_changes = next(word.changes for word in words if word.holds and word.lineage == best)
    if not m.holds_state:
        m.terms = m.terms.with_changes(m.donor_changes)
    grid = m.terms.with_changes(m.donor_changes).grid  # of the winner, which a member behind it has yet to reach
    m.compare_again = len(m.holders) < len(words)
    if any(word.ending == FINISH for word in words if word.holds):
        m.ending = FINISH
    if not m.compare_again and m.ending != FINISH and best.step < grid.total_steps:
        _assign_missing_slots(m, words, best, grid)
    m.donors = tuple(world.members[rank] for rank, word in enumerate(words) if word.holds and word.lineage == best)
    m.behind_ranks = frozenset(rank for rank, word in enumerate(words) if word.holds and word.lineage != best)
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    elif m.holds_state and m.lineage == best:
        pass_boundary(m, out)
    else:
        m.catch_up_to = best
        m.phase = Phase.CATCHING_UP
        if not m.holds_state and m.terms.verify and len(m.donors) == 1 < len(m.holders):
            start_collective(
                m, out, Purpose.HELLO
            )  # no other member has compared that state yet; one a step behind soon can
        elif m.holds_state:
            out.append(CatchUp(m.donors[0], best))
        else:
            start_fetch(m, out, m.donors)
    wire_next_world(m, out)


def _assign_missing_slots(m: Machine, words: Words, best: Lineage, grid: Grid) -> None:
    """Assign the slots of the interrupted step: kept slots stay with their rank, the rest is dealt out (rule 14)."""
    kept = [word.kept if word.holds and word.lineage == best else frozenset() for word in words]
    if not are_disjoint(kept):
        # This must not happen. A kept sum cannot be split, so all start afresh rather than count a slot twice.
        kept = [frozenset() for _ in words]
        m.kept_gradients = KeptGradients(base=m.lineage)
    if any(kept):  # else the step starts as usual, by the world's weights
        todo = missing_slots(grid.filled(best.step + 1), kept)
        more = assign_missing(todo, sorted(m.holders))
        m.recovery_shares = tuple(tuple(sorted((*mine, *more.get(rank, ())))) for rank, mine in enumerate(kept))


def on_gradient(m: Machine, out: Out, signal: Gradient) -> None:
    """Apply the missing step with the winner's gradient; without one, fetch the whole state (rule 13)."""
    if m.phase is not Phase.CATCHING_UP or m.catch_up_to is None or not m.holds_state:
        return  # it was requested in another world; without a state it cannot be applied
    line = signal.line
    if line is not None and line.parent == m.lineage and line.lineage == m.catch_up_to:
        if m.terms.verify:
            m.part_in_progress = None  # a lingering leaver's last step was not compared in any words
        commit_lineage(m, out, m.lineage)
        m.applied_line = line
        m.lineage = m.catch_up_to
        m.terms = m.terms.with_changes(m.donor_changes)
        m.catch_up_to = None
        m.phase = Phase.APPLIED
        out.append(Apply(line))
    else:
        start_fetch(m, out, m.donors)
