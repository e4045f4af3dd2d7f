"""Sentences about shards and the events of a task queue, for people."""

from __future__ import annotations

from dataclasses import fields

from pliant.core.tasks import messages as t
from pliant.core.tasks.model import ShardKind, TaskTerms
from pliant.core.tasks.partitions import OffsetRange


def describe_shard(
    terms: TaskTerms, kind: ShardKind, number: int, upto: int, offsets: tuple[OffsetRange, ...] = ()
) -> str:
    """Return a phrase for the records of a shard that are not processed yet, with their offsets in a queue."""
    found = terms.range_of(kind, number)
    where = f"evaluation {found.epoch}" if kind is ShardKind.EVALUATE else f"epoch {found.epoch}"
    return f"records {upto} to {found.stop - 1} of {where} ({'; '.join((f'shard {number}', *map(str, offsets)))})"


def term_values(terms: TaskTerms) -> dict[str, str]:
    """Return the terms by the names of the user's settings."""
    named = {each.name: str(getattr(terms, each.name)) for each in fields(terms) if each.name != "extra"}
    return named | dict(terms.extra)


def describe_task_event(event: t.TaskEvent) -> str:
    """Return one phrase that describes an event to a person, without its time."""
    match event:
        case t.TaskMemberJoined(member=member):
            return f"{member} joined the task queue"
        case t.ShardsGiven(shards=shards):
            names = ", ".join(_shard(each.kind, each.number, each.attempt, each.offsets) for each in shards)
            return f"{shards[0].member} took {names}"
        case t.ShardAdvanced(attempt=attempt, upto=upto):
            return f"attempt {attempt} processed its records before {upto}"
        case t.ShardDone(member=member, kind=kind, number=number, attempt=attempt):
            return f"{member} completed {_shard(kind, number, attempt)}"
        case t.ShardReturned(attempt=attempt, why=why):
            return f"attempt {attempt} was returned: {why}"
        case t.ShardRaised(member=member, attempt=attempt, error=error):
            return f"attempt {attempt} raised on {member}: {error}"
        case t.DataGrown(records=records, complete=complete):
            return f"the data has {records} records{', and is complete' if complete else ' so far'}"
        case t.ModelSaved(member=member, name=name, attempts=attempts):
            return f"{member} saved the mean {name} with {len(attempts)} more shards"
        case t.EvaluationBegun(number=number, after_shards=after):
            return f"evaluation {number} began after {after} shards"
        case t.EvaluationDone(number=number, records=records, sums=sums):
            means = ", ".join(f"{name} {value / records:.6g}" for name, value in sums)
            return f"evaluation {number} is done: {records} records{f', {means}' if means else ''}"


def _shard(kind: ShardKind, number: int, attempt: int, offsets: tuple[OffsetRange, ...] = ()) -> str:
    return f"{kind.value} shard {number} ({'; '.join((f'attempt {attempt}', *map(str, offsets)))})"
