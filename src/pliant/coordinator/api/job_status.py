"""The status of a job, as shown to people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf
from types import MappingProxyType

from pliant.core.allocate import Allotment, Demand, Pool
from pliant.core.allocate.machines import LentMachine
from pliant.core.job.assignment import desired_workers
from pliant.core.model.job import Job
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState, member_state, mismatch_why
from pliant.wire.api import AgentLine, JobLine, JobStatus, MemberLine, PoolStatus, QueueLine, TaskProgress, WorkerUsage

NO_USES: Mapping[MemberId, WorkerUsage] = MappingProxyType({})


def job_line(job: Job, revision: int, silent_s: float | None = None) -> JobLine:
    """Return the line of a job in a list. `silent_s` is how long no message arrived, if the coordinator is isolated."""
    world = job.world(job.current)
    launch = _running(job)
    size = len(world.members) if world else 0
    tasks = _task_progress(job)
    if tasks is not None:
        size = len(job.members)
    return JobLine(
        name=job.name,
        state=job.state,
        why=job.why,
        members=len(launch.seats) if launch else len(job.members),
        size=len(launch.seats) if launch else size,
        target=job.target.size,
        size_min=job.spec.size_min,
        size_max=job.spec.size_max,
        generation=job.generation if not job.is_live else job.current,
        step=tasks.done if tasks else job.durable.step,
        total_steps=tasks.total if tasks else job.terms.grid.total_steps if job.terms else None,
        epoch=tasks.epoch if tasks else _epoch(job),
        revision=revision,
        since=job.state_since,
        warning=_describe_isolation(job, silent_s),
    )


def _task_progress(job: Job) -> TaskProgress | None:
    state = job.tasks
    if state is None:
        return None
    done, terms = state.wanted_done, state.terms
    return TaskProgress(
        done=done,
        total=terms.wanted[1],
        held=len(state.held),
        returned=len(state.returned),
        attempts=state.attempts,
        evaluations=state.evaluations,
        awaits_records=terms.awaits_records,
        epoch=0 if terms.only_evaluates or terms.growing else min(done // terms.shards_per_epoch, terms.epochs - 1),
    )


def _describe_isolation(job: Job, silent_s: float | None) -> str:
    """Warn while members count as alive that send no messages: their status may be out of date."""
    if silent_s is None or job.state.ended or not (job.members or job.agents):
        return ""
    lasts = "no message arrived yet" if silent_s == inf else f"no message arrived for {silent_s:.0f} s"
    return f"{lasts}: this coordinator may be isolated, so no member expires until a message arrives"


def _epoch(job: Job) -> int:
    """Return the epoch of the next step to be committed, or the last one when all steps are."""
    if job.terms is None:
        return 0
    grid = job.terms.grid
    return min(grid.stretch(job.durable.step + 1).epoch, grid.epochs - 1)


def _running(job: Job) -> Launch | None:
    """Return the launch whose workers run, if there is one. Their agents report them; they have not joined."""
    launch = None if job.is_live or job.state.ended else job.launch
    return launch if launch is not None and not launch.over else None


def _seats(launch: Launch, uses: Mapping[MemberId, WorkerUsage]) -> Iterator[MemberLine]:
    done = launch.done
    for rank, seat in enumerate(launch.seats):
        if seat.member in done:
            continue
        use = uses.get(seat.member)
        taken = (use.cpu, use.rss_bytes) if use else (None, None)
        yield MemberLine(seat.member, MemberState.ACTIVE, rank, seat.agent, 0, use.pid if use else None, "", *taken)


def _agent_lines(job: Job, wanted: Mapping[AgentId, int], present: Mapping[AgentId, int]) -> Iterator[AgentLine]:
    for each in job.agents:
        yield AgentLine(
            id=each.id,
            capacity=each.capacity,
            wanted=wanted.get(each.id, 0),
            members=present[each.id],
            address=each.address,
            draining=each.draining,
            role=each.role,
            grace_s=each.grace_s,
        )


def job_status(
    job: Job, revision: int, wall: float, uses: Mapping[MemberId, WorkerUsage] = NO_USES, silent_s: float | None = None
) -> JobStatus:
    """Return the full status at a time. `uses` is the last resource use of workers.

    It takes as long as the job has members.
    """
    launch = _running(job)
    world = job.world(job.current)
    ranks = {member: rank for rank, member in enumerate(world.members)} if world else {}
    running = launch.seats if launch else job.members.values()
    wanted, present = desired_workers(job), Counter(each.agent for each in running)
    members = sorted(job.members.values(), key=lambda member: (ranks.get(member.id, len(ranks)), member.number))
    return JobStatus(
        job=job_line(job, revision, silent_s),
        spec=job.spec,
        target=job.target,
        failures=len(job.failures),
        broken=job.broken,
        members=tuple(_seats(launch, uses))
        if launch
        else tuple(
            MemberLine(
                id=member.id,
                state=MemberState.ENDED if job.state.ended else member_state(job, member.id),
                rank=ranks.get(member.id),
                agent=member.agent,
                number=member.number,
                pid=None if job.state.ended else member.pid or None,
                why=member.why or mismatch_why(job, member.id),
                cpu=uses[member.id].cpu if member.id in uses else None,
                rss_bytes=uses[member.id].rss_bytes if member.id in uses else None,
                holds=member.id in job.holders,
            )
            for member in members
        ),
        agents=tuple(_agent_lines(job, wanted, present)),
        durable=job.durable,
        checkpoint=job.checkpoint,
        older_checkpoints=job.older_checkpoints,
        checkpoint_wanted=job.checkpoint_wanted_at_step is not None,
        created_at=job.created_at,
        live=job.is_live,
        attempt=job.attempt,
        granted=job.granted if job.spec.queue else None,
        granted_why=job.granted_why,
        advised=job.advised,
        advised_why=job.advised_why,
        tasks=_task_progress(job),
        tables_whole=job.ps is None or job.ps.layout.is_whole,
        price=job.price,
        spent=job.spent_by(wall),
    )


def pool_status(
    pool: Pool | None,
    shown: tuple[tuple[Demand, Allotment], ...],
    machines: tuple[LentMachine, ...],
    find: Callable[[str], Job | None],
    wall: float,
) -> PoolStatus:
    """Return the pool, the jobs that share it by rank, and the lent machines. `find` returns a loaded job."""
    lines = (
        QueueLine(
            name=demand.name,
            queue=demand.queue,
            priority=demand.priority,
            size_min=demand.size_min,
            wanted=demand.wanted,
            granted=found.size,
            held=demand.held,
            position=found.position,
            reason=found.reason.value,
            why=found.why,
            spent=job.spent_by(wall),
            at_most_cost=job.spec.at_most_cost,
            deadline=job.spec.deadline,
        )
        for demand, found in shown
        if (job := find(demand.name)) is not None
    )
    return PoolStatus(pool, tuple(lines), machines)
