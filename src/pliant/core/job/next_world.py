"""Who is in the next world, and why not yet.

`decide` (in `pliant.core.job.decide`) records what happened to a job; `next_consequence` looks at the result and
says what follows: a world to form, a member to bar, another state or reason to show. It is called again until it
has nothing to say, so each call does one thing. No function here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from pliant.core.data.ledger import GENESIS
from pliant.core.job.launches import next_launch, seats_per_agent
from pliant.core.messages import Event, MemberGone, StateChanged, WorldFormed
from pliant.core.model.fingerprint import Fingerprint, fingerprint_difference, most_common
from pliant.core.model.job import Job, JobState, Member
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind

BAD_PAIR_FAILURES = 3  # failed wirings naming one pair before one of the two is left out (rule 11)
OPEN_MAX = 8  # open generations before a recovery seals them all: a bound on what members must keep in mind


@dataclass(frozen=True, slots=True)
class NoWorldYet:
    """No world can train now."""

    why: str


@dataclass(frozen=True, slots=True)
class KeepWorlds:
    """The worlds there are will do."""

    why: str


def next_consequence(job: Job, now: float) -> tuple[Event, ...]:
    """Call after commands were decided, until it returns nothing. A settled job gives `()` again and again."""
    if job.state.ended:
        return ()
    if not job.is_live:
        return next_launch(job, now)
    barred = _member_to_bar(job, now)
    if barred is not None:
        return (barred,)
    verdict = next_world(job)
    match verdict:
        case World():
            return (WorldFormed(now, verdict),)
        case NoWorldYet(why):
            state = JobState.WAITING
        case KeepWorlds(why):
            state = JobState.RUNNING if job.current else JobState.STARTING
    if (state, why) == (job.state, job.why):
        return ()
    return (StateChanged(now, state, why),)


def next_world(job: Job) -> World | NoWorldYet | KeepWorlds:
    """The world that is due, or the reason why none is."""
    if job.terms is None:
        return NoWorldYet("no member has joined yet")
    survivors = _survivors(job)
    newest = job.newest
    if newest is None or not survivors or job.stateless:
        return _rollback(job, survivors)
    if job.broken:
        return _recovery(job, survivors, job.broken)
    current = job.world(job.current)
    if current is not None and current.hold:
        return _end_of_hold(job, survivors)
    if newest.kind is not WorldKind.PLANNED and newest.number != job.current:
        return KeepWorlds(newest.why)  # the members are on their way into it
    return _planned(job, newest, survivors)


# ------------------------------------------------------------------------------------------ kinds of world


def _planned(job: Job, newest: World, survivors: list[Member]) -> World | NoWorldYet | KeepWorlds:
    """Another membership, entered by the switch while the present one goes on (rules 5, 8, 16)."""
    out = members_left_out(job.worlds)
    chosen = _choose(job, out)
    if not chosen:
        return KeepWorlds("every member is leaving, and nobody is there to take the state over")
    bridge: list[Member] = []
    if not any(member.id in job.holders for member in chosen):
        # Nobody who stays is known to hold the state: old and new together first (rule 16).
        bridge = [m for m in survivors if m.id not in out and m.id in job.holders]
        if not bridge:
            return KeepWorlds("waiting to hear who holds the state")
    members = _ordered(job, bridge + chosen)
    hold = len(members) < job.spec.size_min
    names = tuple(member.id for member in members)
    if names == newest.members and hold == newest.hold and newest.number not in job.unenterable_generations:
        return KeepWorlds(newest.why)
    why = _describe_change(newest, names)
    if len(job.worlds) >= OPEN_MAX:
        return _recovery(job, survivors, f"{len(job.worlds)} planned worlds could not be entered; {why}")
    if hold:
        why = f"{_too_few(job, len(members))}; {why}"
    return _world(job, WorldKind.PLANNED, members, why, hold=hold)


def _recovery(job: Job, survivors: list[Member], why: str) -> World | NoWorldYet:
    """Everybody in an open generation who is not gone, lingering leavers too (rule 11); joiners only to reach min."""
    members = survivors
    if len(survivors) < job.spec.size_min:
        present = {member.id for member in survivors}
        joiners = [m for m in _choose(job, frozenset()) if m.id not in present]
        members = survivors + joiners
    if len(members) < job.spec.size_min:
        return NoWorldYet(f"{_too_few(job, len(members))}; {why}")
    return _world(job, WorldKind.RECOVERY, _ordered(job, members), why)


def _rollback(job: Job, survivors: list[Member]) -> World | NoWorldYet:
    """Nobody holds a state to go on from: the newest checkpoint, or the very beginning (rules 4, 12)."""
    chosen = _choose(job, frozenset())
    if not job.rollback_generation:
        why = "the job starts"
    else:
        base = job.checkpoint.lineage.step if job.checkpoint else 0
        cause = job.broken if survivors else "every member is gone"
        why = f"{cause}: back to step {base}, {_describe_loss(job, base)}"
    if len(chosen) < job.spec.size_min:
        return NoWorldYet(f"{_too_few(job, len(chosen))}; {why}")
    able_first = sorted(
        _ordered(job, chosen), key=lambda member: member.id in job.cannot_read
    )  # rank 0 reads for everybody
    return _world(job, WorldKind.ROLLBACK, able_first, why)


def _describe_loss(job: Job, base: int) -> str:
    """What a rollback costs, in words."""
    if job.untrusted_after_step is not None:
        again = (
            f"; steps {base + 1} to {job.untrusted_after_step} are computed again"
            if job.untrusted_after_step > base
            else ""
        )
        return f"the last that was agreed on{again}"
    return f"steps {base + 1} to {job.durable.step} are gone" if job.durable.step > base else "no step is gone"


def _end_of_hold(job: Job, survivors: list[Member]) -> World | NoWorldYet:
    """A world that holds is left by a recovery, since without steps there are no words to switch by."""
    chosen = _choose(job, members_left_out(job.worlds))
    if len(chosen) < job.spec.size_min:
        return NoWorldYet(_too_few(job, len(chosen)))
    present = {member.id for member in survivors}
    members = survivors + [m for m in chosen if m.id not in present]
    return _world(job, WorldKind.RECOVERY, _ordered(job, members), "enough members again")


def _world(job: Job, kind: WorldKind, members: list[Member], why: str, *, hold: bool = False) -> World:
    base = job.durable
    if kind is WorldKind.ROLLBACK:
        base = job.checkpoint.lineage if job.checkpoint else GENESIS
    return World(
        number=job.generation + 1,
        kind=kind,
        members=tuple(member.id for member in members),
        weights=tuple(member.weight for member in members),
        base=base,
        hold=hold,
        why=why,
        addresses=tuple(member.address for member in members),
        rollback_generation=job.generation + 1 if kind is WorldKind.ROLLBACK else job.rollback_generation,
    )


# ------------------------------------------------------------------------------------------------ choices


def members_left_out(worlds: tuple[World, ...]) -> frozenset[MemberId]:
    """Whom an open world leaves out though an earlier open one had them: never taken back (rule 5)."""
    out: set[MemberId] = set()
    seen: set[MemberId] = set()
    for world in worlds:
        seen.update(world.members)
        out.update(seen.difference(world.members))
    return frozenset(out)


def wanted_size(job: Job) -> int:
    """How many members the job wants at work: members beyond the slots would own nothing."""
    return min(job.target.size, job.spec.size_max, job.slots)


def desired_workers(job: Job) -> dict[AgentId, int]:
    """How many workers each agent should run, for the supervisors.

    An exact placement is taken as it is. A number is spread, spares with it: one more to the agent with the fewest,
    first come first, never beyond an agent's capacity. Draining members are not counted on: their replacement may start
    early. While workers are launched together this is only for people: the launch says who starts what.
    """
    if job.state.ended:
        return {agent.id: 0 for agent in job.agents}
    if not job.is_live:
        return seats_per_agent(job)
    capacity = {agent.id: agent.capacity for agent in job.agents}
    if job.target.placement:
        wanted = dict(job.target.placement)
        return {agent: min(wanted.get(agent, 0), room) for agent, room in capacity.items()}
    share = dict.fromkeys(capacity, 0)
    fewest = [(0, turn, agent.id) for turn, agent in enumerate(job.agents) if agent.capacity]
    for _ in range(min(job.target.size + job.spec.spares, sum(capacity.values()))):
        count, turn, name = heappop(fewest)
        share[name] = count + 1
        if count + 1 < capacity[name]:
            heappush(fewest, (count + 1, turn, name))
    return share


def _choose(job: Job, out: frozenset[MemberId]) -> list[Member]:
    """Who should be at work: those already there first, then the oldest, as many as wanted."""
    at_work = set(job.newest.members) if job.newest else set()
    bits = _job_fingerprint(job)
    pool = [
        m
        for m in job.members.values()
        if not (m.draining or m.id in out or fingerprint_difference(bits, m.fingerprint))
    ]
    pool.sort(key=lambda m: (m.id not in at_work, m.number))
    limit = wanted_size(job)
    if not job.target.placement:
        return pool[:limit]
    room = dict(job.target.placement)
    chosen: list[Member] = []
    for member in pool:
        if room.get(member.agent, 0) > 0 and len(chosen) < limit:
            room[member.agent] -= 1
            chosen.append(member)
    return chosen


def _job_fingerprint(job: Job) -> Fingerprint:
    """Which bits are computed in this job: the first world's, or those that most of its candidates would."""
    return job.fingerprint or most_common(m.fingerprint for m in job.members.values() if not m.draining)


