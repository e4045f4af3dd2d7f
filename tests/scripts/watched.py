"""`pliant run` as a user starts it, once for each agent, and what scripts under it say of their steps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.launched import family
from e2e.running import wait_for
from unit.cli.program import PLIANT, environment

PATIENCE_S = 240.0  # for the slowest start on a machine that is busy with something else
ENDS_S = 30.0
STEP = re.compile(r"\[([\w.-]+)-g(\d+)\.[\d.]+\] .*?\bstep (\d+) rank (\d+) world (\d+) pid (\d+)")
SERVES = re.compile(r"\[([\w.-]+)-g(\d+)\.[\d.]+\] .*?\bworker (\d+) serves pid (\d+)")


class Broken(Exception):
    """A script did not do under Pliant what it was to do."""


@dataclass(frozen=True)
class Step:
    """One line of a script about a step it has done."""

    agent: str
    generation: int
    step: int
    rank: int
    world: int
    pid: int


class Agent:
    """One `pliant run`. `lines` grows as it prints, and is kept in a file, too."""

    def __init__(self, name: str, home: Path, folder: Path, command: tuple[str, ...], **env: str) -> None:
        self.name = name
        self.install_id = home
        self.lines: list[str] = []
        self._file = (home.parent / f"{name}.txt").open("w")
        self.process = subprocess.Popen(
            [PLIANT, "run", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment(home, PLIANT_AGENT=name, **env),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def steps(self) -> list[Step]:
        found = (STEP.search(line) for line in list(self.lines))
        return [Step(hit[1], *map(int, hit.groups()[1:])) for hit in found if hit]

    @property
    def serving(self) -> dict[int, list[int]]:
        """The processes of each worker that waits to be told what to do, oldest first."""
        found: dict[int, list[int]] = {}
        for line in list(self.lines):
            if hit := SERVES.search(line):
                found.setdefault(int(hit[3]), []).append(int(hit[4]))
        return found

    def tail(self, count: int = 40) -> str:
        return "\n".join(f"  {self.name}: {line}" for line in self.lines[-count:])

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait for something that must come before the end."""
        with suppress(AssertionError):
            wait_for(lambda: true() or self.ended, what, PATIENCE_S)
        if not true():
            how = f"ended with {self.process.returncode}" if self.ended else f"waited {PATIENCE_S:g} s"
            raise Broken(f"{self.name} {how} before {what}")

    def exit_code(self) -> int:
        """Wait for the end."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Broken(f"{self.name} does not end") from None
        self._reader.join(ENDS_S)
        return code

    def close(self) -> None:
        """End it, however far it is, with every process it started."""
        if not self.ended:
            self.process.kill()
        self.process.wait()
        with suppress(AssertionError):
            wait_for(lambda: not left(self.install_id), "the end of every process", ENDS_S)
        for pid in left(self.install_id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(ENDS_S)
        self._file.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                self.lines.append(line.rstrip("\n"))
                self._file.write(line)
                self._file.flush()


def left(home: Path) -> dict[int, str]:
    """Return the processes with this home in their environment, and their commands."""
    found = {}
    for pid, pidfd in family(home).items():
        os.close(pidfd)
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return found
