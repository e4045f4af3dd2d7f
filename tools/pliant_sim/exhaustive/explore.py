"""A small world, looked at from every side: all orders of events, instead of a random one of many.

A few members' real machines and the job's real brain, no clock and no network in between: whatever could happen next
is a choice, and every choice is taken, breadth first, each state once. Faults are choices too, as many as the budget
allows. A state with nothing left to do must be an ended job, or one without members enough: anything else is stuck.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pliant.core import messages as c
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage, expected_slot_digest
from pliant.core.data.sample_order import Order
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose
from pliant.core.messages import Rejection
from pliant.core.model.job import JobSpec, Member, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import view_of
from pliant_sim.exhaustive.state import ExploredGroup, ExploredMember, ExploredState
from pliant_sim.live.toy_model import ToyModel, applied, post_step

Choice = tuple[str, Callable[..., None], tuple[object, ...]]  # its name, and what to do to a state, with what


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the explored world."""

    members: int = 3
    target: int = 3
    faults: int = 2
    generations: int = 2  # the highest number a world may have; beyond that a state is left as it is
    steps: int = 1
    states_max: int = 2_000_000
    cold: bool = False  # start at the first comparison, when only rank 0 has the state; else after a step


class Explorer:
    """Explores everything within `bounds`; `explore` gives what it found."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        wide = bounds.members  # a slot for each, so that all may be in a world
        grid = Grid(samples=wide * bounds.steps, batch=wide, slots=wide, epochs=1)
        self.terms = Terms(grid, seed=1)
        self.order = Order(1, grid.samples)
        self.states: dict[Lineage, int] = {}
        self.seen: set[object] = set()
        self.complete = True

    def explore(self) -> tuple[int, str, tuple[str, ...]]:
        """Return the number of states, and the first violation with the path to it (empty without one)."""
        queue = deque([self._start()])
        while queue:
            spot = queue.popleft()
            moved = False
            for name, act, args in self._choices(spot):
                after = spot.copy()
                after.path = (*spot.path, name)
                act(after, *args)
                if after.wrong:
                    return len(self.seen), after.wrong, after.path
                key = after.key()
                fault = name.startswith("fault")
                moved = moved or (not fault and key != spot.key())
                if key in self.seen:
                    continue
                if len(self.seen) >= self.bounds.states_max:
                    self.complete = False
                    continue
                self.seen.add(key)
                queue.append(after)
            if not moved and not self._may_rest(spot):
                return len(self.seen), f"stuck: the job is {spot.job.state.value}: {spot.job.why}", spot.path
        return len(self.seen), "", ()

    def _start(self) -> ExploredState:
        bounds = self.bounds
        created = c.JobCreated(0.0, "small", JobSpec(1, bounds.members, Target(bounds.target)))
        job = evolve(None, created)
        spot = ExploredState(job, 1, {})
        for index in range(bounds.members):
            name = MemberId(f"m{index}")
            spot.processes[name] = ExploredMember(Machine(name, self.terms, can_save=False), ToyModel())
            spot.job = evolve(spot.job, c.MemberJoined(0.0, Member(name, index + 1, AgentId("a")), self.terms))
        spot.job, events = settle_all(spot.job, 0.0)
        spot.revision += len(events)
        self._warm_up(spot)
        spot.faults = bounds.faults
        return spot

    def _warm_up(self, spot: ExploredState) -> None:
        """Let the first world come so far, in one order: the exploration starts there."""
        first = spot.job.worlds[0].members
        while not all(self._is_warm(spot.processes[name].machine) for name in first):
            _, act, args = next(self._choices(spot))
            act(spot, *args)
        spot.path = ("all members compared states" if self.bounds.cold else "all members applied the first step",)

    def _is_warm(self, machine: Machine) -> bool:
        return machine.in_flight if self.bounds.cold else machine.lineage.step > 0

    def _may_rest(self, spot: ExploredState) -> bool:
        """Return whether a state without further events is legitimate."""
        job = spot.job
        if job.state.ended or job.generation > self.bounds.generations:
            return True
        alive = [name for name in job.members if spot.processes[name].up]
        return len(alive) < job.spec.size_min

    # --------------------------------------------------------------------------------------------- choices

    def _choices(self, spot: ExploredState) -> Iterator[Choice]:
        if spot.job.generation > self.bounds.generations:
            return
        for name, process in spot.processes.items():
            if not process.up:
                if name in spot.job.members:
                    yield f"the death of {name} is seen", self._command, (c.Exited(name, -9),)
            elif process.machine.phase is not Phase.GONE:
                yield from self._choices_of(spot, name, process)
        for target, letter in spot.letters:
            yield f"{target} gets a letter", self._letter, (target, letter)
        yield from self._group_choices(spot)
        if spot.faults and not spot.job.state.ended:
            yield from self._faults(spot)

    def _choices_of(self, spot: ExploredState, name: MemberId, process: ExploredMember) -> Iterator[Choice]:
        seen = process.machine.view
        if seen is None or seen.revision < spot.revision:
            yield f"{name} receives its view", self._tell, (name,)
        if process.task is not None:
            yield f"{name} does {type(process.task).__name__}", self._do, (name,)

    def _group_choices(self, spot: ExploredState) -> Iterator[Choice]:
        for number, group in spot.groups.items():
            members = set(group.world.members)
            for name in sorted(group.called - group.ready):
                if group.broken is None and members <= group.called:
                    yield f"{name} is wired in {number}", self._wired, (number, name)
                if group.broken is not None:
                    yield f"{name} cannot wire {number}", self._unwired, (number, name)
            for name, index in sorted(group.waiting):
                if len(group.operations[index]) == len(members):
                    yield f"{name} returns in {number}", self._return, (number, name, index)
                if group.broken is not None:
                    yield f"{name} fails in {number}", self._fail, (number, name, index)

    def _faults(self, spot: ExploredState) -> Iterator[Choice]:
        for name, process in spot.processes.items():
            if process.up and process.machine.phase is not Phase.GONE:
                yield f"fault: {name} is killed", self._kill, (name,)
                if name in spot.job.members:
                    yield f"fault: {name} expires", self._expire, (name,)
        for number, group in spot.groups.items():
            if group.broken is None and group.waiting:
                yield f"fault: a link of {number} resets", self._reset, (number,)

    # ---------------------------------------------------------------------------------------------- faults

    def _kill(self, spot: ExploredState, name: MemberId) -> None:
        spot.faults -= 1
        spot.processes[name].up = False
        for number in spot.groups:
            self._break(spot, number, name)

    def _expire(self, spot: ExploredState, name: MemberId) -> None:
        spot.faults -= 1
        self._command(spot, c.Expire(name))

    def _reset(self, spot: ExploredState, number: int) -> None:
        spot.faults -= 1
        self._break(spot, number, spot.groups[number].world.members[0])

    # ------------------------------------------------------------------------------------ the job's brain

    def _command(self, spot: ExploredState, command: c.Command) -> None:
        decision = decide(spot.job, command, 0.0)
        if isinstance(decision, Rejection) or not decision:
            return
        before, job = spot.job, spot.job
        for event in decision:
            job = evolve(job, event)
        events = decision
        if changes_membership(events):
            job, more = settle_all(job, 0.0)
            events += more
        spot.wrong = spot.wrong or "; ".join(all_violations(before, events))
        spot.job = job
        spot.revision += len(events)

    # ------------------------------------------------------------------------------------------ the members

    def _tell(self, spot: ExploredState, name: MemberId) -> None:
        self._feed(spot, name, s.ViewReceived(view_of(spot.job, spot.revision, name)))

    def _feed(self, spot: ExploredState, name: MemberId, signal: s.Signal) -> None:
        process = spot.processes[name]
        before = process.machine
        process.machine, actions = react(before, signal)
        if process.machine.followed_steps is not before.followed_steps and process.machine.followed_steps:
            self._remember(process, process.machine.followed_steps[-1].line.lineage)
        for action in actions:
            self._act(spot, name, process, action)

    def _act(self, spot: ExploredState, name: MemberId, process: ExploredMember, action: s.Action) -> None:
        match action:
            case s.Send(command):
                self._command(spot, command)
            case s.Wire(world):
                group = spot.groups.setdefault(world.number, ExploredGroup(world))
                group.called |= {name}
                if any(not spot.processes[member].up for member in world.members):
                    group.broken = group.broken or name
            case s.Break(number):
                self._break(spot, number, name)
            case s.Collect():
                self._enter(spot, name, process, action)
            case s.SendToPeer(member, signal):
                spot.letters |= {(member, signal)}
            case s.Exit():
                process.up = False
                for number in spot.groups:
                    self._break(spot, number, name)
                self._command(spot, c.Exited(name, action.code))
            case s.Snapshot() | s.Save() | s.CollectGarbage() | s.Discard() | s.StartGrace():
                pass
            case _:
                process.task = action

    def _do(self, spot: ExploredState, name: MemberId) -> None:
        """Let the shell carry out its task."""
        process = spot.processes[name]
        task, process.task = process.task, None
        match task:
            case s.Compute(step, slots, idle):
                self._compute(spot, name, step, () if idle else slots)
            case s.Apply(line):
                self._apply(spot, name, line)
            case s.Restore():
                process.model = ToyModel()
                self._feed(spot, name, s.Restored(process.model.hash))
            case s.CatchUp(donor, lineage):
                self._catch_up(spot, name, donor, lineage)
            case s.Fetch(_, donors):
                self._fetch(spot, name, task, donors)
            case s.Install(_, replay):
                model = process.aside or ToyModel()
                for step_line in replay:
                    model = post_step(applied(model, step_line.lineage, dict(process.reduced)[step_line.lineage]))
                process.model = model
                self._check_state(spot, name, model)
                self._feed(spot, name, s.Installed(model.hash))
            case _:
                raise AssertionError(task)

    def _compute(self, spot: ExploredState, name: MemberId, step: int, slots: tuple[int, ...]) -> None:
        process, grid = spot.processes[name], self.terms.grid
        if process.machine.kept_gradients.slots == frozenset():
            process.kept = ()
        process.kept += slots
        digest = sum(expected_slot_digest(grid, self.order, step, slot) for slot in slots) & ((1 << 64) - 1)
        samples = sum(len(grid.slot(step, slot)) for slot in slots)
        self._feed(spot, name, s.Computed(frozenset(slots), samples, digest))

    def _apply(self, spot: ExploredState, name: MemberId, line: LedgerLine) -> None:
        process = spot.processes[name]
        if line.lineage not in dict(process.reduced):
            self._remember(process, line.lineage)
        content = dict(process.reduced)[line.lineage]
        if sorted(slot for part in content for slot in part) != list(self.terms.grid.filled(line.lineage.step)):
            spot.wrong = f"P3: {name} applies step {line.lineage.step} with {content}"
        process.model = post_step(applied(process.model, line.lineage, content))
        process.kept = ()
        self._check_state(spot, name, process.model)
        self._feed(spot, name, s.Boundary(process.model.hash))

    def _check_state(self, spot: ExploredState, name: MemberId, model: ToyModel) -> None:
        if model.post != model.lineage.step:
            spot.wrong = f"rule 3: {name} ran its post-step code {model.post} times for {model.lineage.step} steps"
        for other, process in spot.processes.items():
            settled_there = process.up and other != name and process.machine.phase is not Phase.APPLIED
            if settled_there and process.model.lineage == model.lineage and process.model.hash != model.hash:
                spot.wrong = f"P4: {name} and {other} differ at step {model.lineage.step}"

    def _catch_up(self, spot: ExploredState, name: MemberId, donor: MemberId, lineage: Lineage) -> None:
        source = spot.processes[donor]
        if not source.up:
            self._feed(spot, name, s.TransferBroken())
            return
        line = next((x for x in unreported_lines(source.machine) if x.lineage == lineage), None)
        content = dict(source.reduced).get(lineage)
        if line is None or content is None:
            self._feed(spot, name, s.Gradient(None))
            return
        spot.processes[name].reduced += ((lineage, content),)
        self._feed(spot, name, s.Gradient(line))

    def _fetch(self, spot: ExploredState, name: MemberId, task: s.Action, donors: tuple[MemberId, ...]) -> None:
        process = spot.processes[name]
        source = next((spot.processes[d] for d in donors if spot.processes[d].up), None)
        if source is None:
            self._feed(spot, name, s.TransferBroken())
            process.task = None  # asked again by a tick, in real life; here its world breaks with its donors
        elif source.machine.phase in (Phase.APPLIED, Phase.INSTALLING) or not source.machine.holds_state:
            process.task = task  # a state is captured at a boundary only
        else:
            process.aside = source.model
            stripe = s.Stripe(0, 1, source.model.lineage, source.model.hash, unreported_lines(source.machine))
            self._feed(spot, name, stripe)

    def _remember(self, process: ExploredMember, lineage: Lineage) -> None:
        process.reduced = (*process.reduced, (lineage, process.incoming))

    # -------------------------------------------------------------------------------------- the data plane

    def _enter(self, spot: ExploredState, name: MemberId, process: ExploredMember, action: s.Collect) -> None:
        group = spot.groups[action.world.number]
        index = sum(1 for operation in group.operations if any(entry[0] == name for entry in operation))
        kept = process.kept if action.word.purpose is Purpose.STEP and action.word.slots else ()
        operations = list(group.operations)
        if index == len(operations):
            operations.append(())
        operations[index] = (*operations[index], (name, action.word, kept))
        group.operations = tuple(operations)
        group.waiting |= {(name, index)}

    def _wired(self, spot: ExploredState, number: int, name: MemberId) -> None:
        spot.groups[number].ready |= {name}
        self._feed(spot, name, s.Wired(number))

    def _unwired(self, spot: ExploredState, number: int, name: MemberId) -> None:
        group = spot.groups[number]
        group.called -= {name}
        self._feed(spot, name, s.WireFailed(number, None))

    def _return(self, spot: ExploredState, number: int, name: MemberId, index: int) -> None:
        group = spot.groups[number]
        group.waiting -= {(name, index)}
        entries = {entry[0]: entry for entry in group.operations[index]}
        words = tuple(entries[member][1] for member in group.world.members)
        if words[0].purpose is Purpose.STEP:
            spot.processes[name].incoming = tuple(entries[member][2] for member in group.world.members)
        self._feed(spot, name, s.Returned(number, words))

    def _fail(self, spot: ExploredState, number: int, name: MemberId, index: int) -> None:
        group = spot.groups[number]
        group.waiting -= {(name, index)}
        self._feed(spot, name, s.Failed(number, group.broken if group.broken != name else None))

    def _break(self, spot: ExploredState, number: int, name: MemberId) -> None:
        group = spot.groups.get(number)
        if group is None or name not in group.world.members:
            return
        group.broken = group.broken or name
        group.called -= {name}
        if not spot.processes[name].up:
            group.waiting = frozenset(entry for entry in group.waiting if entry[0] != name)

    def _letter(self, spot: ExploredState, target: MemberId, letter: s.Admission | s.Released) -> None:
        spot.letters -= {(target, letter)}
        if spot.processes[target].up:
            self._feed(spot, target, letter)


@dataclass(frozen=True, slots=True)
class Exploration:
    """Result of an exploration: `wrong` is empty without a violation, `complete` tells whether every state was seen."""

    bounds: Bounds
    states: int
    complete: bool
    wrong: str
    path: tuple[str, ...]


def explore(bounds: Bounds) -> Exploration:
    """Look at every state within `bounds`, or at as many as it allows."""
    explorer = Explorer(bounds)
    states, wrong, path = explorer.explore()
    return Exploration(bounds, states, explorer.complete, wrong, path)
