"""A job under any commands in any order: it always answers, never breaks an invariant, and its log is its state.

Members join, drain, leave, get lost, report real ledger lines, stop, accuse one another; users resize and cancel;
messages come late, twice, together, and from the dead. Nothing here is a model of the job: what must hold of it is said
by `pliant.core.job.invariants`, by the audit of its ledger, and by replaying its log.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pliant.core import messages as m
from pliant.core.data.audit import audit
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage
from pliant.core.data.sample_order import Order
from pliant.core.job.assignment import desired_workers
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations, change_violations, state_violations
from pliant.core.job.launches import FENCED_CODE
from pliant.core.job.next_world import next_consequence
from pliant.core.messages import Code, Command, Event, Rejection
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.fingerprint import Fingerprint, fingerprint_difference, most_common
from pliant.core.model.job import Dispute, FailingSlots, Job, JobSpec, JobState, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState, member_state, view_of
from pliant.core.model.world import World, WorldKind
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state
from unit.core.build import lines

GRID = Grid(samples=44, batch=4, slots=4, epochs=1)  # 11 steps
ORDER = Order(seed=3, samples=GRID.samples)
TERMS = Terms(GRID, seed=3)
BITS: list[Fingerprint] = [(), (), (("torch", "1"),), (("torch", "2"), ("threads", "1"))]
AGENTS = [AgentId(name) for name in "xyz"]

flips = st.booleans()
rarely = st.integers(0, 19).map(lambda number: number == 0)


class JobMachine(RuleBasedStateMachine):
    """One job, and every member that talks to it."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None
        self.replayed: Job | None = None  # evolved from what the events were written as, and from nothing else
        self.ledger: list[LedgerLine] = []
        self.asked: list[Command] = []
        self.inbox: list[Command] = []
        self.together = 0  # how many commands are still to be taken in one batch
        self.named = 0
        self.now = 0.0
        self.terms = TERMS
        self.furthest = 0  # the highest step that was ever durable
        self.target: Target | None = None

    # ------------------------------------------------------------------------------------------ the machine

    @property
    def it(self) -> Job:
        assert self.job is not None
        return self.job

    def ask(self, command: Command) -> None:
        """Put a command in; it is decided now, or with those that come after it."""
        self.asked.append(command)
        self.inbox.append(command)
        if self.together:
            self.together -= 1
            return
        batch, self.inbox = self.inbox, []
        before = self.job
        events = self.decided(batch)
        if before is not None:
            assert all_violations(before, events) == (), all_violations(before, events)
            self.again(batch)
        for event in events:
            self.replayed = evolve(self.replayed, EVENTS.decode(EVENTS.encode(event)))
            self.follow_target(event)
            match event:
                case m.JobCreated(resumes=False):
                    self.ledger.clear()
                case m.StepsCommitted():
                    self.ledger += event.lines
                case _:
                    pass

    def follow_target(self, event: Event) -> None:
        """Follow the number of workers: the last of a new attempt, a resize, and an entry passed for the first time."""
        entries = {step: Target(size) for step, size in self.it.spec.schedule}
        match event:
            case m.JobCreated(spec=spec, resumes=resumes):
                self.furthest = self.furthest if resumes else 0
                passed = [entries[step] for step in sorted(entries) if step <= self.furthest]
                self.target = passed[-1] if passed else spec.target or Target(spec.size_max)
            case m.TargetChanged(target=target, why=""):
                self.target = target
            case m.StepsCommitted(lines=committed):
                for line in committed:
                    if line.lineage.step > self.furthest:
                        self.furthest = line.lineage.step
                        self.target = entries.get(self.furthest, self.target)
            case _:
                pass

    def decided(self, batch: list[Command]) -> tuple[Event, ...]:
        """Return what the coordinator does with a batch, with every single event held to the invariants of a change."""
        self.now += 1.0
        events: tuple[Event, ...] = ()
        for command in batch:
            decision = decide(self.job, command, self.now)
            if isinstance(decision, Rejection):
                assert decision.why
                continue
            for event in decision:
                after = evolve(self.job, event)
                assert self.job is None or change_violations(self.job, event, after) == ()
                self.job = after
            events += decision
        if changes_membership(events):
            self.job, more = settle_all(self.it, self.now)
            events += more
        return events

    def again(self, batch: list[Command]) -> None:
        """The same once more, as if every answer had been lost: no effect."""
        if len(batch) > 1:
            return
        before = self.it
        decision = decide(before, batch[0], self.now + 0.5)
        if isinstance(decision, Rejection):
            return
        after = before
        for event in decision:
            after = evolve(after, event)
        assert settle_all(after, self.now + 0.5)[0] == before, (batch, decision, settle_all(after, 1.0)[1], before)

    # ---------------------------------------------------------------------------------------- whom to name

    def any_member(self, data: st.DataObject) -> MemberId:
        """Mostly a live member, now and then a dead or unheard-of one."""
        live = list(self.it.members)
        others = [*self.it.gone[-3:], MemberId("stranger")]
        if live and not data.draw(rarely):
            return data.draw(st.sampled_from(live))
        return data.draw(st.sampled_from(others))

    def anywhere(self, data: st.DataObject) -> int:
        """Mostly an open generation, now and then one that is not."""
        numbers = [world.number for world in self.it.worlds]
        if numbers and not data.draw(rarely):
            return data.draw(st.sampled_from(numbers))
        return data.draw(st.integers(0, self.it.generation + 2))

    def inside(self, data: st.DataObject) -> tuple[World, MemberId]:
        """An open world and a live member of it, if it has one."""
        world = data.draw(st.sampled_from(self.it.worlds))
        live = [name for name in world.members if name in self.it.members]
        return world, data.draw(st.sampled_from(live or list(world.members)))

    # -------------------------------------------------------------------------------------------- the users

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(1, 3))
        high = data.draw(st.integers(low, 6))
        size = data.draw(st.integers(low, high))
        self.terms = replace(TERMS, verify=data.draw(st.sampled_from([0, 1, 2])))
        restarts = data.draw(st.integers(0, 3))
        steps = sorted(data.draw(st.sets(st.integers(0, GRID.total_steps), max_size=3)))
        schedule = tuple((step, data.draw(st.integers(low, high))) for step in steps)
        target = None if 0 in steps else Target(size)
        self.ask(m.Create("demo", JobSpec(low, high, target, 60.0, restarts, schedule=schedule)))

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(self.it.spec.size_min, self.it.spec.size_max))
        target = Target(size)
        if data.draw(flips):
            cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2)))
            counts = (cuts[0], cuts[1] - cuts[0], size - cuts[1])
            target = Target(size, tuple(zip(AGENTS, counts, strict=True)))
        self.ask(m.Resize(target))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if data.draw(rarely):
            self.ask(m.Cancel("enough"))

    @precondition(lambda self: self.job is not None and self.job.state.ended)
    @rule(fresh=flips)
    def ask_for_it_again(self, fresh: bool) -> None:
        """Another attempt: from where it stood, or from the beginning."""
        spec = self.it.spec
        target = None if dict(spec.schedule).get(0) else self.it.target
        self.ask(m.Create("demo", replace(spec, target=target), fresh=fresh))

    @rule()
    def wait_too_long(self) -> None:
        if len(self.asked) > 30:
            self.ask(m.WaitOver())

    @rule(data=st.data())
    def say_something_again(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from(self.asked)))

    @rule(count=st.integers(1, 3))
    def take_the_next_together(self, count: int) -> None:
        self.together = count

    # ----------------------------------------------------------------------------------------------- agents

    @rule(agent=st.sampled_from(AGENTS), capacity=st.integers(-1, 4))
    def agent_joins(self, agent: AgentId, capacity: int) -> None:
        self.ask(m.AgentJoin(agent, capacity))

    @rule(agent=st.sampled_from(AGENTS), how=st.sampled_from([m.AgentLeave, m.AgentExpire]))
    def agent_goes(self, agent: AgentId, how: type[m.AgentLeave] | type[m.AgentExpire]) -> None:
        self.ask(how(agent))

    @rule(agent=st.sampled_from(AGENTS))
    def machine_goes(self, agent: AgentId) -> None:
        self.ask(m.DrainAgent(agent, 30.0, "spot notice"))

    # ---------------------------------------------------------------------------------------------- members

    @rule(agent=st.sampled_from(AGENTS), weight=st.integers(1, 3), bits=st.sampled_from(BITS))
    def join(self, agent: AgentId, weight: int, bits: Fingerprint = ()) -> None:
        self.named += 1
        self.ask(m.Join(MemberId(f"m{self.named}"), agent, self.terms, weight, fingerprint=bits))

    @rule(agent=st.sampled_from(AGENTS), count=st.integers(2, 4))
    def several_join(self, agent: AgentId, count: int) -> None:
        self.together = count - 1
        for _ in range(count):
            self.join(agent, 1)

    @precondition(lambda self: self.job is not None and self.job.terms is not None)
    @rule(data=st.data(), seed=st.sampled_from([3, 3, 4]), weight=st.integers(0, 1))
    def join_badly(self, data: st.DataObject, seed: int, weight: int) -> None:
        self.ask(m.Join(self.any_member(data), AGENTS[0], replace(self.terms, seed=seed), weight))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.ask(m.Drain(self.any_member(data), 30.0, "SIGTERM"))

    @rule(data=st.data(), released=flips)
    def leave(self, data: st.DataObject, released: bool) -> None:
        self.ask(m.Leave(self.any_member(data), self.anywhere(data) if released else 0, "bye"))

    @rule(data=st.data(), code=st.sampled_from([0, -9, -15, 1, FENCED_CODE]))
    def exit(self, data: st.DataObject, code: int) -> None:
        self.ask(m.Exited(self.any_member(data), code))

    @rule(data=st.data(), how=st.sampled_from([m.Expire, m.Suspect]))
    def fall_silent(self, data: st.DataObject, how: type[m.Expire] | type[m.Suspect]) -> None:
        self.ask(how(self.any_member(data)))

    @rule(data=st.data(), step=st.integers(1, 2), slots=st.frozensets(st.integers(0, 5), max_size=3))
    def raise_on_a_slot(self, data: st.DataObject, step: int, slots: frozenset[int]) -> None:
        samples = tuple((slot, slot + 10) for slot in slots)
        self.ask(m.Raised(FailingSlots(step, tuple(slots), samples, self.any_member(data), "ValueError")))

    # ---------------------------------------------------------------------------------------------- in a world

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data(), count=st.integers(0, 2), all_hold=st.sampled_from([None, True, True, False]))
    def report(self, data: st.DataObject, count: int, all_hold: bool | None) -> None:
        """The next steps, committed in any open world; holders: not said, every member there, or some of them."""
        world, member = self.inside(data)
        count = min(count, GRID.total_steps - self.it.durable.step)
        holders = None if all_hold is None else frozenset(world.members)
        if all_hold is False:
            holders = data.draw(st.frozensets(st.sampled_from(world.members)))
        generation = max(world.number, self.it.durable.generation)
        new = lines(self.it.durable, generation, count, GRID, ORDER)
        self.ask(m.Report(member, world.members.index(member), world.number, new, holders))

    @rule(data=st.data(), rank=st.integers(-1, 3))
    def report_badly(self, data: st.DataObject, rank: int) -> None:
        """A history that may not be ours: steps on top of any that was ever accepted, some of them altered."""
        heads = [GENESIS, *(line.lineage for line in self.ledger)]
        head = data.draw(st.sampled_from(heads))
        generation = self.anywhere(data)
        new = lines(head, generation, min(2, GRID.total_steps - head.step), GRID, ORDER)
        altered: bool = data.draw(flips)
        if new and altered:
            new = (*new[:-1], replace(new[-1], samples=new[-1].samples + 1))
        self.ask(m.Report(self.any_member(data), rank, generation, new))

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data(), stateless=rarely)
    def stop(self, data: st.DataObject, stateless: bool) -> None:
        world, member = self.inside(data)
        peer = data.draw(st.sampled_from([None, *world.members]))
        lineage, kept = self.it.durable, frozenset({0})
        self.ask(m.Stopped(member, world.number, lineage, kept, "a socket closed", peer, stateless))

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data(), suspects=st.integers(0, 3))
    def find_states_that_differ(self, data: st.DataObject, suspects: int) -> None:
        if not self.it.terms or not self.it.terms.verify:
            return
        world, member = self.inside(data)
        named = tuple(data.draw(st.permutations(world.members))[:suspects])
        lineage = self.it.durable
        self.ask(m.Stopped(member, world.number, lineage, frozenset(), "differ", diverged=True, suspects=named))

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data(), count=st.integers(1, 3))
    def find_gradients_that_differ(self, data: st.DataObject, count: int) -> None:
        world, member = self.inside(data)
        names = st.sampled_from(world.members)
        found = tuple(Dispute(slot, data.draw(names), data.draw(names)) for slot in range(count))
        self.ask(m.Stopped(member, world.number, self.it.durable, frozenset(), "differ", disputes=found))

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data())
    def fail_to_wire(self, data: st.DataObject) -> None:
        world, member = self.inside(data)
        others = [name for name in world.members if name != member]
        self.ask(m.WiringFailed(member, world.number, data.draw(st.sampled_from([None, *others]))))

    @precondition(lambda self: self.job is not None and self.job.worlds)
    @rule(data=st.data())
    def fail_to_wire_again_and_again(self, data: st.DataObject) -> None:
        """One pair, three times in the newest world: they must be parted (rule 11)."""
        newest = self.it.worlds[-1]
        live = [name for name in newest.members if name in self.it.members]
        if len(live) < 2 or self.it.state.ended:
            return
        pair = data.draw(st.permutations(live))[:2]
        for _ in range(3):
            if any(name not in self.it.members for name in pair):
                break
            self.ask(m.WiringFailed(pair[0], self.it.worlds[-1].number, pair[1]))

    @precondition(lambda self: self.job is not None and self.job.state is JobState.RUNNING)
    @rule(data=st.data(), back=st.integers(-1, 3))
    def publish(self, data: st.DataObject, back: int) -> None:
        """A checkpoint of a step on the way to the durable one, or of one that is not reported yet."""
        world, member = self.inside(data)
        chain = self.history()
        if back < 0:
            chain += [line.lineage for line in lines(self.it.durable, world.number, 1, GRID, ORDER)]
        lineage = chain[max(0, len(chain) - 1 - max(back, 0))]
        self.ask(m.Publish(member, world.number, Checkpoint(lineage, "ck", state=1)))

    def history(self) -> list[Lineage]:
        """The committed history, from nothing to the durable step."""
        parents = {line.lineage: line.parent for line in self.ledger}
        chain = [self.it.durable]
        while chain[0] in parents:
            chain.insert(0, parents[chain[0]])
        return chain

    # ------------------------------------------------------------------------------------ what must hold

    @invariant()
    def the_target_is_the_schedules_until_a_resize_and_the_resizes_until_the_next_entry(self) -> None:
        assert self.job is None or self.job.target == self.target

    @invariant()
    def the_state_is_sound_and_settled(self) -> None:
        if self.job is None:
            return
        assert state_violations(self.job) == ()
        assert next_consequence(self.job, self.now) == ()
        assert self.job.why

    @invariant()
    def the_log_is_the_state(self) -> None:
        if self.job is None or self.replayed is None:
            return
        record = encode_state(self.job)
        assert encode_state(self.replayed) == record
        assert decode_state(record, Job) == self.job

    @invariant()
    def what_is_sealed_stays_sealed(self) -> None:
        """P6: any member may send anything."""
        if self.job is None or self.job.state.ended:
            return
        for name in self.job.members:
            refusal = decide(self.job, m.Report(name, 0, self.job.sealed, ()), self.now)
            assert isinstance(refusal, Rejection)
            assert refusal.code is Code.SEALED

    @invariant()
    def everybody_can_be_told(self) -> None:
        if self.job is None:
            return
        for name in self.job.members:
            assert view_of(self.job, 1, name).known
            assert isinstance(member_state(self.job, name), MemberState)
        assert not view_of(self.job, 1, MemberId("unheard-of")).known
        shares = desired_workers(self.job)
        assert list(shares) == [agent.id for agent in self.job.agents]
        assert all(0 <= shares[agent.id] <= agent.capacity for agent in self.job.agents)
        assert sum(shares.values()) <= self.job.target.size

    @invariant()
    def nobody_waits_who_need_not(self) -> None:
        """Enough members that stay, and a member with the state or a place to start from: then there is a world."""
        if self.job is None or self.job.state.ended or self.job.target.placement:
            return
        if self.job.state is JobState.STOPPING:
            assert self.job.holders or self.job.members
            assert self.job.worlds
            return
        bits = self.job.fingerprint or most_common(
            one.fingerprint for one in self.job.members.values() if not one.draining
        )
        staying = [
            x for x in self.job.members.values() if not x.draining and not fingerprint_difference(bits, x.fingerprint)
        ]
        if len(staying) >= self.job.spec.size_min and self.job.wanted_size >= self.job.spec.size_min:
            held = self.job.world(self.job.current), self.job.newest
            if not any(world is not None and world.hold for world in held):
                assert self.job.state is not JobState.WAITING, self.job.why
                assert self.job.worlds

    def teardown(self) -> None:
        """P3: whatever happened, the ledger's history up to the durable step has every sample exactly once."""
        if self.job is None:
            return
        found = audit(GRID, ORDER, self.ledger, head=self.job.durable)
        assert (found.lost, found.repeated, found.problems) == (0, 0, ()), found
        assert found.steps == self.job.durable.step
        assert all(world.kind is not WorldKind.PLANNED or world.number > 1 for world in self.job.worlds)


TestJob = JobMachine.TestCase
TestJob.settings = settings(max_examples=60, stateful_step_count=40)
