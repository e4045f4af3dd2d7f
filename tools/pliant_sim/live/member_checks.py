"""Checks of a live job that look at no more of its members than they report.

They check the simulator's live jobs and the real processes of `tests/schedules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pliant.core import messages as m
from pliant.core.data.audit import audit
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.data.sample_order import Order
from pliant.core.member import Machine, Phase
from pliant.core.member.control_words import Purpose, Words, is_ending
from pliant.core.member.signals import Shares
from pliant.core.messages import Event
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant_sim.checks import CheckedJob, StoreChecks
from pliant_sim.live.toy_model import Content, ToyModel, slots_in


class CheckedMember(Protocol):
    """A member, as far as it is known from outside."""

    @property
    def id(self) -> MemberId: ...

    @property
    def machine(self) -> Machine: ...

    @property
    def model(self) -> ToyModel: ...

    @property
    def aside(self) -> Mapping[int, ToyModel]: ...

    @property
    def up(self) -> bool: ...


class CheckedLiveJob(CheckedJob, Protocol):
    """The live job that the checks are given."""

    @property
    def workers(self) -> Mapping[MemberId, CheckedMember]: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def order(self) -> Order: ...


class MemberChecks(StoreChecks):
    """Checks the store's history, and the steps and states of the members."""

    def __init__(self, sim: CheckedLiveJob) -> None:
        super().__init__(sim)
        self.sim = sim
        self.lines: list[LedgerLine] = []
        self.states: dict[Lineage, int] = {}
        self.committed: dict[Lineage, set[MemberId]] = {}
        self.ever_gone: set[MemberId] = set()

    # --------------------------------------------------------------------------------- the store's history

    def check_event(self, event: Event, after: Job) -> None:  # noqa: ARG002
        job = self.job
        match event:
            case m.StepsCommitted() if job is not None:
                if event.generation <= job.sealed or event.generation < job.current:
                    self.complain(f"P6: a report of {event.generation} was accepted, {job.sealed} is sealed")
                self.lines.extend(event.lines)
                self._are_committed(event)
            case m.CheckpointPublished() if job is not None:
                if event.generation <= job.sealed:
                    self.complain(f"P6: a checkpoint of sealed generation {event.generation} was published")
            case m.JobCreated():
                if not event.resumes:
                    self.lines.clear()
            case m.MemberJoined():
                if event.member.id in self.ever_gone:
                    self.complain(f"rule 11: {event.member.id} was gone and is a member again")
            case m.MemberGone():
                self.ever_gone.add(event.member)
                self._may_be_gone(event)
            case m.WorldFormed():
                self.generations += 1
                self._world_formed(event)
            case _:
                pass

    def _are_committed(self, event: m.StepsCommitted) -> None:
        """Check that the steps which became durable may be."""

    def _may_be_gone(self, event: m.MemberGone) -> None:
        """Check that there was a reason for a member's loss."""

    def _world_formed(self, event: m.WorldFormed) -> None:
        """Check a new world."""

    # ----------------------------------------------------------------------------------------- the members

    def reacted(self, worker: CheckedMember, before: Machine) -> None:
        machine = worker.machine
        if machine.committed_lines is not before.committed_lines:
            for line in machine.committed_lines:
                if line.lineage not in self.committed or worker.id not in self.committed[line.lineage]:
                    self._commits(worker, line)
        if machine.world is not before.world and machine.world is not None:
            self._enters(worker, before)

    def _commits(self, worker: CheckedMember, line: LedgerLine) -> None:
        """Rule 1: when the first member takes a step for committed, every holder has applied it."""
        first = line.lineage not in self.committed
        self.committed.setdefault(line.lineage, set()).add(worker.id)
        if not first or worker.machine.world is None:
            return
        for member in worker.machine.world.members:
            other = self.sim.workers.get(member)
            if (
                other is None
                or not other.up
                or not other.machine.holds_state
                or other.machine.generation != worker.machine.generation
            ):
                continue
            if line.lineage.newer_than(other.model.lineage) and other.machine.phase is not Phase.RESTORING:
                self.complain(
                    f"rule 1: {worker.id} takes step {line.lineage.step} for committed, {member} has not applied it"
                )

    def _enters(self, worker: CheckedMember, before: Machine) -> None:
        world = worker.machine.world
        if world is None or world.number <= before.generation:
            self.complain(f"rule 10: {worker.id} went from generation {before.generation} back")
        elif world.kind is WorldKind.PLANNED and before.phase in (Phase.STOPPED, Phase.HOLDING):
            self.complain(f"rule 10: {worker.id} stopped and entered planned world {world.number}")

    def applies(self, worker: CheckedMember, line: LedgerLine, content: Content) -> None:
        """P3, rule 6: every slot of the step is in exactly one sum."""
        grid = worker.machine.terms.grid
        slots = sorted(slot for part in content for slot in slots_in(part))
        if slots != list(grid.filled(line.lineage.step)):
            self.complain(f"P3: {worker.id} applies step {line.lineage.step} with slots {slots}")
        if line.parent != worker.model.lineage:
            self.complain(f"P2: {worker.id} applies a child of {line.parent} to {worker.model.lineage}")

    def reduces(self, world: World, words: Words, shares: dict[int, Shares], content: Content) -> None:
        """Rule 23: all members of a reduction agree on the slots of each rank, and each slot is in once."""
        number = world.number
        if any(word.purpose is not Purpose.STEP for word in words):
            return
        told = shares[0]
        if any(other != told for other in shares.values()):
            self.complain(f"rule 23: the members of {number} do not agree on the slots of each rank: {shares}")
        step = next((word.step for word in words if word.holds), 0)
        slots = sorted(slot for share in told for slot in share)
        if step and slots != list(self.sim.grid.filled(step)):
            self.complain(f"rule 23: slots {slots} are to be brought into step {step} of {number}")
        if is_ending(words):
            return  # nothing of it is applied
        if any(tuple(slots_in(part)) != told[rank] for rank, part in enumerate(content)):
            self.complain(f"rule 23: the members of {number} bring {content} into step {step} and not {told}")

    def at_boundary(self, worker: CheckedMember) -> None:
        """P4, rule 2: one lineage, one state."""
        model = worker.model
        if model.spoilt:
            return
        known = self.states.setdefault(model.lineage, model.hash)
        if known != model.hash:
            self.complain(f"P4: {worker.id} differs from the others at {model.lineage}")
        if model.post != model.lineage.step:
            self.complain(
                f"rule 3: post-step code ran {model.post} times for {model.lineage.step} steps on {worker.id}"
            )

    def installs(self, worker: CheckedMember, lineage: Lineage) -> None:
        """Rule 15: every stripe of one lineage."""
        labels = {model.lineage for model in worker.aside.values()}
        if labels != {lineage}:
            self.complain(f"rule 15: {worker.id} installs stripes of {sorted(label.step for label in labels)}")

    # ---------------------------------------------------------------------------------------------- the end

    def finished_after(self, last: int) -> None:
        """Liveness: after the faults the job must have finished with that step, and the ledger must prove it."""
        job = self.job
        if job is None or job.state is not JobState.FINISHED:
            state = f"{job.state.value}: {job.why}" if job else "not even created"
            self.complain(f"liveness: the job is {state}")
            return
        self.check_log()
        terms = job.terms
        if terms is None:
            return
        if job.durable.step != last:
            self.complain(f"P2: the job finished after step {job.durable.step}, not after {last}")
        if terms.grid.changes != self.sim.grid.up_to(last).changes:
            self.complain(f"P3: the batch changed by {terms.grid.changes}, not as the script set it")
        result = audit(terms.grid, self.sim.order, self.lines, finished=last == self.sim.grid.total_steps)
        if not result.ok or result.lost or result.repeated:
            self.complain(f"P3: the audit found {result}")
