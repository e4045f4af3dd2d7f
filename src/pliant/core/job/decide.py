"""Decide what a command does to a job.

`decide` changes nothing; `evolve`, beside this file, applies events and refuses none. The coordinator decides, evolves,
calls `next_consequence` (in `pliant.core.job.next_world`) until it returns nothing, writes the events, and then
answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core import messages as m
from pliant.core.accounting.pauses import accept_pauses, valid_seconds
from pliant.core.data.ledger import LedgerLine, Lineage, with_changes_of
from pliant.core.job import checkpoints
from pliant.core.job.create import create
from pliant.core.job.divergence import resolve_divergence
from pliant.core.job.evolve import evolve
from pliant.core.job.failures import counted_failures, too_many_losses
from pliant.core.job.launches import (
    FENCED_CODE,
    agent_join,
    agent_ready,
    describe_crashes,
    describe_exit,
    drain_agent,
    is_drained_sooner,
    is_own_failure,
    seat_ended,
)
from pliant.core.job.next_world import STOP_GRACE_S, next_consequence
from pliant.core.job.validation import (
    bad_failing_slots,
    bad_grace,
    bad_member,
    bad_target,
    bad_terms,
    fresh_lines,
)
from pliant.core.messages import Code, Command, Event, Rejection
from pliant.core.messages.describe import describe_difference, describe_failing
from pliant.core.model.fingerprint import fingerprint_difference
from pliant.core.model.job import Autoscale, Job, JobState, Member, Mode, Target, member_limit
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.policy.schedule import passed_entry
from pliant.core.ps.decide import decide_server
from pliant.core.ps.messages import ServerCommand
from pliant.core.tasks.decide import decide_task
from pliant.core.tasks.messages import ShardOverdue, ShardProgress, TaskCommand

LONGER = "pass more epochs or max_steps to train longer, or --fresh to start over"
FINISHED_MAX = 200  # characters of the reason for which user code finished the job
SAMPLES_NAMED = 64  # of the slots that raised on two members, in the reason

Decision = tuple[Event, ...] | Rejection


def decide(job: Job | None, command: Command, now: float) -> Decision:
    """Return the events of `command`, or its refusal. Every command has an answer; a repeated one has no effect."""
    if isinstance(command, m.Create):
        return create(job, command, now)
    if job is None:
        return Rejection(Code.NO_JOB, "there is no such job; create it first")
    if job.state.ended:
        return _decide_after_end(job, command, now)
    match command:
        case m.Report():
            return _report(job, command, now)
        case m.Join():
            return _join(job, command, now)
        case m.Stopped():
            return _stopped(job, command, now)
        case m.WiringFailed():
            return _wiring_failed(job, command, now)
        case m.Publish() | m.PartNotWritten() | m.NotReadable():
            return _checkpoint_command(job, command, now)
        case m.RequestCheckpoint():
            return checkpoints.request(job, command, now)
        case m.Raised():
            return _raised(job, command, now)
        case m.Leave():
            return _leave(job, command, now)
        case m.Exited():
            return _exited(job, command, now)
        case m.Expire():
            return _lost(job, command.member, "its lease ran out", now)
        case m.Suspect():
            return _suspect(job, command, now)
        case m.Drain():
            return _drain(job, command, now)
        case m.DrainAgent():
            return drain_agent(job, command, now)
        case m.Resize():
            return _resize(job, command, now)
        case m.GrantWorkers() | m.Advise() | m.SetPrice():
            return _sent_by_leader(job, command, now)
        case m.Cancel():
            ended = JobState.FAILED if command.failed else JobState.CANCELLED
            return end_job(job, ended, command.why, now)
        case m.WaitOver():
            return _wait_over(job, now)
        case m.AgentJoin():
            return agent_join(job, command, now)
        case m.AgentReady():
            return agent_ready(job, command, now)
        case m.AgentLeave():
            return _agent_gone(job, command.agent, "it left", now)
        case m.AgentSuspect():
            why = "its connection closed and it did not reconnect"
            return () if job.is_live else _agent_gone(job, command.agent, why, now, lost=True)
        case m.AgentExpire():
            return _agent_gone(job, command.agent, "its lease ran out", now, lost=True)
        case _ if isinstance(command, TaskCommand):
            return decide_task(job, command, now)
        case _ if isinstance(command, ServerCommand):
            return decide_server(job, command, now)
        case _:
            assert_never(command)


def settle_all(job: Job, now: float) -> tuple[Job, tuple[Event, ...]]:
    """Apply `next_consequence` until it returns nothing. Call once after a batch of commands, before the write."""
    events: tuple[Event, ...] = ()
    while more := next_consequence(job, now):
        for event in more:
            job = evolve(job, event)
        events += more
    return job, events


def changes_membership(events: tuple[Event, ...]) -> bool:
    """Return whether the events can change the membership. Progress alone cannot, and must stay cheap."""
    return any(not isinstance(event, m.StepsCommitted | ShardProgress) for event in events)


def has_consequences(events: tuple[Event, ...]) -> bool:
    """Return whether anything may follow from the events: nothing does from progress or a part of a checkpoint."""
    return any(not isinstance(event, m.StepsCommitted | ShardProgress | m.PartWritten) for event in events)


# ------------------------------------------------------------------------------------ users and their jobs


def _resize(job: Job, command: m.Resize, now: float) -> Decision:
    if wrong := bad_target(job.spec.size_min, job.spec.size_max, command.target):
        return Rejection(Code.BAD, wrong)
    if job.spec.queue and command.target.placement:
        why = f"{job.name} is in queue {job.spec.queue}: resize it to a number, without a placement"
        return Rejection(Code.BAD, why)
    if command.target == job.target:
        return ()
    return (m.TargetChanged(now, command.target),)


def _sent_by_leader(job: Job, command: m.GrantWorkers | m.Advise | m.SetPrice, now: float) -> tuple[Event, ...]:
    match command:
        case m.GrantWorkers():
            return _granted(job, command, now)
        case m.Advise():
            return _advised(job, command, now)
        case m.SetPrice(price=price):
            return () if price == job.price else (m.PriceChanged(now, price),)


def _granted(job: Job, command: m.GrantWorkers, now: float) -> tuple[Event, ...]:
    is_known = (command.size, command.why) == (job.granted, job.granted_why)
    return () if is_known else (m.Granted(now, command.size, command.why),)


def _advised(job: Job, command: m.Advise, now: float) -> tuple[Event, ...]:
    """Record advice once, and follow it if the job's owner wants that. Advice about an older target is dropped."""
    follows, size = job.spec.autoscale, command.size
    if follows is Autoscale.OFF or size in (job.target.size, job.advised) or job.target.placement:
        return ()
    if bad_target(job.spec.size_min, job.spec.size_max, Target(size)):
        return ()
    advised = m.Advised(now, size, command.why, follows is Autoscale.ON)
    return (advised, m.TargetChanged(now, Target(size), "autoscale")) if advised.applied else (advised,)


