"""Checks at the end of a run, disturbed or not. A check that fails adds a sentence to `broken`."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from chaos.faults import Fault
from chaos.job import Job
from chaos.training_log import read_log
from pliant.chaos.fault_kinds import FaultKind
from pliant.core import messages as m
from pliant.core.data.grid import Grid, deal_slots
from pliant.core.data.ledger import LedgerLine
from pliant.core.data.sample_order import Order
from pliant.core.model.job import JobState

SHOWN = 5
SURVIVORS_MIN = 2
# Two-sided 99.9 % quantiles of Student's t by degrees of freedom: what one more run of the same kind stays within.
STUDENT = {2: 31.60, 3: 12.92, 4: 8.61, 5: 6.87, 6: 5.96, 7: 5.41, 8: 5.04, 9: 4.78, 10: 4.59, 11: 4.44}


def check_run(job: Job, faults: Sequence[Fault]) -> dict[str, Any]:
    """Everything about one run that has ended."""
    broken: list[str] = []
    scene = job.chronicle.scene
    if scene.state is not JobState.FINISHED:
        broken.append(f"the job is {scene.state}: {scene.why}")
    if (code := job.run.poll()) != 0:
        broken.append(f"pliant run ended with {code}: {job.output[-1000:]}")
    audit = job.audit()
    back = _rolled_back(job)
    if not audit["ok"] or audit["lost"] or audit["repeated"] or audit["code"]:
        broken.append(f"the audit is not clean: {audit}")
    if audit["rolled_back"] != back or (back and not any(fault.goes_back for fault in faults)):
        broken.append(f"{back} steps were committed again, by the audit {audit['rolled_back']}; no fault asked for it")
    if audit["samples"] != job.task.epochs * job.task.samples:
        broken.append(f"{audit['samples']} samples are in the ledger, not {job.task.epochs * job.task.samples}")
    reads = _check_reads(job, broken, exactly=0 if faults or len(scene.worlds) > 1 else max(len(scene.ranked), 1))
    survivors = _check_processes(job, faults, broken)
    hashes, loss = check_final(job, faults, broken)
    return {
        "broken": broken,
        "audit": {key: audit[key] for key in ("ok", "samples", "lost", "repeated", "steps", "rolled_back")},
        "generations": max(scene.worlds, default=0),
        "members": len(scene.pids),
        "reads": reads,
        "survivors": survivors,
        "loss": loss,
        "hashes": hashes,
    }


def committed(job: Job) -> list[tuple[float, LedgerLine]]:
    """The ledger's lines in order, each with when it was written."""
    events = job.chronicle.events
    return [(event.at, line) for event in events if isinstance(event, m.StepsCommitted) for line in event.lines]


def _rolled_back(job: Job) -> int:
    """Return how many lines of the ledger are not in the committed history, which has every step once."""
    lines = [line.lineage.step for _, line in committed(job)]
    return len(lines) - len(set(lines))


