"""The grants of the jobs that share a pool: once a second, the leader asks `allocate`.

Its memory is lost with the leader. Grants and the workers that may run are in the records of their jobs, and a new
leader plans anew from them. It grants no free slot before it has led for `SETTLE_S`: by then agents of ended jobs have
reported the workers that still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from math import inf

from pliant.coordinator.service.loaded_jobs import LoadedJobs
from pliant.coordinator.service.machines import LentMachines
from pliant.core.allocate import Allotment, Demand, Leaving, Pool, Reason, allocate
from pliant.core.allocate.cost import highest_price, price_at
from pliant.core.allocate.demands import (
    SETTLE_S,
    Remains,
    WorkerReports,
    cost_limit_of,
    deadline_of,
    demand_of,
    remains_of,
)
from pliant.core.allocate.machines import LentMachine
from pliant.core.allocate.measured import ANEW_S, NOTHING, Measured, measure, with_measurements
from pliant.core.allocate.model import STOPS
from pliant.core.autoscale import JobPace
from pliant.core.messages import Command, Event, Exited, GrantWorkers, Rejection, SetPrice
from pliant.core.model.job import Autoscale, Job
from pliant.core.model.names import AgentId, MemberId

PERIOD_S = 1.0

Key = tuple[str, int]  # a job and its attempt: workers of the attempt before may still run


class Scheduler:
    """The plan of one leader. `pool` is set from outside; while it is None, nothing is granted."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.machines = LentMachines()
        self.shown: tuple[tuple[Demand, Allotment], ...] = ()  # the last result, by rank
        self.shown_pool: Pool | None = None  # the pool of that result, with the slots of lent machines
        self.paces: dict[str, JobPace] = {}  # what is measured of jobs
        self._measured: dict[Key, Measured] = {}  # the part of it that is in use
        self._managed: dict[Key, Job] = {}  # at the last look
        self._inherited: frozenset[Key] | None = None  # jobs with grants of a leader before; None: not looked yet
        self._changed_at: dict[Key, float] = {}  # when their grants or workers changed last
        self._remains: dict[Key, Remains] = {}  # of ended jobs
        self._running: dict[str, dict[AgentId, tuple[frozenset[MemberId], float]]] = {}  # by job, as last reported
        self._ended: dict[str, dict[MemberId, float]] = {}  # by job, the workers that ended lately
        self._planned: dict[str, int] = {}
        self._missed: frozenset[str] = frozenset()  # jobs that missed their deadlines in the last result
        self._reasons: dict[str, tuple[Reason, str, bool]] = {}  # of the last grant that was sent
        self._led_since: float | None = None  # None: nothing was due yet
        self._next = 0.0

    def note_workers(self, job: str, agent: AgentId, workers: Iterable[MemberId], now: float) -> None:
        """Note the worker processes that an agent of a job in a queue runs now."""
        self._running.setdefault(job, {})[agent] = frozenset(workers), now

    def note_events(self, job: Job, events: Iterable[Event]) -> None:
        """Measure a job with its newest events. `job` is the job after them."""
        if job.state.ended or not (job.spec.queue or job.spec.autoscale is not Autoscale.OFF):
            self.paces.pop(job.name, None)
            return
        pace = self.paces.setdefault(job.name, JobPace.of(job))
        for event in events:
            pace.add(event)

    def due(
        self, now: float, wall: float, jobs: LoadedJobs, inbox: Iterable[tuple[object, str, Command]] = ()
    ) -> list[tuple[str, Command]]:
        """Return the prices and grants to send now, with the names of their jobs.

        `wall` is the time with which events are stamped now. Commands of `inbox` report ended workers.
        """
        if self.pool is not None:
            for _, name, sent in inbox:
                if isinstance(sent, Exited):
                    self._ended.setdefault(name, {})[sent.member] = now
        if self._led_since is None:  # without a pool no leader before has granted anything
            self._led_since = now if self.pool is not None else -inf
        if self.pool is None or now < self._next:
            return []
        self._next = now + PERIOD_S
        states = [known.job for _, known in jobs.items() if known.job is not None and known.job.spec.queue]
        managed = [job for job in states if not job.state.ended]
        self._look(managed, [job for job in states if job.state.ended], now)
        price, highest = price_at(self.pool.prices, wall) or 0.0, highest_price(self.pool.prices, wall)
        demands = tuple(self._demand(key, job, now, wall, highest) for key, job in self._managed.items())
        leaving = tuple(Leaving(name, len(workers)) for (name, _), workers in self._remains.items())
        pool = self._with_lent_slots(self.pool, demands, leaving, now)
        found = {
            each.name: each for each in allocate(pool, demands, leaving, is_counting=now - self._led_since < SETTLE_S)
        }
        by_name = {each.name: each for each in demands}
        self.shown_pool, self.shown = pool, tuple((by_name[name], each) for name, each in found.items())
        self._planned = {name: each.planned for name, each in found.items()}
        self._missed = frozenset(name for name, each in found.items() if each.misses_deadline)
        self._reasons = {name: reason for name, reason in self._reasons.items() if name in found}
        prices: list[tuple[str, Command]] = [(job.name, SetPrice(price)) for job in managed if job.price != price]
        return prices + [(job.name, command) for job in managed if (command := self._command(job, found[job.name]))]

    def _demand(self, key: Key, job: Job, now: float, wall: float, price: float | None) -> Demand:
        """Return the demand of a job, with what this leader has measured of it."""
        pace = self.paces.get(job.name)
        demand = demand_of(
            job,
            self._planned.get(job.name),
            now - self._changed_at[key],
            cost_limit_of(job, wall, price, pace),
            deadline_of(job, wall, pace, was_missed=job.name in self._missed),
        )
        demand = replace(demand, refused=self._refusal_of(job, now))
        is_inherited = key in (self._inherited or ()) and now - (self._led_since or 0.0) < ANEW_S
        return with_measurements(demand, job, self._measured[key], is_inherited=is_inherited)

    def _refusal_of(self, job: Job, now: float) -> str:
        """Return why no lent machine can run a job; empty if one may, or if it runs."""
        if self.pool is None or not self.pool.is_lent or not job.spec.script or job.occupants:
            return ""
        return self.machines.refusal_of(job, now, SETTLE_S)

    def _with_lent_slots(
        self, pool: Pool, demands: tuple[Demand, ...], leaving: tuple[Leaving, ...], now: float
    ) -> Pool:
        """Return the pool with the slots that are lent. A new leader does not know all machines at once."""
        if not pool.is_lent:
            return pool
        slots = self.machines.slots(now) + pool.cluster_slots
        if self._led_since is not None and self._led_since > now - SETTLE_S:
            slots = max(slots, sum(max(x.held, x.granted) for x in demands) + sum(x.held for x in leaving))
        return replace(pool, slots=slots)

    def report_machine(
        self, machine: LentMachine, find: Callable[[str], Job | None], now: float
    ) -> tuple[Job | None, ...] | Rejection:
        """Note the report of a lent machine. Return the job of each of its slots; None: no agent should run there.

        `find` returns a loaded job.
        """
        rejection = self.machines.report(machine, now)
        if rejection is not None:
            return rejection
        self.machines.note_refused(machine, find, now)
        ranked = [job for demand, _ in self.shown if (job := find(demand.name)) is not None]
        return tuple(find(name) if name else None for name in self.machines.orders(machine.name, ranked, now))

    def forget(self) -> None:
        """Drop the memory of a leader that leads no more."""
        self.machines.forget()
        self.shown_pool = None
        self.shown, self._managed, self._changed_at, self._remains = (), {}, {}, {}
        self._planned, self._reasons, self._running, self._ended, self._led_since = {}, {}, {}, {}, None
        self._missed, self._measured, self._inherited = frozenset(), {}, None

    def _look(self, managed: list[Job], ended: list[Job], now: float) -> None:
        """Note the jobs, when they changed, and the workers of those that ended since the last look or before it."""
        before, self._managed = self._managed, {(job.name, job.attempt): job for job in managed}
        if self._inherited is None:
            self._inherited = frozenset(key for key, job in self._managed.items() if job.granted)
        self._prune({job.name for job in managed}, now)
        self._changed_at = {
            key: self._changed_at[key] if key in before and _is_same(before[key], job) else now
            for key, job in self._managed.items()
        }
        self._measured = {key: self._measure(key) for key in self._managed}
        found = {(job.name, job.attempt): job for job in ended}
        remains: dict[Key, Remains] = {key: {} for key in found if key[0] in self._running} | self._remains
        for key in before.keys() - self._managed.keys():
            remains[key] = dict.fromkeys(found.get(key, before[key]).occupants, now)
        self._remains = {}
        for key, workers in remains.items():
            own = workers.keys() if key not in found else None
            if left := remains_of(self._reports(key[0], own), workers, now):
                self._remains[key] = left

    def _measure(self, key: Key) -> Measured:
        before, pace = self._measured.get(key, NOTHING), self.paces.get(key[0])
        return before if pace is None else measure(before, pace)

    def _reports(self, job: str, own: Set[MemberId] | None = None) -> WorkerReports:
        """Return the reports about a job; with `own`, only those about these workers."""
        running = {
            agent: names if own is None else names & own for agent, (names, _) in self._running.get(job, {}).items()
        }
        return WorkerReports(running, self._ended.get(job, {}).keys())

    def _prune(self, names: set[str], now: float) -> None:
        """Drop old reports. Those of a running job stay, because leases tell when one of its agents is gone."""
        for job, agents in list(self._running.items()):
            fresh = {agent: each for agent, each in agents.items() if job in names or now - each[1] < SETTLE_S}
            self._running[job] = fresh
            if not fresh:
                del self._running[job]
        for job, workers in list(self._ended.items()):
            self._ended[job] = {name: at for name, at in workers.items() if now - at < SETTLE_S}
            if not self._ended[job]:
                del self._ended[job]

    def _command(self, job: Job, found: Allotment) -> Command | None:
        """Return the grant to send, if its size or its reason is new, or if it misses its deadline now.

        A job with workers keeps its minimum, unless its own cost limit stops it.
        """
        size = found.size
        if size < job.spec.size_min and job.occupants and found.reason not in STOPS:
            size = job.granted
        reason = found.reason, found.why if found.reason in STOPS else "", found.misses_deadline
        if size == job.granted and self._reasons.get(job.name) == reason:
            return None
        self._reasons[job.name] = reason
        return GrantWorkers(size, found.why)


def _is_same(before: Job, job: Job) -> bool:
    return (before.granted, before.occupants.keys()) == (job.granted, job.occupants.keys())