def _drain(job: Job, command: m.Drain, now: float) -> Decision:
    member = job.members.get(command.member)
    if member is None:
        return _not_a_member(job, command.member)
    if (bad := bad_grace(command.grace_s)) is not None:
        return bad
    if not is_drained_sooner(member, command.grace_s):
        return ()  # a second notice must not extend the deadline
    draining = m.MemberDraining(now, member.id, command.grace_s, command.why, member.immediate)
    return (draining, *checkpoints.request_on_drain(job, (member.id,), now))


def _wait_over(job: Job, now: float) -> Decision:
    if job.state is JobState.STOPPING:
        return (m.StateChanged(now, job.ends_as or JobState.CANCELLED, job.why),)
    if job.state is not JobState.WAITING:
        return ()
    why = f"waited {job.spec.wait_limit_s} s, the limit: {job.why}"
    return end_job(job, JobState.FAILED, why, now)


def end_job(job: Job, state: JobState, why: str, now: float) -> tuple[Event, ...]:
    """End the job. Members that hold the state save it first (P2), even if the request is repeated meanwhile."""
    if job.state is JobState.STOPPING:
        return ()
    if not job.holders or job.untrusted_after_step is not None:
        return (m.StateChanged(now, state, why),)
    leaving = (
        m.MemberDraining(now, x.id, x.grace_s if x.draining else STOP_GRACE_S, why, True)
        for x in job.workers.values()  # servers save once the job has ended
        if not x.immediate
    )
    return (m.StateChanged(now, JobState.STOPPING, why, state), *leaving)