def _check_reads(job: Job, broken: list[str], *, exactly: int) -> dict[str, int]:
    """The data set's own log against the ledger; `exactly` is the size of a world that never changed, 0 if it did.

    By the moment the ledger says that a sample was used for the nth time, the data set must have been asked for it n
    times at least. More often is right only where something happened: slots of a member that died are read again by
    others, a member without slots reads some to have something to do, and what was read ahead may not be needed any
    more. In an undisturbed run each sample is read exactly once in each epoch, but for the short step at an epoch's
    end: there, too, a member without samples reads a slot of that step (rule 22), and that count is known.
    """
    task = job.task
    reads: defaultdict[int, list[float]] = defaultdict(list)
    for path in job.folder.glob("*.reads"):
        for sample, at in read_log(path):
            reads[sample].append(at)
    for times in reads.values():
        times.sort()
    grid = Grid(task.samples, task.batch, task.slots, task.epochs)
    order = Order(task.seed, task.samples)
    needed: defaultdict[int, int] = defaultdict(int)
    spare: Counter[int] = Counter()  # by sample, how often a member without samples of its own may have read it
    idle_total = 0
    wrong: list[str] = []
    for at, line in committed(job):
        step = line.lineage.step
        cursor = grid.cursor(step)
        idle = idle_ranks(grid, step, exactly)
        idle_total += idle
        for sample in order.take(cursor.epoch, range(cursor.position, cursor.position + grid.size(step))):
            spare[sample] += idle
            needed[sample] += 1
            if bisect_right(reads[sample], at) < needed[sample]:
                wrong.append(f"sample {sample} of step {step}: use {needed[sample]} was never read")
    total = sum(map(len, reads.values()))
    if exactly:
        more = {sample: len(reads[sample]) - task.epochs for sample in range(task.samples)}
        wrong += [f"sample {s} was read {n} times more" for s, n in more.items() if not 0 <= n <= spare[s]]
        if sum(more.values()) != idle_total * (width := task.batch // task.slots):
            wrong.append(f"{sum(more.values())} reads were not used, not {idle_total} slots of {width}")
    if wrong:
        broken.append(f"the data set's log and the ledger differ {len(wrong)} times: {'; '.join(wrong[:SHOWN])}")
    return {"logged": total, "more_than_used": total - sum(needed.values()), "differences": len(wrong)}


def idle_ranks(grid: Grid, step: int, size: int) -> int:
    """Return how many ranks of a world that never changes own no sample of that step."""
    return sum(owned.start >= len(grid.filled(step)) for owned in deal_slots(grid.slots, [1] * size)) if size else 0


def _check_processes(job: Job, faults: Sequence[Fault], broken: list[str]) -> int:
    """No member but the victims went away, and no member that stayed became another process."""
    scene = job.chronicle.scene
    pids: defaultdict[str, set[int]] = defaultdict(set)
    for event in job.chronicle.events:
        if isinstance(event, m.MemberJoined):
            pids[event.member.id].add(event.member.pid)
    for each in job.said():
        if "started" in each:
            pids[each["member"]].add(each["pid"])
    broken += [f"{member} was several processes: {sorted(found)}" for member, found in pids.items() if len(found) > 1]
    struck = {
        member for fault in faults if fault.kind is not FaultKind.JOIN for member in (fault.victim, *fault.others)
    }
    for member, gone in scene.gone.items():
        if member not in struck:
            broken.append(f"{member} is gone, and no fault had struck it: {gone.how}: {gone.why}")
    return len(scene.live)


def check_final(job: Job, faults: Sequence[Fault], broken: list[str]) -> tuple[dict[str, str], float | None]:
    """Every member that is there at the end has the same state of the last step; gives its hashes, and the loss."""
    scene = job.chronicle.scene
    final = {each["member"]: each for each in job.said() if "final" in each}
    last = scene.worlds.get(scene.entered)
    expected = {member for member in (last.members if last else ()) if member in scene.live} & scene.holders
    if missing := expected - final.keys():
        broken.append(f"{sorted(missing)} were in the last world and did not come to the end")
    if faults and len(final) < SURVIVORS_MIN:
        broken.append(f"{len(final)} members came to the end: too few to compare")
    for name in dict.fromkeys(name for each in final.values() for name in each["final"]):
        hashes = {member: each["final"][name] for member, each in final.items()}
        if len(set(hashes.values())) > 1:
            broken.append(f"the members end with different states of the {name}: {hashes}")
    for member, each in final.items():
        if (each["step"], each["updates"]) != (job.task.steps, job.task.steps):
            broken.append(f"{member} ended at step {each['step']} with {each['updates']} updates of the average")
    one = next(iter(final.values()), None)
    return (one["final"], float(one["loss"])) if one is not None else ({}, None)


def spread(losses: Sequence[float]) -> tuple[float, float]:
    """Return where the loss of one more run of the same kind lies, in 999 of 1000 cases.

    Lowest to highest of n runs would not do: one more of the same kind lies outside with a chance of 2 in n + 1.
    """
    width = STUDENT[len(losses) - 1] * stdev(losses) * (1 + 1 / len(losses)) ** 0.5
    return mean(losses) - width, mean(losses) + width
