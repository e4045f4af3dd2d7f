"""The audit of a task queue: every record in one completed shard, and how many may have been processed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import read_events
from pliant.cli.output import clean, print_json

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.tasks.audit import Digest, TaskAudit

EVERY_RECORD = "every record done exactly once"
EVERY_EFFECT = "pair averaging, every record at least once"
AT_LEAST_ONCE = (
    "{count} records may have been processed more than once: workers were lost, or too slow, after they processed them "
    "and before they reported it."
)
UNSAVED = (
    "{count} records may have been processed more than once: workers were lost, or too slow, after they processed them "
    "and before a mean of the models had their effect."
)


def audit_tasks(client: Client, name: str, *, as_json: bool) -> int:
    """Audit a task queue and print the result. Return the exit status."""
    found, ended = _read(client, name)
    total = found.terms.wanted[1] if found.terms is not None else 0
    awaits = found.terms is not None and found.terms.awaits_records
    ok = not found.wrong and not (ended and found.missing())
    averages = found.terms is not None and found.terms.averages
    promise = EVERY_EFFECT if averages else EVERY_RECORD
    if as_json:
        print_json(
            {
                "ok": ok,
                "records": found.records_done(),
                "shards": total - found.missing(),
                "shards_missing": found.missing(),
                "attempts": found.attempts,
                "returned": found.returned,
                "repeated_max": found.repeated_max,
                "awaits_records": awaits,
                "problems": found.wrong,
                "promise": promise,
                "pair_averaging": averages,
            }
        )
    else:
        done = total - found.missing()
        once = "at least once with pair averaging" if averages else "done exactly once"
        verdict = promise if not found.missing() else f"every record of {done} shards {once}, so far"
        click.echo(f"{name}: {verdict if ok else 'problems found'}")
        growing = " so far, and the data may grow" if awaits else ""
        click.echo(f"{found.records_done()} records in {done} of {total} shards{growing}, in {found.attempts} attempts")
        if found.returned:
            click.echo(f"{found.returned} attempts were given to another worker")
        if found.repeated_max:
            click.echo((UNSAVED if averages else AT_LEAST_ONCE).format(count=found.repeated_max))
        for problem in found.wrong:
            click.echo(f"- {clean(problem)}")
    return 0 if ok else 1


def _read(client: Client, name: str) -> tuple[TaskAudit, bool]:
    """Read the events of the newest attempt, and of those that it continues. Return also whether it is finished."""
    from pliant.core.tasks.audit import TaskHistory

    history = TaskHistory(_fast_digest())
    for _, event in read_events(client, name):
        history.take(event)
    return history.audit, history.finished


def _fast_digest() -> Digest:
    """Return the digest of a range, vectorized if numpy is installed."""
    from pliant.core.tasks.model import digest_key, range_digest

    try:
        import pliant.train.data.order as order
    except ModuleNotFoundError:
        return range_digest
    return lambda kind, epoch, start, stop: order.digest_range(digest_key(kind, epoch), start, stop)
