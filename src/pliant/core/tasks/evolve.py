"""Apply events to a task queue. Nothing is refused here."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core.model.copies import change
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import (
    HeldShard,
    LastDone,
    RaisedOn,
    ReturnedShard,
    RunningEvaluation,
    ShardKind,
    TaskState,
)
from pliant.core.tasks.partitions import KnownOffsets, OffsetRange

RAISED_KEPT = 4  # members on which a shard raised; two are enough to fail the job


def evolve_tasks(state: TaskState | None, event: t.TaskEvent) -> TaskState:
    """Return the queue after `event`."""
    if isinstance(event, t.TaskMemberJoined):
        return TaskState(event.terms) if state is None else change(state, terms=event.terms.after(state.terms))
    if state is None:
        raise ValueError("the first event of a queue must be TaskMemberJoined")
    match event:
        case t.ShardsGiven():
            return _with_given(state, event.shards)
        case t.ShardAdvanced():
            moved = (replace(each, upto=event.upto) if each.attempt == event.attempt else each for each in state.held)
            return change(state, held=tuple(moved))
        case t.ShardDone():
            return _with_done(state, event)
        case t.ShardReturned():
            return _with_returned(
                state, tuple(each for each in state.held if each.attempt == event.attempt), lost=False
            )
        case t.ShardRaised():
            raised = tuple(
                replace(
                    each, upto=event.upto, raised=(*each.raised, RaisedOn(event.member, event.attempt))[-RAISED_KEPT:]
                )
                for each in state.held
                if each.attempt == event.attempt
            )
            return _with_returned(state, raised, lost=False)
        case t.EvaluationBegun():
            return change(
                state,
                evaluations=event.number + 1,
                evaluated_after=event.after_shards,
                evaluation=RunningEvaluation(event.number, event.after_shards),
            )
        case t.EvaluationDone():
            return change(state, evaluation=None)
        case t.ModelSaved():
            return _with_saved(state, event)
        case t.DataGrown():
            grown = replace(state.terms, records=event.records, complete=event.complete)
            return change(state, terms=grown, offsets=_with_added(state, event.added))
        case _:
            assert_never(event)


def without_member(state: TaskState, member: MemberId, *, lost: bool) -> TaskState:
    """Return the queue after the end of a member: all its shards are returned."""
    state = _with_returned(state, state.held_by(member), lost=lost)
    return change(state, last_done=tuple(each for each in state.last_done if each.member != member))


def without_members(state: TaskState) -> TaskState:
    """Return the queue as another attempt of its job begins with it: no member is left."""
    return change(_with_returned(state, state.held, lost=False), last_done=())


def _with_given(state: TaskState, shards: tuple[HeldShard, ...]) -> TaskState:
    again = {(shard.kind, shard.number) for shard in shards}
    own, evaluation = (
        max((shard.number + 1 for shard in shards if (shard.kind is ShardKind.EVALUATE) is wanted), default=0)
        for wanted in (False, True)
    )
    return change(
        state,
        given=max(state.given, own),
        given_evaluation=max(state.given_evaluation, evaluation),
        attempts=shards[-1].attempt,
        held=(*state.held, *shards),
        returned=tuple(each for each in state.returned if (each.kind, each.number) not in again),
    )


def _with_done(state: TaskState, event: t.ShardDone) -> TaskState:
    others = tuple(each for each in state.last_done if each.member != event.member)
    evaluation = state.evaluation
    if event.kind is ShardKind.EVALUATE and evaluation is not None:
        stop = state.terms.range_of(event.kind, event.number).stop
        totals = dict(evaluation.sums)
        for name, value in event.sums:
            totals[name] = totals.get(name, 0.0) + value
        records = evaluation.records + stop - event.start
        evaluation = replace(evaluation, records=records, sums=tuple(sorted(totals.items())))
    after = change(
        state,
        held=tuple(each for each in state.held if each.attempt != event.attempt),
        last_done=(*others, LastDone(event.member, event.attempt)),
        evaluation=evaluation,
    )
    if after.offsets is None:
        return after
    return change(after, offsets=after.offsets.without_before(after.first_waiting))


def _with_added(state: TaskState, added: tuple[OffsetRange, ...]) -> KnownOffsets | None:
    if not added:
        return state.offsets
    return (state.offsets or KnownOffsets()).after(added)


def _with_saved(state: TaskState, event: t.ModelSaved) -> TaskState:
    done = {each.member: each.attempt for each in state.held if each.attempt in event.attempts}
    last_done = {each.member: each.attempt for each in state.last_done} | done
    return change(
        state,
        held=tuple(each for each in state.held if each.attempt not in event.attempts),
        last_done=tuple(LastDone(member, attempt) for member, attempt in last_done.items()),
        saves=event.number,
        saved=event.name,
    )


def _with_returned(state: TaskState, shards: tuple[HeldShard, ...], *, lost: bool) -> TaskState:
    if not shards:
        return state
    attempts = {shard.attempt for shard in shards}
    back = [
        ReturnedShard(
            shard.kind, shard.number, _begin_again(state, shard), _losses_after(shard, lost=lost), shard.raised
        )
        for shard in shards
    ]
    returned = sorted((*state.returned, *back), key=lambda shard: (shard.kind, shard.number))
    held = tuple(each for each in state.held if each.attempt not in attempts)
    return change(state, held=held, returned=tuple(returned))


def _begin_again(state: TaskState, shard: HeldShard) -> int:
    """Return the record at which the next attempt begins."""
    again = state.begins_again(shard.kind)
    return state.terms.range_of(shard.kind, shard.number).start if again else shard.upto


def _losses_after(shard: HeldShard, *, lost: bool) -> int:
    if shard.upto > shard.start:
        return int(lost)
    return shard.losses + lost
