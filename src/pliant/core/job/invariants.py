"""Invariants of a job, checked by the coordinator, the simulator and tests.

Each invariant returns the empty string, or a sentence that names the violation. `state_violations` checks one state,
`change_violations` one change of state. The coordinator refuses to write events that violate one: a bug then stops the
job's changes, loudly, and cannot damage its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pliant.core.job.evolve import evolve
from pliant.core.messages import (
    CheckpointFailed,
    CheckpointPublished,
    Event,
    HoldersChanged,
    JobCreated,
    Launched,
    LaunchOver,
    PartWritten,
    SeatEnded,
    SeatRefilled,
    StepsCommitted,
    WorldEntered,
    WorldFormed,
)
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import mismatch_why
from pliant.core.model.world import WorldKind
from pliant.core.ps.invariants import layout_violation, table_change_violation
from pliant.core.ps.messages import LayoutChanged
from pliant.core.tasks.invariants import task_change_violation, task_state_violation
from pliant.core.tasks.messages import TaskEvent


def state_violations(job: Job) -> tuple[str, ...]:
    """Return the violations of a state. Call after any change of membership."""
    return tuple([wrong for check in STATE_INVARIANTS if (wrong := check(job))])


def change_violations(before: Job, event: Event, after: Job) -> tuple[str, ...]:
    """Return the violations of one change, given the job before and after one event."""
    return tuple([wrong for check in CHANGE_INVARIANTS if (wrong := check(before, event, after))])


def all_violations(before: Job | None, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the violations of the events about to be written and of the resulting state."""
    found: tuple[str, ...] = ()
    job = before
    for event in events:
        after = evolve(job, event)
        if job is not None:
            found += change_violations(job, event, after)
        job = after
    return found + (state_violations(job) if job is not None else ())


# -------------------------------------------------------------------------------------------- of a state


def open_worlds_ascend(job: Job) -> str:
    """Rule 4: numbers grow, and the highest ever used is that of an open world or of the layout."""
    numbers = [world.number for world in job.worlds]
    if numbers != sorted(set(numbers)):
        return f"rule 4: open generations {numbers} do not ascend"
    layout = job.ps.layout.number if job.ps is not None else 0
    if numbers and max(numbers[-1], layout) != job.generation:
        return f"rule 4: the newest generation {job.generation} is not open, {numbers} are"
    return ""


def open_worlds_are_not_sealed(job: Job) -> str:
    """P6, rule 5: a sealed generation, or one below the current, is not open."""
    for world in job.worlds:
        if world.number <= job.sealed or world.number < job.current:
            return f"rule 5: {world.number} is open, but {job.sealed} is sealed and {job.current} current"
    return ""


def only_the_first_open_world_seals(job: Job) -> str:
    """Rule 4: a recovery or rollback world seals every lower number, so no open world is before it."""
    for world in job.worlds[1:]:
        if world.kind is not WorldKind.PLANNED:
            return f"rule 4: {world.number} is a {world.kind.value} world, yet a lower one is open"
    return ""


def ranks_are_unique(job: Job) -> str:
    """A member has one rank in a world, and a world has at least one member."""
    for world in job.worlds:
        if len(set(world.members)) != len(world.members) or not world.members:
            return f"world {world.number} names a member twice or none: {world.members}"
        if len(world.weights) != len(world.members) or min(world.weights) < 1:
            return f"world {world.number} has weights {world.weights} for {len(world.members)} members"
    return ""


def world_members_are_live_or_known_gone(job: Job) -> str:
    """A member of an open world is live, or its departure is on record."""
    for world in job.worlds:
        for member in world.members:
            if member not in job.members and member not in job.gone_in_open_worlds:
                return f"{member} of world {world.number} is neither live nor known to be gone"
    return ""


def gone_is_final(job: Job) -> str:
    """Rule 11: a departed member is not live."""
    back = job.members.keys() & set(job.gone)
    return f"rule 11: {sorted(back)} are gone and live" if back else ""


