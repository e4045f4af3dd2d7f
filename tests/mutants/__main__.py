"""Plant bugs and show that each is caught: `python -m mutants`, in the folder `tests`.

First the catchers are run on the unmutated tree, where they must have nothing to say. Then every planted bug, then a
hundred mechanical mutants of the core drawn by the seed. The last line of the output is one JSON object.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from time import monotonic

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mutants import harmless, ladder, mechanical, report
from mutants.bugs import Planted
from mutants.catch import Result
from mutants.crew import Crew, Interrupted
from mutants.edits import Misplaced, mutated
from mutants.mechanical import Mutant
from mutants.planted import PLANTED

MECHANICAL = 100
CAUGHT_MIN = 0.9  # of the mechanical ones
SCHEDULES_APART = 1000  # the simulator's seeds begin at the seed times this

Results = dict[Planted | Mutant, Result]
Changes = dict[Planted | Mutant, dict[str, str]]  # each with the files it changes


def check_unmutated(crew: Crew, first_seed: int, parts: int) -> ladder.Ladder:
    """Run every catcher on the tree as it is. Whatever complains there catches nothing."""
    files = ladder.suite()
    results: list[Result] = []

    def done(_: object, result: Result) -> None:
        if result.by:
            raise Interrupted(f"the catchers are not green without any mutant: {result.by}: {result.how}")
        results.append(result)

    crew.run_all(ladder.unmutated(files, first_seed, parts), lambda stage: crew.run({}, [stage]), done)
    return ladder.measured(results, files, first_seed)


def try_all(crew: Crew, changed: Changes, steps: ladder.Ladder, bar: Progress) -> Results:
    """Run the ladder on each mutant; the results come in the order of the mutants."""
    results: Results = {}
    task = bar.add_task("mutants", total=len(changed))

    def attempt(mutant: Planted | Mutant) -> Result:
        stages = steps.planted() if isinstance(mutant, Planted) else steps.mechanical(mutant.file)
        return crew.run(changed[mutant], stages)

    def done(mutant: Planted | Mutant, result: Result) -> None:
        results[mutant] = result
        bar.advance(task)
        if not result.by:
            bar.console.print(f"survives: {report.title(mutant)}", markup=False, highlight=False)

    crew.run_all(changed, attempt, done)
    return {mutant: results[mutant] for mutant in changed}


def changes(root: Path, seed: int, kinds: str, only: str) -> Changes:
    """The mutants to try, with the files each changes, as they are in the copy: others may be at work in the tree."""
    found: Changes = {}
    if kinds != "mechanical":
        found.update((bug, mutated(bug.edits, root)) for bug in PLANTED)
    if kinds != "planted":
        core = mechanical.core(root)
        for mutant in mechanical.draw(core, MECHANICAL, seed):
            found[mutant] = {mutant.file: mutant.apply(core[mutant.file])}
    return {mutant: texts for mutant, texts in found.items() if only in report.title(mutant)}


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True, help="Draws other mechanical mutants and other schedules.")
@click.option("--workers", default=2, show_default=True, help="How many mutants are tried at a time.")
@click.option("--kinds", type=click.Choice(["all", "planted", "mechanical"]), default="all", show_default=True)
@click.option("--only", default="", help="Try only mutants with this in their title.")
def main(seed: int, workers: int, kinds: str, only: str) -> None:
    started_s = monotonic()
    for asked_to_go in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked_to_go, signal.default_int_handler)  # which ends what was started on the way out
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Crew(workers) as crew, Progress(*columns, console=console) as bar:
            changed = changes(crew.copy, seed, kinds, only)
            task = bar.add_task("the catchers, without a mutant", total=1)
            steps = check_unmutated(crew, seed * SCHEDULES_APART, workers)
            bar.advance(task)
            results = try_all(crew, changed, steps, bar)
    except (Interrupted, Misplaced) as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True, style="bold red")
        print(json.dumps({"ok": False, "error": str(error), "seed": seed}), flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running")
        sys.exit(130)
    planted = {bug: result for bug, result in results.items() if isinstance(bug, Planted)}
    drawn = {mutant: result for mutant, result in results.items() if isinstance(mutant, Mutant)}
    known = harmless.read()
    report.show(planted, drawn, known)
    found = report.summary(planted, drawn, known, CAUGHT_MIN)
    print(json.dumps({**found, "seed": seed, "seconds": round(monotonic() - started_s, 1)}), flush=True)
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
