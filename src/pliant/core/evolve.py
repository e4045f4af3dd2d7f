"""What an event does to a job.

`evolve` never refuses and never reads a clock, so replaying the log gives the same state, byte for byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from pliant.core import messages as m
from pliant.core.doubts import SlotDisputed, StatesDiffered
from pliant.core.messages import Event
from pliant.core.model import Accusation, Agent, Job, Kind, Split, World, gone_limit

if TYPE_CHECKING:
    from dataclasses import replace as change
else:

    def change(job, /, **fields):
        """`dataclasses.replace`, ten times as fast: it is on the way of every event, and a job has many fields."""
        twin = object.__new__(type(job))
        twin.__dict__.update(job.__dict__)
        twin.__dict__.update(fields)
        return twin


DISPUTE_STEPS = 100  # so long a dispute counts: a machine that errs now and then is not found in a lifetime
DISPUTES_KEPT = 64
POISON_KEPT = 64  # slots that raised, the newest: two are enough to tell a bad sample from a bad machine


def evolve(job: Job | None, event: Event) -> Job:
    """The job after `event`. Never refuses: what is in the log happened."""
    if isinstance(event, m.JobCreated):
        return Job(event.name, event.size_min, event.size_max, event.target, event.wait_limit_s, event.max_restarts)
    if job is None:
        raise ValueError("the first event of a job is its creation")
    match event:
        case m.StepsCommitted():
            return change(job, durable=event.lines[-1].lineage)
        case m.TargetChanged():
            return change(job, target=event.target)
        case m.AgentJoined():
            others = tuple(agent for agent in job.agents if agent.id != event.agent)
            return change(job, agents=(*others, Agent(event.agent, event.capacity)))
        case m.AgentGone():
            return change(job, agents=tuple(agent for agent in job.agents if agent.id != event.agent))
        case m.MemberJoined():
            members = {**job.members, event.member.id: event.member}
            return change(job, members=members, joined=event.member.number, terms=event.terms)
        case m.MemberDraining():
            drained = replace(job.members[event.member], draining=True, grace_s=event.grace_s, why=event.why)
            return change(job, members={**job.members, event.member: drained})
        case m.MemberGone():
            return _without(job, event)
        case m.WorldFormed():
            return _with_world(job, event.world)
        case m.WorldEntered():
            return _with_current(job, event.generation)
        case m.WorldBroken():
            if event.entered:
                return change(job, broken=event.why, stateless=job.stateless or event.stateless)
            return change(job, faulty=job.faulty | {event.generation})
        case StatesDiffered():
            return _with_split(job, event)
        case SlotDisputed():
            recent = tuple(x for x in job.disputes if x.step > event.disputed.step - DISPUTE_STEPS)
            return change(job, disputes=(*recent, event.disputed)[-DISPUTES_KEPT:])
        case m.PairAccused():
            return change(job, accusations=_accused(job, event))
        case m.HoldersChanged():
            return change(job, holders=event.holders)
        case m.CheckpointPublished():
            return change(job, checkpoint=event.checkpoint)
        case m.SlotRaised():
            return change(job, poison=(*job.poison, event.poison)[-POISON_KEPT:])
        case m.WorkerFailed():
            return change(job, failures=job.failures + 1)
        case m.StateChanged():
            return change(job, state=event.state, why=event.why)
        case _:
            assert_never(event)


def _without(job: Job, event: m.MemberGone) -> Job:
    """Without that member: what it was in can no longer go on as it is."""
    member = event.member
    broken, faulty, dead = job.broken, set(job.faulty), job.dead
    for world in job.worlds:
        if member not in world.members:
            continue
        dead = dead | {member}
        if world.number == job.current or world.kind is not Kind.PLANNED:
            broken = broken or f"{member} {event.how}: {event.why}"
        else:
            faulty.add(world.number)
    return change(
        job,
        members={name: record for name, record in job.members.items() if name != member},
        gone=(*job.gone, member)[-gone_limit(job) :],
        holders=job.holders - {member},
        accusations=tuple(x for x in job.accusations if member not in (x.a, x.b)),
        disputes=tuple(x for x in job.disputes if member not in (x.dispute.a, x.dispute.b)),
        broken=broken,
        faulty=frozenset(faulty),
        dead=dead,
    )


def _with_world(job: Job, world: World) -> Job:
    inside = (job.members.get(name) for name in world.members)
    bits = job.bits or next((member.bits for member in inside if member is not None and member.bits), ())
    if world.kind is Kind.PLANNED:
        return change(job, generation=world.number, bits=bits, worlds=(*job.worlds, world))
    rolled_back = world.kind is Kind.ROLLBACK
    return change(
        job,
        generation=world.number,
        sealed=world.number - 1,
        worlds=(world,),
        broken="",
        stateless=False,
        spoilt=None,
        faulty=frozenset(),
        dead=frozenset(),
        floor=world.number if rolled_back else job.floor,
        durable=world.base,
        bits=bits,
        holders=frozenset() if rolled_back else job.holders.intersection(world.members),
    )


def _with_current(job: Job, generation: int) -> Job:
    worlds = tuple(world for world in job.worlds if world.number >= generation)
    inside = {name for world in worlds for name in world.members}
    entered = set(worlds[0].members)
    dead = job.dead & entered
    cannot = f"{', '.join(sorted(dead))} is gone" if dead else ""
    if generation in job.faulty:
        cannot = cannot or "not everybody could enter it"
    return change(
        job,
        current=generation,
        worlds=worlds,
        broken=cannot,
        stateless=False,
        faulty=frozenset(number for number in job.faulty if number > generation),
        dead=job.dead & inside,
        accusations=tuple(x for x in job.accusations if not {x.a, x.b} <= entered),
    )


def _with_split(job: Job, event: StatesDiffered) -> Job:
    known = job.splits if not beyond_splits(job) else ()
    return change(
        job,
        broken=event.why,
        stateless=job.stateless or event.back,
        spoilt=event.step if event.back else job.spoilt,
        splits=(*known, Split(event.generation, event.step)),
    )


def beyond_splits(job: Job) -> bool:
    """Whether the history got beyond the step at which states differed first: then whatever it was is over."""
    return not job.splits or job.durable.step > job.splits[0].step


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
