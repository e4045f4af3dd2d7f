"""Activity of a job's workers at one moment, derived from the job's state (`pliant report`, `/metrics`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind


class Category(StrEnum):
    """The activity of a worker; `pliant.core.accounting.goodput` defines each."""

    TRAINING = "training"
    RECOMPUTING = "recomputing"
    CHECKPOINTING = "checkpointing"
    SWITCHING = "switching"
    TRANSFER = "transfer"
    WAITING = "waiting"
    STARTING = "starting"
    SPARE = "spare"


def categories_of(job: Job, names: Iterable[MemberId], entered: Collection[MemberId] = ()) -> dict[MemberId, Category]:
    """Return the activity of each of these workers. `entered` are members that were in a world of the history.

    Training, here, includes everything that cannot be distinguished from it yet.
    """
    inside: dict[MemberId, World] = {}
    for world in job.worlds:
        for name in world.members:
            inside.setdefault(name, world)
    current = job.world(job.current)
    whole = current is not None and job.holders.issuperset(current.members)
    launched = Category.SWITCHING if job.launch is not None and job.launch.over else Category.TRAINING

    def of(name: MemberId) -> Category:
        if name not in job.members:
            return launched
        if job.state is JobState.WAITING:
            return Category.WAITING
        if job.tasks is not None:
            return Category.TRAINING if job.tasks.held_by(name) else Category.SPARE
        world = inside.get(name)
        if world is None and name in entered:
            return Category.SWITCHING  # left out of the next world: it is leaving
        if world is None:
            return Category.SPARE if job.current else Category.WAITING
        if world is not current:
            return Category.TRANSFER if world.kind is WorldKind.PLANNED else Category.SWITCHING
        if job.broken:
            return Category.SWITCHING
        if world.hold:
            return Category.WAITING
        if name not in job.holders:
            return Category.TRANSFER
        if world.kind is not WorldKind.PLANNED and not whole:
            return Category.SWITCHING  # it compares again once all members have the state
        return Category.TRAINING

    return {name: of(name) for name in names}


def running_workers(job: Job) -> list[MemberId]:
    """Return the workers that are known to run: members, or seats of a launch."""
    if job.is_live or job.launch is None:
        return list(job.workers)
    ended = {end.member for end in job.launch.ends}
    return [seat.member for seat in job.launch.seats if seat.member not in ended]