_IGNORED_AFTER_END = (
    m.Leave,
    m.Exited,
    m.Cancel,
    m.AgentLeave,
    m.Expire,
    m.AgentExpire,
    m.AgentSuspect,
    m.WaitOver,
    m.Advise,
    m.RequestCheckpoint,
    ShardOverdue,
)


def _decide_after_end(job: Job, command: Command, now: float) -> Decision:
    """An ended job ignores departures and repeated requests, and accepts the last checkpoint. It refuses the rest."""
    if job.state is JobState.FINISHED and isinstance(command, m.Publish | m.PartNotWritten):
        return _checkpoint_command(job, command, now)
    if isinstance(command, _IGNORED_AFTER_END):
        return ()
    return Rejection(Code.ENDED, f"job {job.name} is {job.state.value}: {job.why}")


def _agent_gone(job: Job, agent: AgentId, why: str, now: float, *, lost: bool = False) -> Decision:
    if all(known.id != agent for known in job.agents):
        return ()
    return (m.AgentGone(now, agent, why, lost),)


# ------------------------------------------------------------------------------------------------- members


def _join(job: Job, command: m.Join, now: float) -> Decision:
    if job.spec.mode in (Mode.RELAUNCH, Mode.TASKS) or job.tasks is not None:
        mode = job.spec.mode if job.tasks is None else Mode.TASKS
        why = f"workers cannot join {job.name}: its mode is {mode.value}"
        return Rejection(Code.MISMATCH, f"{why}; run it with --mode auto or live")
    if command.member in job.gone:
        return Rejection(Code.GONE, f"{command.member} is gone for good; join as a new member")
    if job.state is JobState.STOPPING and command.member not in job.members:
        return Rejection(Code.ENDED, f"job {job.name} is stopping: {job.why}")
    if (bad := bad_terms(command.terms)) is not None:
        return bad
    if wrong := _wrong_terms(job, command):
        return Rejection(Code.MISMATCH, f"{command.member} would train {wrong}")
    if wrong := _wrong_encryption(job, command):
        return Rejection(Code.MISMATCH, f"{command.member} {wrong}")
    if command.member in job.members:
        return ()
    if (bad := bad_member(command)) is not None:
        return bad
    if len(job.members) >= member_limit(job):
        why = f"{job.name} has {len(job.members)} members, far more than its largest size {job.spec.size_max}"
        return Rejection(Code.BAD, why)
    member = Member(
        id=command.member,
        number=job.joined + 1,
        agent=command.agent,
        weight=command.weight,
        address=command.address,
        pid=command.pid,
        fingerprint=command.fingerprint,
        why=fingerprint_difference(job.fingerprint, command.fingerprint),
    )
    terms = job.terms or command.terms
    if not job.workers:
        terms = command.terms  # the first member of a next start may change the length and the encryption
    terms = terms.with_changes(job.terms.grid.changes if job.terms is not None else ())
    return (m.MemberJoined(now, member, terms, valid_seconds(command.age_s)),)


def _wrong_terms(job: Job, command: m.Join) -> str:
    """Return why a member cannot join with its terms, and what to do; empty if it can.

    While other members train, the terms must be equal. Without any, the job may become longer or shorter.
    """
    if job.terms is None or not (differs := describe_difference(job.terms, command.terms)):
        return ""
    if not command.terms.can_continue(job.terms):
        return f"{differs}: pass the job's value, or train under another name with --job"
    if job.workers:
        return f"{differs}, and other members train now: stop them first, then start all with the new value"
    total_steps = command.terms.with_changes(job.terms.grid.changes).grid.total_steps
    if total_steps <= job.durable.step:
        return (
            f"{differs}: its training would end with step {total_steps}, but the job is at step "
            f"{job.durable.step} already: train longer, or under another name with --job"
        )
    return ""


