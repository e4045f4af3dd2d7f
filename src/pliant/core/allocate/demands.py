"""The demand of a job in the coordinator, from its state and from what its agents report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from pliant.core.allocate.model import Demand
from pliant.core.job.assignment import desired_workers
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId

SETTLE_S = 20.0  # two leases: a worker that was starting has joined, was reported, or has ended by then


@dataclass(frozen=True, slots=True)
class WorkerReports:
    """Reports of agents about the workers of a job: the processes that run, by agent, and those that have ended."""

    running: Mapping[AgentId, Set[MemberId]] = field(default_factory=dict)
    ended: Set[MemberId] = frozenset()


NO_REPORTS = WorkerReports()


@dataclass(frozen=True, slots=True)
class Claim:
    """The slots that workers of a job may occupy.

    A worker occupies its slot until its process has ended: `workers` has those that may run, with their agents and the
    time at which they were last known to. A worker that starts is not known at once. So the claim is as large as the
    largest grant before, less the workers that ended since, until nothing has changed for `SETTLE_S`.
    """

    size: int
    workers: Mapping[MemberId, tuple[AgentId, float]]
    granted: int
    at: float  # the last change

    def __post_init__(self) -> None:
        assert self.size >= len(self.workers)


def workers_of(job: Job) -> dict[MemberId, AgentId]:
    """Return the workers that are known to run, with their agents: members, or the seats of a launch.

    An agent with ports has reported that none of its launched workers runs.
    """
    if job.is_live:
        return {member.id: member.agent for member in job.members.values()}
    if job.launch is None:
        return {}
    busy, done = _agents_with_workers(job), job.launch.done
    return {seat.member: seat.agent for seat in job.launch.seats if seat.agent in busy and seat.member not in done}


def _agents_with_workers(job: Job) -> set[AgentId]:
    return {agent.id for agent in job.agents if job.is_live or not agent.ports}


def claim_of(job: Job, reports: WorkerReports, before: Claim | None, now: float, *, is_over: bool = False) -> Claim:
    """Return the claim of a job now. `before` is its claim at the last look; None: this is the first.

    A job that is over gets no more workers, and its record does not tell which of them still run.
    """
    known = {} if is_over else workers_of(job)
    busy = _agents_with_workers(job)
    for agent, names in reports.running.items():
        known |= dict.fromkeys(names, agent) if agent in busy else {}
    workers = {name: (agent, now) for name, agent in known.items()}
    for name, (agent, at) in before.workers.items() if before is not None else ():
        if (is_over or agent in busy) and now - at < SETTLE_S:
            workers.setdefault(name, (agent, at))
    workers = {name: each for name, each in workers.items() if name not in reports.ended}
    least = len(workers) if is_over else max(job.granted, _reachable(job, workers))
    if before is None:
        return Claim(least, workers, job.granted, now)
    if workers.keys() == before.workers.keys() and job.granted == before.granted:
        size = before.size if now - before.at < SETTLE_S else least
        return Claim(size, workers, job.granted, before.at)
    left = max(0, len(before.workers) - len(workers))
    more = max(0, job.granted - before.granted)
    return Claim(max(least, before.size + more - left), workers, job.granted, now)


def _reachable(job: Job, workers: Mapping[MemberId, tuple[AgentId, float]]) -> int:
    """Return how many workers may run soon: one agent may have too many of them while another one starts more."""
    here = Counter(agent for agent, _ in workers.values())
    wanted = desired_workers(job) if job.is_live else {}
    return sum(max(here[agent], wanted.get(agent, 0)) for agent in {*here, *wanted})


def demand_of(job: Job, claim: Claim, planned: int | None, now: float) -> Demand:
    """Return what a job in a queue wants and has. Its spares count as workers."""
    return Demand(
        name=job.name,
        size_min=job.spec.size_min,
        wanted=max(job.spec.size_min, min(job.target.size, job.spec.size_max, job.slots) + job.spec.spares),
        priority=job.spec.priority,
        since=job.created_at,
        queue=job.spec.queue,
        held=claim.size,
        granted=job.granted,
        planned=planned,
        unchanged_s=now - claim.at,
    )
