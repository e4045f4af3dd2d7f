"""`make chaos`: faults of every kind at live jobs that save themselves, and all promises at once."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos import extra_faults
from chaos.campaign import LEASE_TTL_S, Campaign, Manner, counts, plan, task_for
from chaos.checks import check_run
from chaos.faults import Fault
from chaos.frameworks import ARRAYS
from chaos.job import Job, Task
from chaos.leftovers import check_leftovers, check_report
from chaos.undisturbed import Alone
from pliant.chaos.fault_kinds import FaultKind

KEEP = 2
SAVED = ("--checkpoint-every", "20", "--checkpoint-keep", str(KEEP))
STEPS_PER_FAULT = 7
IDLE_S = 3.0  # without a moment for a fault: there is no time to waste
OWN_SHARE = 0.3  # of the faults strike a job whose coordinator is a child of its `pliant run`
ARRAYS_SHARE = 0.15  # of the faults strike jobs of JAX and Keras, if their environment is there
SHARES = {
    FaultKind.KILL: 0.22,
    FaultKind.STOP: 0.06,
    FaultKind.JOIN: 0.08,
    FaultKind.DRAIN: 0.13,
    FaultKind.KILL_COORDINATOR: 0.09,
    FaultKind.SLOW: 0.09,
    FaultKind.PARTITION: 0.18,
    FaultKind.KILL_ALL: 0.05,
    FaultKind.DAMAGE_CHECKPOINT: 0.03,
    FaultKind.KILL_AGENT: 0.02,
    FaultKind.REQUEST_CHECKPOINT: 0.05,
}
# A lease is 10 s there: nothing that lasts longer. In exchange `pliant run`, and its coordinator with it, dies often.
OWN_SHARES = {**SHARES, FaultKind.STOP: 0.0, FaultKind.KILL_AGENT: 0.08}
LEAST = 0.6  # of a kind's share must have counted, if there are enough faults


@dataclass(frozen=True)
class Wish:
    """The number of faults, and their time: no fault begins after `until`."""

    faults: int
    seed: int
    until: float = math.inf
    kinds: tuple[FaultKind, ...] = extra_faults.KINDS
    own: float = OWN_SHARE
    arrays: float = ARRAYS_SHARE
    programs: Path | None = None  # of the environment with JAX and Keras

    @property
    def parts(self) -> dict[str, int]:
        """Return the number of faults of each job."""
        arrays = round(self.arrays * self.faults / len(ARRAYS)) if self.programs is not None else 0
        own = round(self.own * (self.faults - arrays * len(ARRAYS)))
        return {"apart": self.faults - own - arrays * len(ARRAYS), "own": own, **dict.fromkeys(ARRAYS, arrays)}


def run(folder: Path, wish: Wish) -> dict[str, Any]:
    """Jobs, one after the other; what was found, with what is broken and what there was too little of."""
    chance = random.Random(wish.seed)
    result: dict[str, Any] = {"seed": wish.seed, "broken": [], "jobs": {}}
    done: list[Fault] = []
    began, begun = time.monotonic(), 0
    for name, count in wish.parts.items():
        begun += count
        until = began + (wish.until - began) * begun / wish.faults
        lease_ttl_s = None if name == "own" else LEASE_TTL_S
        manner = Manner(
            options=SAVED, strikes=extra_faults.Strikes, idle_s=IDLE_S, until=until, lease_ttl_s=lease_ttl_s
        )
        shares = OWN_SHARES if name == "own" else SHARES
        chosen = {kind: share for kind, share in shares.items() if kind in wish.kinds and share}
        if count and chosen:
            planned = planned_for(count, chance, chosen, lease_ttl_s)
            task = task_for(count, STEPS_PER_FAULT, slots=16, deterministic=True)
            if name in ARRAYS and wish.programs is not None:
                task = replace(task, framework=name, programs=wish.programs)
            result["jobs"][name] = _job(folder / name, task, planned, chance, manner, done, result)
    counted = counts(done, wish.faults)
    result |= {**counted, "cuts": _cuts(done), "short_of": _short_of(counted, wish)}
    return result


def planned_for(
    count: int, chance: random.Random, shares: Mapping[FaultKind, float], lease_ttl_s: float | None
) -> list[Fault]:
    """So many faults, each with how long it lasts."""
    planned = plan(count, chance, list(shares), shares)
    indices: Counter[str] = Counter()
    for fault in planned:
        extra_faults.detail(fault, chance, indices[fault.kind], lease_ttl_s)
        indices[fault.kind] += 1
    return planned


def _job(
    folder: Path,
    task: Task,
    planned: list[Fault],
    chance: random.Random,
    manner: Manner,
    done: list[Fault],
    result: dict[str, Any],
) -> dict[str, Any]:
    print(f"{folder.name}: {len(planned)} faults in {task.steps} steps", flush=True)
    campaign = Campaign(folder, task, planned, chance, manner)
    with Alone(folder.with_name(f"{folder.name}-alone"), task, nice=True) as lone:
        found = campaign.run(_checked)
        broken: list[str] = found.pop("broken")
        if hashes := found.pop("hashes", {}):
            wanted = lone.final()["final"]
            other = [part for part in wanted if hashes.get(part) != wanted[part]]
            if other:
                broken.append(f"{', '.join(other)} differ from those of one worker alone")
            found["same_bits"] = not other
    done += campaign.done
    result["broken"] += [f"{folder.name}: {each}" for each in broken]
    return found


def _checked(job: Job, faults: Sequence[Fault]) -> dict[str, Any]:
    found = check_run(job, faults)
    broken: list[str] = found["broken"]
    for each in job.said():
        if each.get("compiled"):
            broken.append(f"{each['member']} compiled {each['compiled']} times after it had joined")
    return {**found, "report": check_report(job, broken), "left": check_leftovers(job, KEEP, broken)}


def _cuts(faults: Sequence[Fault]) -> dict[str, int]:
    """Return how often each cut was made, for shorter and for longer than a lease."""
    found = [fault for fault in faults if fault.cut and fault.counts]
    return dict(Counter(f"{fault.cut}, {'long' if fault.lasts_s > LEASE_TTL_S else 'short'}" for fault in found))


def _short_of(counted: dict[str, Any], wish: Wish) -> list[str]:
    """Return what there was too little of. That breaks no promise, but the campaign is weaker than it should be."""
    short = [f"{counted['faults']} faults count, not {wish.faults}"] if counted["faults"] < wish.faults else []
    usual = Wish(wish.faults, wish.seed, wish.until, programs=wish.programs)
    for kind in wish.kinds if wish == usual else ():
        wanted = sum(count * (OWN_SHARES if name == "own" else SHARES)[kind] for name, count in wish.parts.items())
        if counted["kinds"].get(kind, 0) < math.floor(LEAST * wanted):
            short.append(f"only {counted['kinds'].get(kind, 0)} faults are of the kind {kind}")
    return short
