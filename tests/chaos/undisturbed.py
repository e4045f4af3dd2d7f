"""The same training without faults, at sizes 1 to 4 or by one worker alone: what the disturbed run is compared with."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.checks import check_run
from chaos.job import Job, Task, read_said
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
    with Alone(folder, task) as lone:
        return lone.final()


class Alone:
    """The same while other things happen, for which it makes way if it is `nice`."""

    def __init__(self, folder: Path, task: Task, *, nice: bool = False) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        with (folder / "output").open("w") as output:
            self._process = subprocess.Popen(
                [*(("nice", "-n", "19") if nice else ()), str(task.programs / "python"), str(task.its.script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(folder / "home", **task.environment(folder)),
                preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, and no lock is taken
            )

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def final(self) -> dict[str, Any]:
        """Wait for its end; what it said there."""
        assert self._process.wait(ALONE_S) == 0, (self._folder / "output").read_text()[-3000:]
        (final,) = [said for said in read_said(self._folder) if "final" in said]
        return final
