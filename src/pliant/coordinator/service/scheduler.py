"""The grants of the jobs that share a pool: once a second, the leader asks `allocate`.

Its memory is lost with the leader. Grants are events of their jobs, and a new leader plans anew from them. It grants no
free slot before it has led for `SETTLE_S`: workers of earlier and larger grants may start until then, and agents of
ended jobs have reported the workers that still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from math import inf

from pliant.coordinator.service.loaded_jobs import LoadedJobs
from pliant.core.allocate import Allotment, Demand, Leaving, Pool, Reason, allocate
from pliant.core.allocate.demands import SETTLE_S, Claim, WorkerReports, claim_of, demand_of
from pliant.core.messages import Command, Exited, GrantWorkers
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId

PERIOD_S = 1.0

Key = tuple[str, int]  # a job and its attempt: workers of the attempt before may still run


class Scheduler:
    """The plan of one leader. `pool` is set from outside; while it is None, nothing is granted."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.shown: tuple[tuple[Demand, Allotment], ...] = ()  # the last result, by rank
        self._claims: dict[Key, tuple[Job, Claim]] = {}
        self._leaving: dict[Key, tuple[Job, Claim]] = {}  # of ended jobs
        self._running: dict[str, dict[AgentId, tuple[frozenset[MemberId], float]]] = {}  # by job, as last reported
        self._ended: dict[str, dict[MemberId, float]] = {}  # by job, the workers that ended lately
        self._planned: dict[str, int] = {}
        self._reasons: dict[str, Reason] = {}  # of the last grant that was sent
        self._led_since: float | None = None  # None: nothing was due yet
        self._next = 0.0

    def note_workers(self, job: str, agent: AgentId, workers: Iterable[MemberId], now: float) -> None:
        """Note the worker processes that an agent of a job in a queue runs now."""
        self._running.setdefault(job, {})[agent] = frozenset(workers), now

    def due(
        self, now: float, jobs: LoadedJobs, inbox: Iterable[tuple[object, str, Command]] = ()
    ) -> list[tuple[str, Command]]:
        """Return the grants to send now, with the names of their jobs. Commands of `inbox` report ended workers."""
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
        self._update_claims(managed, [job for job in states if job.state.ended], now)
        demands = tuple(demand_of(job, self._claim(job), self._planned.get(job.name), now) for job in managed)
        leaving = tuple(Leaving(job.name, claim.size) for job, claim in self._leaving.values() if claim.size)
        found = {
            each.name: each
            for each in allocate(self.pool, demands, leaving, is_counting=now - self._led_since < SETTLE_S)
        }
        by_name = {each.name: each for each in demands}
        self.shown = tuple((by_name[name], each) for name, each in found.items())
        self._planned = {name: each.planned for name, each in found.items()}
        self._reasons = {name: reason for name, reason in self._reasons.items() if name in found}
        return [(job.name, command) for job in managed if (command := self._command(job, found[job.name]))]

    def forget(self) -> None:
        """Drop the memory of a leader that leads no more."""
        self.shown, self._claims, self._leaving, self._planned, self._reasons = (), {}, {}, {}, {}
        self._running, self._ended, self._led_since = {}, {}, None

    def _claim(self, job: Job) -> Claim:
        return self._claims[job.name, job.attempt][1]

    def _update_claims(self, managed: list[Job], ended: list[Job], now: float) -> None:
        """Set the claims of jobs now. A job that ended since the last look keeps its claim as one that is leaving."""
        before, leaving = self._claims, self._leaving
        keys = {(job.name, job.attempt) for job in managed}
        found = {(job.name, job.attempt): job for job in ended}
        left = {key: (found.get(key, job), claim) for key, (job, claim) in before.items() if key not in keys}
        self._prune(keys, now)
        self._claims = {}
        for job in managed:
            key = job.name, job.attempt
            claim = before[key][1] if key in before else None
            self._claims[key] = job, claim_of(job, self._reports(job.name), claim, now)
        self._leaving = {}
        for key, (job, claim) in (leaving | left).items():
            own = claim.workers.keys() if key not in found else None
            after = claim_of(job, self._reports(job.name, own), claim, now, is_over=True)
            if after.size:
                self._leaving[key] = job, after
        for key, job in found.items():
            if key not in self._leaving and job.name in self._running:  # perhaps it ended under an earlier leader
                claim = claim_of(job, self._reports(job.name), None, now, is_over=True)
                if claim.size:
                    self._leaving[key] = job, claim

    def _reports(self, job: str, own: Set[MemberId] | None = None) -> WorkerReports:
        """Return the reports about a job; with `own`, only those about these workers."""
        running = {
            agent: names if own is None else names & own for agent, (names, _) in self._running.get(job, {}).items()
        }
        return WorkerReports(running, self._ended.get(job, {}).keys())

    def _prune(self, managed: set[Key], now: float) -> None:
        """Drop old reports. Those of a running job stay, because leases tell when one of its agents is gone."""
        names = {name for name, _ in managed}
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
        """Return the grant to send, if its size or its reason is new. A job with workers keeps its minimum."""
        size = found.size
        if size < job.spec.size_min and self._claim(job).workers:
            size = job.granted
        if size == job.granted and self._reasons.get(job.name) is found.reason:
            return None
        self._reasons[job.name] = found.reason
        return GrantWorkers(size, found.why)
