"""A task queue under test: every command goes through `decide` and `evolve`, and is held to the invariants."""

from __future__ import annotations

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Job, JobSpec, JobState, Mode
from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, TaskState, TaskTerms, range_digest

A, B, C, D = (MemberId(name) for name in "abcd")
X = AgentId("x")
TERMS = TaskTerms(records=25, records_per_shard=10, epochs=2, shuffled=False)  # shards of 10, 10 and 5 records
NOW = 5.0


class Queue:
    """A job with a task queue, and its events."""

    def __init__(self, terms: TaskTerms = TERMS, spec: JobSpec | None = None) -> None:
        self.terms = terms
        self.events: list[Event] = []
        self.job: Job | None = None
        self.tell(m.Create("demo", spec or JobSpec(1, 4, mode=Mode.TASKS)))

    @property
    def it(self) -> Job:
        assert self.job is not None
        return self.job

    @property
    def tasks(self) -> TaskState:
        assert self.it.tasks is not None
        return self.it.tasks

    def is_evaluating(self) -> bool:
        return self.tasks.evaluation is not None

    def ask(self, command: Command) -> Rejection | tuple[Event, ...]:
        """Return the refusal of a command, or its events with all that follows."""
        decision = decide(self.job, command, NOW)
        if isinstance(decision, Rejection):
            return decision
        before, job, events = self.job, self.job, decision
        for event in decision:
            job = evolve(job, event)
        if job is not None and events and changes_membership(events):
            job, more = settle_all(job, NOW)
            events += more
        assert (found := all_violations(before, events)) == (), found
        self.job = job
        self.events += events
        return events

    def tell(self, command: Command) -> tuple[Event, ...]:
        """Return the events of a command that is accepted."""
        found = self.ask(command)
        assert not isinstance(found, Rejection), found
        return found

    def refused(self, command: Command) -> Rejection:
        """Return the refusal of a command that changes nothing."""
        found = self.ask(command)
        assert isinstance(found, Rejection), found
        return found

    def join(self, *members: MemberId, terms: TaskTerms | None = None) -> None:
        for member in members:
            self.tell(t.JoinTasks(member, X, terms or self.terms))

    def take(self, member: MemberId, count: int = 1) -> tuple[HeldShard, ...]:
        """Return all shards that a member holds after it asked for so many."""
        self.tell(t.TakeShards(member, count))
        return self.tasks.held_by(member)

    def completion(self, shard: HeldShard, sums: t.Sums = ()) -> t.CompleteShard:
        found = self.terms.range_of(shard.kind, shard.number)
        digest = range_digest(shard.kind, found.epoch, shard.start, found.stop)
        return t.CompleteShard(shard.member, shard.attempt, found.stop - shard.start, digest, sums)

    def advance(self, shard: HeldShard, upto: int) -> tuple[Event, ...]:
        epoch = self.terms.range_of(shard.kind, shard.number).epoch
        digest = range_digest(shard.kind, epoch, shard.start, upto)
        return self.tell(t.AdvanceShard(shard.member, shard.attempt, upto, digest))

    def fail(self, shard: HeldShard, upto: int, error: str = "ValueError: bad") -> tuple[Event, ...]:
        epoch = self.terms.range_of(shard.kind, shard.number).epoch
        digest = range_digest(shard.kind, epoch, shard.start, upto)
        return self.tell(t.FailShard(shard.member, shard.attempt, upto, digest, error))

    def complete(self, shard: HeldShard, sums: t.Sums = ()) -> tuple[Event, ...]:
        return self.tell(self.completion(shard, sums))

    def work(self, member: MemberId, count: int) -> None:
        """Take and complete so many shards."""
        for _ in range(count):
            self.complete(self.take(member)[0])

    def change(self, **fields: object) -> None:
        """Change the state behind the queue's back, for states that are hard to reach."""
        self.job = replace(self.it, **fields)  # type: ignore[arg-type]

    @property
    def ended(self) -> tuple[JobState, str]:
        return self.it.state, self.it.why
