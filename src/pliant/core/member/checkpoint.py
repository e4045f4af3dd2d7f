"""A member's part in checkpoints: started at a boundary, written beside training, published after its step's commit."""

from __future__ import annotations

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name, checkpoint_step, is_due, part_of, writer_generation
from pliant.core.member.common import Out, confirm_save, report_progress, unreported_lines, world_of
from pliant.core.member.signals import CollectGarbage, Discard, Send, Snapshot, WriteDone, WriteFailed
from pliant.core.member.state import Machine, PartInProgress, Phase
from pliant.core.messages import PartNotWritten as SayNotWritten
from pliant.core.messages import Publish
from pliant.core.model.checkpoint import NEVER_WHOLE
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind

NO_STORAGE = (
    "no member that holds the state has checkpoint storage: "
    "set PLIANT_CHECKPOINT_DIR to a folder or URL that all members can reach"
)


def start_if_due(m: Machine, out: Out) -> None:
    """Start a checkpoint at a boundary if one is due. All members decide alike, by the step and the latest words.

    Where the world ends or holds at this boundary, the state is saved anyway, once that is agreed.
    """
    view, step = m.view, m.lineage.step
    asked, m.checkpoint_wanted = m.checkpoint_wanted, False
    if view is None or (step < m.terms.grid.total_steps and _training_pauses(m)):
        return
    if is_due(m.terms, view.save_steps, step, asked=asked):
        wanted = asked or bool(m.terms.checkpoint_every or view.save_steps)
        start_checkpoint(m, out, waits=step == m.terms.grid.total_steps, wanted=wanted)


def _training_pauses(m: Machine) -> bool:
    after = _world_after(m)
    return m.closing or (after is not None and after.hold)


def _world_after(m: Machine) -> World | None:
    """Return the world after this boundary; None if this member is not in it."""
    return next((each for each in m.wired_worlds if each.number == m.switch_to), None) if m.switch_to else world_of(m)


def start_checkpoint(m: Machine, out: Out, *, waits: bool, wanted: bool = False) -> None:
    """Start to write; each writer saves its part.

    Members that leave at this boundary, that drain (unless all do) or that have no storage do not write. With `waits`
    the write waits for the previous one to end, because nothing is trained meanwhile. If the checkpoint was `wanted`
    and no member can write, the first holder reports a failure.
    """
    world, after = world_of(m), _world_after(m)
    if after is None or is_saved(m):
        return
    holding = [rank for rank in sorted(m.holders) if world.members[rank] in after.members]
    able = [rank for rank in holding if rank not in m.cannot_save_ranks]
    calm = [rank for rank in able if rank not in m.draining_ranks]
    writers = [world.members[rank] for rank in calm or able]
    if wanted and not writers and m.rank in holding[:1]:
        _report_failure(m, out, WriteFailed(checkpoint_name(m.lineage, m.generation), NO_STORAGE))
    part = part_of(m.id, writers[:1] if m.view is not None and m.view.split_storage else writers)
    if part is not None:
        _start_part(m, out, PartInProgress(m.lineage, checkpoint_name(m.lineage, m.generation), *part), waits=waits)


def save_alone(m: Machine, out: Out) -> None:
    """Write the whole state as one part, without the other members: there may be no time to wait for them."""
    if m.can_save:
        _start_part(m, out, PartInProgress(m.lineage, checkpoint_name(m.lineage, m.generation, m.id), 0, 1), waits=True)
        confirm_save(m, out)


def is_first_saver(m: Machine, view: View) -> bool:
    """Return whether this member is the first holder, in the coordinator's view, that can save."""
    members = m.world.members if m.world is not None else ()
    holding = frozenset(rank for rank, member in enumerate(members) if member in view.holders)
    return _first_able(m, holding) == m.rank


def _first_able(m: Machine, holding: frozenset[int]) -> int | None:
    """Return the first of these ranks that can save.

    A rank that still catches up with the winner of the comparison is chosen only if there is no other.
    """
    able = holding.difference(m.cannot_save_ranks)
    return min(able.difference(m.behind_ranks) or able, default=None)


def is_saved(m: Machine) -> bool:
    """Return whether a published checkpoint has this member's state."""
    return m.view is not None and m.view.checkpoint is not None and m.view.checkpoint.lineage == m.lineage


def save_last(m: Machine, out: Out, view: View) -> bool:
    """Save the whole final state if no checkpoint has it. Return whether this member writes it.

    Call it when the job has finished and this member's own part is not awaited. The other members may have left without
    writing theirs: they broke off the last collective when the job ended.
    """
    if m.saves_alone or not m.can_save or is_saved(m) or not is_first_saver(m, view):
        return False
    m.saves_alone = True
    save_alone(m, out)
    return True


def _start_part(m: Machine, out: Out, saving: PartInProgress, *, waits: bool) -> None:
    if m.part_in_progress is not None and m.part_in_progress.confirmed and not waits:
        _report_failure(m, out, WriteFailed(saving.name, "the previous checkpoint is still being written"))
        return
    m.part_in_progress = saving
    out.append(Snapshot(saving.lineage, saving.name, saving.part, saving.count, waits))


def is_pending(m: Machine) -> bool:
    """Return whether this member still has to finish or publish its part."""
    return m.unpublished_part is not None or (m.part_in_progress is not None and m.part_in_progress.confirmed)


