"""What must be true of checkpoints in every schedule (rule 17). Written down apart from the code it judges."""

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
from pliant_sim.live.toy_model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from pliant_sim.live.world import Universe
    from pliant_sim.processes.worker import Worker


class SaveChecks:
    """Looks at what is published, written, removed and restored, and complains."""

    def __init__(self, universe: Universe, complain: Callable[[str], None]) -> None:
        self.universe = universe
        self.complain = complain
        self.published: dict[str, Checkpoint] = {}
        self.failed: set[int] = set()  # steps of which some part could not be written
        self._wrote: dict[str, float] = {}  # by checkpoint, when its last part was written
        self._discarded: set[str] = set()
        self._tidied: dict[str, float] = {}  # by the newest one, when somebody tidied up after it
        self._went: set[MemberId] = set()  # by their own will, and not because their time was over

    def event(self, event: Event) -> None:
        """What stands in the store."""
        match event:
            case m.CheckpointPublished(checkpoint=newest):
                self.published[newest.name] = newest
                if newest.name in self._discarded:
                    self.complain(f"rule 17: {newest.name} is published, and was given up before")
                there = self.universe.directory.files.get(newest.name, {})
                if not all(piece.file in there for piece in newest.pieces):
                    self.complain(f"rule 17: {newest.name} is published, and not all of it is there")
            case m.CheckpointFailed(name=name):
                self.failed.add(checkpoint_step(name))
            case m.CheckpointUnreadable(name=name, damaged=damaged):
                if damaged != (name in self.universe.directory.damaged):
                    self.complain(f"rule 17: {name} was given up, and nothing is wrong with it")
            case _:
                pass

    def restores(self, worker: Worker, checkpoint: Checkpoint | None, job: Job | None) -> None:
        """Under the manifest's name lies what the manifest says, and it is what is to be gone back to."""
        if checkpoint is None:
            return
        directory, name, world = self.universe.directory, checkpoint.name, worker.machine.world
        parts = directory.files.get(name, {})
        if worker.model.hash != checkpoint.state:
            self.complain(f"rule 17: {name} is not the state that was published")
        if any(parts.get(piece.file) != worker.model for piece in checkpoint.pieces):
            self.complain(f"rule 17: the parts of {name} are of several states")
        if self.published.get(name) != checkpoint or name in directory.damaged:
            self.complain(f"rule 17: {worker.id} goes back to {name}, which is damaged or was never published")
        if job is None or world is None or world.number <= job.sealed:
            return  # it has yet to hear that this world is over
        if world.base != checkpoint.lineage or name not in set(kept_checkpoints(job)).difference(job.damaged):
            self.complain(f"rule 17: {worker.id} goes back to {name}, which is not the base of {world.number}")

    def writes_part(self, worker: Worker, begun: Snapshot, model: Model) -> Piece:
        """Names are unique, files immutable, and all parts of a checkpoint are of one state."""
        file = f"{begun.part}-of-{begun.count}-{worker.id}"
        directory = self.universe.directory
        if directory.write(begun.name, file, model) is not None:
            self.complain(f"rule 17: {worker.id} overwrote {file} of the checkpoint {begun.name} with another state")
        if model.lineage != begun.lineage:
            self.complain(f"rule 17: {worker.id} saved step {model.lineage.step} as {begun.name}")
        self._wrote[begun.name] = self.universe.now
        return Piece(file, 1, f"{model.hash:064x}")

    def tidies(self, worker: Worker, tidy: CollectGarbage, job: Job | None) -> None:
        """Nothing is removed that anybody could still go back to."""
        directory = self.universe.directory
        needed = kept_checkpoints(job) if job is not None else ()
        self._tidied[tidy.newest.name] = self.universe.now
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

    def discards(self, worker: Worker, discard: Discard) -> None:
        """Nothing is given up that was published, or ever will be."""
        self.universe.directory.remove(discard.name)
        self._discarded.add(discard.name)
        if discard.name in self.published:
            self.complain(f"rule 17: {worker.id} discarded {discard.name}, which is published")

    def leaves(self, worker: Worker, leave: Exit) -> None:
        """Somebody goes by its own will."""
        if "grace" not in leave.why:
            self._went.add(worker.id)

    def finally_(self, job: Job) -> None:
        """The job ended well. If all who ended it had time, its last state is saved, and nothing else lies about."""
        newest, world = job.checkpoint, job.world(job.current)
        if world is None or not self._went.issuperset(world.members) or job.durable.step in self.failed:
            return
        if not any(self.universe.workers[member].machine.can_save for member in world.members):
            return
        if newest is None or newest.lineage != job.durable:
            self.complain("rule 17: the job finished, and its last state is not saved")
        elif job.checkpoint_wanted_at_step is not None:
            self.complain(f"rule 17: a checkpoint of step {job.checkpoint_wanted_at_step} or later is still wanted")
        elif newest.name not in self._tidied:
            self.complain(f"rule 17: nobody tidied up after {newest.name}")
        else:
            self._nothing_lies_about(job, newest)

    def _nothing_lies_about(self, job: Job, newest: Checkpoint) -> None:
        for name in self.universe.directory.files:
            late = self._wrote[name] >= self._tidied[newest.name]  # by somebody who was not told in time
            if not late and is_garbage(
                name,
                kept_checkpoints(job),
                newest.lineage.step,
                job.history_from_generation,
                job.rollback_generation,
                job.generation,
            ):
                self.complain(f"rule 17: {name} lies about, and nobody can need it")
