"""Checks of real processes from outside: the simulator's own checkers, on mirrors.

A mirror is what a member said of itself. What it says comes in the order in which it happened, and before anything
that it lets others know over the data plane; so `pliant_sim.live.member_checks` holds here as it stands. The event log
comes over HTTP at its own pace: what compares it with a member is looked at when everything is over (`settle`).

The simulator sees every process at one instant; from outside, these are checked in another way:
  - P2, a rollback although a member held the state: by what each member had said before the decision was made, and
    only for members that were not stopped around that time;
  - P5, that an acknowledged revision stands in the store when it is acknowledged: at the end every acknowledged command
    must be in the log, at or before that revision;
  - rule 1, that a durable step was seen committed before: by the clock that all processes share;
  - rules 9 and 16, who leaves: judged at the end by what it had been told, on what was seen when it left;
  - rule 19, no lease runs out early: by that clock. The agents' leases are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pliant.core import messages as m
from pliant.core.data.ledger import Lineage
from pliant.core.data.line_run import LineRun
from pliant.core.job.checkpoints import writer_generation
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import change_violations, state_violations
from pliant.core.member import Machine
from pliant.core.messages import Command, Event
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Job, JobSpec, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import view_of
from pliant.core.model.world import WorldKind
from pliant_sim.live.member_checks import MemberChecks
from pliant_sim.live.toy_model import ToyModel
from schedules import messages as w
from schedules.member import digest

if TYPE_CHECKING:
    from schedules.scene import Scene

CLOCK_S = 0.002  # how far two readings of the machine's clock may be out of order
EARLY_S = 0.05  # two readings of one clock in one pump
STOPPED_S = 2 * w.LEASE_TTL_S  # so long after it went on, a member may not have been heard of yet
JUST_NOW_S = 1.0  # one that was killed so lately did hold the state when it said so


class Mirror:
    """A member as it was last heard of."""

    def __init__(self, hello: w.Hello, terms: Terms) -> None:
        self.id = hello.member
        self.agent = hello.agent
        self.pid = hello.pid
        self.machine = Machine(hello.member, terms)
        self.model = ToyModel()
        self.aside: dict[int, ToyModel] = {}
        self.up = True
        self.paused = False
        self.killed = False
        self.ended_at_s = 0.0
        self.ended_with: int | None = None
        self.left: w.Leaves | None = None
        self.hanging: MemberId | None = None  # who was in a collective with it when it left
        self.survives = True  # whether its state was elsewhere when it left
        self.past: list[w.State] = []
        self.stopped_until = 0.0  # by the wall clock
        self.heard: list[w.Heard] = []
        self.viewed: list[w.Viewed] = []


class Files:
    """Checks of real files. Reports of their writers and readers arrive apart from the event log."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self._files: dict[tuple[str, str], ToyModel] = {}

    def writes(self, wrote: w.WroteFile) -> None:
        """Names are unique, files immutable."""
        if self._files.setdefault((wrote.name, wrote.file), wrote.model) != wrote.model:
            self.complain(f"rule 17: {wrote.file} of {wrote.name} was overwritten with another state")

    def restores(self, mirror: Mirror, checkpoint: Checkpoint | None) -> None:
        """Under the manifest's name lies what the manifest says."""
        if checkpoint is not None and mirror.model.hash != checkpoint.state:
            self.complain(f"rule 17: {checkpoint.name} is not the state that was published")


