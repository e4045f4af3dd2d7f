"""Planted loader bugs: each must be caught, by the words of the step or by the audit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from chaos import bugs
from chaos.job import JOB, Job, Task
from pliant.core import messages as m
from pliant.core.model.job import Target

ATTEMPTS = 3  # of the same step that the words stop, before we believe that it will not go on
SAID = ("samples were counted", "a slot of step", "other samples than")  # what is said of a step that is stopped
SHOWN = 160  # characters of it: the reason stands last
EPOCHS = 3
PACE_S = 0.02


def run(folder: Path, bug: str) -> dict[str, Any]:
    """A short job with that bug in every worker; says what caught it."""
    task = Task(epochs=EPOCHS, samples=3000, bug=bug, data_workers="all")
    with Job(folder / bug.replace(" ", "-"), task, "1:3", 3) as job:
        job.wish.pace_s = PACE_S
        job.chronicle.until(lambda scene: len(scene.able) == 3 or scene.state.ended)
        job.chronicle.until(lambda scene: scene.step >= bugs.STEP or _stopped(job) or scene.state.ended)
        if bug.startswith("stale"):
            job.client.send(JOB, m.Resize(Target(2)))
        elif bug.startswith("victim"):
            scene = job.chronicle.scene
            os.kill(scene.pids[scene.able[-1]], signal.SIGKILL)
        job.wish.pace_s = 0.0 if bug.startswith(("skip", "double")) else PACE_S
        job.chronicle.until(lambda scene: scene.state.ended or _stopped(job))
        why = _stopped(job)
        if why:
            job.client.send(JOB, m.Cancel("the bug is caught"))
        job.run.wait(120)
        audit = job.audit()
        found = {
            "caught_by": "the step" if why else "the audit" if not audit["ok"] else "nothing",
            "says": (why or (audit["problems"] or [""])[0])[-SHOWN:],
            "bit": (job.folder / "bit").exists(),
        }
    print(f"planted: {bug}: caught by {found['caught_by']}: {found['says']}", flush=True)
    broken = []
    if not found["bit"]:
        broken.append(f"planted {bug!r}: it never came to it")
    elif found["caught_by"] == "nothing":
        broken.append(f"planted {bug!r}: not noticed")
    return {**found, "broken": broken}


def _stopped(job: Job) -> str:
    """Return the words' complaint about a step, if they stopped it again and again since the last applied step."""
    why: list[str] = []
    for event in job.chronicle.events:
        if isinstance(event, m.StepsCommitted) and event.lines[-1].lineage.step >= bugs.STEP:
            why.clear()  # it was applied all the same
        elif isinstance(event, m.WorldBroken | m.MemberGone | m.StateChanged) and any(s in event.why for s in SAID):
            why.append(event.why)
    ended = job.chronicle.scene.state.ended
    return why[-1] if why and (ended or len(why) >= ATTEMPTS) else ""
