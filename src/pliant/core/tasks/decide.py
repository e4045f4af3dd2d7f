"""Decide what a command does to a task queue, and what follows from a change of it."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import assert_never

from pliant.core.accounting.pauses import valid_seconds
from pliant.core.data.sample_order import MASK_64, SAMPLES_MAX
from pliant.core.job.assignment import desired_workers
from pliant.core.messages.events import Event, MemberDraining, StateChanged
from pliant.core.messages.rejection import Code, Rejection
from pliant.core.model.fingerprint import describe_differences
from pliant.core.model.job import Job, JobState, Member, Mode, member_limit
from pliant.core.model.names import MemberId, bad_name
from pliant.core.tasks import messages as t
from pliant.core.tasks.describe import describe_shard, term_values
from pliant.core.tasks.evolve import evolve_tasks
from pliant.core.tasks.model import HELD_MAX, HeldShard, RaisedOn, ReturnedShard, ShardKind, TaskState, TaskTerms
from pliant.core.tasks.partitions import AHEAD_SHARDS, KnownOffsets, bad_ranges

LOSSES_MAX = 8  # members in a row that were lost with one shard, without progress
RAISED_MAX = 2  # members on which a shard may raise before the job fails
SUMS_MAX = 64
SUM_NAME_MAX = 63
EPOCHS_MAX = 1_000_000_000
DEADLINE_MAX_S = 30 * 86400.0
PAIRS_MAX = 32
PAIR_MAX = 255
SURPLUS_GRACE_S = 30.0

Decision = tuple[Event, ...] | Rejection


def decide_task(job: Job, command: t.TaskCommand, now: float) -> Decision:
    """Return the events of a command to a job that has not ended, or its refusal."""
    if isinstance(command, t.JoinTasks):
        return _join(job, command, now)
    state = job.tasks
    if isinstance(command, t.ShardOverdue):
        return _overdue(state, command, now) if state is not None else ()
    if command.member in job.gone:
        return Rejection(Code.GONE, f"{command.member} is gone for good; join as a new member")
    if state is None or command.member not in job.workers:
        return Rejection(Code.UNKNOWN, f"{command.member} is not a member of the task queue {job.name}; join first")
    match command:
        case t.TakeShards():
            return _take(job, state, command, now)
        case t.AdvanceShard():
            return _advance(state, command, now)
        case t.CompleteShard():
            return _complete(state, command, now)
        case t.FailShard():
            return _fail(state, command, now)
        case t.GrowData():
            return _grow(state, command, now)
        case t.SaveModel():
            return _save(state, command, now)
        case _:
            assert_never(command)


def next_of_tasks(job: Job, state: TaskState, now: float) -> tuple[Event, ...]:
    """Return the next event that follows from a change of membership; `()` for a settled job."""
    if job.state is JobState.STOPPING:
        return (StateChanged(now, job.ends_as or JobState.CANCELLED, job.why),)
    for shard in state.returned:
        if shard.losses >= LOSSES_MAX:
            offsets = state.offsets_of(shard.kind, shard.number, shard.upto)
            what = describe_shard(state.terms, shard.kind, shard.number, shard.upto, offsets)
            why = f"{shard.losses} workers in a row were lost while they processed {what}, without any progress"
            return (StateChanged(now, JobState.FAILED, f"{why}; look at the end of their logs"),)
    if surplus := _surplus(job):
        why = "has more workers than are wanted there"
        return tuple(MemberDraining(now, each.id, SURPLUS_GRACE_S, f"{each.agent} {why}") for each in surplus)
    count = _counting(job)
    if count < job.spec.size_min:
        is_now = (JobState.WAITING, f"{count} of the {job.spec.size_min} workers needed")
    else:
        is_now = (JobState.RUNNING, "shards are given out")
    return () if is_now == (job.state, job.why) else (StateChanged(now, *is_now),)


def _surplus(job: Job) -> list[Member]:
    """Return the members beyond the wanted number of their agents, the youngest."""
    room = Counter(desired_workers(job))
    known = {agent.id for agent in job.agents}
    surplus = []
    for member in sorted(job.workers.values(), key=lambda each: each.number):
        if member.draining:
            continue
        room[member.agent] -= 1
        if room[member.agent] < 0 and member.agent in known:
            surplus.append(member)
    return surplus


def _counting(job: Job) -> int:
    return sum(not member.draining for member in job.workers.values())


# -------------------------------------------------------------------------------------------------- joining


def _join(job: Job, command: t.JoinTasks, now: float) -> Decision:
    if job.terms is not None or job.spec.mode not in (Mode.AUTO, Mode.TASKS):
        mode = "live" if job.terms is not None else job.spec.mode.value
        why = f"{command.member} asks for shards, and {job.name} is a {mode} job"
        return Rejection(Code.MISMATCH, f"{why}; run it with --mode tasks, under another name")
    if command.member in job.gone:
        return Rejection(Code.GONE, f"{command.member} is gone for good; join as a new member")
    if job.state is JobState.STOPPING and command.member not in job.members:
        return Rejection(Code.ENDED, f"job {job.name} is stopping: {job.why}")
    if wrong := bad_task_terms(command.terms):
        return Rejection(Code.BAD, wrong)
    if wrong := _wrong_terms(job, command.terms):
        return Rejection(Code.MISMATCH, f"{command.member} would work {wrong}")
    if command.member in job.members:
        return ()
    if wrong := bad_name(command.member) or bad_name(command.agent):
        return Rejection(Code.BAD, wrong)
    if len(job.members) >= member_limit(job):
        why = f"{job.name} has {len(job.members)} members, far more than its largest size {job.spec.size_max}"
        return Rejection(Code.BAD, why)
    who = (command.member, command.agent, job.joined + 1, max(command.pid, 0))
    joined = t.TaskMemberJoined(now, *who, command.terms, valid_seconds(command.age_s), command.address)
    if job.tasks is not None and command.terms.after(job.tasks.terms) == job.tasks.terms:
        return (joined,)
    # With fewer epochs all may be done. A job that only evaluates begins with its evaluation.
    return (joined, *_after_done(evolve_tasks(job.tasks, joined), now))


def _wrong_terms(job: Job, terms: TaskTerms) -> str:
    """Return why a member cannot join with its terms; empty if it can. Without members, the length may change."""
    if job.tasks is None:
        return ""
    terms = terms.after(job.tasks.terms)
    if terms == job.tasks.terms:
        return ""
    differs = describe_differences(term_values(job.tasks.terms), term_values(terms))
    if not terms.can_continue(job.tasks.terms):
        return f"{differs}: pass the job's value, choose another name with --job, or start over with --fresh"
    if job.workers:
        return f"{differs}, and other members work now: stop them first, then start all with the new value"
    if terms.total_shards < job.tasks.given:
        return f"{differs}: {job.tasks.given} shards were given out already; pass more epochs, or --fresh"
    return ""


def bad_task_terms(terms: TaskTerms) -> str:
    """Return what is wrong with the terms of a queue, or the empty string."""
    if terms.growing and (terms.records or terms.complete or terms.shuffled or terms.epochs != 1):
        return "growing data has one epoch, in the order in which records are added, and no number of records"
    both = int(terms.growing) or terms.records, terms.evaluation_records
    if not all(0 <= records <= SAMPLES_MAX for records in both) or not any(both):
        return (
            f"a queue needs 1 to {SAMPLES_MAX} records; got {terms.records}, and {terms.evaluation_records} to evaluate"
        )
    if terms.only_evaluates and (terms.epochs != 1 or terms.evaluate_every):
        return "a job that only evaluates has one epoch and no evaluate_every"
    if not 1 <= terms.records_per_shard <= SAMPLES_MAX:
        return f"records_per_shard must be 1 or more; got {terms.records_per_shard}"
    if not 1 <= terms.epochs <= EPOCHS_MAX or terms.evaluate_every < 0:
        return (
            f"epochs must be 1 to {EPOCHS_MAX} and evaluate_every 0 or more; got {terms.epochs}, {terms.evaluate_every}"
        )
    if terms.predicts and (terms.epochs != 1 or terms.evaluation_records):
        return "a prediction has one epoch and no evaluation"
    if terms.averages and (terms.kind is not ShardKind.TRAIN or terms.growing or terms.evaluation_records):
        return "pair averaging needs training on data of a fixed length, without evaluation"
    if not 0 < terms.deadline_s <= DEADLINE_MAX_S:
        return f"deadline_s must be above 0 and at most {DEADLINE_MAX_S:g}; got {terms.deadline_s}"
    names = [name for name, _ in terms.extra]
    if (
        len(names) > PAIRS_MAX
        or len({*names}) < len(names)
        or max(map(len, sum(terms.extra, ())), default=0) > PAIR_MAX
    ):
        return f"extra terms must be up to {PAIRS_MAX} pairs of different names, with up to {PAIR_MAX} characters each"
    return ""


# --------------------------------------------------------------------------------------------------- shards


def _take(job: Job, state: TaskState, command: t.TakeShards, now: float) -> Decision:
    """Give shards. Nothing is given to a member that leaves, nor below the smallest size."""
    if not 1 <= command.count <= HELD_MAX:
        return Rejection(Code.BAD, f"a member can hold 1 to {HELD_MAX} shards; got {command.count}")
    if job.members[command.member].draining or _counting(job) < job.spec.size_min:
        return ()
    held = state.held_by(command.member)
    waiting = sum(state.awaits_save(shard) for shard in held)
    wanted = min(command.count - len(held) + waiting, state.held_max - len(held))
    others = any(not each.draining for name, each in job.workers.items() if name != command.member)
    chosen = _choose(state, command.member, wanted, others=others)
    if not chosen:
        return ()
    shards = tuple(
        HeldShard(
            each.kind,
            each.number,
            state.attempts + at,
            command.member,
            each.upto,
            each.upto,
            each.losses,
            each.raised,
            state.offsets_of(each.kind, each.number, each.upto),
        )
        for at, each in enumerate(chosen, 1)
    )
    return (t.ShardsGiven(now, shards),)


def _choose(state: TaskState, member: MemberId, count: int, *, others: bool) -> list[ReturnedShard]:
    """Return the next shards: of an evaluation first, returned ones before new ones.

    A shard that raised on this member goes to another one, if there is one.
    """
    chosen: list[ReturnedShard] = []
    for kind in (ShardKind.EVALUATE, state.terms.kind):
        for shard in state.returned:
            avoided = others and any(each.member == member for each in shard.raised)
            if shard.kind is kind and not avoided and len(chosen) < count:
                chosen.append(shard)
        first, end = _new_numbers(state, kind)
        for number in range(first, min(end, first + max(count - len(chosen), 0))):
            chosen.append(ReturnedShard(kind, number, state.terms.range_of(kind, number).start))
    return chosen


def _new_numbers(state: TaskState, kind: ShardKind) -> tuple[int, int]:
    """Return the range of the shards of a kind that were never given out."""
    if kind is not ShardKind.EVALUATE:
        return state.given, state.terms.total_shards
    return state.given_evaluation, state.evaluations * state.terms.shards_per_evaluation


def _held(state: TaskState, member: MemberId, attempt: int) -> HeldShard | Rejection:
    """Fence: return the shard that this member holds under this attempt."""
    shard = state.find(attempt)
    if shard is None or shard.member != member:
        return Rejection(Code.PAST, f"attempt {attempt} of {member} is over: its shard was returned, or is done")
    return shard


def _bad_progress(shard: HeldShard, stop: int, upto: int, digest: int) -> Rejection | None:
    if not shard.start <= upto <= stop:
        return Rejection(Code.BAD, f"attempt {shard.attempt} has the records {shard.start} to {stop}; got {upto}")
    if not 0 <= digest <= MASK_64:
        return Rejection(Code.BAD, "a digest must be an integer from 0 to 2**64 - 1")
    return None


def _advance(state: TaskState, command: t.AdvanceShard, now: float) -> Decision:
    shard = _held(state, command.member, command.attempt)
    if isinstance(shard, Rejection):
        return shard
    stop = state.terms.range_of(shard.kind, shard.number).stop
    if (bad := _bad_progress(shard, stop, command.upto, command.digest)) is not None:
        return bad
    if command.upto <= shard.upto:
        return ()  # sent again, or overtaken by a later one
    return (t.ShardAdvanced(now, command.attempt, command.upto, command.digest),)


def _complete(state: TaskState, command: t.CompleteShard, now: float) -> Decision:
    if any((each.member, each.attempt) == (command.member, command.attempt) for each in state.last_done):
        return ()  # sent again
    shard = _held(state, command.member, command.attempt)
    if isinstance(shard, Rejection):
        return shard
    stop = state.terms.range_of(shard.kind, shard.number).stop
    if (bad := _bad_progress(shard, stop, stop, command.digest)) is not None:
        return bad
    if command.records != stop - shard.start:
        what = describe_shard(state.terms, shard.kind, shard.number, shard.start)
        return Rejection(Code.BAD, f"{command.member} read {command.records} records of {what}, not all of them")
    if wrong := _bad_sums(command.sums):
        return Rejection(Code.BAD, wrong)
    if state.terms.averages:
        return () if shard.upto == stop else (t.ShardAdvanced(now, shard.attempt, stop, command.digest),)
    done = t.ShardDone(
        now, command.member, shard.kind, shard.number, shard.attempt, shard.start, command.digest, command.sums
    )
    return (done, *_after_done(evolve_tasks(state, done), now))


def _bad_sums(sums: t.Sums) -> str:
    names = [name for name, _ in sums]
    if len(names) > SUMS_MAX or len({*names}) < len(names) or max(map(len, names), default=0) > SUM_NAME_MAX:
        return f"sums must have up to {SUMS_MAX} different names of up to {SUM_NAME_MAX} characters"
    if not all(isfinite(value) for _, value in sums):
        return f"sums must be finite numbers; got {dict(sums)}"
    return ""


def _save(state: TaskState, command: t.SaveModel, now: float) -> Decision:
    if not state.terms.averages:
        return Rejection(Code.BAD, "this queue has no pair averaging, and saves no model")
    if command.name == state.saved:
        return ()  # sent again
    if command.number != state.saves + 1:
        return Rejection(Code.PAST, f"save {command.number} of {command.member} is over: {state.saves} are stored")
    if wrong := bad_name(command.name):
        return Rejection(Code.BAD, wrong)
    claimed = {*command.attempts}
    done = tuple(each.attempt for each in state.held if each.attempt in claimed and state.awaits_save(each))
    saved = t.ModelSaved(now, command.member, command.number, command.name, done)
    return (saved, *_after_done(evolve_tasks(state, saved), now))


def _grow(state: TaskState, command: t.GrowData, now: float) -> Decision:
    terms = state.terms
    if not terms.growing:
        return Rejection(Code.BAD, f"the data of this queue has {terms.records} records, and does not grow")
    if command.error:
        return (StateChanged(now, JobState.FAILED, f"{command.member} cannot use the data: {command.error}"),)
    if command.partitions or state.offsets is not None:
        return _grow_partitions(state, command, now)
    if not 0 <= command.records <= SAMPLES_MAX:
        return Rejection(Code.BAD, f"growing data can have up to {SAMPLES_MAX} records; got {command.records}")
    grew, ends = command.records > terms.records, command.complete and not terms.complete
    if (grew and terms.complete) or (command.complete and command.records < terms.records):
        why = f"{command.member} sees {command.records} records, and {terms.records} were known before"
        return (StateChanged(now, JobState.FAILED, f"{why}: some were removed, or added after the end"),)
    if not (grew or ends):
        return ()  # another member saw them before
    grown = t.DataGrown(now, command.records, command.complete)
    return (grown, *_after_done(evolve_tasks(state, grown), now))


def _grow_partitions(state: TaskState, command: t.GrowData, now: float) -> Decision:
    """Make records of offsets that no one saw before. Reports may be old: what is known stays."""
    terms, known = state.terms, state.offsets or KnownOffsets()
    if command.records or (terms.records and state.offsets is None):
        return Rejection(Code.BAD, f"{command.member} passes a queue, and the data of this job is a folder of files")
    if wrong := bad_ranges(command.partitions, SAMPLES_MAX):
        return Rejection(Code.BAD, wrong)
    if (gap := known.gap(command.partitions)) is not None:
        why = f"{gap} were dropped before they were given out. Keep records longer, or work faster"
        return (StateChanged(now, JobState.FAILED, why),)
    ends = {each.partition: each.stop for each in command.partitions}
    later = any(stop > known.stops().get(name, -1) for name, stop in ends.items())
    if terms.complete:
        why = f"{command.member} sees records that were added after the end of the queue"
        return (StateChanged(now, JobState.FAILED, why),) if later else ()
    room = (state.given + AHEAD_SHARDS) * terms.records_per_shard - terms.records
    added = known.new(command.partitions, max(min(room, SAMPLES_MAX - terms.records), 0))
    complete = command.complete and known.after(added).stops() == ends
    if not (added or complete):
        return ()
    grown = t.DataGrown(now, terms.records + sum(map(len, added)), complete, added)
    return (grown, *_after_done(evolve_tasks(state, grown), now))


def _after_done(state: TaskState, now: float) -> tuple[Event, ...]:
    """Return what follows from a shard that is done: the end or the beginning of an evaluation, or the end of all."""
    events: tuple[Event, ...] = ()
    if state.evaluation is not None and not state.open_evaluation_shards:
        over = state.evaluation
        ended = t.EvaluationDone(now, over.number, over.after_shards, over.records, over.sums)
        events, state = (*events, ended), evolve_tasks(state, ended)
    terms, done = state.terms, state.done
    if state.evaluation is None and terms.evaluation_records and _is_evaluation_due(state, done):
        begun = t.EvaluationBegun(now, state.evaluations, done)
        events, state = (*events, begun), evolve_tasks(state, begun)
    if done == terms.total_shards and state.evaluation is None and not terms.awaits_records:
        passes = "1 epoch" if terms.epochs == 1 else f"{terms.epochs} epochs"
        why = "the evaluation is done" if terms.only_evaluates else f"all {done} shards of {passes} are done"
        events += (StateChanged(now, JobState.FINISHED, why),)
    return events


def _is_evaluation_due(state: TaskState, done: int) -> bool:
    """Return whether an interval is over since the last evaluation began, or all is done since then."""
    interval = state.terms.evaluation_interval
    if state.terms.only_evaluates:
        return not state.evaluations
    if done // interval > state.evaluated_after // interval:
        return True
    all_done = done == state.terms.total_shards and not state.terms.awaits_records
    return all_done and state.evaluated_after < done


def _fail(state: TaskState, command: t.FailShard, now: float) -> Decision:
    again = RaisedOn(command.member, command.attempt)
    if any(again in shard.raised for shard in state.open_shards):
        return ()  # sent again
    shard = _held(state, command.member, command.attempt)
    if isinstance(shard, Rejection):
        return shard
    stop = state.terms.range_of(shard.kind, shard.number).stop
    upto = max(command.upto, shard.upto)
    if (bad := _bad_progress(shard, stop, upto, command.digest)) is not None:
        return bad
    raised = t.ShardRaised(now, command.member, command.attempt, upto, command.digest, command.error)
    members = {each.member for each in shard.raised} | {command.member}
    if len(members) < RAISED_MAX:
        return (raised,)
    offsets = state.offsets_of(shard.kind, shard.number, upto)
    what = describe_shard(state.terms, shard.kind, shard.number, upto, offsets)
    why = f"{what} raised on {' and on '.join(sorted(members))}: {command.error}"
    return (raised, StateChanged(now, JobState.FAILED, why))


def _overdue(state: TaskState, command: t.ShardOverdue, now: float) -> Decision:
    shard = state.find(command.attempt)
    if shard is None or shard.upto != command.upto:
        return ()  # it made progress, or is over
    why = f"{shard.member} made no progress for {state.terms.deadline_s:g} s"
    return (t.ShardReturned(now, command.attempt, why),)
