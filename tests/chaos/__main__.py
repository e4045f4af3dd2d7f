"""Chaos with a real training: `python -m chaos train --faults 200`, in the folder `tests`.

The last line of the output is one JSON object. A seed fixes the faults, their order, their victims' choice and the gaps
between them. It does not fix how quick a real process is, so a run that fails is likely to fail again, and not sure to.
What a run leaves (workers' logs, the event log's store, stacks) is kept if a promise was broken.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import click

from chaos import everything, extra_faults, outage, planted, seeds
from chaos.bugs import PLANTS
from chaos.campaign import Campaign, counts, plan, task_for
from chaos.checks import spread
from chaos.everything import Wish
from chaos.faults import KINDS, Fault
from chaos.job import Task
from chaos.probe import STRUCK
from chaos.undisturbed import SIZES, undisturbed
from chaos.undisturbed import alone as by_itself
from pliant.chaos.fault_kinds import FaultKind

LEAST_OF_EACH = 0.1  # of the faults, of each kind
LEAST_DURING = 0.2
FULL = 100
BEGUN = 0.88  # of the time in which faults are begun; the rest is for jobs to finish, and for looking at what they left


@click.group()
def main() -> None:
    """Disturb a real training job, and see whether its promises are kept."""


@main.command()
@click.option("--faults", default=200, show_default=True, help="How many faults.")
@click.option("--seed", default=0, show_default=True, help="For the faults and their order.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Only faults of these kinds.")
@click.option("--deterministic", default=0.3, show_default=True, help="The share of faults for deterministic=True.")
@click.option("--alone", is_flag=True, help="No undisturbed runs beside it, and no planted bugs.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def train(faults: int, seed: int, kinds: str, deterministic: float, alone: bool, keep: bool) -> None:
    """Strike two jobs again and again; then compare them with undisturbed ones, and plant bugs in the loader."""
    chosen = [FaultKind(kind) for kind in kinds.split(",")]

    def act(folder: Path) -> dict[str, Any]:
        chance = random.Random(seed)
        planned = plan(faults, chance, chosen)
        result: dict[str, Any] = {"seed": seed, "broken": []}
        done: list[Fault] = []
        to_the_bit = math.ceil(deterministic * faults)
        if to_the_bit:
            task = task_for(to_the_bit, slots=16, deterministic=True)
            same = _campaign(folder / "deterministic", task, planned[:to_the_bit], chance, done, result)
            _same_bits(same, folder, task, result)
        if to_the_bit < faults:
            task = task_for(faults - to_the_bit)
            result |= _campaign(folder / "disturbed", task, planned[to_the_bit:], chance, done, result)
            if not alone:
                _compare(result, folder, task, seed)
        result |= counts(done, faults)
        _enough(result, faults, chosen)
        if not alone:
            for bug in PLANTS:
                found = planted.run(folder / "planted", bug)
                result["broken"] += found.pop("broken")
                result.setdefault("planted", {})[bug] = found
        return result

    _report(act, keep)


def _campaign(
    folder: Path, task: Task, faults: list[Fault], chance: random.Random, done: list[Fault], result: dict[str, Any]
) -> dict[str, Any]:
    """One campaign; what was found but for what is broken and what was struck, which joins the rest."""
    print(f"{folder.name}: {len(faults)} faults in {task.steps} steps", flush=True)
    campaign = Campaign(folder, task, faults, chance)
    found = campaign.run()
    result["broken"] += [f"{folder.name}: {each}" for each in found.pop("broken")]
    done += campaign.done
    return found


def _same_bits(found: dict[str, Any], folder: Path, task: Task, result: dict[str, Any]) -> None:
    """The hashes of the deterministic run against those of one worker alone."""
    lone = by_itself(folder / "alone", task)["final"]
    hashes: dict[str, str] = found.get("hashes", {})
    other = [name for name in lone if hashes.get(name) != lone[name]]
    for name in lone:
        print(f"deterministic, {name:9}: disturbed {hashes.get(name, '')[:16]}, alone {lone[name][:16]}", flush=True)
    if other:
        result["broken"].append(f"deterministic: {', '.join(other)} differ from those of one worker alone")
    result["deterministic"] = {**found, "same_bits": not other}


@main.command(name="all")
@click.option("--faults", default=300, show_default=True, help="How many faults.")
@click.option("--seed", default=0, show_default=True, help="For the faults and their order.")
@click.option("--minutes", default=20.0, show_default=True, help="In the last eighth of it no fault is begun.")
@click.option(
    "--kinds", default=",".join(extra_faults.KINDS), help="Only faults of these kinds, kill,kill-agent for instance."
)
@click.option("--own", default=everything.OWN_SHARE, show_default=True, help="The share for a coordinator of its own.")
@click.option(
    "--arrays", default=everything.ARRAYS_SHARE, show_default=True, help="The share for jobs of JAX and Keras."
)
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder with the python and the pliant of an environment with JAX and Keras; without it none of them.",
)
@click.option("--rerun/--no-rerun", default=True, show_default=True, help="First the seeds that failed once.")
@click.option("--keep-seed", is_flag=True, help="If it fails, write the seed to seeds.txt.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def every_kind(
    faults: int,
    seed: int,
    minutes: float,
    kinds: str,
    own: float,
    arrays: float,
    programs: Path | None,
    rerun: bool,
    keep_seed: bool,
    keep: bool,
) -> None:
    """Strike live jobs that save themselves with faults of every kind, and check every promise at the end."""
    chosen = tuple(FaultKind(kind) for kind in kinds.split(","))
    wish = Wish(faults, seed, monotonic() + 60 * minutes * BEGUN, chosen, own, arrays, programs)

    def act(folder: Path) -> dict[str, Any]:
        broken: list[str] = []
        again = seeds.read() if rerun else []
        for each in again:
            found = everything.run(
                folder / f"seed-{each.seed}", Wish(each.faults, each.seed, wish.until, programs=programs)
            )
            broken += [f"seed {each.seed}, which failed once: {one}" for one in found["broken"]]
        result = everything.run(folder / "now", wish)
        if result["broken"] and keep_seed:
            seeds.keep(seed, faults)
        return {**result, "broken": broken + result["broken"], "rerun": [each.seed for each in again]}

    _report(act, keep)


@main.command()
@click.option("--seed", default=0, show_default=True, help="For the order of the data.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def coordinator(seed: int, keep: bool) -> None:
    """Kill the coordinator in the middle, and a member while it is away."""
    _report(lambda folder: outage.run(folder, seed), keep)


@main.command()
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
@click.argument("bugs", nargs=-1)
def plant(bugs: tuple[str, ...], keep: bool) -> None:
    """Plant bugs in the loader (all, or those named), and see each of them caught."""

    def act(folder: Path) -> dict[str, Any]:
        result: dict[str, Any] = {"broken": []}
        for bug in bugs or PLANTS:
            found = planted.run(folder, bug)
            result["broken"] += found.pop("broken")
            result[bug] = found
        return result

    _report(act, keep)


def _enough(result: dict[str, Any], faults: int, kinds: list[FaultKind]) -> None:
    """Return whether this was as much chaos as was asked for."""
    broken: list[str] = result["broken"]
    if result["faults"] < faults:
        broken.append(f"{result['faults']} faults count, not {faults}")
    if faults < FULL:
        return  # a few faults cannot be of every kind in every place
    for kind in kinds:
        if (count := result["kinds"].get(kind, 0)) < int(LEAST_OF_EACH * faults):
            broken.append(f"only {count} faults are of the kind {kind}")
    if empty := [place.name.lower() for place in STRUCK if not result["kills_by_place"].get(place.name.lower())]:
        broken.append(f"no member was killed in {', '.join(empty)}")
    if result["during_another_change"] < LEAST_DURING * faults:
        broken.append(f"only {result['during_another_change']} faults struck during another change")


def _compare(result: dict[str, Any], folder: Path, task: Task, seed: int) -> None:
    losses = []
    for size in SIZES:
        began = monotonic()
        found = undisturbed(folder, task, size, 1000 * (seed + 1) + size)
        result["broken"] += [f"undisturbed, size {size}: {each}" for each in found["broken"]]
        losses.append(found["loss"])
        print(f"undisturbed at size {size}: loss {found['loss']:.5f}, {monotonic() - began:.1f} s", flush=True)
    low, high = spread(losses)
    result["undisturbed"] = {"losses": losses, "spread": [low, high]}
    if result.get("loss") is None or not low <= result["loss"] <= high:
        result["broken"].append(f"the loss is {result.get('loss')}, outside of {low} to {high}")


def _report(act: Callable[[Path], dict[str, Any]], keep: bool) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-chaos-"))
    result = act(folder)
    broken = result.pop("broken")
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"what the run left is in {folder}")
    else:
        shutil.rmtree(folder)
    summary = {"ok": not broken, "broken": broken, **result, "seconds": round(monotonic() - began, 1)}
    print(json.dumps(summary), flush=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
