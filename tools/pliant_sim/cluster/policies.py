"""Policies: how many workers each job gets. Ours is the real `allocate`; the others are what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pliant.core.allocate import Demand, Pool, allocate
from pliant.core.allocate.measured import NOTHING, Measured, measure
from pliant.core.autoscale import JobPace
from pliant_sim.cluster.workloads import JobSpecimen

Speeds = tuple[tuple[int, float], ...]  # (size, steps a second) pairs

LAS_QUEUE_S = 3600 * 8.0  # GPU-seconds after which the Tiresias-like policy moves a job to its lower queue


@dataclass
class Running:
    """A job of a replay that has come and not ended."""

    job: JobSpecimen
    left: float  # steps
    size: int = 0
    planned: int | None = None
    changed_at: float = 0.0
    served_s: float = 0.0  # GPU-seconds
    paused_until: float = 0.0
    pace: JobPace = field(default_factory=JobPace)  # measured in its own undisturbed stretches
    measured: Measured = NOTHING


@dataclass
class PolicyInput:
    """The input of a policy: the time, the slots, the jobs by arrival, and the cost of a change."""

    now: float
    slots: int
    jobs: list[Running]
    cost_s: float


Policy = Callable[[PolicyInput], dict[str, int]]
"""Returns the size of each job; jobs that it does not name have 0."""


def first_come(moment: PolicyInput) -> dict[str, int]:
    """Give each job the size it asks for, strictly in the order of arrival, and never change it."""
    sizes = {each.job.name: each.size for each in moment.jobs if each.size}
    free = moment.slots - sum(sizes.values())
    for each in moment.jobs:
        if not each.size:
            if each.job.size > free:
                break
            sizes[each.job.name] = each.job.size
            free -= each.job.size
    return sizes


def static(moment: PolicyInput) -> dict[str, int]:
    """As `first_come`, but a job that fits may overtake one that does not."""
    sizes = {each.job.name: each.size for each in moment.jobs if each.size}
    free = moment.slots - sum(sizes.values())
    for each in moment.jobs:
        if not each.size and each.job.size <= free:
            sizes[each.job.name] = each.job.size
            free -= each.job.size
    return sizes


def tiresias(moment: PolicyInput) -> dict[str, int]:
    """Give each job the size it asks for; jobs with little service so far go first and preempt the others."""
    sizes: dict[str, int] = {}
    for each in sorted(moment.jobs, key=lambda x: (x.served_s >= LAS_QUEUE_S, x.job.at, x.job.name)):
        if each.job.size <= moment.slots - sum(sizes.values()):
            sizes[each.job.name] = each.job.size
    return sizes


def equal_share(moment: PolicyInput) -> dict[str, int]:
    """Deal the slots out one by one, up to what each job can use."""
    sizes, slots = {each.job.name: 0 for each in moment.jobs}, moment.slots
    while slots > 0:
        able = [each for each in moment.jobs if sizes[each.job.name] < each.job.size_max]
        if not able:
            break
        for each in sorted(able, key=lambda x: sizes[x.job.name])[:slots]:
            sizes[each.job.name] += 1
            slots -= 1
    return sizes


def ours(moment: PolicyInput) -> dict[str, int]:
    """Ask `allocate`, with the speed of each job at every size."""
    return _allocated(moment, {each.job.name: each.job.speeds for each in moment.jobs})


def ours_unmeasured(moment: PolicyInput) -> dict[str, int]:
    """Ask `allocate` without any speed, as for jobs that report no steps."""
    return _allocated(moment, {each.job.name: () for each in moment.jobs})


def ours_measured(moment: PolicyInput) -> dict[str, int]:
    """Ask `allocate` with the speeds that were measured, as the coordinator does."""
    for each in moment.jobs:
        each.measured = measure(each.measured, each.pace)
    return _allocated(moment, {each.job.name: each.measured.speeds for each in moment.jobs})


def _allocated(moment: PolicyInput, speeds: dict[str, Speeds]) -> dict[str, int]:
    """Ask `allocate` until it changes nothing: in a replay, workers leave and come without delay."""
    while True:
        demands = tuple(_demand(each, moment, speeds[each.job.name]) for each in moment.jobs)
        found = allocate(Pool(moment.slots), demands)
        by_name = {each.job.name: each for each in moment.jobs}
        changed = False
        for allotment in found:
            each = by_name[allotment.name]
            changed |= allotment.size != each.size
            if allotment.size != each.size:
                each.changed_at = moment.now
            each.size, each.planned = allotment.size, allotment.planned
        if not changed:
            return {each.job.name: each.size for each in moment.jobs}


def _demand(each: Running, moment: PolicyInput, speeds: Speeds) -> Demand:
    return Demand(
        name=each.job.name,
        size_min=1,
        wanted=each.job.size_max,
        priority=each.job.priority,
        since=each.job.at,
        held=each.size,
        granted=each.size,
        planned=each.planned,
        unchanged_s=moment.now - each.changed_at if each.size else None,
        speeds=speeds,
        pause_s=moment.cost_s,
        left=each.left,
    )


POLICIES: dict[str, Policy] = {
    "first-come": first_come,
    "static": static,
    "tiresias": tiresias,
    "equal share": equal_share,
    "ours": ours,
    "ours, measured": ours_measured,
    "ours, unmeasured": ours_unmeasured,
}