def _ordered(job: Job, members: list[Member]) -> list[Member]:
    """Stable ranks: survivors of the newest world keep their order, newcomers fill the holes by age."""
    here = {member.id: member for member in members}
    before = job.newest.members if job.newest else ()
    old = set(before)
    newcomers = sorted((m for m in members if m.id not in old), key=lambda m: -m.number)
    ordered: list[Member] = []
    for name in before:
        if name in here:
            ordered.append(here[name])
        elif newcomers:
            ordered.append(newcomers.pop())
    return ordered + newcomers[::-1]


def _survivors(job: Job) -> list[Member]:
    """Every member of an open generation that is not gone."""
    named = {name: None for world in job.worlds for name in world.members}
    return [job.members[name] for name in named if name in job.members]


def _member_to_bar(job: Job, now: float) -> MemberGone | None:
    """A pair that cannot reach one another is parted: whoever holds no state goes, else the younger (rule 11)."""
    for accusation in job.accusations:
        if len(accusation.generations) < BAD_PAIR_FAILURES:
            continue
        older, younger = accusation.a, accusation.b
        out = older if younger in job.holders and older not in job.holders else younger
        other = younger if out == older else older
        why = f"{BAD_PAIR_FAILURES} wirings failed between {out} and {other}; {out} is left out"
        return MemberGone(now, out, "barred", why)
    return None


def _too_few(job: Job, count: int) -> str:
    """How many there are, and who else is there and does not count."""
    bits = _job_fingerprint(job)
    others = [m for m in job.members.values() if fingerprint_difference(bits, m.fingerprint) and not m.draining]
    said = f"{count} of at least {job.spec.size_min} members"
    if not others:
        return said
    first = others[0]
    counted = "1 other does" if len(others) == 1 else f"{len(others)} others do"
    return f"{said}; {counted} not count: {first.id} {fingerprint_difference(bits, first.fingerprint)}"


def _describe_change(newest: World, names: tuple[MemberId, ...]) -> str:
    old, new = set(newest.members), set(names)
    joins = [name for name in names if name not in old]
    leaves = [name for name in newest.members if name not in new]
    changes = ((joins, "join"), (leaves, "leave"))
    parts = [f"{_listed(group)} {verb}{'s' if len(group) == 1 else ''}" for group, verb in changes if group]
    return "; ".join(parts) or "the same members, wired again"


def _listed(names: list[MemberId]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
