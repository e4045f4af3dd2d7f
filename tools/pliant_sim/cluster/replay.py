"""Replay a workload under a policy, and measure what its jobs get from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pliant.core.autoscale.pace import SizePace
from pliant_sim.cluster.policies import Policy, PolicyInput, Running
from pliant_sim.cluster.profiles import PER_NODE
from pliant_sim.cluster.workloads import JobSpecimen, percentile

NOISE = 0.1  # of a measured stretch
PERIOD_S = 60.0  # between two decisions without an arrival or an end


@dataclass
class Outcome:
    """The result of one replay, in seconds; `busy_s` are GPU-seconds of jobs, `paused_s` those of changes."""

    jct: dict[str, float] = field(default_factory=dict)
    makespan: float = 0.0
    busy_s: float = 0.0
    paused_s: float = 0.0
    changes: int = 0
    inversion_s: float = 0.0

    @property
    def mean(self) -> float:
        return sum(self.jct.values()) / len(self.jct)

    @property
    def p99(self) -> float:
        return percentile(list(self.jct.values()), 0.99)


class Nodes:
    """Machines with PER_NODE slots each, and which job has how many on each."""

    def __init__(self, count: int) -> None:
        self._free = [PER_NODE] * count
        self._places: dict[str, dict[int, int]] = {}

    def place(self, name: str, size: int) -> None:
        """Give a job so many slots: whole machines first, and the rest where it fits most tightly."""
        for node, count in self._places.pop(name, {}).items():
            self._free[node] += count
        places: dict[int, int] = {}
        while size:
            part = min(size, PER_NODE)
            fitting = [node for node, free in enumerate(self._free) if free >= part]
            if fitting:
                node = min(fitting, key=lambda x: (self._free[x], x))
            else:
                node = max(range(len(self._free)), key=lambda x: (self._free[x], -x))
                part = self._free[node]
            places[node] = places.get(node, 0) + part
            self._free[node] -= part
            size -= part
        if places:
            self._places[name] = places

    def machines(self, name: str) -> int:
        return len(self._places[name])


class WorkloadReplay:
    """One workload under one policy. A change of a job's size stops it for `cost_s`; so does its start."""

    def __init__(self, jobs: Sequence[JobSpecimen], policy: Policy, cost_s: float, nodes: int = 16) -> None:
        self._coming = sorted(jobs, key=lambda job: job.at)
        self._policy = policy
        self._cost_s = cost_s
        self._slots = nodes * PER_NODE
        self._nodes = Nodes(nodes)
        self._jobs: list[Running] = []
        self._now = 0.0
        self._noise = Random(0)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Replay until every job has ended."""
        while self._coming or self._jobs:
            self._decide()
            self._advance(self._next())
        self.outcome.makespan = self._now
        return self.outcome

    def _next(self) -> float:
        ends = [self._now + PERIOD_S] if self._jobs else []
        if self._coming:
            ends.append(self._coming[0].at)
        for each in self._jobs:
            if each.size:
                ends.append(max(self._now, each.paused_until) + each.left / self._speed(each))
        return min(ends)

    def _speed(self, each: Running) -> float:
        return each.job.speed(self._nodes.machines(each.job.name), each.size)

    def _advance(self, until: float) -> None:
        waiting = [each for each in self._jobs if not each.size]
        for each in self._jobs:
            if not each.size:
                continue
            passed = until - self._now
            paused = min(passed, max(0.0, each.paused_until - self._now))
            self.outcome.busy_s += passed * each.size
            self.outcome.paused_s += paused * each.size
            each.served_s += passed * each.size
            steps = (passed - paused) * self._speed(each)
            each.left -= steps
            if passed > paused:
                noisy = steps * self._noise.uniform(1 - NOISE, 1 + NOISE)
                each.pace.sizes.setdefault(each.size, SizePace()).add(noisy, passed - paused)
            if any(other.job.priority > each.job.priority for other in waiting):
                self.outcome.inversion_s += passed * each.size
        self._now = until
        for each in [each for each in self._jobs if each.left <= 1e-6 * each.job.steps]:
            self.outcome.jct[each.job.name] = until - each.job.at
            self._nodes.place(each.job.name, 0)
            self._jobs.remove(each)
        while self._coming and self._coming[0].at <= until:
            job = self._coming.pop(0)
            self._jobs.append(Running(job, job.steps))

    def _decide(self) -> None:
        before = {each.job.name: each.size for each in self._jobs}
        sizes = self._policy(PolicyInput(self._now, self._slots, self._jobs, self._cost_s))
        assert sum(sizes.values()) <= self._slots, "more slots are given away than there are"
        changed = [each for each in self._jobs if before[each.job.name] != sizes.get(each.job.name, 0)]
        for each in changed:
            each.size = sizes.get(each.job.name, 0)
            self._nodes.place(each.job.name, 0)
        for each in sorted(changed, key=lambda x: -x.size):
            self._nodes.place(each.job.name, each.size)
            each.paused_until = self._now + self._cost_s
            self.outcome.changes += 1
