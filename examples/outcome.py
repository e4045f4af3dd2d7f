"""The result of a demo: broken promises, and the pauses of training."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pliant.core.model.names import MemberId

ACCURACY_MIN = 0.95

Applied = Mapping[int, Sequence[tuple[int, float]]]
"""By process, its applied steps with their times."""


@dataclass(frozen=True)
class Change:
    """A change made to the job: the worlds before and after, and the time."""

    name: str
    before: tuple[MemberId, ...]
    after: tuple[MemberId, ...]
    times: tuple[float, float]
    steps: range  # durable since it began


@dataclass(frozen=True)
class Outcome:
    """The facts at the end of a demo."""

    status: int  # of `pliant run`
    audit: Mapping[str, Any]
    steps: int  # expected
    accuracy: float
    hashes: tuple[str, str]  # trained elastically, and by one worker alone
    changes: Sequence[Change]
    pids: Mapping[MemberId, int]
    applied: Applied

    def broken(self) -> list[str]:
        """List the broken promises."""
        found = []
        audit = self.audit
        if self.status != 0:
            found.append(f"pliant run ended with status {self.status}")
        if not audit["ok"] or audit["lost"] or audit["repeated"] or audit["steps"] != self.steps:
            found.append(f"the audit found {audit}")
        for pid, steps in self.applied.items():
            if any(later != earlier + 1 for (earlier, _), (later, _) in pairwise(steps)):
                found.append(f"process {pid} did not apply every step once, in order")
        for change in self.changes:
            for member in sorted(set(change.before) & set(change.after)):
                if not set(change.steps) <= {step for step, _ in self.applied[self.pids[member]]}:
                    found.append(f"{member} did not train in one process while {change.name}")
        if self.accuracy < ACCURACY_MIN:
            found.append(f"the accuracy is {self.accuracy}")
        if not self.hashes[0] or self.hashes[0] != self.hashes[1]:
            found.append("one worker alone computes other bits")
        return found

    def pauses(self) -> list[tuple[Change, float, float]]:
        """Return, for each change, the usual and the longest time between two steps of a worker during it."""
        rows = []
        for change in self.changes:
            gaps = [
                later - earlier
                for steps in self.applied.values()
                for (_, earlier), (_, later) in pairwise(steps)
                if later > change.times[0] and earlier < change.times[1]
            ]
            rows.append((change, statistics.median(gaps), max(gaps)))
        return rows


def read_applied(folder: Path) -> Applied:
    """Read the files that examples/stretched.py writes."""
    found = {}
    for path in folder.glob("*.steps"):
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        found[int(path.stem)] = [(int(step), float(at)) for step, at in lines]
    return found
