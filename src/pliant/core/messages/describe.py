"""Words for events, so that the command line, the log and the simulator's story all say the same (P8)."""

from __future__ import annotations

from collections.abc import Sequence

from pliant.core import messages as m
from pliant.core.job.launches import describe_exit
from pliant.core.job.validation import TERM_NAMES
from pliant.core.messages import SlotDisputed, StatesDiffered
from pliant.core.model.fingerprint import describe_differences
from pliant.core.model.job import Dispute, Terms

NAMES_MAX = 8  # of a longer list the first ones are named and the rest counted


def describe(event: m.Event) -> str:
    """Call to show an event to a person: one phrase, without its time."""
    match event:
        case m.JobCreated():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            size = f"{event.spec.size_min} to {event.spec.size_max} workers, {event.spec.initial_target.size} wanted"
            return f"job {event.name} created{again}: {size}"
        case m.AgentJoined(agent=agent, capacity=capacity):
            return f"agent {agent} has room for {capacity}"
        case m.AgentGone(agent=agent, why=why):
            return f"agent {agent} is gone: {why}"
        case m.AgentReadied(agent=agent):
            return f"none of the workers of {agent} runs"
        case m.AgentDraining(agent=agent, grace_s=grace_s, why=why):
            return f"agent {agent} drains within {grace_s:g} s: {why}"
        case m.Launched(launch=launch):
            names = _listed([seat.member for seat in launch.seats])
            return f"generation {launch.number} launched: {names}; because {launch.why}"
        case m.SeatEnded(end=end):
            return f"{end.member} ended with {describe_exit(end.code)}"
        case m.SeatRefilled(rank=rank, member=member):
            return f"{member} takes rank {rank}"
        case m.LaunchOver(generation=generation, why=why):
            return f"generation {generation} is stopped: {why}"
        case m.PairAccused(generation=generation, a=a, b=b):
            return f"{a} and {b} could not reach one another in generation {generation}"
        case m.SlotRaised(failing_slots=found):
            return f"{describe_slots(found.slots)} of step {found.step} raised on {found.member}: {found.error}"
        case m.WorkerFailed(member=member, code=code):
            return f"{member} failed by itself with exit code {code}"
        case m.WorldFormed(world=world):
            hold = ", holding" if world.hold else ""
            names = _listed(world.members)
            return f"generation {world.number} formed ({world.kind.value}{hold}): {names}; because {world.why}"
        case m.WorldEntered(generation=generation):
            return f"generation {generation} is current"
        case m.WorldBroken(generation=generation, why=why) | StatesDiffered(generation=generation, why=why):
            return f"generation {generation} cannot go on: {why}"
        case SlotDisputed(disputed=found):
            return describe_dispute(found.step, found.dispute)
        case m.MemberJoined(member=joined):
            spare = f"; it is a spare: it {joined.why}" if joined.why else ""
            return f"{joined.id} joined as number {joined.number}{spare}"
        case m.MemberGone(member=gone, how=how, why=why):
            return f"{gone} {how}: {why}"
        case m.MemberDraining(member=draining, grace_s=grace_s, why=why):
            return f"{draining} drains within {grace_s:g} s: {why}"
        case m.StepsCommitted(lines=lines, reporter=reporter, generation=generation):
            last = lines[-1].lineage.step
            return f"steps up to {last} are durable, said {reporter} of generation {generation}"
        case m.StateChanged(state=state, why=why):
            return f"the job is {state.value}: {why}"
        case m.TargetChanged(target=target):
            return f"target size {target.size}"
        case m.HoldersChanged(holders=holders):
            return f"the state is held by {_listed(tuple(sorted(holders)))}"
        case _:
            return _describe_checkpoint_event(event)


def _describe_checkpoint_event(
    event: m.CheckpointPublished | m.PartWritten | m.CheckpointRequested | m.CheckpointFailed | m.CheckpointUnreadable,
) -> str:
    match event:
        case m.CheckpointPublished(checkpoint=checkpoint):
            return f"checkpoint of step {checkpoint.lineage.step} published"
        case m.PartWritten(member=member, part=part, count=count, checkpoint=checkpoint):
            return f"{member} wrote part {part + 1} of {count} of the checkpoint of step {checkpoint.lineage.step}"
        case m.CheckpointRequested(step=step, why=why):
            return f"a checkpoint is wanted, of step {step} or later: {why}"
        case m.CheckpointFailed(name=name, member=member, why=why):
            return f"there will be no checkpoint {name}: {member} could not write its part: {why}"
        case m.CheckpointUnreadable(name=name, member=member, why=why, damaged=damaged):
            return f"checkpoint {name} is {'damaged' if damaged else f'out of reach of {member}'}: {why}"


def describe_slots(slots: Sequence[int]) -> str:
    """Call to name slots one of which raised."""
    return f"slot {slots[0]}" if len(slots) == 1 else f"one of the slots {_listed(list(map(str, slots)))}"


def describe_difference(job: Terms, other: Terms) -> str:
    """How a member's terms differ from its job's, in the words the user set them with; empty if they do not."""
    return describe_differences(_settings(job), _settings(other))


def _settings(terms: Terms) -> dict[str, str]:
    grid = terms.grid
    of_grid = (f"{grid.samples} samples", grid.batch, grid.slots, grid.epochs)
    values = (*of_grid, terms.seed, terms.checkpoint_every, terms.verify)
    return dict(zip(TERM_NAMES, map(str, values), strict=True)) | dict(terms.extra)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def describe_dispute(step: int, dispute: Dispute) -> str:
    """Call to name a slot whose gradient is another one on two members."""
    return f"slot {dispute.slot} of step {step} has another gradient on {dispute.a} than on {dispute.b}"


def describe_divergence(step: int, why: str) -> str:
    """Why a job failed whose members hold different states of one history."""
    return (
        f"after step {step} the members hold different states ({why}): what user code does after run.step() "
        "must be the same on every member, such as stepping a scheduler"
    )
