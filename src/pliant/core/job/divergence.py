"""Decide which member to evict when members' states or gradients differ."""

from __future__ import annotations

from pliant.core.job.evolve import evolve, is_past_divergence
from pliant.core.messages import (
    Event,
    MemberGone,
    SlotDisputed,
    StateChanged,
    StatesDiffered,
    Stopped,
    WorldBroken,
    WorldEntered,
)
from pliant.core.messages.describe import describe_dispute, describe_divergence
from pliant.core.model.job import Disputed, Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World

PAIR_DISPUTES = 3  # of two members without a third to compare with, before one is evicted
DIVERGENCES_MAX = 3  # at one step, before user code is taken for the cause


def resolve_divergence(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Call when a member stopped because states or gradients differ. Where both do, the states are the cause."""
    # Control words of that world were compared, so it was entered. A later report must not make it whole again.
    entered = (WorldEntered(now, world.number),) if world.number > job.current else ()
    verdict = (
        _resolve_state_divergence(job, command, world, now)
        if command.diverged
        else _resolve_disputes(job, command, world, now)
    )
    return (*entered, *verdict)


def _resolve_state_divergence(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Members hold different states of one history: silent corruption, or user code that differs between members.

    The coordinator evicts the members that a majority outvoted. If states are compared in every step, no member has
    applied the difference yet. Otherwise, or without a majority, all members go back to the last state that all agreed
    on. A hardware error does not recur at one step. User code does, and then the job fails.
    """
    step = command.lineage.step
    if any(split.generation == world.number for split in job.state_divergences):
        return ()  # another member reported it first
    often = not is_past_divergence(job) and len(job.state_divergences) >= DIVERGENCES_MAX - 1
    verify = job.terms.verify if job.terms else 0
    if not verify or often:
        return (StateChanged(now, JobState.FAILED, describe_divergence(step, command.why)),)
    named = [name for name in command.suspects if name in world.members and name in job.members]
    suspects = tuple(named) if 2 * len(named) < len(world.members) else ()
    back = verify > 1 or not suspects
    why = f"members hold different states after step {step}: {command.why}"
    lost = f"its state differs from that of most members after step {step}: silent corruption"
    gone = (MemberGone(now, name, "lost", lost) for name in suspects)
    return (StatesDiffered(now, world.number, step, suspects, back, why), *gone)


def _resolve_disputes(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Two members computed different gradients for a slot. One is found wrong when it also differs from a third.

    A recovery world computes the step again. All members report the same disputes, so each is recorded once.
    """
    step = command.lineage.step + 1
    known = {_pair(each) for each in job.disputes if each.generation == world.number}
    events: list[Event] = []
    for dispute in command.disputes:
        found = Disputed(world.number, step, dispute)
        if _pair(found) in known or len(_pair(found)) < 2 or not _pair(found) <= set(world.members):
            continue
        known.add(_pair(found))
        events.append(SlotDisputed(now, found))
    for event in events:
        job = evolve(job, event)
    why = f"{command.member} stopped in {world.number}: {describe_dispute(step, command.disputes[0])}"
    events.append(WorldBroken(now, world.number, True, why))
    while (gone := _member_to_evict(job, now)) is not None:
        events.append(gone)
        job = evolve(job, gone)  # disputes with an evicted member do not count against the others
    return tuple(events)


def _member_to_evict(job: Job, now: float) -> MemberGone | None:
    """Return a member that disputes with two others; or of a pair that disputes repeatedly, the younger."""
    others: dict[MemberId, dict[MemberId, int]] = {}
    for each in job.disputes:
        a, b = sorted(_pair(each))
        for one, other in ((a, b), (b, a)):
            met = others.setdefault(one, {})
            met[other] = met.get(other, 0) + 1
    live = [member for member in job.members.values() if member.id in others]
    for member in sorted(live, key=lambda member: (-len(others[member.id]), -member.number)):
        met = others[member.id]
        if len(met) > 1:
            whose = " and of ".join(sorted(met))
            return MemberGone(now, member.id, "lost", f"its gradients differ from those of {whose}")
        [(other, times)] = met.items()
        if times >= PAIR_DISPUTES:
            why = f"its gradients differed {times} times from those of {other}, and it is the younger of the two"
            return MemberGone(now, member.id, "lost", why)
    return None


def _pair(found: Disputed) -> frozenset[MemberId]:
    return frozenset((found.dispute.a, found.dispute.b))
