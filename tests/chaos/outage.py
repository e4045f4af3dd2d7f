"""The coordinator away: training goes on without it, and what happened meanwhile is mended when it is back."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from chaos.checks import check_run
from chaos.faults import Fault
from chaos.job import Job, Task
from chaos.steps import Steps
from pliant.chaos.fault_kinds import FaultKind

SIZE = 3
PACE_S = 0.03
STEPS_BEFORE = 60


def run(folder: Path, seed: int) -> dict[str, Any]:
    """Kill it, look on; kill it again and a member with it, look on; let the job finish."""
    with Job(folder / "outage", Task(epochs=12, seed=seed + 7), f"1:{SIZE}", SIZE) as job:
        job.wish.pace_s = PACE_S
        job.chronicle.until(lambda scene: len(scene.able) == SIZE or scene.state.ended)
        away, broken = _kill_coordinator(job)
        victim, resumed_s = _kill_coordinator_and_member(job)
        job.wish.pace_s = 0.0
        job.chronicle.until(lambda scene: scene.state.ended)
        job.run.wait(120)
        found = check_run(job, [Fault(FaultKind.KILL, victim=victim)])
    return {**found, **away, "resumed_after_s": round(resumed_s, 2), "broken": broken + found["broken"]}


def _kill_coordinator(job: Job) -> tuple[dict[str, float], list[str]]:
    """Return how long steps take before, and while it is away and comes back; and what must not have happened."""
    with closing(Steps(job)) as steps:
        steps.until(steps.now + STEPS_BEFORE)
        before_s = steps.longest_gap_s()
        generation, at_kill, killed = job.chronicle.scene.entered, steps.now, time.monotonic()
        os.kill(job.coordinator_pid, signal.SIGKILL)
        # Whatever was trained without it must come to be durable, with one more step.
        job.chronicle.until(lambda scene: scene.step > at_kill or scene.state.ended)
        away_s = time.monotonic() - killed
        gap_s = steps.longest_gap_s(since=killed)
    changed = job.chronicle.scene.entered != generation
    print(
        f"coordinator killed at step {at_kill}: {steps.now - at_kill} steps trained until it had written them down, "
        f"{away_s:.2f} s later; longest gap between two steps {gap_s:.3f} s, before {before_s:.3f} s",
        flush=True,
    )
    figures = {"longest_gap_before_s": before_s, "longest_gap_while_away_s": gap_s, "away_s": away_s}
    broken = ["the world changed because the coordinator was away"] if changed else []
    return {name: round(value, 3) for name, value in figures.items()}, broken


def _kill_coordinator_and_member(job: Job) -> tuple[str, float]:
    """Return who was killed while it was away, and how long it took until the others trained again."""
    scene = job.chronicle.scene
    victim, step, struck = scene.able[-1], scene.step, time.monotonic()
    os.kill(job.coordinator_pid, signal.SIGKILL)
    os.kill(scene.pids[victim], signal.SIGKILL)
    job.chronicle.until(lambda scene: (victim in scene.gone and scene.step > step + 1) or scene.state.ended)
    resumed_s = time.monotonic() - struck
    print(f"coordinator and {victim} killed at step {step}: trains again after {resumed_s:.2f} s", flush=True)
    return victim, resumed_s
