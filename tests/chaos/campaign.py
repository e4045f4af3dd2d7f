"""The long run: many faults at one job, one after the other and one inside another, until it finishes all the same."""

from __future__ import annotations

import math
import random
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from chaos.checks import check_run
from chaos.chronicle import Stuck
from chaos.faults import KINDS, TARGET_MAX, Fault, Strikes
from chaos.job import Job, Task
from chaos.pace import RESERVE_STEPS, Pace
from chaos.probe import STRUCK
from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Resize
from pliant.core.model.job import Target

LEASE_TTL_S = 3.0
ENDS_S = 120.0  # how long `pliant run` may take to end after the job has
SHARES = {
    FaultKind.KILL: 0.4,
    FaultKind.STOP: 0.11,
    FaultKind.JOIN: 0.12,
    FaultKind.DRAIN: 0.26,
    FaultKind.KILL_COORDINATOR: 0.11,
}
AIMED = 0.75  # of the kills are aimed at a place; the others strike wherever the victim is
DURING = 0.3  # of the faults are aimed at another change; some will not find one
STEPS_PER_FAULT = 14
GAP_MAX_S = 0.5
FIRST_STEPS = 150  # until every member is there, and some more for when there are only a few faults
LOOKED_AT = 6  # of the faults planned, before it takes long
MORE_MAX = 0.05  # of the faults may be made up for, if they did not count or made room for others
MORE_FEW = 8  # at least, if there are so many
_TICK = threading.Event()


@dataclass(frozen=True)
class Manner:
    """The number of faults, and the time to wait for a moment."""

    first: int = 3  # members train when the first fault strikes
    last: int = 3  # at least are there when nothing is to come any more: one alone cannot be compared
    idle_s: float = 10.0  # without a moment for any of the faults planned, one more makes room for them
    lease_ttl_s: float | None = LEASE_TTL_S  # None: the coordinator is a child of `pliant run`, as a user's is
    options: tuple[str, ...] = ()  # of `pliant run`
    strikes: type[Strikes] = Strikes
    until: float = math.inf  # no fault begins after this moment, by the clock that never goes back


USUAL = Manner()
print_now = partial(print, flush=True)


def plan(
    count: int, chance: random.Random, kinds: Collection[FaultKind] = KINDS, shares: Mapping[FaultKind, float] = SHARES
) -> list[Fault]:
    """So many faults in random order, each kind as often as its share says, kills over all places."""
    faults: list[Fault] = []
    whole = sum(shares[kind] for kind in kinds)
    for kind in kinds:
        number = max(1, math.ceil(count * shares[kind] / whole))
        for index in range(number):
            aim = STRUCK[index % len(STRUCK)] if kind is FaultKind.KILL and index < max(6, AIMED * number) else None
            faults.append(Fault(kind, aim))
    chance.shuffle(faults)
    del faults[count:]
    for fault in faults:
        fault.during = fault.aim is None and chance.random() < DURING
    return faults


def task_for(count: int, each: int = STEPS_PER_FAULT, **chosen: Any) -> Task:
    """Enough steps for so many faults; the pace sees to it that they last."""
    few = Task(epochs=1, **chosen)
    steps = RESERVE_STEPS + FIRST_STEPS + count * each
    return replace(few, epochs=max(3, math.ceil(steps / few.steps_per_epoch)))


