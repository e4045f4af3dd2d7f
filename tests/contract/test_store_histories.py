"""Random histories on every store and on the plainest model of one; all of the contract at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from contract.conftest import Caller
from pliant.errors import EventsTrimmed, HoldLost
from pliant.stores.base import Busy, Conflict, Entry, Hold, Outcome, Segment, Store, Stored, Write, Written

Factory = Callable[[str], AbstractContextManager[Any]]

JOBS = ("a", "b", "c")
SKEWS_S = {"x": 0.0, "y": 1e6}  # the owners' clocks: they run alike and show other times
NAMES = ("lead", "sweep")
data = st.binary(max_size=3)


@dataclass
class JobModel:
    """A job by the contract's first paragraph, with nothing clever about it."""

    events: list[bytes] = field(default_factory=list)
    record: bytes = b""
    record_revision: int = 0
    live: bool = True
    base: int = 0  # the revision before the first event
    segments: list[Segment] = field(default_factory=list)

    @property
    def revision(self) -> int:
        return self.base + len(self.events)

    @property
    def trimmed(self) -> int:
        return self.segments[-1].last if self.segments else self.base


@dataclass
class HoldModel:
    """A hold, the time at which it ends by its last renewal, and the number of that renewal."""

    hold: Hold
    end_s: float
    ttl_s: float
    renewal: int


