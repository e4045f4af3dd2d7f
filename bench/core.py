"""Measure the cost of a pump by number of members and jobs, and of one sample of the canonical order.

Prints a table of microseconds and, as its last line, one JSON object. Renew and progress should stay flat; join,
leave and form may grow with the members of their own job, never with other jobs. Timings are reported, not judged:
the exit code is about the run itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from order import order_cost

from pliant.coordinator.service.inbox import Accepted, Sender
from pliant.coordinator.service.pump import Service
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import Lineage, make_line
from pliant.core.model.job import Job, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.memory import MemoryStore

GRID = Grid(samples=10**9, batch=16384, slots=16384, epochs=1)
TERMS = Terms(GRID, seed=1)
MEMBERS = (10, 100, 1_000, 10_000)
JOBS = (1, 10, 100, 1_000)
OPERATIONS = ("renew", "progress", "join", "leave", "form")


class Bench:
    """A coordinator over a memory store, with a clock of its own, so that no lease runs out meanwhile."""

    def __init__(self) -> None:
        self.service = Service(MemoryStore("bench"), "bench", time.time)
        self.now = 0.0
        self.lives = 0
        self.turn = 1

    def ask(self, job: str, *commands: m.Command) -> float:
        """Return the seconds that one pump takes with these commands, all of which must be accepted."""
        for command in commands:
            self.service.submit(job, command, command)
        self.now += 0.001
        began = time.perf_counter()
        pumped = self.service.pump(self.now)
        took = time.perf_counter() - began
        refused = [reply.answer for reply in pumped.replies if not isinstance(reply.answer, Accepted)]
        if refused:
            raise SystemExit(f"the benchmark's own request was refused: {refused[0]}")
        return took

    def job(self, name: str) -> Job:
        known = self.service.job(name)
        assert known is not None
        return known[0]

    def start(self, name: str, members: int) -> None:
        """Create a running job, with all members in one world that reported its first step."""
        self.ask(name, m.Create(name, JobSpec(1, 2 * members, Target(members))))
        self.ask(name, *[m.Join(self.life(name), AgentId("a"), TERMS) for _ in range(members)])
        self.report(name)

    def life(self, name: str) -> MemberId:
        self.lives += 1
        return MemberId(f"{name}.{self.lives}")

    def report(self, name: str) -> float:
        """One more committed step, said by rank 0."""
        job = self.job(name)
        world = job.worlds[-1]
        step, head = job.durable.step + 1, job.durable
        new = make_line(Lineage(head.generation, head.step, head.digest), world.number, step, GRID.cursor(step), 1, 1)
        holders = None if job.current == world.number else frozenset(world.members)
        return self.ask(name, m.Report(world.members[0], 0, world.number, (new,), holders))

    # --------------------------------------------------------------------------------------- what is measured

    def renew(self, name: str) -> float:
        member = self.job(name).worlds[-1].members[-1]
        known = self.service.job(name)
        assert known is not None
        count = 50
        self.now += 0.001
        began = time.perf_counter()
        replies = [self.service.renew(name, Sender("member", member), known[1], self.now) for _ in range(count)]
        took = time.perf_counter() - began
        if not all(reply is not None and isinstance(reply.answer, Accepted) for reply in replies):
            raise SystemExit(f"the benchmark's own renewal was refused: {replies[0]}")
        return took / count

    def progress(self, name: str) -> float:
        return self.report(name)

    def join(self, name: str) -> float:
        took = self.ask(name, m.Join(self.life(name), AgentId("a"), TERMS))
        self._calm(name)
        return took

    def leave(self, name: str) -> float:
        spare = max(self.job(name).members.values(), key=lambda member: member.number)
        took = self.ask(name, m.Leave(spare.id, 0, "bench"))
        self._calm(name)
        return took

    def form(self, name: str) -> float:
        """Another target, by turns one less and one more: a planned world is formed and written."""
        job = self.job(name)
        self.turn = -self.turn
        took = self.ask(name, m.Resize(Target(job.target.size + self.turn)))
        self._calm(name)
        return took

    def _calm(self, name: str) -> None:
        """Let the newest world be the current one, as its members would by their first report."""
        if self.job(name).current != self.job(name).worlds[-1].number:
            self.report(name)


def measure(bench: Bench, name: str, repeats: int) -> dict[str, float]:
    """The median of each operation, in microseconds; operations interleaved, so that noise strikes all alike."""
    acts: dict[str, Callable[[str], float]] = {operation: getattr(bench, operation) for operation in OPERATIONS}
    took: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    for _ in range(repeats):
        for operation, act in acts.items():
            took[operation].append(act(name))
    return {operation: round(1e6 * statistics.median(times), 1) for operation, times in took.items()}


def with_members(repeats: int) -> dict[int, dict[str, float]]:
    """One job, ever larger."""
    result = {}
    for count in MEMBERS:
        print(f"one job of {count} members ...", file=sys.stderr)
        bench = Bench()
        bench.start("job", count)
        result[count] = measure(bench, "job", min(repeats, max(5, 20_000 // count)))
    return result


def with_jobs(repeats: int) -> dict[int, dict[str, float]]:
    """One job of 8 members among ever more of the same."""
    result = {}
    for count in JOBS:
        print(f"{count} jobs of 8 members ...", file=sys.stderr)
        bench = Bench()
        for index in range(count):
            bench.start(f"job{index}", 8 if index else 64)
        result[count] = measure(bench, "job0", min(repeats, 40))
    return result


def show(title: str, rows: dict[int, dict[str, float]]) -> None:
    print(f"\n{title:<12}" + "".join(f"{operation:>12}" for operation in OPERATIONS) + "   (us, medians)")
    for count, row in rows.items():
        print(f"{count:<12}" + "".join(f"{row[operation]:>12.1f}" for operation in OPERATIONS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the canonical order that is timed.")
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    members, jobs = with_members(options.repeats), with_jobs(options.repeats)
    order = order_cost(seed=options.seed)
    show("members", members)
    show("jobs", jobs)
    print(f"\ncanonical order, ns a sample: {order}")
    print(json.dumps({"ok": True, "members_us": members, "jobs_us": jobs, "order_ns": order}))


if __name__ == "__main__":
    main()
