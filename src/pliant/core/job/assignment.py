"""Decide how many workers each agent runs, and which members train. One function decides both, so that they agree.

A number of workers is wanted on each agent. Members within that number train first. A member beyond it trains only as
long as too few others are there, and leaves once it is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.job.launches import seats_per_agent
from pliant.core.messages import WorkersPermitted
from pliant.core.model.fingerprint import Fingerprint, fingerprint_difference, most_common
from pliant.core.model.job import Agent, Job, JobState, Member
from pliant.core.model.names import AgentId, MemberId, worker_name


@dataclass(frozen=True, slots=True)
class Assignment:
    """The members that should train, and those that no agent needs: beyond its wanted number, and not training."""

    training: list[Member]
    surplus: list[Member]


def desired_workers(job: Job) -> dict[AgentId, int]:
    """Return how many workers each agent should run, for the supervisors.

    An exact placement is used as it is. A number, with the spares and within the grant, is spread: one more for the
    agent with the fewest, the earliest first, within each agent's capacity. An agent that leaves gets none. Draining
    members are not counted, so their replacements may start early, unless the job is in a queue: then each start needs
    a permit. While workers are launched together, this is for display only: the launch decides which agent starts which
    worker.
    """
    if job.state.ended or job.state is JobState.STOPPING:
        return {agent.id: 0 for agent in job.agents}
    if not job.is_live:
        return seats_per_agent(job)
    staying = [agent for agent in job.agents if not agent.draining]
    shares = {agent.id: 0 for agent in job.agents}
    if job.target.placement:
        placement = dict(job.target.placement)
        return shares | {agent.id: min(placement.get(agent.id, 0), agent.capacity) for agent in staying}
    return shares | _spread(staying, job.within_grant(job.target.size + job.spec.spares))


def workers_on(job: Job, agent: AgentId) -> tuple[frozenset[MemberId], frozenset[MemberId]]:
    """Return the workers that the coordinator counts on at an agent, and which of them are leaving.

    In a queue these are all workers that occupy slots: permitted ones before they join, and ended members whose
    processes have not ended.
    """
    present = job.occupants if job.spec.queue else {member.id: member.agent for member in job.members.values()}
    here = frozenset(name for name, on in present.items() if on == agent)
    draining = frozenset(name for name in here if name in job.members and job.members[name].draining)
    return here, draining | here.intersection(job.gone)


def permit_workers(job: Job, now: float) -> tuple[WorkersPermitted, ...]:
    """Permit the agents of a job in a queue to start missing workers, as far as the grant has room for them.

    Workers that are leaving, and those that left and whose processes have not ended, still occupy their slots.
    """
    if not job.spec.queue:
        return ()
    wanted = desired_workers(job)
    room = job.granted - len(job.occupants)
    found = []
    for agent in job.agents:
        present, leaving = workers_on(job, agent.id)
        missing = min(wanted[agent.id] - len(present - leaving), room)
        if missing > 0:
            room -= missing
            numbers = range(agent.permitted + 1, agent.permitted + 1 + missing)
            workers = tuple(worker_name(agent.id, agent.run_id, number) for number in numbers)
            found.append(WorkersPermitted(now, agent.id, workers))
    return tuple(found)


def permitted_starts(job: Job, agent: Agent | None) -> int | None:
    """Return how many workers an agent may start in its run in all; None: any number, for the job is in no queue."""
    if not job.spec.queue:
        return None
    return agent.permitted if agent is not None else 0


def _spread(agents: list[Agent], total: int) -> dict[AgentId, int]:
    """Deal workers one by one to the agent with the fewest, the earliest first, within each agent's capacity."""
    full, room = 0, max((agent.capacity for agent in agents), default=0)
    while full < room:  # the largest number that every agent with room for it can have
        middle = (full + room + 1) // 2
        if sum(min(agent.capacity, middle) for agent in agents) <= total:
            full = middle
        else:
            room = middle - 1
    shares = {agent.id: min(agent.capacity, full) for agent in agents}
    rest = total - sum(shares.values())
    for agent in [agent for agent in agents if agent.capacity > full][:rest]:
        shares[agent.id] += 1
    return shares


def assign(job: Job, out: frozenset[MemberId]) -> Assignment:
    """Return which members should train: those of the newest world first, then the oldest, as many as wanted.

    `out` are members that no world may take (rule 5). A member beyond its agent's wanted number trains until another
    one can replace it. That waits until the newest world is current: while workers start, each of them would form one
    more world.
    """
    newest = job.newest
    before = set(newest.members) if newest else set()
    fingerprint = job_fingerprint(job)
    usable = [
        m
        for m in job.workers.values()
        if not (m.draining or m.id in out or fingerprint_difference(fingerprint, m.fingerprint))
    ]
    usable.sort(key=lambda m: (m.id not in before, m.number))
    beyond = _beyond_wanted(job, usable)
    settled = newest is not None and newest.number == job.current
    if job.target.placement:
        usable = [m for m in usable if m.id not in beyond]
    elif settled:
        usable.sort(key=lambda m: m.id in beyond)
    else:
        usable.sort(key=lambda m: (m.id not in before, m.id in beyond))
    training = usable[: job.wanted_size]
    if not settled:
        return Assignment(training, [])
    needed = {m.id for m in training}.union(*(world.members for world in job.worlds))
    known = {agent.id for agent in job.agents}
    return Assignment(training, [m for m in beyond.values() if m.id not in needed and m.agent in known])


def _beyond_wanted(job: Job, members: list[Member]) -> dict[MemberId, Member]:
    """Return the members beyond the wanted number of their agents, counted in this order."""
    leaving = {agent.id for agent in job.agents if agent.draining}
    placement = {agent: count for agent, count in job.target.placement if agent not in leaving}
    room = dict(placement if job.target.placement else desired_workers(job))
    beyond = {}
    for member in members:
        room[member.agent] = room.get(member.agent, 0) - 1
        if room[member.agent] < 0:
            beyond[member.id] = member
    return beyond


def job_fingerprint(job: Job) -> Fingerprint:
    """Return the job's fingerprint: that of its first world, or the one that most candidates have."""
    return job.fingerprint or most_common(m.fingerprint for m in job.workers.values() if not m.draining)