class Histories(RuleBasedStateMachine):
    """Random calls on a store and on the plainest model of it; two handles, chosen at random."""

    factory: ClassVar[Factory]

    def __init__(self) -> None:
        super().__init__()
        self.context = type(self).factory("histories")
        opened = self.context.__enter__()
        self.handles: tuple[Store, Store] = (opened.store, opened.another())
        self.jobs: dict[str, JobModel] = {}
        self.floor = 0  # the highest revision of a deleted job
        self.clock = opened.clock
        self.callers = {
            owner: Caller(owner, handle, opened.clock, 0.0 if opened.is_one_process else SKEWS_S[owner])
            for owner, handle in zip(SKEWS_S, self.handles, strict=True)
        }
        self.holds: dict[str, HoldModel] = {}
        self.past_holds: list[Hold] = []
        self.terms: dict[str, int] = {}
        self.renewals = 0
        self.seen: dict[tuple[str, str], tuple[int, float]] = {}  # the renewal that an owner saw last, and since when

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)

    def revision(self, job: str) -> int:
        return self.jobs[job].revision if job in self.jobs else 0

    def expect(self, write: Write) -> Outcome:
        revision = self.revision(write.job)
        if revision != write.expected:
            return Conflict(revision)
        job = self.jobs.setdefault(write.job, JobModel(base=self.floor))
        job.events += write.events
        if write.record is not None:
            job.record, job.record_revision = write.record, job.revision
        job.live = write.live
        return Written(job.revision)

    @rule(
        handle=st.integers(0, 1),
        plans=st.lists(
            st.tuples(
                st.sampled_from(JOBS),
                st.sampled_from([0, 0, 0, 0, -2, -1, 1, 2]),  # how far off the writer's knowledge is
                st.lists(data, min_size=1, max_size=3),
                st.none() | data,
                st.booleans(),
            ),
            max_size=3,
            unique_by=lambda plan: plan[0],
        ),
        which=st.integers(0, 9),
    )
    def write(self, handle: int, plans: list[tuple[str, int, list[bytes], bytes | None, bool]], which: int) -> None:
        writes = []
        for job, off, events, record, live in plans:
            expected = max(0, self.revision(job) + off)
            needed = b"r" if expected == 0 and record is None else record
            writes.append(Write(job, expected, tuple(events), needed, live))
        under = self.past_holds[-1 - which] if which < len(self.past_holds) else None
        if writes and under is not None and not self.may_write(under):
            with pytest.raises(HoldLost):
                self.handles[handle].write(writes, under)
            return
        outcomes = self.handles[handle].write(writes, under)
        assert outcomes == tuple([self.expect(write) for write in writes])

    def may_write(self, under: Hold) -> bool:
        held = self.holds.get(under.name)
        if held is None or (held.hold.owner, held.hold.term) != (under.owner, under.term):
            return False
        assume(self.clock.now < held.end_s)  # past its end a store may refuse or not
        return True

    @rule(handle=st.integers(0, 1), job=st.sampled_from(JOBS), after=st.integers(0, 12), limit=st.integers(1, 5))
    def events(self, handle: int, job: str, after: int, limit: int) -> None:
        known = self.jobs.get(job, JobModel())
        begin = max(after, known.base)
        if begin < known.trimmed:
            with pytest.raises(EventsTrimmed) as raised:
                self.handles[handle].events(job, after, limit)
            assert raised.value.through == known.trimmed
            return
        numbers = range(begin + 1, min(begin + limit, known.revision) + 1)
        wanted = [Entry(number, known.events[number - 1 - known.base]) for number in numbers]
        assert list(self.handles[handle].events(job, after, limit)) == wanted

    @rule(
        handle=st.integers(0, 1),
        name=st.sampled_from(JOBS),
        off=st.sampled_from([0, 0, 0, -1, 1]),
        count=st.integers(1, 4),
    )
    def trim(self, handle: int, name: str, off: int, count: int) -> None:
        job = self.jobs.get(name, JobModel())
        first = max(1, job.trimmed + 1 + off)
        segment = Segment(first, first + count - 1, f"{first} of {name}")
        fits = first == job.trimmed + 1 and segment.last <= min(job.record_revision, job.revision - 1)
        assert self.handles[handle].trim(name, segment) == fits
        if fits:
            job.segments.append(segment)

    @rule(handle=st.integers(0, 1), name=st.sampled_from(JOBS), off=st.sampled_from([0, 0, -1, 1]))
    def delete(self, handle: int, name: str, off: int) -> None:
        expected = max(1, self.revision(name) + off)
        outcome = self.handles[handle].delete(name, expected)
        if expected != self.revision(name):
            assert outcome == Conflict(self.revision(name))
            return
        assert outcome is None
        self.floor = max(self.floor, expected)
        del self.jobs[name]

    @rule(by_s=st.sampled_from([0.5, 1.0, 3.0]))
    def time_passes(self, by_s: float) -> None:
        self.clock.advance(by_s)

    @rule(name=st.sampled_from(NAMES), owner=st.sampled_from(sorted(SKEWS_S)), ttl_s=st.sampled_from([2.0, 3.0, 5.0]))
    def hold(self, name: str, owner: str, ttl_s: float) -> None:
        answer = self.callers[owner].ask(ttl_s, name)
        held, now = self.holds.get(name), self.clock.now
        if isinstance(answer, Busy):
            assert held is not None
            assert (answer.hold.owner, answer.hold.term) == (held.hold.owner, held.hold.term)
            seen, since_s = self.seen.get((name, owner), (0, 0.0))
            if seen != held.renewal:
                self.seen[name, owner] = held.renewal, now
            else:
                assert now < since_s + held.ttl_s  # seen for so long without a renewal, it would be over
            return
        if held is not None and now < held.end_s:
            assert (answer.owner, answer.term) == (held.hold.owner, held.hold.term)
        else:
            assert answer.term > self.terms.get(name, 0)
        self.renewals += 1
        self.terms[name] = answer.term
        self.holds[name] = HoldModel(answer, now + ttl_s, ttl_s, self.renewals)
        self.past_holds.append(answer)

    @rule(handle=st.integers(0, 1), which=st.integers(0, 9))
    def release(self, handle: int, which: int) -> None:
        if which < len(self.past_holds):
            hold = self.past_holds[-1 - which]
            self.handles[handle].release(hold)
            held = self.holds.get(hold.name)
            if held is not None and (held.hold.owner, held.hold.term) == (hold.owner, hold.term):
                del self.holds[hold.name]

    @invariant()
    def both_handles_show_the_model(self) -> None:
        for store in self.handles:
            assert store.jobs() == tuple(sorted(self.jobs))
            assert [name for name, _ in store.read_page("", 10)] == sorted(
                n for n, job in self.jobs.items() if job.live
            )
            for name in JOBS:
                stored = store.read(name)
                if name not in self.jobs:
                    assert stored is None
                    continue
                job = self.jobs[name]
                tail = tuple(job.events[job.record_revision - job.base :])
                assert stored == Stored(job.revision, job.record, job.record_revision, tail)
                assert store.segments(name) == tuple(job.segments)


@pytest.mark.timeout(600)  # three etcd members on a busy machine
def test_random_histories_match_the_model(factory: Factory, histories: int) -> None:
    machine = type("HistoriesHere", (Histories,), {"factory": staticmethod(factory)})
    run_state_machine_as_test(machine, settings=settings(max_examples=histories, stateful_step_count=30, deadline=None))