def left_out_members_stay_out(job: Job) -> str:
    """Rule 5: a later open world never takes back a member that an earlier open one left out."""
    seen: set[MemberId] = set()
    out: set[MemberId] = set()
    for world in job.worlds:
        back = out.intersection(world.members)
        if back:
            return f"rule 5: world {world.number} takes back {sorted(back)}"
        seen.update(world.members)
        out.update(seen.difference(world.members))
    return ""


def planned_worlds_are_small_enough(job: Job) -> str:
    """Only members that wait for the state or hand it over may exceed max."""
    newest = job.newest
    if newest is not None and newest.kind is WorldKind.PLANNED:
        staying = [m for m in newest.members if m in job.holders and not job.members[m].draining]
        if len(staying) > job.spec.size_max:
            return f"world {newest.number} has {len(staying)} members that stay, above max {job.spec.size_max}"
    return ""


def holders_are_members(job: Job) -> str:
    """Only live members can hold the state."""
    strangers = job.holders - job.members.keys()
    return f"{sorted(strangers)} hold the state and are not members" if strangers else ""


def worlds_have_one_fingerprint(job: Job) -> str:
    """P4: a member with another fingerprint than the job's is in none of its worlds."""
    if not job.fingerprint:
        return ""  # no member of a world has one yet
    for world in job.worlds:
        for name in world.members:
            if name in job.members and (why := mismatch_why(job, name)):
                return f"P4: {name} is in world {world.number} and {why}"
    return ""


def launches_are_sound(job: Job) -> str:
    """A launch has one seat for each of its members."""
    launch = job.launch
    if launch is None:
        return ""
    if launch.number > job.generation:
        return f"rule 4: launch {launch.number} is above the newest generation {job.generation}"
    if len({seat.member for seat in launch.seats}) < len(launch.seats):
        return f"launch {launch.number} has two seats for one member"
    return ""


def task_queues_are_sound(job: Job) -> str:
    """A shard has one holder, which is a member."""
    return task_state_violation(job.tasks, job.members) if job.tasks is not None else ""


def layouts_are_sound(job: Job) -> str:
    """Every bucket has one primary, and its copies lie on different servers."""
    return layout_violation(job.ps.layout) if job.ps is not None else ""


def batches_are_durable(job: Job) -> str:
    """Return a violation if the job has a change of the batch that its history has not agreed on."""
    changes = job.terms.grid.changes if job.terms is not None else ()
    late = [step for step, _ in changes if step > job.durable.step]
    return f"P3: the batch changes after step {late[0]}, and step {job.durable.step} is durable" if late else ""


STATE_INVARIANTS = (
    layouts_are_sound,
    open_worlds_ascend,
    open_worlds_are_not_sealed,
    only_the_first_open_world_seals,
    ranks_are_unique,
    world_members_are_live_or_known_gone,
    gone_is_final,
    left_out_members_stay_out,
    planned_worlds_are_small_enough,
    holders_are_members,
    batches_are_durable,
    worlds_have_one_fingerprint,
    launches_are_sound,
    task_queues_are_sound,
)

# ------------------------------------------------------------------------------------------------ of a change


def generations_are_never_reused(before: Job, event: Event, after: Job) -> str:
    """Rule 4: a new world, launch or layout has the next number, and nothing else changes the number."""
    number = formed = before.generation
    if isinstance(event, WorldFormed | Launched | LayoutChanged):
        number += 1
        match event:
            case WorldFormed():
                formed = event.world.number
            case Launched():
                formed = event.launch.number
            case LayoutChanged():
                formed = event.layout.number
    if (formed, after.generation) != (number, number):
        return f"rule 4: generation {formed} was formed and {after.generation} is the newest; expected {number}"
    return ""


def numbers_never_go_back(before: Job, event: Event, after: Job) -> str:
    """Rules 4 and 5: neither the seal nor the current generation ever goes back."""
    if after.sealed < before.sealed:
        return f"rule 4: the seal went back from {before.sealed} to {after.sealed}"
    if after.current < before.current and not isinstance(event, JobCreated):  # a new attempt has not entered one yet
        return f"rule 5: the current generation went back from {before.current} to {after.current}"
    return ""


