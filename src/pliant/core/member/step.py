"""A member at work: compute, reduce, apply, and the decisions at the boundary."""

from __future__ import annotations

from pliant.core.data.ledger import LedgerLine, add_digests, make_line, with_changes_of
from pliant.core.member import checkpoint, leave
from pliant.core.member.common import (
    Out,
    admit_joiners,
    commit_lineage,
    confirm_save,
    enter_world,
    history_position,
    report_progress,
    start_collective,
    start_step,
    stop_in_world,
    stop_on_disagreement,
    wire_next_world,
    world_of,
)
from pliant.core.member.control_words import (
    FINISH,
    LEFT_LOOP,
    Purpose,
    Words,
    agreed,
    agreed_batch,
    all_out_of_time,
    disagreement,
    ends_job,
    generation_to_enter,
    holders,
    ranks_that_cannot_save,
    ranks_with_another_batch,
)
from pliant.core.member.signals import Apply, Boundary, Computed, Exit, LoopEnded
from pliant.core.member.state import KeptGradients, Machine, Phase
from pliant.core.model.world import World

LEFT_ALONE = (
    "this member left the training loop after step {step}, and the others did not: "
    "call run.finish(why) to end the job for all members, or leave the loop on every member at the same step"
)

OTHER_BATCH = (
    "after step {step} this member set the batch to {own}, and the others to {others}: "
    "decide about the batch from reduced values, which are equal on every member"
)


def on_computed(m: Machine, out: Out, signal: Computed) -> None:
    """Record computed slots. The last of them starts the reduction."""
    if m.phase is not Phase.COMPUTING:
        return
    m.kept_gradients = m.kept_gradients.with_slots(signal.slots, signal.samples, signal.digest)
    m.slots_to_compute = m.slots_to_compute - signal.slots
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    elif not m.slots_to_compute:
        start_collective(m, out, Purpose.STEP, signal.state, signal.batch)


def on_loop_ended(m: Machine, out: Out, signal: LoopEnded) -> None:
    """Enter the collective of a step without gradients: the words decide whether the job ends before it."""
    m.ending = max(m.ending, FINISH if signal.finish else LEFT_LOOP)
    m.finish_why = signal.why
    if m.phase is not Phase.COMPUTING:
        return
    m.kept_gradients = KeptGradients(base=m.lineage)
    m.slots_to_compute = frozenset()
    if m.stop_reason:
        leave.stop_or_leave(m, out)
    else:
        start_collective(m, out, Purpose.STEP)


def on_ending(m: Machine, out: Out, words: Words) -> None:
    """End the job with the last applied step, or part with a member that left its loop alone. Apply nothing."""
    read_words(m, words)
    m.switch_to = 0
    if m.holds_state:
        commit_lineage(m, out, m.lineage)
    if ends_job(words):
        m.ending = FINISH
        start_collective(m, out, Purpose.CLOSE)
    elif m.ending:
        m.phase = Phase.GONE
        out.append(Exit(1, LEFT_ALONE.format(step=m.lineage.step)))
    else:
        alone = next(rank for rank, word in enumerate(words) if word.ending)
        stop_in_world(m, out, f"{world_of(m).members[alone]} left its training loop, and the others did not")


def on_reduced(m: Machine, out: Out, words: Words) -> None:
    """Apply the reduced step, unless the words disagree (rules 1, 6)."""
    why = disagreement(words, m.generation, Purpose.STEP, m.terms.grid)
    if why:
        stop_on_disagreement(m, out, words, why)
        return
    if ranks_with_another_batch(words):
        on_other_batch(m, out, words)
        return
    commit_lineage(m, out, m.lineage)
    step = step_line(m, words)
    take_batch(m, step)
    read_words(m, words)
    m.lineage = step.lineage
    m.applied_line = step
    m.kept_gradients = KeptGradients(base=step.lineage)
    m.phase = Phase.APPLIED
    out.append(Apply(step))


def on_other_batch(m: Machine, out: Out, words: Words) -> None:
    """Part with the members whose user code wants another batch than that of the others. Apply nothing."""
    odd, batch = ranks_with_another_batch(words), agreed_batch(words)
    if m.rank in odd:
        m.phase = Phase.GONE
        own = words[m.rank].next_batch
        out.append(Exit(1, OTHER_BATCH.format(step=history_position(m).step, own=_batch(own), others=_batch(batch))))
    else:
        names = ", ".join(world_of(m).members[rank] for rank in sorted(odd))
        stop_in_world(m, out, f"{names} set another batch than the others ({_batch(batch)})")


def _batch(batch: int) -> str:
    return str(batch) if batch else "none"


def take_batch(m: Machine, line: LedgerLine) -> None:
    """Change the batch of the steps after this one, if its members agreed on that."""
    if line.next_batch:
        m.terms = m.terms.with_changes(with_changes_of(m.terms.grid, (line,)).changes)