def _wrong_encryption(job: Job, command: m.Join) -> str:
    """Return why a member could not connect to the others; empty if it can, or if one of them is an older version."""
    ours, theirs = job.terms.encrypted if job.terms else None, command.terms.encrypted
    if not job.workers or ours is None or theirs is None or ours == theirs:
        return ""
    if theirs:
        return (
            "has a CA file, but the other members have none, so they could not connect to it: set PLIANT_CA_FILE or "
            "--ca-file on every machine of the job, or on none"
        )
    return (
        "has no CA file, but the other members encrypt their connections, so it could not connect to them: set "
        "PLIANT_CA_FILE or --ca-file as on the other machines"
    )


def _report(job: Job, command: m.Report, now: float) -> Decision:
    world = _open_world(job, command.member, command.generation)
    if isinstance(world, Rejection):
        return world
    if not 0 <= command.rank < len(world.members) or world.members[command.rank] != command.member:
        return Rejection(Code.UNKNOWN, f"{command.member} is not rank {command.rank} of {world.number}")
    fresh = fresh_lines(job, command.lines, world)
    if isinstance(fresh, Rejection):
        return fresh
    head = fresh[-1].lineage if fresh else job.durable
    return _entered(job, world, now) + _progress(job, command, fresh, head, now)


def _progress(
    job: Job, command: m.Report, fresh: tuple[LedgerLine, ...], head: Lineage, now: float
) -> tuple[Event, ...]:
    events: tuple[Event, ...] = ()
    if command.holders is not None and (holders := command.holders.intersection(job.members)) != job.holders:
        events += (m.HoldersChanged(now, command.generation, holders),)
    if fresh:
        pauses = accept_pauses(command.pauses, fresh)
        committed = m.StepsCommitted(now, command.generation, command.member, fresh, pauses)
        events += (committed, *_scheduled_target(job, committed))
    total_steps = with_changes_of(job.terms.grid, fresh).total_steps if job.terms is not None else None
    if total_steps is not None and head.step >= total_steps:
        why = (
            f"all {head.step} steps are committed"
            if fresh
            else f"all {head.step} steps were committed before; {LONGER}"
        )
        events += (m.StateChanged(now, JobState.FINISHED, why),)
    elif total_steps is not None and command.finished:
        why = f"{command.finished[:FINISHED_MAX]}, after step {head.step} of {total_steps}"
        events += (m.StateChanged(now, JobState.FINISHED, why, last_step=head.step),)
    return events


def _scheduled_target(job: Job, committed: m.StepsCommitted) -> tuple[m.TargetChanged, ...]:
    """Return the target of the schedule's entry that these steps pass for the first time."""
    entry = passed_entry(job.spec.schedule, job.furthest_step, committed.lines[-1].lineage.step)
    if entry is None or job.target == Target(entry[1]):
        return ()
    return (m.TargetChanged(committed.at, Target(entry[1]), f"scheduled from step {entry[0]}"),)


def _stopped(job: Job, command: m.Stopped, now: float) -> Decision:
    if _is_over(job, command.member, command.generation):
        return ()
    world = _own_world(job, command.member, command.generation)
    if isinstance(world, Rejection):
        return world
    if command.diverged or command.disputes:
        return resolve_divergence(job, command, world, now)
    if job.broken and (job.stateless or not command.stateless):
        return ()  # a stopped member repeats it while it waits, and so does every other member
    about = f" ({command.peer})" if command.peer else ""
    why = f"{command.member} stopped in {world.number}{about}: {command.why}"
    return (m.WorldBroken(now, world.number, True, why, command.stateless),)


def _wiring_failed(job: Job, command: m.WiringFailed, now: float) -> Decision:
    if _is_over(job, command.member, command.generation):
        return ()
    world = _own_world(job, command.member, command.generation)
    if isinstance(world, Rejection):
        return world
    events: tuple[Event, ...] = ()
    # Only a failure in the newest world is evidence. In an older one the peer may have moved on.
    peer = command.peer if command.peer in world.members and command.peer != command.member else None
    if peer is not None and peer in job.members and world is job.newest:
        pair = sorted((command.member, peer), key=lambda name: job.members[name].number)
        events += (m.PairAccused(now, world.number, pair[0], pair[1]),)
    entered = world.kind is not WorldKind.PLANNED or world.number == job.current
    why = f"{command.member} could not reach {peer or 'its peers'} in {world.number}"
    return (*events, m.WorldBroken(now, world.number, entered, why))


