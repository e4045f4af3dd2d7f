"""Sentences for events, shared by the command line, the log and the simulator (P8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from pliant.core import messages as m
from pliant.core.job.launches import describe_exit
from pliant.core.job.validation import TERM_NAMES
from pliant.core.messages import SlotDisputed, StatesDiffered
from pliant.core.model.fingerprint import describe_differences
from pliant.core.model.job import Dispute, JobSpec, JobState, Mode, Terms
from pliant.core.policy.schedule import describe_schedule
from pliant.core.ps.describe import describe_server_event
from pliant.core.ps.messages import ServerEvent
from pliant.core.tasks.describe import describe_task_event
from pliant.core.tasks.messages import TaskEvent

NAMES_MAX = 8  # the rest are counted
# Fields of JobSpec that are not plain options of the same name.
_OTHER_SETTINGS = (
    "size_min",
    "size_max",
    "target",
    "roles",
    "checkpoints",
    "chaos_allowed",
    "schedule",
    "deadline",
    "suspended",
    "sizes",
    "unit",
    "script",
)
PLAIN_SETTINGS = tuple(field.name for field in fields(JobSpec) if field.name not in _OTHER_SETTINGS)


def describe(event: m.Event) -> str:
    """Return one phrase that describes an event to a person, without its time."""
    match event:
        case m.JobCreated():
            return _describe_creation(event)
        case m.AgentJoined(agent=agent, capacity=capacity):
            return f"agent {agent} joined ({capacity} worker {'slot' if capacity == 1 else 'slots'})"
        case m.AgentGone(agent=agent, why=why, lost=lost):
            return f"agent {agent} was lost: {why}" if lost else f"agent {agent} left"
        case m.AgentReadied(agent=agent):
            return f"all workers of {agent} have ended"
        case m.AgentDraining(agent=agent, grace_s=grace_s, why=why):
            return f"agent {agent} drains within {grace_s:g} s: {why}"
        case m.Launched(launch=launch):
            names = _listed([seat.member for seat in launch.seats])
            return f"generation {launch.number} launched: {names} ({launch.why})"
        case m.SeatEnded(end=end):
            return f"{end.member} ended with {describe_exit(end.code)}"
        case m.SeatRefilled(rank=rank, member=member):
            return f"{member} took rank {rank}"
        case m.LaunchOver(generation=generation, why=why):
            return f"generation {generation} was stopped: {why}"
        case m.PairAccused(generation=generation, a=a, b=b):
            return f"{a} and {b} could not reach one another in generation {generation}"
        case m.SlotRaised(failing_slots=found):
            return f"{describe_failing(found.step, found.slots)} raised on {found.member}: {found.error}"
        case m.WorkerFailed(member=member, code=code):
            return f"{member} failed ({describe_exit(code)})"
        case m.WorldFormed(world=world):
            hold = ", holding" if world.hold else ""
            names = _listed(world.members)
            return f"generation {world.number} formed ({world.kind.value}{hold}): {names} ({world.why})"
        case m.WorldEntered(generation=generation):
            return f"generation {generation} became current"
        case m.WorldBroken(generation=generation, why=why) | StatesDiffered(generation=generation, why=why):
            return f"generation {generation} broke: {why}"
        case SlotDisputed(disputed=found):
            return describe_dispute(found.step, found.dispute)
        case m.MemberJoined(member=joined):
            spare = f"; it is a spare: it {joined.why}" if joined.why else ""
            return f"{joined.id} joined{spare}"
        case m.MemberGone(member=gone, how=how, why=why):
            return f"{gone} {describe_departure(how)}: {why}"
        case m.MemberDraining(member=draining, grace_s=grace_s, why=why):
            return f"{draining} drains within {grace_s:g} s: {why}"
        case m.StepsCommitted(lines=lines, reporter=reporter, generation=generation):
            last = lines[-1].lineage.step
            return f"steps up to {last} are committed (reported by {reporter} in generation {generation})"
        case m.StateChanged(state=state, why=why):
            return f"the job {describe_state(state)}: {why}"
        case m.SettingsChanged(what=what):
            return f"settings changed: {what}"
        case m.TargetChanged() | m.Granted() | m.Advised() | m.WorkersPermitted() | m.PermitReturned():
            return _describe_size(event)
        case m.PriceChanged(price=price):
            return f"a slot costs {price:g} an hour"
        case m.HoldersChanged(holders=holders):
            return f"the state is held by {_listed(tuple(sorted(holders)))}"
        case _:
            return _describe_other(event)


def _describe_other(
    event: TaskEvent
    | ServerEvent
    | m.CheckpointPublished
    | m.PartWritten
    | m.CheckpointRequested
    | m.CheckpointFailed
    | m.CheckpointUnreadable,
) -> str:
    if isinstance(event, TaskEvent):
        return describe_task_event(event)
    return describe_server_event(event) if isinstance(event, ServerEvent) else _describe_checkpoint_event(event)


def _describe_creation(event: m.JobCreated) -> str:
    spec = event.spec
    again = f", attempt {event.attempt}" if event.attempt > 1 else ""
    wanted = f"schedule {describe_schedule(spec.schedule)}" if spec.schedule else f"{spec.initial_target.size} wanted"
    return f"job {event.name} created{again}: {spec.size_min} to {spec.size_max} workers, {wanted}"


def _describe_size(event: m.TargetChanged | m.Granted | m.Advised | m.WorkersPermitted | m.PermitReturned) -> str:
    match event:
        case m.TargetChanged(target=target, why=why):
            return f"target changed to {target.size}{f' ({why})' if why else ''}"
        case m.Granted(size=size, why=why):
            return f"{size} {'worker' if size == 1 else 'workers'} granted: {why}"
        case m.Advised(size=size, why=why, applied=applied):
            only = "" if applied else ", not applied"
            return f"{size} {'worker' if size == 1 else 'workers'} advised{only}: {why}"
        case m.WorkersPermitted(agent=agent, workers=workers):
            return f"agent {agent} may start {_listed(workers)}"
        case m.PermitReturned(worker=worker):
            return f"{worker} has ended; its slot of the pool is free"


def _describe_checkpoint_event(
    event: m.CheckpointPublished | m.PartWritten | m.CheckpointRequested | m.CheckpointFailed | m.CheckpointUnreadable,
) -> str:
    match event:
        case m.CheckpointPublished(checkpoint=checkpoint):
            return f"checkpoint saved: step {checkpoint.lineage.step}"
        case m.PartWritten(member=member, part=part, count=count, checkpoint=checkpoint):
            return f"{member} wrote part {part + 1} of {count} of the checkpoint of step {checkpoint.lineage.step}"
        case m.CheckpointRequested(step=step, why=why):
            return f"saving a checkpoint at step {step} or later ({why})"
        case m.CheckpointFailed(name=name, member=member, why=why):
            return f"checkpoint {name} failed: {member} could not write its part: {why}"
        case m.CheckpointUnreadable(name=name, member=member, why=why, damaged=damaged):
            return f"checkpoint {name} {'is damaged' if damaged else f'cannot be read by {member}'}: {why}"


def describe_settings(before: JobSpec, after: JobSpec) -> str:
    """Return how the settings of a job change, by the options of `pliant run`, without the target."""
    ours, theirs = setting_options(before), setting_options(after)
    return ", ".join(f"{name} {ours[name]} -> {theirs[name]}" for name in ours if ours[name] != theirs[name])


def setting_options(spec: JobSpec) -> dict[str, str]:
    """Return the settings of a job by the options of `pliant run`, without the target.

    A new field needs no line here if it is an option of the same name.
    """
    policy = spec.checkpoints
    every = f"{policy.steps} steps" if policy.steps else f"{policy.seconds:g} s" if policy.seconds else "never"
    return {
        "--workers": f"{spec.size_min}:{spec.size_max}",
        **{f"--{name.replace('_', '-')}": _setting(getattr(spec, name)) for name in PLAIN_SETTINGS},
        "--deadline": "none" if spec.deadline is None else utc_time(spec.deadline),
        "--schedule": describe_schedule(spec.schedule) or "none",
        "--role": describe_roles(spec.roles),
        "--checkpoint-every": every,
        "--checkpoint-keep": str(policy.keep),
        "--allow-chaos": _setting(spec.chaos_allowed),
        "suspended": _setting(spec.suspended),
        "sizes": ", ".join(str(size) for size in spec.sizes) or "all",
        "workers that come and go together": str(spec.unit),
        "script": " ".join(spec.script) or "none",
    }


def _setting(value: object) -> str:
    match value:
        case None | "":
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def utc_time(at: float) -> str:
    """Return a time from 1970 on, as `--deadline` takes it: 2026-11-20T18:00:00Z."""
    days, second = divmod(int(at), 86400)
    era, day = divmod(days + 719468, 146097)  # days since March of the year 0, in eras of 400 years
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # from March on
    date = f"{era * 400 + year + month // 10:04}-{(month + 2) % 12 + 1:02}-{day - (153 * month + 2) // 5 + 1:02}"
    return f"{date}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def describe_mode(mode: Mode) -> str:
    return f"--mode {mode.value}"


def describe_roles(roles: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{role}:{count}" for role, count in roles) or "none"


def describe_departure(how: str) -> str:
    """Return the verb for how a member went, as in `MemberGone.how`."""
    return how if how == "left" else f"was {how}"


def describe_state(state: JobState) -> str:
    """Return the verb phrase for a job's state, as in `the job failed`."""
    match state:
        case JobState.FAILED:
            return "failed"
        case JobState.CANCELLED:
            return "was cancelled"
        case _:
            return f"is {state.value}"