class Checks(MemberChecks):
    """Collects complaints; a schedule with any is a failed one."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.scene = scene
        self.files = Files(self.complain)
        self.jobs: dict[int, Job] = {}
        self.log: list[Event] = []
        self.acked: list[tuple[Command, int]] = []
        self.views = 0
        self._claims: list[m.StepsCommitted] = []
        self._committed_at: dict[Lineage, float] = {}  # when the first member saw it committed
        self._at = 0.0

    # --------------------------------------------------------------------------------------- the event log

    def event(self, revision: int, event: Event) -> None:
        """The next event of the stream. What was decided together carries one time, and only its end must be sound."""
        if revision != self.revision + 1:
            self.complain(f"P5: revision {revision} followed {self.revision} in the stream")
        if event.at != self._at and self.job is not None:
            self._sound(self.job)
        self._at = event.at
        self.revision = revision
        self.scene.tell_event(event)
        before, after = self.job, evolve(self.job, event)
        self.check_reason(event)
        self.check_event(event, after)
        self.job = after
        if before is not None:
            for wrong in change_violations(before, event, self.job):
                self.complain(wrong)
        self.jobs[revision] = self.job
        self.log.append(event)

    def _sound(self, job: Job) -> None:
        for wrong in state_violations(job):
            self.complain(wrong)

    def _are_committed(self, event: m.StepsCommitted) -> None:
        self._claims.append(event)

    def _may_be_gone(self, event: m.MemberGone) -> None:
        """Rule 19: proof, or expiry. An expiry is compared with the signs of life when all of them are known."""
        mirror = self.scene.workers.get(event.member)
        if mirror is not None and event.how == "lost" and "lease" not in event.why and self.scene.is_alive(mirror.pid):
            self.complain(f"rule 19: {event.member} was lost without proof or expiry: {event.why}")

    def _world_formed(self, event: m.WorldFormed) -> None:
        """P2: no member that is counted on held the state when it was given up."""
        world, job = event.world, self.job
        if job is None or world.kind is not WorldKind.ROLLBACK or job.durable.step == 0:
            return
        for member in job.members:
            mirror = self.scene.workers.get(member)
            if mirror is None or not mirror.up or mirror.paused or mirror.stopped_until > event.at - STOPPED_S:
                continue
            said = next((state for state in reversed(mirror.past) if state.at < event.at), None)
            if said is None or not said.holds or (said.world is not None and said.world.number <= job.sealed):
                continue
            if not job.durable.newer_than(said.lineage):
                self.complain(f"P2: rolled back to {world.base.step}, though {member} holds {job.durable.step}")

    # --------------------------------------------------------------------------------------- the members

    def traced(self, mirror: Mirror, message: w.Up) -> None:
        """A member said something of itself."""
        match message:
            case w.State():
                mirror.past.append(message)
                for line in message.lines:
                    self._committed_at.setdefault(line.lineage, message.at)
                    self._committed_at[line.lineage] = min(self._committed_at[line.lineage], message.at)
                before, mirror.machine = mirror.machine, _moved(mirror.machine, message)
                self.reacted(mirror, before)
            case w.Applies():
                self.applies(mirror, message.line, message.content)
                mirror.model = message.model
            case w.AtBoundary():
                mirror.model = message.model
                self.at_boundary(mirror)
            case w.Installs():
                mirror.aside = dict(enumerate(message.aside))
                self.installs(mirror, message.lineage)
            case w.Restores():
                mirror.model = message.model
                self.files.restores(mirror, message.checkpoint)
            case w.WroteFile():
                self.files.writes(message)
            case w.Leaves():
                self._goes(mirror, message)
            case w.Viewed():
                mirror.viewed.append(message)
            case w.Heard():
                mirror.heard.append(message)
            case w.Trouble():
                self.complain(message.what)
            case _:
                raise AssertionError(message)

    def _goes(self, mirror: Mirror, leaves: w.Leaves) -> None:
        """Note how things stand with the others at that moment; what it had been told decides later what it means."""
        mirror.left = leaves
        machine = mirror.machine
        mirror.hanging = self.scene.fabric.is_waiting(machine.generation, mirror.id)
        if machine.holds_state:
            known = leaves.checkpoint is not None and not machine.lineage.newer_than(leaves.checkpoint.lineage)
            mirror.survives = known or self._others_hold(mirror)

    def _others_hold(self, mirror: Mirror) -> bool:
        lineage = mirror.machine.lineage
        for other in self.scene.workers.values():
            there = other.up or self.scene.now - other.ended_at_s < JUST_NOW_S
            if (
                other is not mirror
                and there
                and other.machine.holds_state
                and not lineage.newer_than(other.machine.lineage)
            ):
                return True
        return False

    # ------------------------------------------------------------------------------------------ afterwards

    def seen(self) -> dict[str, int]:
        """Return how often the log has what the faults are there to bring about."""
        found: Counter[str] = Counter()
        for event in self.log:
            match event:
                case m.MemberGone(how=how, why=why):
                    found["expired" if "lease" in why else how] += 1
                case m.WorldBroken(why=why) if "does not answer" in why:
                    found["suspected"] += 1
                case m.WorldFormed(world=world) if world.base.step or world.kind is not WorldKind.ROLLBACK:
                    found[world.kind.value] += 1
                case m.PairAccused():
                    found["accused"] += 1
                case _:
                    pass
        return dict(found)

    def settle(self, stored: Sequence[Event]) -> None:
        """Everything is over and known. `stored` is what the store holds, read without the coordinator."""
        if self.job is not None:
            self._sound(self.job)
        if self.log != list(stored):
            self.complain(f"P5: the stream had {len(self.log)} events, the store has {len(stored)}, or others")
        for claim in self._claims:
            for line in () if self._came_with_a_checkpoint(claim) else claim.lines:
                seen = self._committed_at.get(line.lineage)
                if seen is None or seen > claim.at + CLOCK_S:
                    self.complain(f"rule 1: step {line.lineage.step} was durable before any member saw it committed")
        gone = {event.member: event for event in self.log if isinstance(event, m.MemberGone)}
        for mirror in self.scene.workers.values():
            self._ended_well(mirror, gone.get(mirror.id))
            self._expired_late(mirror, gone.get(mirror.id))
            self._saw_what_was(mirror)
        self._acknowledged()

    def _came_with_a_checkpoint(self, claim: m.StepsCommitted) -> bool:
        """Rule 16: a member without time commits with the checkpoint that it wrote alone."""
        saved = [event for event in self.log if isinstance(event, m.CheckpointPublished) and event.at == claim.at]
        return any(event.checkpoint.name.endswith(f"-{claim.reporter}") for event in saved)

    def _ended_well(self, mirror: Mirror, gone: m.MemberGone | None) -> None:
        """P1, rules 9 and 16: no member ends without need, and who leaves may go."""
        left, code = mirror.left, mirror.ended_with
        if left is None:
            if not mirror.killed and not (code == w.FENCED and gone is not None):
                self.complain(f"P1: {mirror.id} ended with {code}, and no fault had killed it")
            return
        if left.code == w.FENCED:
            if gone is None or gone.how == "left":
                self.complain(f"P1: {mirror.id} takes itself for fenced, and was not: {left.why}")
            return
        if left.ended:
            last = mirror.machine.terms.grid.total_steps
            if left.complete and mirror.model.lineage.step != last:
                self.complain(f"P2: {mirror.id} ends as complete at step {mirror.model.lineage.step} of {last}")
            return
        if left.code:
            self.complain(f"P1: {mirror.id} ended by itself with {left.code}: {left.why}")
        if "grace" in left.why or mirror.machine.world is None or (gone is not None and gone.how != "left"):
            return
        if not self._was_asked_to_go(mirror.id):
            self.complain(f"P1: {mirror.id} left, and no fault had asked it to: {left.why}")
        if mirror.hanging is not None:
            self.complain(f"rule 9: {mirror.id} left while {mirror.hanging} was in a collective with it: {left.why}")
        if not mirror.survives:
            self.complain(f"rule 16: {mirror.id} left with the last state of step {mirror.machine.lineage.step}")

    def _was_asked_to_go(self, member: MemberId) -> bool:
        """Return whether it drained, or fewer members were wanted at some time."""
        size = 0
        for event in self.log:
            match event:
                case m.MemberDraining(member=name) if name == member:
                    return True
                case m.TargetChanged(target=target) | m.JobCreated(spec=JobSpec(initial_target=target)):
                    if target.size < size:
                        return True
                    size = target.size
                case _:
                    pass
        return False

    def _expired_late(self, mirror: Mirror, gone: m.MemberGone | None) -> None:
        """Rule 19: a lease never runs out early. Processes and coordinator share the machine's clock."""
        if gone is None or gone.how != "lost" or "lease" not in gone.why:
            return
        for heard in mirror.heard:
            if heard.answered < gone.at < heard.sent + w.LEASE_TTL_S - EARLY_S:
                self.complain(f"rule 19: {mirror.id} was heard {gone.at - heard.sent:.3f} s before its lease ran out")
                return

    def _saw_what_was(self, mirror: Mirror) -> None:
        """A view made of changes is the view of that revision, to the bit."""
        for seen in mirror.viewed:
            self.views += 1
            job = self.jobs.get(seen.revision)
            if job is None or digest(view_of(job, seen.revision, mirror.id)) != seen.digest:
                self.complain(f"P5: {mirror.id} was shown something else than revision {seen.revision}")

    def _acknowledged(self) -> None:
        """P5: what was acknowledged is in the log, at or before the revision that was told."""
        log = _Log(self.log)
        for command, revision in self.acked:
            if revision > len(self.log):
                self.complain(f"P5: revision {revision} was acknowledged, the log ends at {len(self.log)}")
            elif missing := log.missing(command, revision):
                self.complain(f"P5: {type(command).__name__} was acknowledged at {revision}, but {missing}")


