"""Checks of checkpoints (rule 17), written independently of the code they judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pliant.core import messages as m
from pliant.core.job.checkpoints import checkpoint_step, is_garbage
from pliant.core.member.signals import CollectGarbage, Discard, Exit, Snapshot
from pliant.core.messages import Event
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.job import Job
from pliant.core.model.names import MemberId
from pliant.core.model.view import kept_checkpoints
from pliant_sim.live.toy_model import ToyModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from pliant_sim.live.world import LiveSimulation
    from pliant_sim.processes.worker import LiveWorker


class CheckpointChecks:
    """Checks what is published, written, removed and restored."""

    def __init__(self, sim: LiveSimulation, complain: Callable[[str], None]) -> None:
        self.sim = sim
        self.complain = complain
        self.published: dict[str, Checkpoint] = {}
        self.failed: set[int] = set()  # steps of which some part could not be written
        self._wrote: dict[str, float] = {}  # by checkpoint, when its last part was written
        self._discarded: set[str] = set()
        self._tidied: dict[str, float] = {}  # by newest checkpoint, when garbage was collected after it
        self._went: set[MemberId] = set()  # members that left by themselves, not at the end of their grace period

    def event(self, event: Event) -> None:
        """Check an event of the store."""
        match event:
            case m.CheckpointPublished(checkpoint=newest):
                self.published[newest.name] = newest
                if newest.name in self._discarded:
                    self.complain(f"rule 17: {newest.name} is published, but was discarded before")
                there = self.sim.directory.files.get(newest.name, {})
                if not all(piece.file in there for piece in newest.pieces):
                    self.complain(f"rule 17: {newest.name} is published, but incomplete")
            case m.CheckpointFailed(name=name):
                self.failed.add(checkpoint_step(name))
            case m.CheckpointUnreadable(name=name, damaged=damaged):
                if damaged != (name in self.sim.directory.damaged):
                    self.complain(f"rule 17: {name} was given up, but is intact")
            case _:
                pass

    def restores(self, worker: LiveWorker, checkpoint: Checkpoint | None, job: Job | None) -> None:
        """Check that a restored checkpoint is the published one, and the base of its world."""
        if checkpoint is None:
            return
        directory, name, world = self.sim.directory, checkpoint.name, worker.machine.world
        parts = directory.files.get(name, {})
        if worker.model.hash != checkpoint.state:
            self.complain(f"rule 17: {name} is not the state that was published")
        if any(parts.get(piece.file) != worker.model for piece in checkpoint.pieces):
            self.complain(f"rule 17: the parts of {name} are of several states")
        if self.published.get(name) != checkpoint or name in directory.damaged:
            self.complain(f"rule 17: {worker.id} restored {name}, which is damaged or was never published")
        if job is None or world is None or world.number <= job.sealed:
            return  # it has no view yet in which this world is over
        if world.base != checkpoint.lineage or name not in set(kept_checkpoints(job)).difference(job.damaged):
            self.complain(f"rule 17: {worker.id} restored {name}, which is not the base of {world.number}")

    def writes_part(self, worker: LiveWorker, begun: Snapshot, model: ToyModel) -> Piece:
        """Write a part; check that no file changes and that the part is of the right state."""
        file = f"{begun.part}-of-{begun.count}-{worker.id}"
        directory = self.sim.directory
        if directory.write(begun.name, file, model) is not None:
            self.complain(f"rule 17: {worker.id} overwrote {file} of the checkpoint {begun.name} with another state")
        if model.lineage != begun.lineage:
            self.complain(f"rule 17: {worker.id} saved step {model.lineage.step} as {begun.name}")
        self._wrote[begun.name] = self.sim.now
        return Piece(file, 1, f"{model.hash:x}".rjust(64, "f"))  # zeros would be a long number to the codec

    def tidies(self, worker: LiveWorker, tidy: CollectGarbage, job: Job | None) -> None:
        """Check that garbage collection removes no checkpoint that is kept."""
        directory = self.sim.directory
        needed = kept_checkpoints(job) if job is not None else ()
        self._tidied[tidy.newest.name] = self.sim.now
        for name in [*directory.files]:
            if is_garbage(
                name,
                tidy.kept_checkpoints,
                tidy.newest.lineage.step,
                tidy.history_from_generation,
                tidy.rollback_generation,
                tidy.generation,
            ):
                directory.remove(name)
                if name in needed:
                    self.complain(f"rule 17: {worker.id} removed {name}, which is kept")

    def discards(self, worker: LiveWorker, discard: Discard) -> None:
        """Check that no published checkpoint is discarded."""
        self.sim.directory.remove(discard.name)
        self._discarded.add(discard.name)
        if discard.name in self.published:
            self.complain(f"rule 17: {worker.id} discarded {discard.name}, which is published")

    def leaves(self, worker: LiveWorker, leave: Exit) -> None:
        """Note a member that leaves by itself, and not at the end of its grace period."""
        if "grace" not in leave.why:
            self._went.add(worker.id)

    def finally_(self, job: Job) -> None:
        """Check a finished job: if its last members had time, its last state is saved and there is no garbage."""
        newest, world = job.checkpoint, job.world(job.current)
        if world is None or not self._went.issuperset(world.members) or job.durable.step in self.failed:
            return
        if not any(self.sim.workers[member].machine.can_save for member in world.members):
            return
        if newest is None or newest.lineage != job.durable:
            self.complain("rule 17: the job finished, and its last state is not saved")
        elif job.checkpoint_wanted_at_step is not None:
            self.complain(f"rule 17: a checkpoint of step {job.checkpoint_wanted_at_step} or later is still wanted")
        elif newest.name not in self._tidied:
            self.complain(f"rule 17: no member collected garbage after {newest.name}")
        else:
            self._nothing_lies_about(job, newest)

    def _nothing_lies_about(self, job: Job, newest: Checkpoint) -> None:
        for name in self.sim.directory.files:
            late = self._wrote[name] >= self._tidied[newest.name]  # by a member that had no newer view yet
            if not late and is_garbage(
                name,
                kept_checkpoints(job),
                newest.lineage.step,
                job.history_from_generation,
                job.rollback_generation,
                job.generation,
            ):
                self.complain(f"rule 17: {name} was left behind as garbage")
