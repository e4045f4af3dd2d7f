"""Random histories on every store and on the plainest model of one; all of the contract at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pliant.stores.base import Busy, Conflict, Entry, Hold, Outcome, Store, Stored, Write, Written

Factory = Callable[[str], AbstractContextManager[Any]]

JOBS = ("a", "b", "c")
OWNERS = ("x", "y")
NAMES = ("lead", "sweep")
data = st.binary(max_size=3)


@dataclass
class JobModel:
    """A job by the contract's first paragraph, with nothing clever about it."""

    events: list[bytes] = field(default_factory=list)
    record: bytes = b""
    record_revision: int = 0


class Histories(RuleBasedStateMachine):
    """Random calls on a store and on the plainest model of it; two handles, chosen at random."""

    factory: ClassVar[Factory]

    def __init__(self) -> None:
        super().__init__()
        self.context = type(self).factory("histories")
        opened = self.context.__enter__()
        self.handles: tuple[Store, Store] = (opened.store, opened.another())
        self.jobs: dict[str, JobModel] = {}
        self.holds: dict[str, Hold] = {}
        self.past_holds: list[Hold] = []
        self.terms: dict[str, int] = {}
        self.now = 0.0

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)

    def revision(self, job: str) -> int:
        return len(self.jobs[job].events) if job in self.jobs else 0

    def expect(self, write: Write) -> Outcome:
        revision = self.revision(write.job)
        if revision != write.expected:
            return Conflict(revision)
        job = self.jobs.setdefault(write.job, JobModel())
        job.events += write.events
        if write.record is not None:
            job.record, job.record_revision = write.record, len(job.events)
        return Written(len(job.events))

    @rule(
        handle=st.integers(0, 1),
        plans=st.lists(
            st.tuples(
                st.sampled_from(JOBS),
                st.sampled_from([0, 0, 0, 0, -2, -1, 1, 2]),  # how far off the writer's knowledge is
                st.lists(data, min_size=1, max_size=3),
                st.none() | data,
            ),
            max_size=3,
            unique_by=lambda plan: plan[0],
        ),
    )
    def write(self, handle: int, plans: list[tuple[str, int, list[bytes], bytes | None]]) -> None:
        writes = []
        for job, off, events, record in plans:
            expected = max(0, self.revision(job) + off)
            writes.append(Write(job, expected, tuple(events), b"r" if expected == 0 and record is None else record))
        outcomes = self.handles[handle].write(writes)
        assert outcomes == tuple([self.expect(write) for write in writes])

    @rule(handle=st.integers(0, 1), job=st.sampled_from(JOBS), after=st.integers(0, 12), limit=st.integers(1, 5))
    def events(self, handle: int, job: str, after: int, limit: int) -> None:
        kept = self.jobs[job].events if job in self.jobs else []
        wanted = [Entry(i, kept[i - 1]) for i in range(after + 1, min(after + limit, len(kept)) + 1)]
        assert list(self.handles[handle].events(job, after, limit)) == wanted

    @rule(by_s=st.sampled_from([0.5, 1.0, 3.0, -1.0]))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s  # backwards too: no promise rests on the clock

    @rule(
        handle=st.integers(0, 1),
        name=st.sampled_from(NAMES),
        owner=st.sampled_from(OWNERS),
        ttl_s=st.sampled_from([1.0, 2.0, 5.0]),
    )
    def hold(self, handle: int, name: str, owner: str, ttl_s: float) -> None:
        answer = self.handles[handle].hold(name, owner, ttl_s, self.now)
        held = self.holds.get(name)
        in_force = held is not None and self.now < held.until_s
        if held is not None and in_force and held.owner != owner:
            assert answer == Busy(held)
            return
        assert isinstance(answer, Hold)
        assert (answer.name, answer.owner, answer.until_s) == (name, owner, self.now + ttl_s)
        if held is not None and in_force:
            assert answer.term == held.term
        else:
            assert answer.term > self.terms.get(name, 0)
        self.terms[name] = answer.term
        self.holds[name] = answer
        self.past_holds.append(answer)

    @rule(handle=st.integers(0, 1), which=st.integers(0, 9))
    def release(self, handle: int, which: int) -> None:
        if which < len(self.past_holds):
            hold = self.past_holds[-1 - which]
            self.handles[handle].release(hold)
            held = self.holds.get(hold.name)
            if held is not None and (held.owner, held.term) == (hold.owner, hold.term):
                del self.holds[hold.name]

    @invariant()
    def both_handles_show_the_model(self) -> None:
        for store in self.handles:
            assert store.jobs() == tuple(sorted(self.jobs))
            for name in JOBS:
                stored = store.read(name)
                if name not in self.jobs:
                    assert stored is None
                    continue
                job = self.jobs[name]
                tail = tuple(job.events[job.record_revision :])
                assert stored == Stored(len(job.events), job.record, job.record_revision, tail)


def test_random_histories_match_the_model(factory: Factory, histories: int) -> None:
    machine = type("HistoriesHere", (Histories,), {"factory": staticmethod(factory)})
    run_state_machine_as_test(machine, settings=settings(max_examples=histories, stateful_step_count=30, deadline=None))
