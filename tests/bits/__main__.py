"""The same bits whatever the membership did: `python -m bits`, in the folder `tests`.

It trains the same thing again and again: alone, by one to four workers, resized, replaced, and through schedules of
faults, a few at a time; every row of the table has the hashes of one. The last line is one JSON object. What a
training left (workers' output, stacks, the schedule's story) is kept if it broke the promise.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import click

from bits.lanes import rows
from bits.pieces import Piece, pieces
from bits.table import HEAD, Table


@click.command()
@click.option("--seed", default=0, show_default=True, help="For the schedules of faults.")
@click.option("--schedules", default=50, show_default=True, help="How many.")
@click.option("--row", multiple=True, help="Only rows with this in their name, and those they are compared with.")
@click.option("--lanes", default=3, show_default=True, help="How many trainings at a time.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(seed: int, schedules: int, row: tuple[str, ...], lanes: int, keep: bool) -> None:
    """Show that deterministic training comes to the same bits for every history of its membership."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-bits-"))
    chosen = choose(pieces(seed, schedules), row)
    table = Table()
    print(f"{len(chosen)} trainings, {lanes} at a time\n\n{HEAD}", flush=True)
    for done in rows(chosen, folder, lanes):
        print(table.add(done), flush=True)
    print()
    for line in table.summary():
        print(line)
    found = table.judged()
    for each in found["broken"]:
        print(f"BROKEN: {each}")
    if found["broken"] or keep:
        print(f"what the trainings left is in {folder}")
    else:
        shutil.rmtree(folder)
    print(json.dumps({**found, "seed": seed, "seconds": round(monotonic() - began, 1)}), flush=True)
    sys.exit(bool(found["broken"]))


def choose(all_of_them: list[Piece], names: Sequence[str]) -> list[Piece]:
    """Those with such a name, and the lone workers' that they are compared with; without names all of them."""
    wanted = [piece for piece in all_of_them if not names or any(name in str(piece) for name in names)]
    groups = {(piece.lesson, piece.shape, piece.task) for piece in wanted}
    return [
        piece
        for piece in all_of_them
        if piece in wanted or (piece.kind == "alone" and (piece.lesson, piece.shape, piece.task) in groups)
    ]


if __name__ == "__main__":
    main()
