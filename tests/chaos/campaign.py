"""The long run: many faults at one job, one after the other and one inside another, until it finishes all the same."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from chaos.checks import check_run
from chaos.chronicle import Stuck
from chaos.faults import KINDS, TARGET_MAX, Fault, Strikes
from chaos.job import Job, Task
from chaos.probe import STRUCK
from pliant.core.messages import Resize
from pliant.core.model import Target

LEASE_TTL_S = 3.0
TARGET_FIRST = 3
SHARES = {"kill": 0.4, "stop": 0.11, "join": 0.12, "drain": 0.26, "coordinator": 0.11}
AIMED = 0.75  # of the kills are aimed at a place; the others strike wherever the victim is
DURING = 0.3  # of the faults are aimed at another change; some will not find one
STEPS_PER_FAULT = 14
GAP_MAX_S = 0.5
PACE_S = 0.12
FIRST_STEPS = 150  # until everybody is there, and some more for when there are only a few faults
RESERVE_STEPS = 60  # for the end, when everybody is to be there again
PACE_RISE_S = 0.01  # for each step that the job is ahead of its faults
PACE_MAX_S = 0.8
PACE_LAST_S = 4.0
IDLE_S = 5.0
MORE_MAX = 1.05  # faults that did not count, or made room for others, are made up for so far
_TICK = threading.Event()


def plan(count: int, chance: random.Random, kinds: Collection[str] = KINDS) -> list[Fault]:
    """So many faults in random order, each kind as often as its share says, kills over all places."""
    faults: list[Fault] = []
    whole = sum(SHARES[kind] for kind in kinds)
    for kind in kinds:
        number = max(1, math.ceil(count * SHARES[kind] / whole))
        for index in range(number):
            aim = STRUCK[index % len(STRUCK)] if kind == "kill" and index < max(6, AIMED * number) else None
            faults.append(Fault(kind, aim))
    chance.shuffle(faults)
    del faults[count:]
    for fault in faults:
        fault.during = fault.aim is None and chance.random() < DURING
    return faults


def task_for(count: int) -> Task:
    """Enough steps for so many faults; the pace sees to it that they last."""
    few = Task(epochs=1)
    return Task(epochs=max(3, math.ceil((RESERVE_STEPS + FIRST_STEPS + count * STEPS_PER_FAULT) / few.steps_per_epoch)))


class Campaign:
    """One job and its faults."""

    def __init__(self, folder: Path, count: int, seed: int, kinds: Collection[str] = KINDS) -> None:
        self.chance = random.Random(seed)
        self.planned = deque(plan(count, self.chance, kinds))
        self.count = count
        self.done: list[Fault] = []
        self.in_hand: Fault | None = None
        self.broken: list[str] = []
        self.folder = folder
        self.task = task_for(count)

    def run(self) -> dict[str, object]:
        """Until the job has finished; gives what was found."""
        workers = f"1:{TARGET_MAX}"
        with Job(self.folder, self.task, workers, TARGET_FIRST, LEASE_TTL_S) as job:
            over = threading.Event()
            pacer = threading.Thread(target=self._keep_pace, args=(job, over), daemon=True)
            pacer.start()
            try:
                self._disturb(job)
                over.set()
                pacer.join()
                job.wish.pace_s = 0.0
                job.chronicle.until(lambda scene: scene.state.ended)
                job.run.wait(120)
            except (Stuck, TimeoutError) as stuck:
                self.broken.append(f"the job does not go on: {stuck}; the fault in hand: {self.in_hand}")
                (self.folder / "stacks").write_text(job.dump_stacks())
                return {"broken": self.broken, **self._counts()}
            finally:
                over.set()
            found = check_run(job, self.done)
            self.broken += found.pop("broken")
            return {"broken": self.broken, **self._counts(), **found}

    def _disturb(self, job: Job) -> None:
        strikes = Strikes(job, self.chance)
        job.chronicle.until(lambda scene: len(scene.able) >= TARGET_FIRST or scene.state.ended)
        print(f"{len(job.chronicle.scene.able)} members train; {self.count} faults to come", flush=True)
        began = time.monotonic()
        while self.planned and not job.chronicle.scene.state.ended and len(self.done) < self.count * MORE_MAX:
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
            print(f"{fault.number:>4}/{self.count} [{time.monotonic() - began:6.1f} s] {fault}", flush=True)
        strikes.send(Resize(Target(TARGET_MAX)))  # several must come to the end for it to say anything
        job.chronicle.until(lambda scene: (strikes.settle() and len(scene.able) >= TARGET_MAX) or scene.state.ended)
        strikes.finish()
        self.broken += strikes.broken
        for fault in strikes.joins:
            fault.effect = ""

    def _next(self, strikes: Strikes) -> Fault | None:
        """The first of those planned whose moment it is. If there is none for long, one more makes room for others.

        Only the next few are looked at, and more the longer it takes: what is always possible must not all come first.
        """
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < IDLE_S:
            # Joins go first: there is room for one only now and then, and they must not be left over at the end.
            joins = [fault for fault in self.planned if fault.kind == "join"][:1]
            for fault in (*joins, *islice(self.planned, 6 + int(4 * waited_s))):
                if strikes.may(fault):
                    self.planned.remove(fault)
                    return fault
            _TICK.wait(0.02)
            if strikes.scene.state.ended:
                return None
        more = (Fault("join"), Fault("drain"))
        return next((fault for fault in more if strikes.may(fault)), None)

    def _keep_pace(self, job: Job, over: threading.Event) -> None:
        """Let the steps last as long as the faults, however long these take; the last ones almost stand still."""
        share = (self.task.steps - RESERVE_STEPS) / (self.count + 2)
        while not over.wait(0.05):
            step, done = job.chronicle.scene.step, sum(fault.counts for fault in self.done)
            ahead = max(0.0, step - (done + 1) * share)
            last = step > self.task.steps - RESERVE_STEPS
            job.wish.pace_s = PACE_LAST_S if last else min(PACE_MAX_S, PACE_S + ahead * PACE_RISE_S)

    def _counts(self) -> dict[str, object]:
        counted = [fault for fault in self.done if fault.counts]
        kills = Counter(
            fault.place.name.lower() for fault in counted if fault.kind == "kill" and fault.place is not None
        )
        slow = sorted(fault.until_step_s for fault in counted)
        return {
            "faults": len(counted),
            "of": self.count,
            "kinds": dict(Counter(fault.kind for fault in counted)),
            "kills_by_place": dict(kills),
            "during_another_change": sum(bool(fault.change) for fault in counted),
            "without_effect": [str(fault) for fault in self.done if not fault.counts],
            "until_next_step_s": {
                "median": round(slow[len(slow) // 2], 2) if slow else None,
                "longest": round(slow[-1], 2) if slow else None,
            },
        }
