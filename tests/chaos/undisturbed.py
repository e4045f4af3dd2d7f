"""The same training without faults, at sizes 1 to 4 or by one worker alone: what the disturbed run is compared with."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.checks import check_run
from chaos.job import SCRIPT, Job, Task, read_said
from schedules.messages import die_with_parent
from unit.cli.program import environment

SIZES = (1, 2, 3, 4)
ALONE_S = 300.0


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


def alone(folder: Path, task: Task) -> dict[str, Any]:
    """The script by itself, without a coordinator; what it said at its end."""
    folder.mkdir(parents=True)
    with (folder / "output").open("w") as output:
        done = subprocess.run(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(folder / "home", **task.environment(folder)),
            timeout=ALONE_S,
            check=False,
            preexec_fn=die_with_parent,  # one system call, and no lock is taken
        )
    assert done.returncode == 0, (folder / "output").read_text()[-3000:]
    (final,) = [said for said in read_said(folder) if "final" in said]
    return final
