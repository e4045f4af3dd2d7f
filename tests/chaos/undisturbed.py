"""The same training without faults, at sizes 1 to 4: what the disturbed run is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.checks import check_run
from chaos.job import Job, Task

SIZES = (1, 2, 3, 4)


def undisturbed(folder: Path, task: Task, size: int, seed: int) -> dict[str, Any]:
    """One run from its beginning to its end, with a world that never changes.

    Its seed is its own: order, dropout and so the result differ from run to run as those of any two runs do.
    """
    with Job(folder / f"size-{size}-{seed}", replace(task, seed=seed), f"{size}:{size}", size) as job:
        job.chronicle.until(lambda scene: scene.state.ended)
        job.run.wait(120)
        found = check_run(job, ())
        if found["generations"] != 1:
            found["broken"].append(f"an undisturbed world changed {found['generations'] - 1} times")
        return found