def durable_steps_stay(before: Job, event: Event, after: Job) -> str:
    """P2, P5: acknowledged steps stay, unless a rollback, or an attempt from the beginning, removes them."""
    if _starts_over(event) or (isinstance(event, WorldFormed) and event.world.kind is WorldKind.ROLLBACK):
        return ""
    if after.durable.step < before.durable.step:
        return f"P2: durable step {before.durable.step} became {after.durable.step} without a rollback"
    return ""


def only_open_generations_make_history(before: Job, event: Event, after: Job) -> str:
    """P6, rule 17: nothing labelled with a generation that is not open becomes history."""
    if not isinstance(event, StepsCommitted | CheckpointPublished | PartWritten | HoldersChanged | WorldEntered):
        return ""
    if not before.is_open(event.generation):
        return f"P6: {type(event).__name__} of generation {event.generation}, which is not open"
    return ""


def _starts_over(event: Event) -> bool:
    """Return whether the event discards the history."""
    return isinstance(event, JobCreated) and not event.resumes


def attempts_follow_one_another(before: Job, event: Event, after: Job) -> str:
    """Another attempt has the next number, and begins when the one before has no members and agents left."""
    if not isinstance(event, JobCreated):
        return ""
    if event.attempt != before.attempt + 1:
        return f"attempt {event.attempt} of {before.name} followed attempt {before.attempt}"
    if not before.state.ended and (before.members or before.agents):
        return f"attempt {event.attempt} of {before.name} began while attempt {before.attempt} ran"
    return ""


def a_launch_waits_for_every_agent(before: Job, event: Event, after: Job) -> str:
    """No two generations run side by side: a launch is formed when no agent's workers run."""
    if not isinstance(event, Launched):
        return ""
    number, earlier = event.launch.number, before.launch
    if earlier is not None and not earlier.over:
        return f"launch {number} was formed while {earlier.number} runs"
    for agent in before.agents:
        if agent.capacity and not agent.ports:
            return f"launch {number} was formed while workers of {agent.id} may run"
    return ""


def live_jobs_have_no_launches(before: Job, event: Event, after: Job) -> str:
    """P1: once workers are members themselves, no change stops them."""
    if before.is_live and isinstance(event, Launched | LaunchOver | SeatEnded | SeatRefilled):
        return f"P1: {type(event).__name__} in a live job"
    return ""


def a_launch_has_the_size_of_the_job(before: Job, event: Event, after: Job) -> str:
    """A new launch has as many seats as the job allows. A later change of the sizes leaves it as it is."""
    if not isinstance(event, Launched) or before.spec.size_min <= len(event.launch.seats) <= before.spec.size_max:
        return ""
    sizes = f"{before.spec.size_min} to {before.spec.size_max}"
    return f"launch {event.launch.number} has {len(event.launch.seats)} seats, not {sizes}"


def seats_are_on_agents_with_room(before: Job, event: Event, after: Job) -> str:
    """A seat is on an agent that stays, at one of its free ports, and within its capacity."""
    if not isinstance(event, Launched):
        return ""
    staying = {agent.id: agent for agent in before.agents if not agent.draining}
    counts = Counter(seat.agent for seat in event.launch.seats)
    for seat in event.launch.seats:
        agent = staying.get(seat.agent)
        if agent is None or counts[agent.id] > agent.capacity:
            return f"launch {event.launch.number} has {counts[seat.agent]} seats on {seat.agent}: there is no room"
        if int(seat.address.rpartition(":")[2]) not in agent.ports:
            return f"{seat.member} is at {seat.address}, which {agent.id} has not offered"
    return ""


def the_end_is_final(before: Job, event: Event, after: Job) -> str:
    """An ended job does not change any more."""
    if not before.state.ended or isinstance(event, JobCreated):  # starts another attempt
        return ""
    if before.state is JobState.FINISHED and isinstance(event, CheckpointPublished | PartWritten | CheckpointFailed):
        return ""  # the last state is saved after training has ended
    return f"job {before.name} had ended, yet {type(event).__name__} followed"


