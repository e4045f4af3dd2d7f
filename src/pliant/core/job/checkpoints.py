"""Checkpoints: when one is due, which member writes which part, and which files can be removed (rule 17).

Every holder of a world writes a part of the state, so a checkpoint takes as long as its largest part. A checkpoint
exists once its manifest is in the coordinator's store: the coordinator publishes it with the last part, from members of
an open generation, for a durable step. A file without a manifest is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from pliant.core import messages as c
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.validation import CHECKPOINT_NAME_MAX, PIECES_MAX
from pliant.core.messages import Code, Event, Rejection, StateChanged, WorldBroken
from pliant.core.model.checkpoint import UnfinishedCheckpoint
from pliant.core.model.job import Job, JobState, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import kept_checkpoints
from pliant.core.model.world import World

WRITERS_MAX = 16  # more parts would not be faster on any disk, and every member receives their names

SPLIT_STORAGE = (
    "members save to different places, so from now on one member saves everything; "
    "set --checkpoint-dir to a place that every machine reaches"
)

SHA256_DIGITS = 64

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]*")  # as storages take it: never hidden, never in another folder
_NAME = re.compile(r"step-([0-9]{1,20})-g[0-9]{1,20}-[0-9a-f]{16}-w([0-9]{1,20})(-.+)?")  # int() refuses long digits


# -------------------------------------------------------------------------------------------- names and parts


def checkpoint_name(lineage: Lineage, generation: int, alone: MemberId | None = None) -> str:
    """Return a unique, immutable name: two histories that both have that step never share one.

    `generation` is that of the members that write it together; `alone` is set if one member writes all of it.
    """
    by = f"-{alone}" if alone is not None else ""
    return f"step-{lineage.step}-g{lineage.generation}-{lineage.digest:016x}-w{generation}{by}"


def part_of(member: MemberId, writers: Sequence[MemberId]) -> tuple[int, int] | None:
    """Return which part that member writes, and the number of parts; None if it writes none."""
    chosen = writers[:WRITERS_MAX]
    return (chosen.index(member), len(chosen)) if member in chosen else None


def is_due(terms: Terms, save_steps: int, step: int, *, asked: bool) -> bool:
    """Return whether to save the state after `step`. With verification on, only verified states are saved."""
    if step == terms.grid.total_steps:
        return True
    if terms.verify and step % terms.verify:
        return False
    return asked or any(every and step % every == 0 for every in (terms.checkpoint_every, save_steps))


def writer_generation(name: str) -> int:
    """Return the generation whose members write the checkpoint of that name."""
    found = _NAME.fullmatch(name)
    return int(found[2]) if found is not None else 0


def checkpoint_step(name: str) -> int:
    """Return the step of the checkpoint of that name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None else 0


def is_garbage(name: str, kept: Sequence[str], newest: int, origin: int, floor: int, generation: int) -> bool:
    """Return whether the files under that name can be removed: it is not a kept checkpoint, and cannot become one.

    `newest` is the step of the newest checkpoint: an earlier one is refused. So is one begun in a generation below
    `floor`, whose steps were rolled back. One begun up to `origin` belongs to another history, which has ended: its
    owner may still want it. One begun after `generation` is left alone, since the caller may be out of date. Files that
    are not named like a checkpoint are never removed.
    """
    if _NAME.fullmatch(name) is None or name in kept or not origin < writer_generation(name) <= generation:
        return False
    return checkpoint_step(name) <= newest or writer_generation(name) < floor


# ------------------------------------------------------------------------------------------------- decisions


def world_left_behind(job: Job, command: c.Publish | c.PartNotWritten) -> World | None:
    """Return the world that went on without a member that still writes its part: the part counts until a seal."""
    world = job.world(job.current)
    leaves = command.member in job.members and world is not None and command.member not in world.members
    return world if leaves and job.sealed < command.generation < job.current else None


def publish(job: Job, command: c.Publish, world: World, now: float) -> tuple[Event, ...] | Rejection:
    """A part is written. Call with the open world that has the member, or that went on without it."""
    if (bad := _bad_part(command)) is not None:
        return bad
    checkpoint, newest = command.checkpoint, job.checkpoint
    lineage = checkpoint.lineage
    if lineage.step > job.durable.step or (lineage.step == job.durable.step and lineage != job.durable):
        return Rejection(Code.NOT_NEXT, f"step {lineage.step} must be reported before its checkpoint")
    if lineage.generation < job.rollback_generation and lineage != GENESIS:
        return Rejection(
            Code.MISMATCH, f"step {lineage.step} of {lineage.generation} was rolled back by {job.rollback_generation}"
        )
    if newest is not None and lineage.step <= newest.lineage.step:
        return ()
    if command.count > 1 and writer_generation(checkpoint.name) <= job.sealed:
        return ()  # some writers are lost, and their parts with them
    known = next((each for each in job.unfinished_checkpoints if each.name == checkpoint.name), None)
    writing = known or UnfinishedCheckpoint(
        lineage, checkpoint.name, checkpoint.state, command.count, storage_id=checkpoint.storage_id
    )
    if writing.failed or any(part == command.part for part, _ in writing.pieces):
        return ()
    if (writing.lineage, writing.state, writing.count) != (lineage, checkpoint.state, command.count):
        why = f"its state differs from the one that others wrote as {checkpoint.name}"
        return (c.CheckpointFailed(now, world.number, checkpoint.name, command.member, why),)
    if writing.storage_id != checkpoint.storage_id:
        return (
            c.CheckpointFailed(now, world.number, checkpoint.name, command.member, SPLIT_STORAGE, split_storage=True),
        )
    parts = sorted((*writing.pieces, (command.part, checkpoint.pieces)))
    if len(parts) < command.count:
        part = (command.member, checkpoint, command.part, command.count)
        return (c.PartWritten(now, world.number, *part),)
    pieces = tuple(chain.from_iterable(pieces for _, pieces in parts))
    return (c.CheckpointPublished(now, world.number, replace(checkpoint, pieces=pieces)),)


