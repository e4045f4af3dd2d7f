"""Flip bits in a real training and see that they are found: `python -m flips`, in the folder `tests`.

The last line of the output is one JSON object.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic

import click

from flips.cases import CASES
from flips.story import Plan, alone, together

COSTS = {
    "nothing": Plan(),
    "verify=20": Plan(verify=20),
    "verify=1": Plan(verify=1),
    "verify_slots=0.05": Plan(verify_slots=0.05),
    "verify_slots=1.0": Plan(verify_slots=1.0),
}
WIDTHS = {"0.1 M": (4_500, 8), "10 M": (450_000, 3)}  # by the number of parameters: the layer's width, and epochs


@click.command()
@click.option("--seed", default=0, show_default=True, help="For the order in which costs are measured.")
@click.option("--repeat", default=2, show_default=True, help="How often each cost is measured.")
@click.option("--no-costs", is_flag=True, help="Only see that flips are found.")
def main(seed: int, repeat: int, no_costs: bool) -> None:
    """Flip bits of weights and gradients, and measure what finding them costs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `subprocess.run` ends its child then
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-flips-"))
    broken: list[str] = []
    found: dict[str, str] = {}
    (sha,) = alone(Plan(), folder / "alone").shas
    click.echo(f"undisturbed, one worker: {sha}")
    for number, (name, case) in enumerate(CASES.items()):
        found[name], wrong = case(folder / str(number), sha)
        click.echo(f"{name}: {found[name]}" + "".join(f"\n  BROKEN: {each}" for each in wrong))
        broken += [f"{name}: {each}" for each in wrong]
    costs = {} if no_costs else measure(folder, repeat, random.Random(seed))
    if broken:
        click.echo(f"what the runs left is in {folder}")
    else:
        shutil.rmtree(folder)
    seconds = round(monotonic() - began, 1)
    click.echo(json.dumps({"ok": not broken, "broken": broken, "found": found, "step_ms": costs, "seconds": seconds}))
    sys.exit(1 if broken else 0)


def measure(folder: Path, repeat: int, chance: random.Random) -> dict[str, dict[str, float]]:
    """Medians of a step's time with two members, by size and setting, one after the other in an order drawn anew."""
    taken: dict[str, dict[str, list[float]]] = {size: {name: [] for name in COSTS} for size in WIDTHS}
    for turn in range(repeat):
        for size, (width, epochs) in WIDTHS.items():
            for name in chance.sample(list(COSTS), len(COSTS)):
                plan = COSTS[name]
                plan = Plan(epochs, verify=plan.verify, verify_slots=plan.verify_slots, width=width)
                story = together(plan, folder / f"cost-{size}-{turn}-{name}", "2:2")
                taken[size][name].append(story.step_ms)
                click.echo(f"{turn + 1} of {repeat}: {size}, {name}: {story.step_ms:.1f} ms a step")
                shutil.rmtree(folder / f"cost-{size}-{turn}-{name}")
    for size, by_name in taken.items():
        base = median(by_name["nothing"])
        for name, values in by_name.items():
            click.echo(f"{size}, {name}: {median(values):.1f} ms a step, {median(values) / base:.2f} x")
    return {size: {name: median(values) for name, values in by_name.items()} for size, by_name in taken.items()}


if __name__ == "__main__":
    main()