class Campaign:
    """One job and its faults."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        faults: Sequence[Fault],
        chance: random.Random,
        manner: Manner = USUAL,
        say: Callable[[str], None] = print_now,
    ) -> None:
        self.chance = chance
        self.planned = deque(faults)
        self.count = len(faults)
        self.done: list[Fault] = []
        self.in_hand: Fault | None = None
        self.broken: list[str] = []
        self.folder = folder
        self.task = task
        self._manner = manner
        self._say = say

    def run(self, check: Callable[[Job, Sequence[Fault]], dict[str, Any]] = check_run) -> dict[str, Any]:
        """Until the job has finished; gives what was found."""
        workers = f"1:{TARGET_MAX}"
        manner = self._manner
        with Job(self.folder, self.task, workers, manner.first, manner.lease_ttl_s, manner.options) as job:
            try:
                with Pace(job, lambda: (sum(fault.counts for fault in self.done) + 1) / (self.count + 2)):
                    self._disturb(job)
                job.chronicle.until(lambda scene: scene.state.ended)
                job.run.wait(ENDS_S)
            except (Stuck, TimeoutError, subprocess.TimeoutExpired) as stuck:
                self.broken.append(f"the job does not go on: {stuck}; the fault in hand: {self.in_hand}")
                (self.folder / "stacks").write_text(job.dump_stacks())
                return {"broken": self.broken}
            found = check(job, self.done)
            self.broken += found.pop("broken")
            return {"broken": self.broken, **found}

    def _disturb(self, job: Job) -> None:
        strikes = self._manner.strikes(job, self.chance)
        job.chronicle.until(lambda scene: len(scene.able) >= self._manner.first or scene.state.ended)
        self._say(f"{len(job.chronicle.scene.able)} members train; {self.count} faults to come")
        began = time.monotonic()
        done_max = self.count + max(MORE_MAX * self.count, min(MORE_FEW, self.count))
        while self._has_more and not job.chronicle.scene.state.ended and len(self.done) < done_max:
            if time.monotonic() > self._manner.until:
                self._say(f"time is up: {len(self.planned)} faults are left out")
                break
            _TICK.wait(self.chance.random() * GAP_MAX_S)
            fault = self.in_hand = self._next(strikes)
            if fault is None or job.chronicle.scene.state.ended:
                continue
            if not strikes.strike(fault):
                self.planned.append(fault)
                continue
            self.done.append(fault)
            fault.number = sum(each.counts for each in self.done)
            if not fault.counts:
                self.planned.append(Fault(fault.kind, fault.aim, fault.during))
            self._say(f"{fault.number:>4}/{self.count} [{time.monotonic() - began:6.1f} s] {fault}")
        if job.chronicle.scene.target < self._manner.last:
            strikes.send(Resize(Target(self._manner.last)))
        job.chronicle.until(
            lambda scene: (strikes.settle() and len(scene.able) >= self._manner.last) or scene.state.ended
        )
        strikes.finish()
        self.broken += strikes.broken
        for fault in strikes.joins:
            fault.effect = ""

    @property
    def _has_more(self) -> bool:
        return bool(self.planned) and sum(fault.counts for fault in self.done) < self.count

    def _next(self, strikes: Strikes) -> Fault | None:
        """The first of those planned whose moment it is. If none comes, one more fault makes room for others.

        Those whose moment is rare go first when it comes, so that they are not all left over at the end: joins, for
        which there is room only now and then, and whatever strikes another change. Of the others only the next few are
        looked at, and more the longer it takes: what is always possible must not all come first.
        """
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < self._manner.idle_s:
            joins = [fault for fault in self.planned if fault.kind is FaultKind.JOIN][:1]
            changes = [fault for fault in self.planned if fault.meets_change][:LOOKED_AT]
            others = (fault for fault in self.planned if not fault.meets_change)
            for fault in (*joins, *changes, *islice(others, LOOKED_AT + int(4 * waited_s))):
                if strikes.may(fault):
                    self.planned.remove(fault)
                    return fault
            _TICK.wait(0.02)
            if strikes.scene.state.ended:
                return None
            if strikes.nothing_comes and all(
                fault.meets_change or fault.kind is FaultKind.JOIN for fault in self.planned
            ):
                break
        more = (Fault(FaultKind.JOIN), Fault(FaultKind.DRAIN))
        return next((fault for fault in more if strikes.may(fault)), None)


def counts(faults: Sequence[Fault], of: int) -> dict[str, Any]:
    """Return how many there were, of which kinds and where; of one campaign or of several."""
    counted = [fault for fault in faults if fault.counts]
    kills = Counter(
        fault.place.name.lower() for fault in counted if fault.kind is FaultKind.KILL and fault.place is not None
    )
    slow = sorted(fault.until_step_s for fault in counted)
    return {
        "faults": len(counted),
        "of": of,
        "kinds": dict(Counter(fault.kind for fault in counted)),
        "kills_by_place": dict(kills),
        "during_another_change": sum(bool(fault.change) for fault in counted),
        "without_effect": [str(fault) for fault in faults if not fault.counts],
        "until_next_step_s": {
            "median": round(slow[len(slow) // 2], 2) if slow else None,
            "longest": round(slow[-1], 2) if slow else None,
        },
    }
