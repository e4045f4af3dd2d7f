"""What follows from a doubt: who is believed where members that should have the same bits have not."""

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

PAIR_DISPUTES = 3  # of two members with nobody else to ask, before one of them is not believed any more
DIVERGENCES_MAX = 3  # times that states may differ at one place before it is taken for what user code does


def resolve_divergence(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Call when a member stopped because states or gradients differ. Where both do, it is the states that are wrong."""
    # Words of that world were compared, so it was entered: a report that says so later must not make it whole again.
    entered = (WorldEntered(now, world.number),) if world.number > job.current else ()
    verdict = (
        _resolve_state_divergence(job, command, world, now)
        if command.diverged
        else _resolve_disputes(job, command, world, now)
    )
    return (*entered, *verdict)


def _resolve_state_divergence(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Members hold different states of one history: a machine's silent mistake, or user code that does not do the same.

    Whoever the majority outvoted goes. If states are compared in every step nothing of it is in anybody's weights yet;
    else, and where there is no majority, all go back to the last state that was agreed on. A machine's mistake does not
    come again and again at one place; user code does, and then the job fails.
    """
    step = command.lineage.step
    if any(split.generation == world.number for split in job.state_divergences):
        return ()  # another member's word of it was first
    often = not is_past_divergence(job) and len(job.state_divergences) >= DIVERGENCES_MAX - 1
    verify = job.terms.verify if job.terms else 0
    if not verify or often:
        return (StateChanged(now, JobState.FAILED, describe_divergence(step, command.why)),)
    named = [name for name in command.suspects if name in world.members and name in job.members]
    suspects = tuple(named) if 2 * len(named) < len(world.members) else ()
    back = verify > 1 or not suspects
    why = f"members hold different states after step {step}: {command.why}"
    lost = f"its state is not the one that most members hold after step {step}: silent corruption"
    gone = (MemberGone(now, name, "lost", lost) for name in suspects)
    return (StatesDiffered(now, world.number, step, suspects, back, why), *gone)


def _resolve_disputes(job: Job, command: Stopped, world: World, now: float) -> tuple[Event, ...]:
    """Two members got other gradients for a slot: nobody knows who is right, until one of them errs with a third.

    The step is computed again, by a recovery world. All who tell of it tell the same, so each dispute counts once.
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
    why = f"{command.member} stopped in {world.number} because: {describe_dispute(step, command.disputes[0])}"
    events.append(WorldBroken(now, world.number, True, why))
    while (gone := _member_to_evict(job, now)) is not None:
        events.append(gone)
        job = evolve(job, gone)  # what was said against the others by whoever is gone does not count
    return tuple(events)


def _member_to_evict(job: Job, now: float) -> MemberGone | None:
    """Whoever is in disputes with two others; or of a pair that disputes again and again, the younger."""
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
