"""One training each: by a lone worker, by so many, resized, wholly replaced, or through a schedule of faults."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from bits.shapes import EVEN, LESSONS, NOTHING, SHAPES, plain
from chaos.campaign import ENDS_S, Campaign, Manner, plan
from chaos.checks import check_final
from chaos.chronicle import Scene
from chaos.faults import Fault
from chaos.job import JOB, Job, Task
from chaos.pace import Pace
from chaos.undisturbed import alone
from pliant.core import messages as m
from pliant.core.model.job import JobState, Target

SIZES = (1, 2, 3, 4)
RESIZED = (1, 3, 2, 4)
REPLACED = 2  # by as many
FAULTS = 3  # in each schedule
CROWD = 3  # members train when the first fault strikes
IDLE_S = 20.0  # before one more fault makes room for those planned: a lost member is replaced by then
ATTEMPTS = 2  # at a schedule whose faults all missed
GRACE_S = 30.0
STEPS = 3  # that a world trains before it changes again


@dataclass(frozen=True)
class Piece:
    """A row of the table that is to come."""

    lesson: str
    shape: str
    who: str
    task: Task
    kind: str
    size: int = 0
    seed: int = 0
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"{self.lesson}, {self.shape}, {self.who}"


@dataclass
class Row:
    """The outcome of one training."""

    piece: Piece
    hashes: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def struck(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.counts]


def pieces(seed: int, schedules: int) -> list[Piece]:
    """All of them; those that others are compared with come first."""
    found = []
    for lesson in LESSONS:
        for shape in SHAPES:
            found.append(Piece(lesson, shape.name, "alone", shape.task(lesson), "alone"))
        found.append(Piece(lesson, EVEN.name, "alone, plain", plain(EVEN.task(lesson)), "alone"))
    for lesson in LESSONS:
        for size in SIZES:
            found.append(Piece(lesson, EVEN.name, _workers(size), EVEN.task(lesson), "sized", size))
        for shape, size in zip(SHAPES[1:], (2, 3, 4), strict=True):
            found.append(Piece(lesson, shape.name, _workers(size), shape.task(lesson), "sized", size))
        for size in (2, 3):
            found.append(Piece(lesson, EVEN.name, f"{_workers(size)}, plain", plain(EVEN.task(lesson)), "sized", size))
        found.append(Piece(lesson, NOTHING.name, " → ".join(map(str, RESIZED)), NOTHING.task(lesson), "resized"))
        found.append(Piece(lesson, EVEN.name, "all replaced", EVEN.task(lesson), "replaced"))
    return found + scheduled(seed, schedules)


def scheduled(seed: int, count: int) -> list[Piece]:
    """Schedules of faults over all lessons and shapes, dealt out from one plan: all kinds and places are in it."""
    chance = random.Random(seed)
    faults = plan(count * FAULTS, chance)
    found = []
    for number in range(count):
        lesson, shape = LESSONS[number % len(LESSONS)], SHAPES[number // len(LESSONS) % len(SHAPES)]
        own = sorted(faults[number * FAULTS : (number + 1) * FAULTS], key=lambda fault: fault.meets_change)
        who, own_seed = f"schedule {number}", chance.randrange(1 << 30)
        found.append(Piece(lesson, shape.name, who, shape.task(lesson), "schedule", CROWD, own_seed, tuple(own)))
    return found


def run(piece: Piece, base: Path) -> Row:
    """Carry one out, in a folder of its own."""
    began = monotonic()
    folder = base / f"{piece.lesson}-{piece.shape}-{piece.who}".replace(" ", "-").replace(",", "")
    row = Row(piece)
    act: Callable[[Row, Path], None] = {
        "alone": _alone,
        "sized": _sized,
        "resized": _resized,
        "replaced": _replaced,
        "schedule": _schedule,
    }[piece.kind]
    try:
        act(row, folder)
    except Exception:  # why: the other rows are worth having, whatever happened to this one
        row.broken.append(traceback.format_exc())
    row.seconds = monotonic() - began
    return row


def _alone(row: Row, folder: Path) -> None:
    row.hashes = alone(folder, row.piece.task)["final"]


def _sized(row: Row, folder: Path) -> None:
    size = row.piece.size
    with Job(folder, row.piece.task, f"{size}:{size}", size) as job:
        _finish(row, job)
        if (formed := max(job.chronicle.scene.worlds, default=0)) != 1:
            row.broken.append(f"the world changed {formed - 1} times")


def _resized(row: Row, folder: Path) -> None:
    first, *later = RESIZED
    told = [1]
    with Job(folder, row.piece.task, f"1:{max(RESIZED)}", first) as job:
        with Pace(job, lambda: told[0] / (len(RESIZED) + 1)):
            _until_trained(job, first)
            for size in later:
                job.client.send(JOB, m.Resize(Target(size)))
                _until_trained(job, size)
                told[0] += 1
            seen = [len(world.members) for _, world in sorted(job.chronicle.scene.worlds.items())]
        _finish(row, job)
    if not in_order(RESIZED, seen):
        row.broken.append(f"there were worlds of {seen}, not of {RESIZED}")


def _replaced(row: Row, folder: Path) -> None:
    told = [1]
    with Job(folder, row.piece.task, f"1:{2 * REPLACED}", REPLACED) as job:
        with Pace(job, lambda: told[0] / 4):
            _until_trained(job, REPLACED)
            old = job.chronicle.scene.able
            job.client.send(JOB, m.Resize(Target(2 * REPLACED)))
            _until_trained(job, 2 * REPLACED)
            told[0] += 1
            for member in old:
                job.client.send(JOB, m.Drain(member, GRACE_S, "replaced"))
            job.client.send(JOB, m.Resize(Target(REPLACED)))
            _until_trained(job, REPLACED)
        _finish(row, job)
        ended = {said["member"] for said in job.said() if "final" in said}
        if not ended or ended & set(old):
            row.broken.append(f"{sorted(ended)} came to the end, and {old} were to be replaced")


def _schedule(row: Row, folder: Path) -> None:
    piece = row.piece

    def checked(job: Job, _faults: Sequence[Fault]) -> dict[str, Any]:
        _finish(row, job)
        return {"broken": []}

    for attempt in range(ATTEMPTS):
        faults = [Fault(fault.kind, fault.aim, fault.during) for fault in piece.faults]
        place = folder / str(attempt)
        folder.mkdir(exist_ok=True)
        with (folder / "story").open("a") as story:
            campaign = Campaign(
                place,
                piece.task,
                faults,
                random.Random(piece.seed + attempt),
                Manner(first=piece.size, last=1, idle_s=IDLE_S),
                lambda text: print(text, file=story, flush=True),
            )
            row.broken += campaign.run(checked)["broken"]
        row.faults = campaign.done
        if row.struck or row.broken:
            break
    if not row.struck:
        row.broken.append("no fault had an effect on the running job")


def _finish(row: Row, job: Job) -> None:
    """See the job to its end, and every member there with the same state; take its hashes."""
    job.chronicle.until(lambda scene: scene.state.ended)
    job.run.wait(ENDS_S)
    scene = job.chronicle.scene
    if scene.state is not JobState.FINISHED or job.run.returncode != 0:
        row.broken.append(f"the job is {scene.state}: {scene.why}; pliant run ended with {job.run.returncode}")
    row.hashes, _ = check_final(job, (), row.broken)


def _until_trained(job: Job, size: int) -> None:
    """Wait until so many hold the state, and have made a few steps."""
    reached = [0, 0]  # the generation, and the step at which it was first seen to be of that size

    def trained(scene: Scene) -> bool:
        if len(scene.able) != size or len(scene.ranked) != size:
            return scene.state.ended
        if reached[0] != scene.entered:
            reached[:] = scene.entered, scene.step
        return scene.step >= reached[1] + STEPS or scene.state.ended

    job.chronicle.until(trained)


def in_order(sizes: Sequence[int], seen: Sequence[int]) -> bool:
    """Return whether these sizes are among those seen, in this order."""
    rest = iter(seen)
    return all(size in rest for size in sizes)


def _workers(size: int) -> str:
    return "1 worker" if size == 1 else f"{size} workers"