def _bad_part(command: c.Publish) -> Rejection | None:
    checkpoint = command.checkpoint
    names = (checkpoint.name, *(piece.file for piece in checkpoint.pieces))
    if any(len(name) > CHECKPOINT_NAME_MAX for name in names):
        return Rejection(Code.BAD, f"a checkpoint's name must have up to {CHECKPOINT_NAME_MAX} characters")
    if bad := next((name for name in names if _FILE_NAME.fullmatch(name) is None), None):
        return Rejection(Code.BAD, f"{bad!r} is not the name of a checkpoint or of one of its files")
    if any(len(piece.sha256) > SHA256_DIGITS or piece.nbytes < 0 for piece in checkpoint.pieces):
        return Rejection(Code.BAD, f"a file of a checkpoint must have a size, and a hash of {SHA256_DIGITS} digits")
    if len(checkpoint.storage_id) > CHECKPOINT_NAME_MAX:
        return Rejection(Code.BAD, f"the id of a storage must have up to {CHECKPOINT_NAME_MAX} characters")
    if len(names) > 1 + PIECES_MAX:
        return Rejection(Code.BAD, f"a part of a checkpoint must have up to {PIECES_MAX} files")
    if not 0 <= command.part < command.count <= WRITERS_MAX:
        return Rejection(
            Code.BAD, f"part {command.part} of {command.count} is not valid: there are up to {WRITERS_MAX} parts"
        )
    return None


def part_not_written(job: Job, command: c.PartNotWritten, world: World, now: float) -> tuple[Event, ...]:
    """A part will not be written, so the checkpoint fails. The next one is tried when it is due."""
    if command.split_storage:
        return _split_storage(job, command, world, now)
    known = next((each for each in job.unfinished_checkpoints if each.name == command.name), None)
    newest = job.checkpoint.lineage.step if job.checkpoint is not None else -1
    over = writer_generation(command.name) <= job.sealed or checkpoint_step(command.name) <= newest
    if over or (known is not None and known.failed):
        return ()
    name, why = command.name[:CHECKPOINT_NAME_MAX], command.why[:CHECKPOINT_NAME_MAX]
    return (c.CheckpointFailed(now, world.number, name, command.member, why),)


def _split_storage(job: Job, command: c.PartNotWritten, world: World, now: float) -> tuple[Event, ...]:
    """The parts of a published checkpoint lie in different places. They stay: a person may bring them together."""
    if job.split_storage or command.name not in kept_checkpoints(job):
        return ()
    why = f"not all of it is in {command.why[:CHECKPOINT_NAME_MAX]}; {SPLIT_STORAGE}"
    return (c.CheckpointFailed(now, world.number, command.name, command.member, why, split_storage=True),)


def not_readable(job: Job, command: c.NotReadable, world: World, now: float) -> tuple[Event, ...]:
    """Skip a damaged checkpoint for the one before. Leave one out of this member's reach to other members.

    If no member can reach it, the job fails with that reason: going back further would discard a state that still
    exists.
    """
    newest = job.checkpoint
    if newest is None or newest.name != command.name or newest.lineage != world.base:
        return ()
    why = command.why[:1000]
    found = c.CheckpointUnreadable(now, world.number, command.name, command.member, why, command.damaged)
    if not command.damaged and job.cannot_read | {command.member} >= {*world.members}:
        advice = "put it back and start the job again, or start over with --fresh"
        sentence = f"no member can read the checkpoint {command.name} ({why}): {advice}"
        return (found, StateChanged(now, JobState.FAILED, sentence))
    return (found, WorldBroken(now, world.number, True, f"{command.member} cannot read {command.name}", True))


def request_on_drain(job: Job, leaving: Iterable[MemberId], now: float) -> tuple[Event, ...]:
    """Save now if a holder of the state leaves: a machine that goes away is seldom the only one."""
    if job.checkpoint_wanted_at_step is not None or job.holders.isdisjoint(leaving):
        return ()
    return (c.CheckpointRequested(now, job.durable.step, "a member is leaving"),)


def request(job: Job, command: c.RequestCheckpoint, now: float) -> tuple[Event, ...] | Rejection:
    """Request a checkpoint at the next boundary, unless the newest step is saved already."""
    if job.terms is None:
        return Rejection(Code.BAD, f"{job.name} has no live members whose state can be saved")
    saved = job.checkpoint is not None and job.checkpoint.lineage == job.durable
    if saved or job.checkpoint_wanted_at_step is not None:
        return ()
    return (c.CheckpointRequested(now, job.durable.step, command.why),)