def a_seal_takes_every_survivor(before: Job, event: Event, after: Job) -> str:
    """Rule 11: a recovery world has every live member of the open generations, lingering leavers too."""
    if isinstance(event, WorldFormed) and event.world.kind is WorldKind.RECOVERY:
        inside = {name for world in before.worlds for name in world.members if name in before.members}
        missing = inside.difference(event.world.members)
        if missing:
            return f"rule 11: recovery world {event.world.number} leaves out {sorted(missing)}"
    return ""


def a_world_takes_members_only(before: Job, event: Event, after: Job) -> str:
    """Rule 4: every member of a new world is live."""
    if isinstance(event, WorldFormed):
        strangers = [name for name in event.world.members if name not in before.members]
        if strangers:
            return f"rule 4: world {event.world.number} names {strangers}, which are not members"
    return ""


def worlds_that_train_are_large_enough(before: Job, event: Event, after: Job) -> str:
    """A new world below min holds. A later change of min leaves open worlds as they are."""
    least = before.spec.size_min
    if isinstance(event, WorldFormed) and not event.world.hold and len(event.world.members) < least:
        return f"world {event.world.number} of {len(event.world.members)} trains below min {least}"
    return ""


def planned_worlds_keep_a_holder(before: Job, event: Event, after: Job) -> str:
    """Rule 16: a member that is known to hold the state is in the next planned world."""
    if not isinstance(event, WorldFormed) or event.world.kind is not WorldKind.PLANNED:
        return ""
    if before.holders.isdisjoint(event.world.members):
        return f"rule 16: no member of planned world {event.world.number} is known to hold the state"
    return ""


def only_the_length_of_a_job_changes(before: Job, event: Event, after: Job) -> str:
    """Rule 21: the first member fixes the grid and the order. The length may change while there is no member.

    The batch changes with the steps that agreed on it, and back with a rollback.
    """
    was, now = before.terms, after.terms
    if was is None or was == now or _starts_over(event):
        return ""
    if now is not None and (isinstance(event, StepsCommitted | WorldFormed) or now.grid.changes == was.grid.changes):
        same = now.with_changes(was.grid.changes) == was
        if same or (not before.workers and now.can_continue(was)):
            return ""
    return f"rule 21: the terms changed from {was} to {now}"


def the_fingerprint_never_changes(before: Job, event: Event, after: Job) -> str:
    """P4: the first world with a fingerprint fixes the job's."""
    if before.fingerprint and before.fingerprint != after.fingerprint and not _starts_over(event):
        return f"P4: the job's fingerprint changed from {before.fingerprint} to {after.fingerprint}"
    return ""


def done_shards_stay_done(before: Job, event: Event, after: Job) -> str:
    """Tasks: what is done stays done, and only the holder of an attempt completes it."""
    if before.tasks is None or after.tasks is None or not isinstance(event, TaskEvent):
        return ""
    return task_change_violation(before.tasks, event, after.tasks)


def buckets_keep_a_filled_copy(before: Job, event: Event, after: Job) -> str:
    """Servers: a bucket stays on a server that has its rows, as long as there is one."""
    if before.ps is None or after.ps is None or isinstance(event, JobCreated):
        return ""
    return table_change_violation(before.ps, after.ps)


CHANGE_INVARIANTS = (
    buckets_keep_a_filled_copy,
    generations_are_never_reused,
    numbers_never_go_back,
    durable_steps_stay,
    only_open_generations_make_history,
    the_end_is_final,
    attempts_follow_one_another,
    a_launch_waits_for_every_agent,
    live_jobs_have_no_launches,
    a_launch_has_the_size_of_the_job,
    seats_are_on_agents_with_room,
    a_seal_takes_every_survivor,
    a_world_takes_members_only,
    worlds_that_train_are_large_enough,
    planned_worlds_keep_a_holder,
    only_the_length_of_a_job_changes,
    done_shards_stay_done,
    the_fingerprint_never_changes,
)
