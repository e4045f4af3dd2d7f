"""Read published traces of spot machines: how many there are at each time."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

PARCAE_SEGMENTS = ("hh_55_65", "hl_15_25", "lh_80_90", "ll_10_11")
MINUTE_S = 60.0


@dataclass(frozen=True)
class SpotTrace:
    """A trace: from each time on, the machines that are there. It ends at `end_s`, and begins at 0."""

    name: str
    changes: tuple[tuple[float, frozenset[str]], ...]
    end_s: float

    @property
    def machine_s(self) -> float:
        """The machine-seconds of the whole trace."""
        ends = (*(at for at, _ in self.changes[1:]), self.end_s)
        return sum((end - at) * len(up) for (at, up), end in zip(self.changes, ends, strict=True))


def _folded(name: str, steps: list[tuple[float, str, list[str]]], end_s: float) -> SpotTrace:
    """Return the trace of steps that add and remove machines. Steps of the same time are one change."""
    up: frozenset[str] = frozenset()
    changes: dict[float, frozenset[str]] = {0.0: up}
    for at, what, machines in steps:
        up = up | frozenset(machines) if what == "add" else up - frozenset(machines)
        changes[at] = up
    return SpotTrace(name, tuple(sorted(changes.items())), end_s)


def read_bamboo(path: Path) -> SpotTrace:
    """Read a trace of Bamboo: lines `milliseconds,add|remove,machine`. It ends with its last line."""
    with path.open(newline="") as file:
        rows = [(float(at) / 1000, what, [machine]) for at, what, machine in csv.reader(file)]
    return _folded(f"bamboo {path.stem.removesuffix('-trace')}", rows, rows[-1][0])


def read_parcae(path: Path) -> SpotTrace:
    """Read a segment of Parcae: a list `[milliseconds, add|remove|no-op, {nodes, duration}]` on each line."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    rows = [(at / 1000, what, about["nodes"]) for at, what, about in lines if what in ("add", "remove")]
    at, _, about = lines[-1]
    return _folded(f"parcae {path.stem.removeprefix('trace_')[:2]}", rows, (at + about["duration"]) / 1000)


def read_skypilot(path: Path) -> SpotTrace:
    """Read a trace of SkyPilot: the number of machines at each tick. The machine that came last goes first."""
    found = json.loads(path.read_text())
    gap_s, counts = float(found["metadata"]["gap_seconds"]), found["data"]
    changes = [(0.0, frozenset[str]())]
    for tick, count in enumerate(counts):
        if count != len(changes[-1][1]):
            changes.append((tick * gap_s, frozenset(f"m{number}" for number in range(count))))
    if len(changes) > 1 and changes[1][0] == 0.0:
        changes.pop(0)
    return SpotTrace(
        f"skypilot {path.parents[1].name} {path.stem.partition('_')[0]}", tuple(changes), len(counts) * gap_s
    )


def read_spot_traces(folder: Path) -> tuple[SpotTrace, ...]:
    """Read Bamboo's two traces of AWS, Parcae's four segments, and SkyPilot's with several machines."""
    bamboo = [read_bamboo(folder / "bamboo" / "traces" / f"{kind}-trace.csv") for kind in ("p3", "g4dn")]
    segments = folder / "parcae" / "aws" / "traces" / "resnet152"
    parcae = [read_parcae(segments / f"trace_{name}.txt") for name in PARCAE_SEGMENTS]
    sky = [path for size in ("16-node", "4-node") for path in sorted((folder / "skypilot").glob(f"*/{size}/*/*.json"))]
    return (*bamboo, *parcae, *map(read_skypilot, sky))
