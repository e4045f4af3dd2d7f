"""Faults of what is stored: the coordinators' store, and checkpoints that are wanted or damaged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import RequestCheckpoint
from pliant_sim.live.world import Universe


def store(kind: FaultKind) -> Callable[[Universe, Random], bool]:
    """Armed for the next write of whoever coordinates; counted when it strikes."""

    def act(universe: Universe, _: Random) -> bool:
        for coordinator in universe.coordinators:
            if coordinator.up and coordinator.service.leads:
                coordinator.store.armed.append(kind)
        return False

    return act


def ask(universe: Universe, _: Random) -> bool:
    """A person wants a checkpoint."""
    job = universe.checkers.job
    if job is None or job.terms is None or job.state.ended:
        return False
    universe.ask("user", RequestCheckpoint("a person asks"))
    return True


def damage(universe: Universe, _: Random) -> bool:
    """A bit of the newest checkpoint flips, and then everybody needs it."""
    job = universe.checkers.job
    workers = [worker for worker in universe.workers.values() if worker.up]
    if job is None or job.checkpoint is None or job.state.ended or not workers:
        return False
    universe.directory.damaged.add(job.checkpoint.name)
    for worker in workers:
        worker.kill(-9)
    return True
