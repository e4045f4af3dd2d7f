"""Schedules over the real service: `python -m schedules --seeds 50`, in the folder `tests`.

Each seed is a process of its own, with a coordinator, agents and members below it. The last line of the output is one
JSON object. The folder of a schedule that failed is kept: `story` in it has what happened, beside the logs.

A seed fixes the faults, their moments and their choices. It does not fix how quick a real process is, so one that fails
is likely to fail again, and not sure to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import click

from schedules.harness import run_seed
from schedules.messages import die_with_parent

LIMIT_S = 180.0  # for one schedule, whatever happens


@click.command()
@click.option("--seeds", default=50, show_default=True, help="How many schedules.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--parallel", default=3, show_default=True, help="How many at a time.")
@click.option("--keep", is_flag=True, help="Keep every schedule's story and logs, not those of failed ones alone.")
@click.option("--one", type=click.Path(path_type=Path), hidden=True, help="Run the first seed here, in that folder.")
def main(seeds: int, first: int, parallel: int, keep: bool, one: Path | None) -> None:
    """Run fault schedules with real processes over the real HTTP service."""
    if one is not None:
        die_with_parent()
        alone = run_seed(first, one)
        print(json.dumps(asdict(alone)))
        sys.exit(bool(alone.complaints))
    began = monotonic()
    base = Path(tempfile.mkdtemp(prefix="pliant-schedules-"))
    with ThreadPoolExecutor(parallel) as pool:
        results = list(pool.map(lambda seed: _apart(seed, base), range(first, first + seeds)))
    fired: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for result in results:
        fired.update(result["fired"])
        seen.update(result["seen"])
    failed = [result["seed"] for result in results if result["complaints"]]
    if not failed and not keep:
        shutil.rmtree(base)
    else:
        print(f"the stories and logs are in {base}")
    summary: dict[str, Any] = {"ok": not failed, "schedules": len(results), "failed": failed}
    summary["faults"] = dict(sorted(fired.items()))
    summary["seen"] = dict(sorted(seen.items()))
    for name in ("generations", "steps", "members", "events", "views", "acknowledged"):
        summary[name] = sum(result[name] for result in results)
    summary["seconds"] = round(monotonic() - began, 1)
    print(json.dumps(summary))
    sys.exit(bool(failed))


def _apart(seed: int, base: Path) -> dict[str, Any]:
    """One schedule in a process of its own, which takes everything below it along when it ends."""
    folder = base / str(seed)
    command = [sys.executable, "-m", "schedules", "--first", str(seed), "--one", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = _empty(seed, f"the schedule took longer than {LIMIT_S:g} s")
    except (IndexError, ValueError):
        result = _empty(seed, f"the harness broke: {done.stderr[-2000:]}")
    faults = sum(result["fired"].values())
    verdict = "FAILED" if result["complaints"] else "ok"
    print(
        f"seed {seed}: {verdict}, {faults} faults, {result['generations']} generations, "
        f"{result['members']} members, {result['seconds']:.1f} s",
        flush=True,
    )
    for complaint in result["complaints"]:
        print(f"  {complaint}", flush=True)
    if not result["complaints"]:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _empty(seed: int, complaint: str) -> dict[str, Any]:
    counts = dict.fromkeys(("generations", "steps", "members", "events", "views", "acknowledged", "seconds"), 0)
    return {"seed": seed, "complaints": [complaint], "fired": {}, "seen": {}, **counts}


if __name__ == "__main__":
    main()