def on_written(m: Machine, out: Out, signal: WriteDone) -> None:
    if m.part_in_progress is not None and m.part_in_progress.name == signal.checkpoint.name:
        m.part_in_progress = None
    if signal.checkpoint.name in m.abandoned_checkpoints:
        out.append(Discard(signal.checkpoint.name))  # the write had finished before it could be cancelled
    elif not _is_publish_over(m, signal):
        m.unpublished_part = signal
        publish(m, out)


def on_write_failed(m: Machine, out: Out, signal: WriteFailed) -> None:
    if m.part_in_progress is not None and m.part_in_progress.name == signal.name:
        m.part_in_progress = None
    _report_failure(m, out, signal)


def _report_failure(m: Machine, out: Out, signal: WriteFailed) -> None:
    m.unreported_failure = signal
    report_pending(m, out)


def report_pending(m: Machine, out: Out) -> None:
    """Send the publications and failures that the coordinator has not confirmed."""
    publish(m, out)
    if m.unreported_failure is not None and m.world is not None:
        out.append(
            Send(
                SayNotWritten(
                    m.id,
                    m.generation,
                    m.unreported_failure.name,
                    m.unreported_failure.why,
                    m.unreported_failure.split_storage,
                )
            )
        )


def publish(m: Machine, out: Out) -> None:
    """Report the step, then publish the part: the coordinator refuses a checkpoint of a step that is not durable."""
    manifest = m.unpublished_part
    if manifest is None or m.world is None:
        return
    about = (manifest.checkpoint, manifest.part, manifest.count)
    recovery = recovery_ahead(m)
    if recovery is not None and manifest.checkpoint.lineage == m.last_chance_save == m.lineage:
        out.append(Send(Publish(m.id, recovery.number, *about, unreported_lines(m))))
    else:
        report_progress(m, out)
        out.append(Send(Publish(m.id, m.generation, *about)))


def recovery_ahead(m: Machine) -> World | None:
    """Return the recovery world that a stopped member is to enter; None if it has not stopped, or knows of none."""
    newest = m.view.worlds[-1] if m.view is not None and m.view.worlds else None
    if m.phase is not Phase.STOPPED or newest is None or newest.kind is not WorldKind.RECOVERY:
        return None
    return newest if newest.number > m.generation and m.id in newest.members else None


def apply_view(m: Machine, out: Out, view: View) -> None:
    """Update this member's checkpoint work from a view, and collect garbage after a new checkpoint.

    A durable step is committed, even if the words that showed it never returned here (the last ones, for instance).
    """
    if m.part_in_progress is not None and m.part_in_progress.lineage == view.durable:
        confirm_save(m, out)
    if m.unpublished_part is not None and _is_publish_over(m, m.unpublished_part):
        m.unpublished_part = None
    if m.unreported_failure is not None and _is_failure_over(m.unreported_failure, view):
        m.unreported_failure = None
    _discard_abandoned(m, out, view)
    newest = view.checkpoint
    if newest is not None and newest.name != m.collected_after and m.world is not None and _collects_garbage(m):
        m.collected_after = newest.name  # others remain ready to: the first saver may leave before it has seen the view
        out.append(
            CollectGarbage(
                newest,
                m.world.members,
                view.kept_checkpoints,
                view.history_from_generation,
                m.world.rollback_generation,
                m.generation,
            )
        )


def _collects_garbage(m: Machine) -> bool:
    """Return whether this member is the first holder that can save. Its words may not have shown yet that it holds."""
    return m.can_save and m.holds_state and _first_able(m, m.holders | {m.rank}) == m.rank


def _discard_abandoned(m: Machine, out: Out, view: View) -> None:
    """Remove checkpoints that will never be complete.

    The next one may need their space, after a full disk for instance.
    """
    never = frozenset(name for name, part in view.written_parts if part == NEVER_WHOLE)
    for name in sorted(never.difference(m.abandoned_checkpoints)):
        mine = m.part_in_progress is not None and m.part_in_progress.name == name
        if mine:
            m.part_in_progress = None
        if mine or _collects_garbage(m):
            out.append(Discard(name))
    m.abandoned_checkpoints = never


def _is_publish_over(m: Machine, manifest: WriteDone) -> bool:
    """Return whether the part need not be published any more: after a recovery the other parts may never arrive.

    The writer of the first part keeps publishing until all parts are there, so that one member remains to collect
    garbage.
    """
    view, checkpoint = m.view, manifest.checkpoint
    if view is None:
        return False
    if (
        checkpoint.lineage != GENESIS
        and m.world is not None
        and checkpoint.lineage.generation < m.world.rollback_generation
    ):
        return True
    if manifest.part and (checkpoint.name, manifest.part) in view.written_parts:
        return True
    published = view.checkpoint
    if published is not None and published.lineage.step >= checkpoint.lineage.step:
        return True
    return (checkpoint.name, NEVER_WHOLE) in view.written_parts or (
        manifest.count > 1 and writer_generation(checkpoint.name) <= view.sealed
    )


def _is_failure_over(failed: WriteFailed, view: View) -> bool:
    """Return whether the failure is recorded, or no checkpoint of that name is awaited any more."""
    name = failed.name
    if failed.split_storage:
        return view.split_storage or name not in view.kept_checkpoints
    saved = view.checkpoint.lineage.step if view.checkpoint is not None else -1
    return (
        (name, NEVER_WHOLE) in view.written_parts
        or writer_generation(name) <= view.sealed
        or checkpoint_step(name) <= saved
    )
