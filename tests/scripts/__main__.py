"""Scripts that know nothing of Pliant, under `pliant run`: `python -m scripts`, in the folder `tests`.

Each is started with one agent; a worker is killed with -9; a second agent is added; and it must end with exit code 0,
leaving no process behind. The last line is one JSON object. The files of a failed script are kept. It needs
packages that the project does not: `requirements.txt` beside this file has them, and `make scripts` installs them.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import click

from scripts.cases import CASES, Case
from scripts.story import Story
from scripts.watched import Broken


@click.command()
@click.option("--seed", default=0, show_default=True, help="For which worker is killed.")
@click.option("--only", multiple=True, type=click.Choice([case.name for case in CASES]), help="Only this script.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(seed: int, only: tuple[str, ...], keep: bool) -> None:
    """Run scripts of the kinds people have, kill a worker of each and add an agent to it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    chosen = [case for case in CASES if not only or case.name in only]
    if missing := sorted({package for case in chosen for package in case.packages if find_spec(package) is None}):
        raise click.ClickException(f"not installed: {', '.join(missing)}. `make scripts` has all that is needed.")
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-scripts-"))
    done = {case.name: tell(case, folder / case.name, seed) for case in chosen}
    broken = [f"{name}: {found['broken']}" for name, found in done.items() if "broken" in found]
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"what the scripts left is in {folder}")
    else:
        shutil.rmtree(folder)
    summary = {"ok": not broken, "broken": broken, "seed": seed, "scripts": done}
    print(json.dumps({**summary, "seconds": round(monotonic() - began, 1)}), flush=True)
    sys.exit(bool(broken))


def tell(case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """One script's story, to its end or until it is broken."""
    began = monotonic()
    print(f"{case.name}: {case.worlds[0]} workers, then {case.worlds[1]}", flush=True)
    story = Story(case, folder, seed)
    try:
        story.run()
    except Broken as error:
        story.found["broken"] = str(error)
        for agent in story.agents:
            print(agent.tail(), flush=True)
    found = {**story.found, "seconds": round(monotonic() - began, 1)}
    print(f"{case.name}: {json.dumps(found)}", flush=True)
    return found


if __name__ == "__main__":
    main()