def step_line(m: Machine, words: Words) -> LedgerLine:
    """Return the ledger line of the step that these words reduced. It is the same on every member."""
    first = next(word for word in words if word.holds)
    digest = 0
    for word in words:
        digest = add_digests(digest, word.digest)
    samples = sum(word.samples for word in words)
    cursor = m.terms.grid.cursor(first.step)
    return make_line(first.lineage, m.generation, first.step, cursor, samples, digest, first.state, agreed_batch(words))


def read_words(m: Machine, words: Words) -> None:
    """Store the parts of the words that decide the coming boundary (rule 8)."""
    m.holders = holders(words)
    m.switch_to = generation_to_enter(words)
    m.closing = not m.switch_to and all_out_of_time(words)
    m.checkpoint_wanted = all(
        word.wants_checkpoint for word in words if word.holds
    )  # else a holder is writing one, or has not received the request yet
    m.draining_ranks = frozenset(rank for rank, word in enumerate(words) if word.drain_urgency)
    m.cannot_save_ranks = ranks_that_cannot_save(words)


def on_boundary(m: Machine, out: Out, signal: Boundary) -> None:
    """Continue after the user's post-step code. Only here may anything change (rule 3)."""
    if m.phase is not Phase.APPLIED:
        return
    m.state_hash = signal.state
    checkpoint.start_if_due(m, out)
    if world_of(m).members == (m.id,):
        commit_lineage(m, out, m.lineage)  # a world of one commits at once
    pass_boundary(m, out)


def pass_boundary(m: Machine, out: Out) -> None:
    """At a boundary: stop, compare again, switch, close or continue, in this order."""
    if m.stop_reason and not _can_switch_instead(m):
        leave.stop_or_leave(m, out)
    elif m.compare_again:
        start_collective(m, out, Purpose.HELLO)
    elif m.switch_to:
        switch_world(m, out)
    elif m.closing or world_of(m).hold or m.is_at_end:
        start_collective(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)


def _can_switch_instead(m: Machine) -> bool:
    """Return whether the next world is free of the reason to stop, for instance a leaver that died."""
    view = m.view
    world = _wired(m, m.switch_to)
    if view is None or world is None or view.state.ended or not view.known:
        return False
    return (
        world.number > view.sealed
        and world.number not in view.unenterable_generations
        and view.gone_in_open_worlds.isdisjoint(world.members)
    )


def _wired(m: Machine, number: int) -> World | None:
    return next((world for world in m.wired_worlds if world.number == number), None)


def switch_world(m: Machine, out: Out) -> None:
    """Enter the next world at this boundary, or linger if this member is not in it (rules 8, 9)."""
    world = _wired(m, m.switch_to)
    if world is None:
        leave.linger(m, out)
        return
    before = world_of(m)
    holding = {before.members[rank] for rank in m.holders}
    without_storage = {before.members[rank] for rank in m.cannot_save_ranks}
    enter_world(m, world)
    m.previous_world = before
    m.holders = frozenset(rank for rank, member in enumerate(world.members) if member in holding)
    m.cannot_save_ranks = frozenset(rank for rank, member in enumerate(world.members) if member in without_storage)
    admit_joiners(m, out)
    if world.hold or m.is_at_end:
        start_collective(m, out, Purpose.CLOSE)
    else:
        start_step(m, out)
    wire_next_world(m, out)


def on_closed(m: Machine, out: Out, words: Words) -> None:
    """Commit the applied step after a closing collective; the run, the world or this member ends (rule 1)."""
    why = disagreement(words, m.generation, Purpose.CLOSE, m.terms.grid)
    if why:
        stop_on_disagreement(m, out, words, why)
        return
    m.holders = holders(words)
    m.cannot_save_ranks = ranks_that_cannot_save(words)
    lineage = agreed(words)
    if lineage is not None:
        commit_lineage(m, out, lineage)
    if m.ending == FINISH and not m.stop_reason:
        m.phase = Phase.DONE
        if m.part_in_progress is None or m.part_in_progress.lineage != m.lineage:
            _save(m, out)
    if m.ending != FINISH or m.finish_why or m.stop_reason:  # else a member that knows the reason reports first
        report_progress(m, out)
    if m.stop_reason:
        leave.stop_or_leave(m, out)
        return
    if lineage is not None and m.is_at_end:
        m.phase = Phase.DONE
        return
    _save(m, out)
    if m.closing:
        leave.linger(m, out)
    else:
        m.phase = Phase.HOLDING
        wire_next_world(m, out)


def _save(m: Machine, out: Out) -> None:
    """Save the state at once, where no step follows that would commit it."""
    if m.holds_state:
        checkpoint.start_checkpoint(m, out, waits=True)
        confirm_save(m, out)
