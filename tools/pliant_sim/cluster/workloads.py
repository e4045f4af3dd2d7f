"""Jobs of a replayed workload."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pliant_sim.cluster.profiles import PER_NODE, Profile, read_profiles

LOADS = {0.5: "workloads-0.5", 1.0: "workloads", 1.5: "workloads-1.5", 2.0: "workloads-2.0"}
AUTHORS = ("tiresias", "optimus", "pollux")


@dataclass(frozen=True)
class JobSpecimen:
    """One job: when it comes, the size it asks for, the sizes it can have, its steps, and its speed by shape."""

    name: str
    at: float
    size: int  # of policies that do not resize
    size_max: int
    steps: float
    speed: Callable[[int, int], float]  # steps a second, on so many machines with so many workers
    speeds: tuple[tuple[int, float], ...]  # by size, packed on as few machines as possible
    priority: int = 0


def read_workload(path: Path, profiles: Mapping[str, Profile], urgent_every: int = 0) -> tuple[JobSpecimen, ...]:
    """Read the jobs of one file. Every `urgent_every`-th job has a higher priority; 0: none."""
    jobs = []
    with path.open(newline="") as file:
        for index, row in enumerate(csv.DictReader(file)):
            profile, batch = profiles[row["application"]], int(row["batch_size"])
            most = profile.size_max(batch)
            jobs.append(
                JobSpecimen(
                    name=row["name"],
                    at=float(row["time"]),
                    size=int(row["num_replicas"]),
                    size_max=most,
                    steps=float(profile.steps(batch)),
                    speed=_speed(profile, batch),
                    speeds=packed_speeds(profile, batch, most),
                    priority=10 if urgent_every and index % urgent_every == 0 else 0,
                )
            )
    return tuple(jobs)


def packed_speeds(profile: Profile, batch: int, most: int) -> tuple[tuple[int, float], ...]:
    return tuple((n, profile.steps_a_second(batch, ceil(n / PER_NODE), n)) for n in range(1, most + 1))


def _speed(profile: Profile, batch: int) -> Callable[[int, int], float]:
    return lambda machines, workers: profile.steps_a_second(batch, machines, workers)


def read_workloads(traces: Path, load: float, urgent_every: int = 0) -> dict[str, tuple[JobSpecimen, ...]]:
    """Read Pollux's eight workloads of one load."""
    folder = traces / "pollux-osdi21"
    profiles = read_profiles(folder / "traces")
    files = sorted((folder / LOADS[load]).glob("workload-*.csv"))
    return {path.stem: read_workload(path, profiles, urgent_every) for path in files}


def authors_results(traces: Path, load: float) -> dict[str, tuple[float, float]]:
    """Return the authors' mean and 99th percentile of completion times, by policy."""
    found = {}
    for policy in AUTHORS:
        path = traces / "pollux-osdi21" / "results-jobload" / f"{policy}-{load}" / "summary.json"
        summary = json.loads(path.read_text())
        tails = [percentile([float(x) for x in jobs.values()], 0.99) for jobs in summary["jcts"].values()]
        found[policy] = float(summary["mean"]), sum(tails) / len(tails)
    return found


def percentile(values: list[float], part: float) -> float:
    """Return the value that `part` of the values do not exceed."""
    return sorted(values)[max(0, ceil(part * len(values)) - 1)]
