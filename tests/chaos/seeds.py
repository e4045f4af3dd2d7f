"""Seeds of `make chaos` that failed once: kept in `seeds.txt`, and run again before any other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("seeds.txt")


@dataclass(frozen=True)
class Seed:
    """One line of the file. What stands behind `#` is for people."""

    seed: int
    faults: int


def read(file: Path = FILE) -> list[Seed]:
    """All of them, in order."""
    lines = (line.partition("#")[0].split() for line in file.read_text().splitlines())
    return [Seed(int(seed), int(faults)) for seed, faults in filter(None, lines)]


def keep(seed: int, faults: int, file: Path = FILE) -> None:
    """Append one, unless it is there."""
    if Seed(seed, faults) not in read(file):
        with file.open("a") as lines:
            lines.write(f"{seed} {faults}\n")
