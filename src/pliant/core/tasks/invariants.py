"""Invariants of a task queue, checked by the coordinator, the simulator and tests.

Each returns the empty string, or a sentence that names the violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import ShardKind, TaskState


def task_state_violation(state: TaskState, members: Collection[MemberId]) -> str:
    """Check a state, given the live members of its job."""
    open_ones = [(shard.kind, shard.number) for shard in state.open_shards]
    if len({*open_ones}) < len(open_ones):
        return f"tasks: a shard is held or returned twice: {sorted(open_ones)}"
    for kind, number in open_ones:
        if number >= (state.given_evaluation if kind is ShardKind.EVALUATE else state.given):
            return f"tasks: {kind.value} shard {number} is held or returned, and was never given out"
    attempts = [shard.attempt for shard in state.held]
    if len({*attempts}) < len(attempts) or max(attempts, default=0) > state.attempts:
        return f"tasks: the attempts {attempts} are not unique, or above the newest, {state.attempts}"
    counts = Counter(shard.member for shard in state.held)
    for shard in state.held:
        if shard.member not in members:
            return f"tasks: {shard.member} holds shard {shard.number} and is not a member"
        found = state.terms.range_of(shard.kind, shard.number)
        if shard.kind is not ShardKind.EVALUATE and shard.number >= state.terms.total_shards:
            return f"tasks: shard {shard.number} is held, and only {state.terms.total_shards} have all their records"
        if not found.start <= shard.start <= shard.upto <= found.stop:
            return f"tasks: attempt {shard.attempt} is at {shard.upto}, outside of its records"
        if counts[shard.member] > state.held_max:
            return f"tasks: {shard.member} holds more than {state.held_max} shards"
    return _offsets_violation(state)


def _offsets_violation(state: TaskState) -> str:
    """Check that every record that is not done has an offset."""
    known = state.offsets
    if known is None:
        return ""
    end = known.first + sum(map(len, known.waiting))
    if known.first > state.first_waiting or end != state.terms.records:
        return f"tasks: records {known.first} to {end} have offsets, of {state.first_waiting} to {state.terms.records}"
    if sum(map(len, known.partitions)) != state.terms.records:
        return f"tasks: the partitions have other numbers of offsets than {state.terms.records} records"
    for shard in state.held:
        stop = state.terms.range_of(shard.kind, shard.number).stop
        if shard.kind is not ShardKind.EVALUATE and sum(map(len, shard.offsets)) != stop - shard.start:
            return f"tasks: attempt {shard.attempt} has records {shard.start} to {stop} and {len(shard.offsets)} ranges"
    return ""


def task_change_violation(before: TaskState, event: t.TaskEvent, after: TaskState) -> str:
    """Check one change: what is done stays done, and only the holder of an attempt completes it."""
    if after.attempts < before.attempts or after.done < before.done:
        return f"tasks: {before.done} shards were done, and {after.done} are; attempt {after.attempts} is the newest"
    if isinstance(event, t.DataGrown) and (before.terms.complete or after.terms.records < before.terms.records):
        return f"tasks: the data had {before.terms.records} records, and has {after.terms.records}"
    if isinstance(event, t.DataGrown) and before.offsets is not None:
        stops = before.offsets.stops()
        for each in event.added:
            if each.start != stops.get(each.partition, each.start):
                return f"tasks: {each} were added, and {each.partition} had those before {stops[each.partition]}"
    if isinstance(event, t.ShardDone):
        shard = before.find(event.attempt)
        if shard is None or (shard.member, shard.kind, shard.number) != (event.member, event.kind, event.number):
            return f"tasks: {event.member} completed attempt {event.attempt}, which it did not hold"
    if isinstance(event, t.ModelSaved):
        if event.number != before.saves + 1:
            return f"tasks: save {event.number} came after save {before.saves}"
        ready = {shard.attempt for shard in before.held if before.awaits_save(shard)}
        if not ready.issuperset(event.attempts):
            return f"tasks: save {event.number} completed {event.attempts}, and only {sorted(ready)} were processed"
    if isinstance(event, t.ShardDone) and before.terms.averages:
        return f"tasks: attempt {event.attempt} was completed without a saved model"
    if isinstance(event, t.ShardsGiven):
        known = {(shard.kind, shard.number): shard.upto for shard in before.returned}
        for given in event.shards:
            new = given.number >= (before.given_evaluation if given.kind is ShardKind.EVALUATE else before.given)
            begin = before.terms.range_of(given.kind, given.number).start if new else None
            if given.start != known.get((given.kind, given.number), begin):
                return f"tasks: shard {given.number} was given out from record {given.start}, not where it was left"
    return ""
