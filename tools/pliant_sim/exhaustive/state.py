"""One state of the explored world: processes, process groups and letters in transit.

Copies are cheap and keys are exact: two states with one key have the same future.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pliant.core.data.ledger import Lineage
from pliant.core.member import Machine
from pliant.core.member import signals as s
from pliant.core.member.control_words import Word
from pliant.core.model.job import Job
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant_sim.live.toy_model import Content, ToyModel


@dataclass(slots=True)
class ExploredMember:
    """A worker: its state machine, its model and its shell's task."""

    machine: Machine
    model: ToyModel
    kept: tuple[int, ...] = ()
    reduced: tuple[tuple[Lineage, Content], ...] = ()
    incoming: Content = ()
    aside: ToyModel | None = None
    task: s.Action | None = None  # an action that the shell has not carried out yet
    up: bool = True

    def copy(self) -> ExploredMember:
        return ExploredMember(
            self.machine, self.model, self.kept, self.reduced, self.incoming, self.aside, self.task, self.up
        )

    def key(self, revision: int) -> object:
        """Return a key. Of a revision only counts whether it is the newest."""
        if not self.up:
            return None
        known = dict(self.machine.__dict__)
        known["committed_lines"] = tuple(self.machine.committed_lines)
        seen = known["view"]
        if seen is not None:
            known["view"] = (seen.revision == revision, replace(seen, revision=0, why=""))
        return tuple(known.values()), self.model, self.kept, self.aside, self.task


@dataclass(slots=True)
class ExploredGroup:
    """A process group: members that called, members whose barrier returned, and the operations they wait in."""

    world: World
    called: frozenset[MemberId] = frozenset()
    ready: frozenset[MemberId] = frozenset()
    broken: MemberId | None = None
    operations: tuple[tuple[tuple[MemberId, Word, tuple[int, ...]], ...], ...] = ()
    waiting: frozenset[tuple[MemberId, int]] = frozenset()

    def copy(self) -> ExploredGroup:
        return ExploredGroup(self.world, self.called, self.ready, self.broken, self.operations, self.waiting)

    def key(self) -> object:
        return self.called, self.ready, self.broken, self.operations, self.waiting


@dataclass(slots=True)
class ExploredState:
    """The state of job, members and groups, with the choices that led to it."""

    job: Job
    revision: int
    processes: dict[MemberId, ExploredMember]
    groups: dict[int, ExploredGroup] = field(default_factory=dict)
    letters: frozenset[tuple[MemberId, s.Admission | s.Released]] = frozenset()
    faults: int = 0
    path: tuple[str, ...] = ()
    wrong: str = ""

    def copy(self) -> ExploredState:
        return ExploredState(
            self.job,
            self.revision,
            {name: process.copy() for name, process in self.processes.items()},
            {number: group.copy() for number, group in self.groups.items()},
            self.letters,
            self.faults,
            self.path,
        )

    def key(self) -> object:
        job = self.job
        processes = tuple(process.key(self.revision) for process in self.processes.values())
        groups = tuple((number, group.key()) for number, group in sorted(self.groups.items()))
        standing = (
            job.current,
            job.sealed,
            job.durable,
            job.worlds,
            job.state,
            job.broken,
            tuple(job.members),
        )
        return hash((standing, processes, groups, self.letters, self.faults))