def _checkpoint_command(job: Job, command: m.Publish | m.PartNotWritten | m.NotReadable, now: float) -> Decision:
    behind = checkpoints.world_left_behind(job, command) if not isinstance(command, m.NotReadable) else None
    world = behind or _own_world(job, command.member, command.generation)
    if isinstance(world, Rejection):
        return world
    match command:
        case m.Publish() if command.lines:
            return _publish_before_deadline(job, command, world, now)
        case m.Publish():
            return checkpoints.publish(job, command, world, now)
        case m.PartNotWritten():
            return checkpoints.part_not_written(job, command, world, now)
        case m.NotReadable():
            return checkpoints.not_readable(job, command, world, now)


def _publish_before_deadline(job: Job, command: m.Publish, world: World, now: float) -> Decision:
    """Commit the steps of a member whose time is short, with their checkpoint (rule 16).

    It can be done only while the newest world is a recovery that no member has entered. The comparison there needs this
    member, so no other history exists without its steps, and none can begin: those behind return to the checkpoint.
    """
    fresh = fresh_lines(job, command.lines, world)
    if isinstance(fresh, Rejection):
        return fresh
    if not fresh:
        return checkpoints.publish(job, command, world, now)
    waits = world is job.newest and world.kind is WorldKind.RECOVERY and world.number > job.current
    if not waits or command.count > 1 or fresh[-1].lineage != command.checkpoint.lineage:
        why = "only a comparison commits it, or the checkpoint of a member in a recovery that no member has entered"
        return Rejection(Code.NOT_NEXT, f"step {fresh[-1].lineage.step} is not committed: {why}")
    committed = m.StepsCommitted(now, world.number, command.member, fresh)
    published = checkpoints.publish(evolve(job, committed), command, world, now)
    if isinstance(published, Rejection) or not published:
        return published
    return (committed, *_scheduled_target(job, committed), *published)


def _raised(job: Job, command: m.Raised, now: float) -> Decision:
    """User code raised on a slot: a failure of that worker, and on a second member of the job (rule 20).

    The report may arrive after the end of the process, so one from a departed member is accepted as well.
    """
    failing = command.failing_slots
    if failing in job.failing_slots:
        return ()
    if (bad := bad_failing_slots(failing)) is not None:
        return bad
    live = failing.member in job.members
    if not live and failing.member not in job.gone:
        return _not_a_member(job, failing.member)
    raised = m.SlotRaised(now, failing)
    for earlier in job.failing_slots:
        if earlier.step != failing.step or earlier.member == failing.member:
            continue
        both = [index for index, slot in enumerate(failing.slots) if slot in earlier.slots]
        if both:
            where = describe_failing(failing.step, [failing.slots[index] for index in both])
            samples = [str(sample) for index in both for sample in failing.samples[index]][:SAMPLES_NAMED]
            why = (
                f"{where} raised on {earlier.member} and on {failing.member}; "
                f"the samples are {', '.join(samples) or 'in its log'}: {failing.error}"
            )
            gone = (m.MemberGone(now, failing.member, "lost", "its user code raised"),) if live else ()
            return (raised, *gone, *_end_without(job, failing.member, why, now))
    how = f"{describe_failing(failing.step, failing.slots)} raised: {failing.error}"
    return (raised, *_failed(job, failing.member, 1, how, now)) if live else (raised,)


def _leave(job: Job, command: m.Leave, now: float) -> Decision:
    if command.member not in job.members:
        return ()
    world = job.world(command.released)
    entered = _entered(job, world, now) if world is not None else ()
    return (*entered, m.MemberGone(now, command.member, "left", command.why))


def _exited(job: Job, command: m.Exited, now: float) -> tuple[Event, ...]:
    freed = (m.PermitReturned(now, command.member),) if command.member in job.permits else ()
    if command.member not in job.members:
        return seat_ended(job, command, now) + freed
    return _member_exited(job, command, now) + freed


