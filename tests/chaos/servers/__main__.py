"""Parameter servers through faults: `python -m chaos.servers --faults 300`, in the folder `tests`.

Three jobs train the recommender of `examples/wide_and_deep.py`, with pushes that are applied one by one, in pairs, and
however old they are. Each is compared with an undisturbed run. The last line of the output is one JSON object.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from chaos.servers.campaign import LOSS_WITHIN, plan, strike, undisturbed
from chaos.servers.job import Setting

SETTINGS = (
    Setting("one", 1, staleness_max=1),
    Setting("two", 2, staleness_max=0),
    Setting("async", 1, staleness_rates=True),
)


@click.command()
@click.option("--faults", default=300, show_default=True, help="How many faults, a third of them in each job.")
@click.option("--seed", default=0, show_default=True, help="For the faults, their order and their victims.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(faults: int, seed: int, keep: bool) -> None:
    """Kill workers, kill, drain, add and remove servers, and see that no acknowledged push is lost."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-chaos-"))
    chance = random.Random(seed)
    broken: list[str] = []
    jobs: dict[str, dict[str, Any]] = {}
    for at, setting in enumerate(SETTINGS):
        count = faults * (at + 1) // len(SETTINGS) - faults * at // len(SETTINGS)
        jobs[setting.name] = _compared(folder, setting, count, chance)
        broken += [f"{setting.name}: {each}" for each in jobs[setting.name].pop("broken")]
    counted = sum(job["faults"] for job in jobs.values())
    if counted < faults:
        broken.append(f"{counted} faults count, not {faults}")
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"what the run left is in {folder}")
    else:
        shutil.rmtree(folder)
    kinds: Counter[str] = Counter()
    for job in jobs.values():
        kinds.update(job.get("kinds", {}))
    seconds = round(time.monotonic() - began, 1)
    summary = {"ok": not broken, "broken": broken, "seed": seed, "faults": counted, "kinds": kinds, "jobs": jobs}
    print(json.dumps({**summary, "seconds": seconds}), flush=True)
    sys.exit(bool(broken))


def _compared(folder: Path, setting: Setting, faults: int, chance: random.Random) -> dict[str, Any]:
    calm = undisturbed(folder / f"{setting.name}-calm", setting, faults)
    print(
        f"{setting.name}, undisturbed: {calm['records']} records, loss {calm['loss']:.4f}, {calm['seconds']} s",
        flush=True,
    )
    found = strike(folder / setting.name, setting, plan(faults, chance), chance)
    found["broken"] += [f"undisturbed: {each}" for each in calm["broken"]]
    if "loss" in found:
        print(
            f"{setting.name}, through {found['faults']} faults: loss {found['loss']:.4f}, {found['seconds']} s",
            flush=True,
        )
        if abs(found["loss"] - calm["loss"]) > LOSS_WITHIN:
            found["broken"].append(f"the loss is {found['loss']}, and {calm['loss']} without faults")
    return {**found, "undisturbed": {name: calm[name] for name in ("loss", "refused", "seconds")}}


if __name__ == "__main__":
    main()