def _moved(machine: Machine, state: w.State) -> Machine:
    after = machine.copy()
    after.phase, after.holds_state, after.lineage, after.committed_lines = (
        state.phase,
        state.holds,
        state.lineage,
        LineRun(state.lines),
    )
    if state.world != machine.world:
        after.world = state.world
    return after


class _Log:
    """A log, by what its events are about: the revision at which each thing first stood in it."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._first: dict[tuple[str, object], int] = {}
        self._ended = len(events) + 1
        self._checkpoints: list[tuple[int, int]] = []
        self._over: list[tuple[int, int]] = []  # from this revision on, every generation below that is over
        for revision, event in enumerate(events, 1):
            match event:
                case m.MemberJoined(member=member):
                    self._note("joined", member.id, revision)
                case m.MemberGone(member=name):
                    self._note("gone", name, revision)
                case m.MemberDraining(member=name):
                    self._note("draining", name, revision)
                case m.AgentJoined(agent=agent):
                    self._note("agent", agent, revision)
                case m.WorldBroken(generation=number):
                    self._note("broken", number, revision)
                case m.WorldEntered(generation=number):
                    self._over.append((revision, number))
                case m.WorldFormed(world=world) if world.kind is not WorldKind.PLANNED:
                    self._over.append((revision, world.number))
                case m.TargetChanged(target=target) | m.JobCreated(spec=JobSpec(initial_target=target)):
                    self._note("target", target, revision)
                case m.StepsCommitted(lines=lines):
                    for line in lines:
                        self._note("step", line.lineage, revision)
                case m.CheckpointPublished(checkpoint=checkpoint):
                    self._checkpoints.append((revision, checkpoint.lineage.step))
                case m.PartWritten(checkpoint=checkpoint, part=part):
                    self._note("part", (checkpoint.name, part), revision)
                case m.CheckpointFailed(name=name):
                    self._note("failed", name, revision)
                case m.StateChanged(state=state) if state.ended:
                    self._ended = min(self._ended, revision)
                case _:
                    pass

    def _note(self, what: str, who: MemberId | AgentId | Lineage | object, revision: int) -> None:
        self._first.setdefault((what, who), revision)

    def missing(self, command: Command, revision: int) -> str:
        """Return what of an acknowledged command is not in the log by then; empty: nothing."""
        match command:
            case m.Join(member=member):
                return self._look("joined", member, revision)
            case m.AgentJoin(agent=agent):
                return self._look("agent", agent, revision)
            case m.Leave(member=member) | m.Exited(member=member):
                late = self._ended <= revision or ("joined", member) not in self._first
                return "" if late else self._look("gone", member, revision)
            case m.Drain(member=member):
                return self._look("draining", member, revision)
            case m.Stopped(generation=number) | m.WiringFailed(generation=number):
                # What is over already cannot be broken any more: then its end is in the log.
                over = any(at <= revision and number < limit for at, limit in self._over)
                return "" if over else self._look("broken", number, revision)
            case m.Resize(target=target):
                return self._look("target", target, revision)
            case m.Report(lines=lines):
                return next(filter(None, (self._look("step", line.lineage, revision) for line in lines)), "")
            case m.Publish(checkpoint=Checkpoint(lineage=lineage, name=name), part=part, count=count):
                there = any(at <= revision and step >= lineage.step for at, step in self._checkpoints)
                # In parts, and a recovery came between: the others will never come, and no member counts this one.
                void = count > 1 and any(at <= revision and writer_generation(name) < limit for at, limit in self._over)
                known = not self._look("part", (name, part), revision) or not self._look("failed", name, revision)
                return "" if there or void or known else f"there is no checkpoint of step {lineage.step} or a later one"
            case _:
                return ""

    def _look(self, what: str, who: object, revision: int) -> str:
        first = self._first.get((what, who))
        return "" if first is not None and first <= revision else f"{what} {who} is not in the log by then ({first})"
