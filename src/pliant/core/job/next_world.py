"""Decide which world comes next, or why none does yet.

`decide` (in `pliant.core.job.decide`) records what happened to a job. `next_consequence` returns one thing that follows
from it: a world to form, a member to bar, another state or reason to show. The coordinator calls it until it returns
nothing. No function here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.ledger import GENESIS
from pliant.core.job.assignment import assign, job_fingerprint, permit_workers
from pliant.core.job.checkpoints import request_on_drain
from pliant.core.job.launches import next_launch
from pliant.core.messages import Event, MemberDraining, MemberGone, StateChanged, WorldFormed
from pliant.core.messages.describe import describe_recomputed
from pliant.core.model.fingerprint import fingerprint_difference
from pliant.core.model.job import Job, JobState, Member, Mode
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.ps.decide import next_of_servers
from pliant.core.tasks.decide import next_of_tasks

BAD_PAIR_FAILURES = 3  # failed wirings of one pair before one of the two is barred (rule 11)
STOP_GRACE_S = 60.0  # a member of a job that fails, is cancelled or has no grant any more has this long to save
SURPLUS_GRACE_S = 30.0  # for a member that no world has, so it can leave at once
OPEN_MAX = 8  # open generations before a recovery seals them all: bounds what members must keep


@dataclass(frozen=True, slots=True)
class NoWorldYet:
    """No world can train now."""

    why: str


@dataclass(frozen=True, slots=True)
class KeepWorlds:
    """No new world is needed."""

    why: str


def _next_before_tasks(job: Job, now: float) -> tuple[Event, ...]:
    """Return what follows while a task queue has parameter servers, and no worker has joined yet."""
    if job.state is JobState.STOPPING:
        return (StateChanged(now, job.ends_as or JobState.CANCELLED, job.why),)
    is_now = (JobState.WAITING, f"0 of the {job.spec.size_min} workers needed")
    return () if is_now == (job.state, job.why) else (StateChanged(now, *is_now),)


def next_consequence(job: Job, now: float) -> tuple[Event, ...]:
    """Return the next event that follows; `()` for a settled job. Call after decisions, until it returns nothing."""
    if job.state.ended:
        return ()
    if not job.is_live:
        return next_launch(job, now)
    if permitted := permit_workers(job, now):
        return permitted
    if job.spec.queue and not job.granted and (leaving := _without_grant(job, now)):
        return leaving
    if job.ps is not None and (moved := next_of_servers(job, job.ps, now)):
        return moved
    if job.tasks is not None:
        return next_of_tasks(job, job.tasks, now)
    if job.ps is not None and job.spec.mode is Mode.TASKS:
        return _next_before_tasks(job, now)
    barred = _member_to_bar(job, now)
    if barred is not None:
        return (barred,)
    if job.state is JobState.STOPPING:
        return _next_of_stopping(job, now)
    assigned = assign(job, members_left_out(job.worlds))
    if assigned.surplus:
        why = "has more workers than are wanted there"
        return tuple(MemberDraining(now, m.id, SURPLUS_GRACE_S, f"{m.agent} {why}") for m in assigned.surplus)
    verdict = _next_world(job, assigned.training)
    match verdict:
        case World():
            return (WorldFormed(now, verdict),)
        case NoWorldYet(why):
            state, why = JobState.WAITING, job.grant_missing or why
        case KeepWorlds(why):
            state = JobState.RUNNING if job.current else JobState.STARTING
    if (state, why) == (job.state, job.why):
        return ()
    return (StateChanged(now, state, why),)


def _without_grant(job: Job, now: float) -> tuple[Event, ...]:
    """Let all members save and leave: the pool grants the job no worker any more."""
    staying = [member.id for member in job.workers.values() if not member.draining]
    why = job.grant_missing
    draining = (MemberDraining(now, name, STOP_GRACE_S, why, True) for name in staying)
    return (*draining, *request_on_drain(job, staying, now)) if staying else ()


def _next_of_stopping(job: Job, now: float) -> tuple[Event, ...]:
    """Let the members save: they may need a recovery for that. The job ends once none is left that could."""
    survivors = _survivors(job)
    if not survivors or job.stateless:
        return (StateChanged(now, job.ends_as or JobState.CANCELLED, job.why),)
    if job.broken:
        return (WorldFormed(now, _recovery(job, survivors, job.broken)),)
    return ()


def next_world(job: Job) -> World | NoWorldYet | KeepWorlds:
    """Return the world that is due, or the reason why none is."""
    return _next_world(job, assign(job, members_left_out(job.worlds)).training)


def _next_world(job: Job, chosen: list[Member]) -> World | NoWorldYet | KeepWorlds:
    """Return the world that is due. `chosen` are the members that should train, of those that a world may take."""
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
        return _end_of_hold(job, survivors, chosen)
    if newest.kind is not WorldKind.PLANNED and newest.number != job.current:
        return NoWorldYet(newest.why) if newest.hold else KeepWorlds(newest.why)  # its members are entering it
    return _planned(job, newest, survivors, chosen)


# ------------------------------------------------------------------------------------------ kinds of world


def _planned(job: Job, newest: World, survivors: list[Member], chosen: list[Member]) -> World | NoWorldYet | KeepWorlds:
    """A changed membership, entered by the switch while the current world goes on (rules 5, 8, 16)."""
    if not chosen:
        return KeepWorlds("every member is leaving, and no other member can take over the state")
    bridge: list[Member] = []
    if not any(member.id in job.holders for member in chosen):
        # No member that stays is known to hold the state: form a world of old and new members first (rule 16).
        out = members_left_out(job.worlds)
        bridge = [m for m in survivors if m.id not in out and m.id in job.holders]
        if not bridge:
            return KeepWorlds("waiting for a report of the members that hold the state")
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


def _recovery(job: Job, survivors: list[Member], why: str) -> World:
    """All live members of open generations, including lingering leavers (rule 11); joiners only to reach min.

    Below min the survivors hold: they commit and save their last step, so that a second loss costs nothing (rule 16).
    """
    members = survivors
    if len(survivors) < job.spec.size_min:
        present = {member.id for member in survivors}
        joiners = [m for m in assign(job, frozenset()).training if m.id not in present]
        members = survivors + joiners
    if len(members) < job.spec.size_min:
        hold = f"{_too_few(job, len(members))}; {why}"
        return _world(job, WorldKind.RECOVERY, _ordered(job, survivors), hold, hold=True)
    return _world(job, WorldKind.RECOVERY, _ordered(job, members), why)


def _rollback(job: Job, survivors: list[Member]) -> World | NoWorldYet:
    """No member holds a state to continue from: start at the newest checkpoint, or at the beginning (rules 4, 12)."""
    chosen = assign(job, frozenset()).training
    if not job.rollback_generation:
        why = "the job starts"
    else:
        base = job.checkpoint.lineage.step if job.checkpoint else 0
        cause = job.broken if survivors else "all workers have left"
        why = f"{cause}: back to step {base}, {_describe_loss(job, base)}"
    if len(chosen) < job.spec.size_min:
        return NoWorldYet(f"{_too_few(job, len(chosen))}; {why}")
    able_first = sorted(
        _ordered(job, chosen), key=lambda member: member.id in job.cannot_read
    )  # rank 0 reads for all members
    return _world(job, WorldKind.ROLLBACK, able_first, why)


def _describe_loss(job: Job, base: int) -> str:
    """Return the cost of a rollback, as a phrase."""
    if job.untrusted_after_step is not None:
        again = job.untrusted_after_step - base
        return f"the last step that all members agreed on{f'; {describe_recomputed(again)}' if again > 0 else ''}"
    lost = job.durable.step - base
    return describe_recomputed(lost) if lost > 0 else "nothing is lost"


def _end_of_hold(job: Job, survivors: list[Member], chosen: list[Member]) -> World | NoWorldYet:
    """A recovery ends a world that holds, since without steps there are no control words to switch by."""
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
    """Return members that an open world leaves out though an earlier open one had them: never taken back (rule 5)."""
    out: set[MemberId] = set()
    seen: set[MemberId] = set()
    for world in worlds:
        seen.update(world.members)
        out.update(seen.difference(world.members))
    return frozenset(out)


def _ordered(job: Job, members: list[Member]) -> list[Member]:
    """Keep ranks stable: survivors of the newest world keep their order, newcomers fill the gaps by age."""
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
    """Return the live members of open generations."""
    named = {name: None for world in job.worlds for name in world.members}
    return [job.members[name] for name in named if name in job.members]


def _member_to_bar(job: Job, now: float) -> MemberGone | None:
    """Separate a pair that cannot reach one another: bar the member without state, else the younger (rule 11)."""
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
    """Return how many members count, and which present member does not."""
    fingerprint = job_fingerprint(job)
    others = [m for m in job.workers.values() if fingerprint_difference(fingerprint, m.fingerprint) and not m.draining]
    found = f"{count} of the {job.spec.size_min} workers needed"
    if not others:
        return found
    first = others[0]
    counted = "1 other does" if len(others) == 1 else f"{len(others)} others do"
    return f"{found}; {counted} not count: {first.id} {fingerprint_difference(fingerprint, first.fingerprint)}"


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
