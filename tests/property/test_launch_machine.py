"""A launched job under any commands in any order: it always answers, breaks no invariant, and its log is its state.

Agents come, go, are started again, drain, say that they are ready with whatever generation they know of; workers end in
every way; users resize, cancel and ask again; messages come late, twice, together. How agents really behave is for the
simulator: here the coordinator must cope with anything.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.job.assignment import desired_workers
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations, state_violations
from pliant.core.job.launches import seats_per_agent
from pliant.core.job.next_world import next_consequence
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Agent, Job, JobSpec, JobState, Mode, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state

AGENTS = [AgentId(name) for name in "xyz"]
TERMS = Terms(Grid(samples=8, batch=4, slots=4, epochs=1), seed=3)
ROLES: list[tuple[tuple[str, int], ...]] = [(), (), (("chief", 1), ("ps", 1)), (("ps", 1), ("evaluator", 1))]

rarely = st.integers(0, 9).map(lambda number: number == 0)


class LaunchMachine(RuleBasedStateMachine):
    """One job, and every member that talks to its coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None
        self.replayed: Job | None = None
        self.asked: list[Command] = []
        self.inbox: list[Command] = []
        self.together = 0
        self.generations: set[int] = set()
        self.counted: list[int] = []
        self.now = 0.0

    @property
    def it(self) -> Job:
        assert self.job is not None
        return self.job

    def ask(self, command: Command) -> None:
        self.asked.append(command)
        self.inbox.append(command)
        if self.together:
            self.together -= 1
            return
        batch, self.inbox = self.inbox, []
        before = self.job
        events = self.decided(batch)
        assert all_violations(before, events) == ()
        if len(batch) == 1:
            self.again(batch[0])
        for event in events:
            self.replayed = evolve(self.replayed, EVENTS.decode(EVENTS.encode(event)))

    def decided(self, batch: list[Command]) -> tuple[Event, ...]:
        self.now += 1.0
        events: tuple[Event, ...] = ()
        for command in batch:
            decision = decide(self.job, command, self.now)
            if isinstance(decision, Rejection):
                assert decision.why
                continue
            self.took(decision)
            events += decision
        if changes_membership(events):
            before = self.it
            self.job, more = settle_all(before, self.now)
            self.job = before
            self.took(more)
            events += more
        return events

    def took(self, events: tuple[Event, ...]) -> None:
        """The events one by one, as they change the job."""
        for event in events:
            job = self.job
            if isinstance(event, m.Launched):
                assert event.launch.number not in self.generations
                self.generations.add(event.launch.number)
            if (
                isinstance(event, m.WorkerFailed)
                and job is not None
                and job.launch
                and not job.spec.roles
                and not job.is_live
            ):
                assert job.launch.number not in self.counted
                assert not job.launch.lost
                self.counted.append(job.launch.number)
            if isinstance(event, m.StateChanged) and event.state is JobState.FINISHED and job is not None:
                self.is_finished(job)
            self.job = evolve(job, event)

    def is_finished(self, job: Job) -> None:
        assert job.launch is not None
        chief = [seat for seat in job.launch.seats if seat.role == "chief"]
        assert all(seat.member in job.launch.done for seat in chief or job.launch.seats)

    def again(self, command: Command) -> None:
        """The same once more, as if the answer had been lost: no effect."""
        decision = decide(self.it, command, self.now + 0.5)
        if not isinstance(decision, Rejection):
            after = self.it
            for event in decision:
                after = evolve(after, event)
            assert settle_all(after, self.now)[0] == self.it, (command, decision)

    # -------------------------------------------------------------------------------------------- the users

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        roles = data.draw(st.sampled_from(ROLES))
        low = data.draw(st.integers(1, 3))
        high = data.draw(st.integers(max(low, 4), 7))
        mode = data.draw(st.sampled_from([Mode.RELAUNCH, Mode.RELAUNCH, Mode.AUTO]))
        target = Target(data.draw(st.integers(low, high)))
        self.ask(m.Create("demo", JobSpec(low, high, target, 60.0, data.draw(st.integers(0, 4)), mode, roles=roles)))

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(self.it.spec.size_min, self.it.spec.size_max))
        first = data.draw(st.integers(0, size))
        placement = ((AGENTS[0], first), (AGENTS[1], size - first)) if data.draw(st.booleans()) else ()
        self.ask(m.Resize(Target(size, placement)))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if data.draw(rarely):
            self.ask(m.Cancel("enough"))

    @rule(data=st.data())
    def say_something_again(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from(self.asked)))

    @rule(fresh=st.booleans())
    def ask_for_the_job_again(self, fresh: bool) -> None:
        first = self.asked[0]
        assert isinstance(first, m.Create)
        self.ask(replace(first, fresh=fresh))

    @rule(count=st.integers(1, 3))
    def take_the_next_together(self, count: int) -> None:
        self.together = count

    # ----------------------------------------------------------------------------------------------- agents

    @rule(
        agent=st.sampled_from(AGENTS),
        capacity=st.sampled_from([0, 2, 3, 3, 4]),
        life=st.sampled_from(["1", "1", "1", "2"]),
        home=st.sampled_from(["", "here", "here", "there"]),
    )
    def agent_joins(self, agent: AgentId, capacity: int, life: str, home: str) -> None:
        self.ask(m.AgentJoin(agent, capacity, f"10.0.0.{capacity}", home, life))

    @precondition(lambda self: self.job is not None and self.job.agents)
    @rule(data=st.data(), late=rarely, port=st.integers(20000, 20009))
    def agent_is_ready(self, data: st.DataObject, late: bool, port: int) -> None:
        agent = data.draw(st.sampled_from(self.it.agents))
        self.ready(agent, self.it.generation - (1 if late else 0), port)

    @precondition(lambda self: self.job is not None and self.job.agents)
    @rule()
    def everybody_is_ready(self) -> None:
        """No member waits who need not: then there is a launch, or it is said what is missing."""
        for agent in self.it.agents:
            if not agent.ports:
                self.ready(agent, self.it.generation, 21000)

    def ready(self, agent: Agent, generation: int, port: int) -> None:
        self.ask(m.AgentReady(agent.id, max(0, generation), tuple(range(port, port + agent.capacity))))

    @rule(agent=st.sampled_from(AGENTS), how=st.sampled_from([m.AgentLeave, m.AgentExpire, m.AgentSuspect]))
    def agent_goes(self, agent: AgentId, how: type[m.AgentLeave | m.AgentExpire | m.AgentSuspect]) -> None:
        self.ask(how(agent))

    @rule(agent=st.sampled_from(AGENTS))
    def machine_goes(self, agent: AgentId) -> None:
        self.ask(m.DrainAgent(agent, 30.0, "spot notice"))

    # ---------------------------------------------------------------------------------------------- workers

    @precondition(lambda self: self.job is not None and self.job.launch)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 1, 1, -9, -11, 75]))
    def worker_ends(self, data: st.DataObject, code: int) -> None:
        assert self.it.launch is not None
        seat = data.draw(st.sampled_from(self.it.launch.seats))
        self.ask(m.Exited(seat.member, code, "what it said"))

    @precondition(lambda self: self.job is not None and self.job.launch and not self.job.launch.over)
    @rule()
    def everybody_ends_well(self) -> None:
        assert self.it.launch is not None
        for seat in self.it.launch.seats:
            self.ask(m.Exited(seat.member, 0))

    @precondition(lambda self: self.job is not None and self.job.launch)
    @rule(data=st.data())
    def worker_joins(self, data: st.DataObject) -> None:
        assert self.it.launch is not None
        if data.draw(rarely):
            seat = data.draw(st.sampled_from(self.it.launch.seats))
            self.ask(m.Join(MemberId(seat.member), seat.agent, TERMS))

    # ------------------------------------------------------------------------------------ what must hold

    @invariant()
    def the_state_is_sound_and_settled(self) -> None:
        if self.job is not None:
            assert state_violations(self.job) == ()
            assert next_consequence(self.job, self.now) == ()
            assert self.job.why

    @invariant()
    def the_log_is_the_state(self) -> None:
        if self.job is not None and self.replayed is not None:
            record = encode_state(self.job)
            assert encode_state(self.replayed) == record
            assert decode_state(record, Job) == self.job

    @invariant()
    def whoever_is_waited_for_is_named(self) -> None:
        job = self.job
        if job is None or job.is_live or job.state.ended:
            return
        running = job.launch is not None and not job.launch.over
        assert job.state is (JobState.RUNNING if running else JobState.WAITING)
        if running:
            return
        silent = [agent.id for agent in job.agents if agent.capacity and not agent.ports and not agent.draining]
        assert all(name in job.why for name in silent)
        if not silent and not any(agent.draining for agent in job.agents):
            assert "workers" in job.why  # too few of them
            assert sum(seats_per_agent(job).values()) < max(
                job.spec.size_min, sum(count for _, count in job.spec.roles) + 1
            )

    @invariant()
    def nobody_is_asked_for_more_than_it_has_room_for(self) -> None:
        if self.job is not None and not self.job.is_live:
            room = {agent.id: agent.capacity for agent in self.job.agents}
            assert all(count <= room[agent] for agent, count in desired_workers(self.job).items())
            assert sum(seats_per_agent(self.job).values()) <= self.job.target.size


TestLaunches = LaunchMachine.TestCase
TestLaunches.settings = settings(max_examples=80, stateful_step_count=40)
