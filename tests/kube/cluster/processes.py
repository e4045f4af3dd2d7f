"""Processes of the test cluster: their output goes to a file, and they end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STOP_S = 10.0
TESTS = Path(__file__).parents[2]  # where the modules of the cluster are imported from
_ENDING_WITH_PARENT = """
import os, sys
from pliant.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Daemon:
    """A process that can be stopped, killed, frozen and started again with the same command."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self._env = {**os.environ, "PYTHONPATH": str(TESTS), **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.command[0]} does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.runs, f"{self.command[0]} runs already"
        whole = [sys.executable, "-c", _ENDING_WITH_PARENT, str(os.getpid()), *self.command]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the program that started it, which stops it in order.
            self._process = subprocess.Popen(
                whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    def check(self) -> None:
        """Fail, with the end of its output, if it has ended."""
        assert self.runs, f"{Path(self.command[0]).name} has ended:\n{self.tail()}"

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:] if self.log.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it and wait until it is gone. Harmless if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self._process is not None and self.runs:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self.kill()