def describe_recomputed(steps: int) -> str:
    """Return the cost of going back by so many committed steps, as a phrase."""
    return f"{steps} {'step is' if steps == 1 else 'steps are'} recomputed"


def describe_failing(step: int, slots: Sequence[int]) -> str:
    """Return the step that raised, with the slot if it is known which one did."""
    return f"slot {slots[0]} of step {step}" if len(slots) == 1 else f"step {step}"


def describe_difference(job: Terms, other: Terms) -> str:
    """Return how a member's terms differ from its job's, by the user's names for them; empty if they are equal."""
    return describe_differences(_settings(job), _settings(other))


def _settings(terms: Terms) -> dict[str, str]:
    grid = terms.grid
    of_grid = (f"{grid.samples} samples", grid.batch, grid.slots, grid.epochs, grid.turns, grid.max_steps)
    values = (*of_grid, terms.seed, terms.checkpoint_every, terms.verify)
    return dict(zip(TERM_NAMES, map(str, values), strict=True)) | dict(terms.extra)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def describe_dispute(step: int, dispute: Dispute) -> str:
    """Return a phrase for a slot whose gradients differ between two members."""
    return f"slot {dispute.slot} of step {step} has different gradients on {dispute.a} and on {dispute.b}"


def describe_divergence(step: int, why: str) -> str:
    """Return why a job failed whose members hold different states of one history."""
    return (
        f"after step {step} the members hold different states ({why}): user code after run.step(), such as stepping a "
        "scheduler, must do the same on every member; put objects that change in the loop into state="
    )
