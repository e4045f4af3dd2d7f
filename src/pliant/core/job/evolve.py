"""Apply events to a job.

`evolve` never refuses and never reads a clock, so replaying the log gives the same state, byte for byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from pliant.core import messages as m
from pliant.core.data.ledger import LedgerLine, Lineage, with_changes_of
from pliant.core.job.checkpoints import checkpoint_step
from pliant.core.job.failures import counted_failures
from pliant.core.messages import Event, SlotDisputed, StatesDiffered
from pliant.core.messages.describe import describe_departure
from pliant.core.model.checkpoint import UnfinishedCheckpoint
from pliant.core.model.copies import change
from pliant.core.model.job import Accusation, Agent, Job, JobState, Member, StateDivergence, WorkerFailure, member_limit
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId
from pliant.core.model.view import kept_checkpoints
from pliant.core.model.world import World, WorldKind
from pliant.core.ps.evolve import evolve_servers, without_servers
from pliant.core.ps.messages import LayoutChanged, ServerEvent, ServerJoined
from pliant.core.tasks.evolve import evolve_tasks, without_member, without_members
from pliant.core.tasks.messages import ModelSaved, ShardDone, TaskEvent, TaskMemberJoined

DISPUTE_STEPS = 100  # a dispute counts this long; rare errors of one machine cannot be attributed
DISPUTES_KEPT = 64
ENDS_KEPT = 4096  # of one launch; only a launch that refills seats without end has more
DAMAGED_KEPT = 16  # names of skipped checkpoints
UNFINISHED_KEPT = 4  # older ones will never be finished
FAILING_SLOTS_KEPT = 64  # the newest; two are enough to distinguish a bad sample from a bad machine


def evolve(job: Job | None, event: Event) -> Job:
    """Return the job after `event`."""
    if isinstance(event, m.JobCreated):
        return _created(job, event)
    if job is None:
        raise ValueError("the first event of a job must be JobCreated")
    job = _charged(job, event)
    match event:
        case m.StepsCommitted():
            return _with_steps(_with_batches(job, event.lines), event.lines[-1].lineage)
        case m.StateChanged():
            return _in_state(job, event)
        case m.CheckpointPublished() | m.PartWritten() | m.CheckpointFailed() | m.CheckpointUnreadable():
            return _with_checkpoints(job, event)
        case m.SettingsChanged():
            return change(job, spec=event.spec, target=event.target)
        case m.PriceChanged():
            return change(job, price=event.price, spent_at=max(job.spent_at, event.at))
        case m.TargetChanged() | m.Granted() | m.Advised() | m.WorkersPermitted() | m.PermitReturned():
            return _with_size(job, event)
        case m.AgentJoined() | m.AgentGone():
            return _with_agents(job, event)
        case m.AgentReadied():
            return change(job, agents=_with_agent(job, event.agent, ports=event.ports))
        case m.AgentDraining():
            return change(job, agents=_with_agent(job, event.agent, draining=True, grace_s=event.grace_s))
        case m.Launched(launch=launch):
            return _with_launch(job, launch)
        case m.SeatEnded() | m.SeatRefilled() | m.LaunchOver():
            return change(job, launch=_launch_after(job, event))
        case m.MemberJoined():
            return change(_with_member(job, event.member), terms=event.terms)
        case m.MemberDraining():
            return _with_draining(job, event)
        case m.MemberGone():
            return _without_member(job, event)
        case m.WorldFormed():
            return _with_world(job, event.world)
        case m.WorldEntered():
            return _with_current(job, event.generation)
        case m.WorldBroken():
            return _with_broken_world(job, event)
        case StatesDiffered():
            return _with_divergence(job, event)
        case SlotDisputed():
            recent = tuple(x for x in job.disputes if x.step > event.disputed.step - DISPUTE_STEPS)
            return change(job, disputes=(*recent, event.disputed)[-DISPUTES_KEPT:])
        case m.PairAccused():
            return change(job, accusations=_accused(job, event))
        case m.HoldersChanged():
            return change(job, holders=event.holders)
        case m.CheckpointRequested():
            return change(job, checkpoint_wanted_at_step=event.step)
        case m.SlotRaised():
            return change(job, failing_slots=(*job.failing_slots, event.failing_slots)[-FAILING_SLOTS_KEPT:])
        case m.WorkerFailed():
            return change(job, failures=(*counted_failures(job, event.at), WorkerFailure(event.at, job.furthest_step)))
        case _ if isinstance(event, TaskEvent | ServerEvent):
            return _with_task_event(job, event) if isinstance(event, TaskEvent) else _with_server_event(job, event)
        case _:
            assert_never(event)


def _charged(job: Job, event: Event) -> Job:
    """Add the cost of the time before an event. Steps change neither workers nor the price."""
    if not job.price or isinstance(event, m.StepsCommitted):
        return job
    return change(job, spent=job.spent_by(event.at), spent_at=max(job.spent_at, event.at))


def _with_launch(job: Job, launch: Launch) -> Job:
    seated = {seat.agent for seat in launch.seats}
    agents = tuple(replace(agent, ports=()) if agent.id in seated else agent for agent in job.agents)
    return change(job, launch=launch, agents=agents, generation=launch.number, sealed=launch.number)


def _with_draining(job: Job, event: m.MemberDraining) -> Job:
    drained = replace(job.members[event.member], draining=True, grace_s=event.grace_s, why=event.why)
    return change(job, members={**job.members, event.member: replace(drained, immediate=event.immediate)})


def _with_task_event(job: Job, event: TaskEvent) -> Job:
    tasks = evolve_tasks(job.tasks, event)
    match event:
        case TaskMemberJoined():
            member = Member(event.member, event.number, event.agent, address=event.address, pid=event.pid)
            return change(_with_member(job, member), tasks=tasks)
        case ModelSaved(attempts=attempts) if attempts:
            return change(job, tasks=tasks, losses_without_progress=0, furthest_step=job.furthest_step + len(attempts))
        case ShardDone():
            return change(job, tasks=tasks, losses_without_progress=0, furthest_step=job.furthest_step + 1)
        case _:
            return change(job, tasks=tasks)


def _with_server_event(job: Job, event: ServerEvent) -> Job:
    table = evolve_servers(job.ps, event, job.attempt)
    if isinstance(event, LayoutChanged):
        return change(job, ps=table, generation=table.layout.number)
    if not isinstance(event, ServerJoined):
        return change(job, ps=table)
    member = Member(event.member, event.number, event.agent, address=event.address, pid=event.pid, is_server=True)
    members = {**job.members, member.id: member}
    return change(job, ps=table, members=members, joined=event.number)


def _with_steps(job: Job, head: Lineage) -> Job:
    if head.step <= job.furthest_step:
        return change(job, durable=head)
    return change(job, durable=head, furthest_step=head.step, losses_without_progress=0)


def _with_batches(job: Job, lines: tuple[LedgerLine, ...]) -> Job:
    """Record the changes of the batch that these lines agreed on."""
    if job.terms is None or not any(line.next_batch for line in lines):
        return job
    return change(job, terms=job.terms.with_changes(with_changes_of(job.terms.grid, lines).changes))


def _in_state(job: Job, event: m.StateChanged) -> Job:
    since = job.state_since if event.state is job.state else event.at
    if event.state is JobState.FINISHED and job.checkpoint is not None and job.checkpoint.lineage == job.durable:
        job = change(job, checkpoint_wanted_at_step=None)  # no later state will exist
    return change(job, state=event.state, why=event.why, ends_as=event.ends_as, state_since=since)


def _created(job: Job | None, event: m.JobCreated) -> Job:
    """Create a job, or its next attempt. Generations and names of members are never used twice."""
    created = Job(
        name=event.name,
        spec=event.spec,
        target=event.spec.target_at(job.furthest_step if job is not None and event.resumes else 0),
        attempt=event.attempt,
        created_at=event.at if job is None else job.created_at,
        state_since=event.at,
    )
    if job is None:
        return created
    left = sorted(
        job.members.values(), key=lambda member: member.number
    )  # a stored job has its members in another order
    created = change(
        created,
        generation=job.generation,
        generation_before=job.generation,
        history_from_generation=job.generation,
        sealed=job.generation,
        joined=job.joined,
        gone=(*job.gone, *(member.id for member in left))[-member_limit(created) :],
    )
    if not event.resumes:
        return created
    return change(
        created,
        history_from_generation=job.history_from_generation,
        terms=job.terms,
        durable=job.durable,
        furthest_step=job.furthest_step,
        checkpoint=job.checkpoint,
        older_checkpoints=job.older_checkpoints,
        damaged=job.damaged,
        fingerprint=job.fingerprint,
        rollback_generation=job.rollback_generation,
        tasks=without_members(job.tasks) if job.tasks is not None else None,
        ps=without_servers(job.ps) if job.ps is not None else None,
        spent=job.spent,
    )


def _with_checkpoints(
    job: Job, event: m.CheckpointPublished | m.PartWritten | m.CheckpointFailed | m.CheckpointUnreadable
) -> Job:
    match event:
        case m.CheckpointPublished(checkpoint=newest):
            before = (job.checkpoint,) if job.checkpoint is not None else ()
            earlier = (*job.older_checkpoints, *before)
            step = newest.lineage.step
            return change(
                job,
                checkpoint=newest,
                older_checkpoints=earlier[max(len(earlier) + 1 - job.spec.checkpoints.keep, 0) :],
                unfinished_checkpoints=tuple(each for each in job.unfinished_checkpoints if each.lineage.step > step),
                checkpoint_wanted_at_step=None
                if job.checkpoint_wanted_at_step is not None and step >= job.checkpoint_wanted_at_step
                else job.checkpoint_wanted_at_step,
                cannot_read=frozenset(),
            )
        case m.PartWritten(checkpoint=part):
            known = next((each for each in job.unfinished_checkpoints if each.name == part.name), None)
            writing = known or UnfinishedCheckpoint(
                part.lineage, part.name, part.state, event.count, storage_id=part.storage_id
            )
            writing = replace(writing, pieces=(*writing.pieces, (event.part, part.pieces)))
            return change(job, unfinished_checkpoints=_with_unfinished(job, writing))
        case m.CheckpointFailed(name=name, split_storage=True) if name in kept_checkpoints(job):
            return change(
                job, split_storage=True
            )  # it was published before a member found that its parts lie in different places
        case m.CheckpointFailed():
            writing = UnfinishedCheckpoint(job.durable, event.name, 0, 0, failed=True)
            # The event reports the failure; another attempt at every step would not help.
            wanted = (
                job.checkpoint_wanted_at_step is not None
                and checkpoint_step(event.name) < job.checkpoint_wanted_at_step
            )
            return change(
                job,
                unfinished_checkpoints=_with_unfinished(job, writing),
                checkpoint_wanted_at_step=job.checkpoint_wanted_at_step if wanted else None,
                split_storage=job.split_storage or event.split_storage,
            )
        case m.CheckpointUnreadable(damaged=True):
            newest_left = job.older_checkpoints[-1] if job.older_checkpoints else None
            damaged = (*job.damaged, event.name)[-DAMAGED_KEPT:]
            return change(
                job,
                checkpoint=newest_left,
                older_checkpoints=job.older_checkpoints[:-1],
                damaged=damaged,
                cannot_read=frozenset(),
            )
        case m.CheckpointUnreadable():
            return change(job, cannot_read=job.cannot_read | {event.member})


def _with_unfinished(job: Job, writing: UnfinishedCheckpoint) -> tuple[UnfinishedCheckpoint, ...]:
    """Drop failed checkpoints first: on a slow disk others fail while one is being written."""
    others = (each for each in job.unfinished_checkpoints if each.name != writing.name)
    return tuple(sorted((*others, writing), key=lambda each: not each.failed)[-UNFINISHED_KEPT:])


def _with_size(job: Job, event: m.TargetChanged | m.Granted | m.Advised | m.WorkersPermitted | m.PermitReturned) -> Job:
    match event:
        case m.TargetChanged():
            return change(job, target=event.target, advised=0, advised_why="")
        case m.Advised():
            return change(job, advised=event.size, advised_why=event.why)
        case m.Granted():
            return change(job, granted=event.size, granted_why=event.why)
        case m.PermitReturned():
            return change(job, permits={name: agent for name, agent in job.permits.items() if name != event.worker})
        case m.WorkersPermitted():
            (known,) = (agent for agent in job.agents if agent.id == event.agent)
            agents = _with_agent(job, event.agent, permitted=known.permitted + len(event.workers))
            return change(job, agents=agents, permits=job.permits | dict.fromkeys(event.workers, event.agent))


def _with_agents(job: Job, event: m.AgentJoined | m.AgentGone) -> Job:
    """An agent joined, joined again or left. In every case the workers it had are gone."""
    others = tuple(agent for agent in job.agents if agent.id != event.agent)
    permits = {name: agent for name, agent in job.permits.items() if agent != event.agent}
    if isinstance(event, m.AgentGone):
        why = f"agent {event.agent} is gone: {event.why}"
        launch = _launch_without(job, event.agent, why, is_cause=event.lost)
        return change(job, agents=others, launch=launch, permits=permits)
    agent = Agent(event.agent, event.capacity, event.address, event.install_id, event.run_id, role=event.role)
    if job.spec.queue:
        known = next((each for each in job.agents if (each.id, each.run_id) == (agent.id, agent.run_id)), None)
        permits = job.permits if known is not None else permits | dict.fromkeys(event.workers, agent.id)
        agent = replace(agent, permitted=max(event.started, known.permitted if known is not None else 0))
    launch = _launch_without(job, event.agent, f"{event.agent} was started again")
    return change(job, agents=(*others, agent), launch=launch, permits=permits)


def _with_member(job: Job, member: Member) -> Job:
    """Add a member. In a queue a launched worker has a permit from then on, as have the others of its launch.

    A member without an agent has none: no agent reports its end.
    """
    joined = change(job, members={**job.members, member.id: member}, joined=member.number)
    if not job.spec.queue:
        return joined
    known = any(agent.id == member.agent for agent in job.agents)
    return change(joined, permits=job.occupants | ({member.id: member.agent} if known else {}))


def _with_agent(job: Job, name: AgentId, **fields: Any) -> tuple[Agent, ...]:
    return tuple(replace(agent, **fields) if agent.id == name else agent for agent in job.agents)


def _launch_without(job: Job, agent: AgentId, why: str, *, is_cause: bool = False) -> Launch | None:
    """Return the launch after the end of that agent's workers, other than those that had ended well.

    The launch loses the agent unless it had reported ready: other workers may have failed because of that, and
    `is_cause` makes it the reason why the launch is over.
    """
    launch = job.launch
    if launch is None or job.is_live or all(seat.agent != agent for seat in launch.seats):
        return launch
    is_lost = any(known.id == agent and not known.ports for known in job.agents)
    if is_lost:
        launch = replace(launch, lost=launch.lost | {agent})
    if launch.over:
        return replace(launch, over=why) if is_lost and is_cause else launch
    ran = any(seat.agent == agent and seat.member not in launch.done for seat in launch.seats)
    return replace(launch, over=why) if ran else launch


def _launch_after(job: Job, event: m.SeatEnded | m.SeatRefilled | m.LaunchOver) -> Launch:
    launch = job.launch
    if launch is None or launch.number != event.generation:
        raise ValueError(f"no launch {event.generation}")
    match event:
        case m.SeatEnded():
            return replace(launch, ends=(*launch.ends, event.end)[-ENDS_KEPT:])
        case m.SeatRefilled():
            seats = [*launch.seats]
            seats[event.rank] = replace(seats[event.rank], member=event.member)
            return replace(launch, seats=tuple(seats))
        case m.LaunchOver():
            return replace(launch, over=event.why)


def _without_member(job: Job, event: m.MemberGone) -> Job:
    """Remove a member. The worlds it was in cannot go on as they are."""
    member = event.member
    broken, unenterable, gone = job.broken, set(job.unenterable_generations), job.gone_in_open_worlds
    for world in job.worlds:
        if member not in world.members:
            continue
        gone = gone | {member}
        if world.number == job.current or world.kind is not WorldKind.PLANNED:
            broken = broken or f"{member} {describe_departure(event.how)}: {event.why}"
        else:
            unenterable.add(world.number)
    return change(
        job,
        members={name: record for name, record in job.members.items() if name != member},
        gone=(*job.gone, member)[-member_limit(job) :],
        holders=job.holders - {member},
        accusations=tuple(x for x in job.accusations if member not in (x.a, x.b)),
        disputes=tuple(x for x in job.disputes if member not in (x.dispute.a, x.dispute.b)),
        broken=broken,
        unenterable_generations=frozenset(unenterable),
        gone_in_open_worlds=gone,
        losses_without_progress=job.losses_without_progress + (event.how == "lost" and member in job.workers),
        tasks=without_member(job.tasks, member, lost=event.how == "lost") if job.tasks is not None else None,
    )


def _with_world(job: Job, world: World) -> Job:
    inside = (job.members.get(name) for name in world.members)
    fingerprint = job.fingerprint or next(
        (member.fingerprint for member in inside if member is not None and member.fingerprint), ()
    )
    if world.kind is WorldKind.PLANNED:
        return change(job, generation=world.number, fingerprint=fingerprint, worlds=(*job.worlds, world))
    rolled_back = world.kind is WorldKind.ROLLBACK
    if job.terms is not None and job.terms.grid.changes:
        job = change(job, terms=replace(job.terms, grid=job.terms.grid.up_to(world.base.step)))
    return change(
        job,
        generation=world.number,
        sealed=world.number - 1,
        worlds=(world,),
        broken="",
        stateless=False,
        untrusted_after_step=None,
        unenterable_generations=frozenset(),
        gone_in_open_worlds=frozenset(),
        rollback_generation=world.number if rolled_back else job.rollback_generation,
        durable=world.base,
        unfinished_checkpoints=(),
        checkpoint_wanted_at_step=None
        if job.checkpoint_wanted_at_step is None
        else min(job.checkpoint_wanted_at_step, world.base.step),
        fingerprint=fingerprint,
        holders=frozenset() if rolled_back else job.holders.intersection(world.members),
    )


def _with_broken_world(job: Job, event: m.WorldBroken) -> Job:
    if event.entered:
        return change(job, broken=event.why, stateless=job.stateless or event.stateless)
    return change(job, unenterable_generations=job.unenterable_generations | {event.generation})


def _with_current(job: Job, generation: int) -> Job:
    worlds = tuple(world for world in job.worlds if world.number >= generation)
    inside = {name for world in worlds for name in world.members}
    entered = set(worlds[0].members)
    gone = job.gone_in_open_worlds & entered
    cannot = f"{', '.join(sorted(gone))} is gone" if gone else ""
    if generation in job.unenterable_generations:
        cannot = cannot or "not every member could enter it"
    return change(
        job,
        current=generation,
        worlds=worlds,
        broken=cannot,
        stateless=False,
        unenterable_generations=frozenset(number for number in job.unenterable_generations if number > generation),
        gone_in_open_worlds=job.gone_in_open_worlds & inside,
        accusations=tuple(x for x in job.accusations if not {x.a, x.b} <= entered),
    )


def _with_divergence(job: Job, event: StatesDiffered) -> Job:
    known = job.state_divergences if not is_past_divergence(job) else ()
    return change(
        job,
        broken=event.why,
        stateless=job.stateless or event.rolls_back,
        untrusted_after_step=event.step if event.rolls_back else job.untrusted_after_step,
        state_divergences=(*known, StateDivergence(event.generation, event.step)),
    )


def is_past_divergence(job: Job) -> bool:
    """Return whether the history passed the first step at which states differed: then the cause is gone."""
    return not job.state_divergences or job.durable.step > job.state_divergences[0].step


def _accused(job: Job, event: m.PairAccused) -> tuple[Accusation, ...]:
    others = []
    generations: tuple[int, ...] = ()
    for known in job.accusations:
        if (known.a, known.b) == (event.a, event.b):
            generations = known.generations
        else:
            others.append(known)
    if event.generation not in generations:
        generations += (event.generation,)
    return (*others, Accusation(event.a, event.b, generations))