def _member_exited(job: Job, command: m.Exited, now: float) -> tuple[Event, ...]:
    killed = f": {command.error}" if command.code < 0 and command.error else ""
    how = f"its process ended with {describe_exit(command.code)}{killed}"
    leaves = job.newest is None or command.member not in job.newest.members or job.members[command.member].draining
    if command.code == 0 and leaves and not _holds_shards(job, command.member):
        # It was to leave, or was never needed. Its `Leave` did not arrive, most likely because no coordinator answered.
        return (m.MemberGone(now, command.member, "left", how),)
    if is_own_failure(command.code):
        return _failed(job, command.member, command.code, how, now)
    lost = m.MemberGone(now, command.member, "lost", how)
    if command.code == FENCED_CODE or not too_many_losses(job):
        return (lost,)
    count = job.losses_without_progress + 1
    why = f"{count} workers ended without a step in between; {command.member}: {how}"
    hint = "check the memory of its machine" if command.code else "its script ended before the job was finished"
    return (lost, *_end_without(job, command.member, f"{why}; {hint}", now))


def _holds_shards(job: Job, member: MemberId) -> bool:
    return job.tasks is not None and bool(job.tasks.held_by(member))


def _failed(job: Job, member: MemberId, code: int, how: str, now: float) -> tuple[Event, ...]:
    """A worker failed by itself. It is lost, and the job fails if that happened too often."""
    events = (m.WorkerFailed(now, member, code), m.MemberGone(now, member, "lost", how))
    count = len(counted_failures(job, now)) + 1
    if count <= job.spec.max_restarts:
        return events
    return (*events, *_end_without(job, member, f"{describe_crashes(job, count)}; {member}: {how}", now))


def _end_without(job: Job, member: MemberId, why: str, now: float) -> tuple[Event, ...]:
    """Fail the job after the loss of that member."""
    others = {name: each for name, each in job.members.items() if name != member}
    return end_job(replace(job, members=others, holders=job.holders - {member}), JobState.FAILED, why, now)


def _lost(job: Job, member: MemberId, why: str, now: float) -> Decision:
    if member not in job.members:
        return ()
    return (m.MemberGone(now, member, "lost", why),)


def _suspect(job: Job, command: m.Suspect, now: float) -> Decision:
    """A suspicion ends the generation, never the member (rule 19)."""
    if command.member not in job.members:
        return ()
    world = job.world(job.current)
    if world is None or command.member not in world.members:
        return ()
    return (m.WorldBroken(now, world.number, True, f"{command.member} does not answer"),)


def _entered(job: Job, world: World, now: float) -> tuple[Event, ...]:
    return (m.WorldEntered(now, world.number),) if world.number > job.current else ()


def _open_world(job: Job, member: MemberId, generation: int) -> World | Rejection:
    """Fence (P6, rules 5 and 17): return the world if it is open and the member is live."""
    if generation <= job.sealed:
        return Rejection(Code.SEALED, f"generation {generation} is sealed; {job.sealed + 1} is the lowest open one")
    if member not in job.members:
        return _not_a_member(job, member)
    world = job.world(generation)
    if world is None:
        return Rejection(Code.PAST, f"generation {generation} is not open; {job.current} is current")
    return world


def _own_world(job: Job, member: MemberId, generation: int) -> World | Rejection:
    """Fence for reports about a world as a whole: only its own members may send them."""
    world = _open_world(job, member, generation)
    if isinstance(world, World) and member not in world.members:
        return Rejection(Code.UNKNOWN, f"{member} is not in generation {generation}")
    return world


def _is_over(job: Job, member: MemberId, generation: int) -> bool:
    """Return whether a generation that a live member reports as broken is over already.

    The report may be a repeated one whose answer was lost. It must be accepted, not refused.
    """
    return member in job.members and generation <= job.generation and not job.is_open(generation)


def _not_a_member(job: Job, member: MemberId) -> Rejection:
    if member in job.gone:
        return Rejection(Code.GONE, f"{member} is gone for good; join as a new member")
    if job.launch is not None and job.launch.seat_of(member) is not None:
        why = f"{member} is not a member: its agent launched it in generation {job.launch.number}"
        return Rejection(Code.UNKNOWN, f"{why}; resize the job, or drain an agent")
    return Rejection(Code.UNKNOWN, f"{member} is not a member of {job.name}; it never joined")
