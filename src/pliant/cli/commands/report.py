"""`pliant report`: show how the workers of a job spent their time."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import click

from pliant.cli.audit.command import progress
from pliant.cli.connect import Flags, connection_options, job_argument, read_events, resolve_job
from pliant.cli.output import describe_deadline, json_option, local_time, print_json, print_table

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.accounting.goodput import Goodput, MembershipChange, WorkerAccount


@click.command()
@job_argument
@json_option
@connection_options
def report(job: str | None, flags: Flags, as_json: bool) -> None:
    """Show how the workers of a job spent their time.

    Every second of every worker counts once: training, recomputing steps lost in a rollback, writing a checkpoint,
    switching between worlds, receiving the state, waiting, starting, or standing by as a spare. Goodput is the share of
    training. For a running job, the report covers the time until now.
    """
    name = resolve_job(job)
    is_run = flags.stopped_job(name) is None
    with flags.connect(name) as client:
        found = read_goodput(client, name)
        runs = is_run and found.job is not None and not found.job.state.ended
        until = max(found.now, client.about().now) if runs else found.now  # the coordinator's clock, as in events
    if as_json:
        print_json(report_json(found, until))
    else:
        _print_report(name, found, until, runs=runs)


def read_goodput(client: Client, job: str) -> Goodput:
    """Read all events of a job and account for its workers' time."""
    from pliant.core.accounting.goodput import Goodput

    found = Goodput()
    with progress("Reading events", client.job(job).job.revision) as step:
        for _, event in read_events(client, job):
            found.add(event)
            step()
    return found


def report_json(found: Goodput, until: float) -> dict[str, object]:
    """Return the whole report for --json."""
    workers = found.workers(until)
    seconds = _seconds_by_category(workers)
    total = sum(seconds.values())
    done = found.progress
    return {
        "began": found.created_at,
        "until": until,
        "attempts": done.attempts,
        "worker_seconds": total,
        "seconds": seconds,
        "goodput": seconds["training"] / total if total else None,
        "steps": done.steps,
        "samples": done.samples,
        "recomputed_steps": done.recomputed_steps,
        "recomputed_samples": done.recomputed_samples,
        "rolled_back_steps": done.recomputed_steps + done.highest_step - done.steps,
        "samples_per_second": _samples_per_second(found, until),
        "spent": 0.0 if found.job is None else found.job.spent_by(until),
        "pair_averaging": _averages(found),
        "deadline": None if found.job is None else found.job.spec.deadline,
        "rollbacks": done.rollbacks,
        "checkpoints": done.checkpoints,
        "changes": {kind: _pause_stats(of) for kind, of in _changes_by_kind(done.changes).items()},
        "workers": [
            {
                "worker": worker.name,
                "agent": worker.agent,
                "began": worker.started_at,
                "ended": worker.counted_until,
                "seconds": {category.value: spent for category, spent in worker.seconds.items()},
            }
            for worker in workers
        ],
    }


def _seconds_by_category(workers: list[WorkerAccount]) -> dict[str, float]:
    from pliant.core.accounting.activity import Category

    return {category.value: sum(worker.seconds[category] for worker in workers) for category in Category}


def _samples_per_second(found: Goodput, until: float) -> float | None:
    """Return the samples per second of training time, including recomputed samples."""
    busy_s = found.training_s(until)
    return found.progress.samples_ever / busy_s if busy_s and found.progress.samples_ever else None


def _changes_by_kind(changes: list[MembershipChange]) -> dict[str, list[MembershipChange]]:
    return {
        "planned": [change for change in changes if change.planned],
        "unplanned": [change for change in changes if not change.planned],
    }


def _pause_stats(changes: list[MembershipChange]) -> dict[str, float | int | None]:
    known = [change.pause_s for change in changes if change.pause_s is not None]
    return {
        "count": len(changes),
        "median_pause_s": median(known) if known else None,
        "longest_pause_s": max(known) if known else None,
    }


# ---------------------------------------------------------------------------------------------------- text


def _print_report(name: str, found: Goodput, until: float, *, runs: bool) -> None:
    workers, done = found.workers(until), found.progress
    state = found.job.state.value if found.job is not None else "unknown"
    attempts = f", attempt {done.attempts}" if done.attempts > 1 else ""
    end = "so far" if runs else f"to {local_time(until)}"
    click.echo(f"{name}: {state}{attempts}; {local_time(found.created_at)} {end}, {_plural(len(workers), 'worker')}")
    seconds = _seconds_by_category(workers)
    total = sum(seconds.values())
    click.echo()
    rows = [(category, f"{spent:.1f}", _share(spent, total)) for category, spent in seconds.items()]
    print_table(
        ("activity", "worker-seconds", "share"),
        _right_aligned([*rows, ("total", f"{total:.1f}", _share(total, total))]),
    )
    click.echo()
    for title, text in _summary_rows(found, until, seconds["training"], total):
        click.echo(f"{title:<12}  {text}")


def _summary_rows(found: Goodput, until: float, training: float, total: float) -> list[tuple[str, str]]:
    done = found.progress
    rows = [("goodput", f"{_share(training, total).strip()} of all worker-seconds were training")]
    if _averages(found):
        rows.append(("mode", "pair averaging, every record at least once; `pliant audit` counts those that may repeat"))
    spent = 0.0 if found.job is None else found.job.spent_by(until)
    if spent:
        from pliant.core.allocate.reasons import amount

        rows.append(("cost", f"{amount(spent)} for slots of the pool"))
    if found.job is not None and (deadline := found.job.spec.deadline) is not None:
        ended_at = found.job.state_since if found.job.state.ended else None
        rows.append(("deadline", describe_deadline(deadline, until, ended_at)))
    if done.samples_ever:
        rate = _samples_per_second(found, until)
        speed = f", {rate:.1f} a second while training" if rate is not None else ""
        rows.append(("samples", f"{done.samples} in {_plural(done.steps, 'committed step')}{speed}"))
        rows.append(
            ("recomputed", f"{_plural(done.recomputed_samples, 'sample')} in {_plural(done.recomputed_steps, 'step')}")
        )
    if (behind := done.highest_step - done.steps) > 0:
        rows.append(("", f"{_plural(behind, 'step')} rolled back and not recomputed yet"))
    for kind, changes in _changes_by_kind(done.changes).items():
        rows.append((f"{kind}", _change_line(changes)))
    rows.append(("rollbacks", str(done.rollbacks)))
    if done.samples_ever:
        rows.append(("checkpoints", str(done.checkpoints)))
    return rows


def _averages(found: Goodput) -> bool:
    return found.job is not None and found.job.tasks is not None and found.job.tasks.terms.averages


def _change_line(changes: list[MembershipChange]) -> str:
    pauses = _pause_stats(changes)
    middle, longest = pauses["median_pause_s"], pauses["longest_pause_s"]
    pause = f"; pause {middle:.2f} s median, {longest:.2f} s at most" if middle is not None else ""
    return f"{_plural(len(changes), 'change')}{pause}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _share(part: float, total: float) -> str:
    return f"{100.0 * part / total:.1f} %" if total else "-"


def _right_aligned(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Pad the number columns on the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [(row[0], row[1].rjust(widths[1]), row[2].rjust(widths[2])) for row in rows]
