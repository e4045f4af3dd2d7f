"""`pliant sim`: run many schedules and count violations, or print one schedule."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pliant_sim.run import Batch, Result, ScheduleKind

CHUNK = 10  # seeds per task of a process: few, so the progress bar moves often


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="Number of schedules to run.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="First seed.")
@click.option("--seed", type=click.IntRange(0), help="Run one seed and print what happened.")
@click.option("--detail", is_flag=True, help="With --seed: print each member's actions, too.")
@click.option(
    "--shrink", "shrinking", is_flag=True, help="With --seed: find the fewest faults that still make it fail."
)
@click.option("--launches", is_flag=True, help="Run schedules of launched jobs instead of live ones.")
@click.option("--tasks", is_flag=True, help="Run schedules of task queues instead of live jobs.")
@click.option("--servers", is_flag=True, help="Run schedules of parameter servers instead of live jobs.")
@click.option("--cluster", is_flag=True, help="Run simulated clusters: many jobs on one pool.")
@click.option("--exhaustive", is_flag=True, help="Explore every order of events in a small world.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sim(
    seeds: int | None,
    first: int,
    seed: int | None,
    detail: bool,
    shrinking: bool,
    launches: bool,
    tasks: bool,
    servers: bool,
    cluster: bool,
    exhaustive: bool,
    as_json: bool,
) -> None:
    """Run the decision code through simulated faults.

    A schedule is 8 members on 3 agents with 1 or 2 coordinators: 60 virtual seconds with about one fault a second, then
    quiet until the job ends. Invariants are checked at every event. Exit code 1: a violation.
    """
    if sum((seeds is not None, seed is not None, exhaustive)) > 1:
        raise click.UsageError("Choose one of --seeds, --seed and --exhaustive.")
    if seed is None and (detail or shrinking):
        raise click.UsageError("--detail and --shrink need --seed.")
    other = launches or tasks or servers
    if launches + tasks + servers > 1:
        raise click.UsageError("Choose one of --launches, --tasks and --servers.")
    if other and (exhaustive or detail):
        raise click.UsageError("--launches, --tasks and --servers cannot be combined with --exhaustive or --detail.")
    if cluster:
        if exhaustive or detail or shrinking or other:
            raise click.UsageError("--cluster can be combined with --seeds, --first, --seed and --json only.")
        from pliant_sim.cluster.command import run_clusters

        run_clusters(first if seed is None else seed, seeds or (200 if seed is None else 1), as_json)
    elif exhaustive:
        _explore(as_json)
    elif seed is not None:
        _tell(seed, detail, shrinking, _kind(launches, tasks, servers), as_json)
    else:
        _count(first, seeds or 200, _kind(launches, tasks, servers), as_json)


def _kind(launches: bool, tasks: bool, servers: bool) -> ScheduleKind:
    from pliant_sim.run import ScheduleKind

    if servers:
        return ScheduleKind.SERVERS
    return ScheduleKind.LAUNCHES if launches else ScheduleKind.TASKS if tasks else ScheduleKind.LIVE


def _count(first: int, seeds: int, kind: ScheduleKind, as_json: bool) -> None:
    batches = sorted(_batches(first, seeds, kind), key=lambda batch: batch.first)
    results = [result for batch in batches for result in batch.results]
    report = _report(results, sum(batch.cpu_s for batch in batches))
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print_report(report, "" if kind == "live" else f" --{kind}")
    sys.exit(1 if report["violations"] else 0)


def _batches(first: int, seeds: int, kind: ScheduleKind) -> Iterator[Batch]:
    """Run the seeds on every core and show the progress. Leaving early (Ctrl-C) ends every process at once."""
    from multiprocessing import Pool

    from rich.console import Console
    from rich.progress import Progress

    chunks = [(start, min(CHUNK, first + seeds - start), kind) for start in range(first, first + seeds, CHUNK)]
    # Ctrl-C goes to the whole process group. It is blocked while the pool starts, when it would leave some behind;
    # the children inherit the block, and leaving the body ends them.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with Pool() as pool, Progress(console=Console(stderr=True), transient=True) as progress:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        task = progress.add_task("schedules", total=seeds)
        failed = 0
        for batch in pool.imap_unordered(_run_chunk, chunks):
            failed += sum(bool(result.complaints) for result in batch.results)
            progress.update(task, advance=len(batch.results), description=f"schedules ({failed} failed)")
            yield batch


def _run_chunk(chunk: tuple[int, int, ScheduleKind]) -> Batch:
    from pliant_sim.run import run_batch

    return run_batch(*chunk)


def _report(results: list[Result], cpu_s: float) -> dict[str, Any]:
    from statistics import median

    from pliant_sim.run import trace_hash

    failures = [result for result in results if result.complaints]
    faults: dict[str, int] = {}
    struck: dict[str, int] = {}
    for result in results:
        for kind, count in result.fired.items():
            faults[kind] = faults.get(kind, 0) + count
            struck[kind] = struck.get(kind, 0) + 1
    return {
        "seeds": len(results),
        "violations": len(failures),
        "schedules_per_cpu_minute": round(60 * len(results) / cpu_s) if cpu_s else 0,
        "events": sum(result.events for result in results),
        "events_median": median(result.events for result in results),
        "generations": sum(result.generations for result in results),
        "generations_median": median(result.generations for result in results),
        "faults": dict(sorted(faults.items())),
        "seeds_struck": {kind: round(count / len(results), 3) for kind, count in sorted(struck.items())},
        "trace_hash": trace_hash(results),
        "failures": [{"seed": result.seed, "what": result.complaints[0]} for result in failures[:20]],
    }


def _print_report(report: dict[str, Any], option: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("fault", "struck", "share of schedules", title=f"{report['seeds']} schedules")
    for kind, count in report["faults"].items():
        table.add_row(kind, str(count), f"{report['seeds_struck'][kind]:.0%}")
    console.print(table)
    console.print(
        f"{report['violations']} violations; medians: {report['events_median']:g} events, "
        f"{report['generations_median']:g} generations; {report['schedules_per_cpu_minute']} schedules a CPU-minute; "
        f"trace {report['trace_hash'][:16]}"
    )
    for failure in report["failures"]:
        console.print(f"seed {failure['seed']}: {failure['what']}")
        console.print(f"  pliant sim{option} --seed {failure['seed']} --shrink")


def _tell(seed: int, detail: bool, shrinking: bool, kind: ScheduleKind, as_json: bool) -> None:
    from pliant_sim.run import run_kind, run_seed, shrink, trace_hash

    story: list[str] = []
    faults = None
    if shrinking and run_kind(kind, seed).complaints:
        faults = shrink(seed, kind)
        click.echo(f"{len(faults)} faults are enough to make seed {seed} fail.", err=True)
    result = run_seed(seed, faults, story, detail) if detail else run_kind(kind, seed, faults, story)
    if as_json:
        report = _report([result], 0.0)
        report["story"] = story
        click.echo(json.dumps(report))
    else:
        click.echo("\n".join(story))
        click.echo(
            f"\nseed {seed}: {len(result.complaints)} violations, {result.events} events, "
            f"{result.generations} generations, {result.steps} steps; trace {trace_hash([result])[:16]}"
        )
        for complaint in result.complaints:
            click.echo(f"  {complaint}")
    sys.exit(1 if result.complaints else 0)


def _explore(as_json: bool) -> None:
    from pliant_sim.exhaustive.explore import Bounds, explore

    found = explore(Bounds())
    if as_json:
        bounds = found.bounds
        report = {
            "ok": not found.wrong,
            "states": found.states,
            "complete": found.complete,
            "members": bounds.members,
            "faults": bounds.faults,
            "generations": bounds.generations,
            "violations": [found.wrong] if found.wrong else [],
            "path": list(found.path),
        }
        click.echo(json.dumps(report))
    else:
        every = "states (all)" if found.complete else "states (stopped at the limit)"
        click.echo(f"{found.states} {every} within {found.bounds}")
        if found.wrong:
            click.echo(f"{found.wrong}\n  " + "\n  ".join(found.path))
    sys.exit(1 if found.wrong else 0)
