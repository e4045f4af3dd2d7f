"""`pliant sim --cluster`: run many simulated clusters and count violations."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter

import click

from pliant_sim.cluster.led_pool import LedPool
from pliant_sim.cluster.universe import Universe

Result = tuple[int, list[str], int, Counter[str]]  # seed, complaints, decisions, faults


def run_clusters(first: int, count: int, as_json: bool) -> None:
    """Run `count` clusters on every core, print the result, and exit with 1 if a check failed."""
    from multiprocessing import Pool

    from rich.console import Console
    from rich.progress import Progress

    results: list[Result] = []
    # Ctrl-C is blocked while the pool starts, when it would leave some processes behind; they inherit the block.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with Pool() as pool, Progress(console=Console(stderr=True), transient=True) as progress:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        task = progress.add_task("clusters", total=count)
        for result in pool.imap_unordered(_run_seed, range(first, first + count)):
            results.append(result)
            progress.update(task, advance=1)
    failures = sorted((seed, complaints) for seed, complaints, _, _ in results if complaints)
    faults = sum((fired for *_, fired in results), Counter[str]())
    report = {
        "seeds": count,
        "violations": len(failures),
        "decisions": sum(decisions for _, _, decisions, _ in results),
        "faults": dict(sorted(faults.items())),
        "failures": [{"seed": seed, "what": complaints[0]} for seed, complaints in failures[:20]],
    }
    if as_json:
        click.echo(json.dumps(report))
    else:
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
        click.echo(f"{count} clusters, {report['decisions']} decisions; faults and changes: {told}")
        click.echo(f"{len(failures)} violations")
        for seed, complaints in failures[:20]:
            click.echo(f"seed {seed}: {complaints[0]}\n  pliant sim --cluster --seed {seed}")
    sys.exit(1 if failures else 0)


def _run_seed(seed: int) -> Result:
    universe, led = Universe(seed), LedPool(seed)
    complaints = [*universe.run(), *led.run()]
    return seed, complaints, universe.decisions + led.decisions, universe.fired + led.fired
