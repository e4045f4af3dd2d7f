"""How a job is shown to people and programs that ask for it."""

from __future__ import annotations

from collections import Counter

from pliant.core.membership import desired_workers
from pliant.core.model import Job, member_state, spare_why
from pliant.wire.api import AgentLine, JobLine, JobStatus, MemberLine


def line(job: Job, revision: int) -> JobLine:
    """One line of a list."""
    world = job.world(job.current)
    return JobLine(
        name=job.name,
        state=job.state,
        why=job.why,
        members=len(job.members),
        size=len(world.members) if world else 0,
        target=job.target.size,
        size_min=job.size_min,
        size_max=job.size_max,
        generation=job.current,
        step=job.durable.step,
        total_steps=job.terms.grid.total_steps if job.terms else None,
        epoch=_epoch(job),
        revision=revision,
    )


def _epoch(job: Job) -> int:
    """The epoch that the next step to be committed is in; the last one when all are."""
    if job.terms is None:
        return 0
    grid = job.terms.grid
    return min(job.durable.step // grid.steps_per_epoch, grid.epochs - 1)


def status(job: Job, revision: int) -> JobStatus:
    """Everything; costs as much as the job has members."""
    world = job.world(job.current)
    ranks = {member: rank for rank, member in enumerate(world.members)} if world else {}
    wanted, there = desired_workers(job), Counter(member.agent for member in job.members.values())
    members = sorted(job.members.values(), key=lambda member: (ranks.get(member.id, len(ranks)), member.number))
    return JobStatus(
        job=line(job, revision),
        target=job.target,
        wait_limit_s=job.wait_limit_s,
        max_restarts=job.max_restarts,
        failures=job.failures,
        broken=job.broken,
        members=tuple(
            MemberLine(
                id=member.id,
                state=member_state(job, member.id),
                rank=ranks.get(member.id),
                agent=member.agent,
                number=member.number,
                pid=member.pid,
                why=member.why or spare_why(job, member.id),
            )
            for member in members
        ),
        agents=tuple(
            AgentLine(agent.id, agent.capacity, wanted.get(agent.id, 0), there[agent.id]) for agent in job.agents
        ),
        durable=job.durable,
        checkpoint=job.checkpoint,
    )
