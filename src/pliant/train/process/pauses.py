"""How long this member's training thread stood still, and how old its process is: what `pliant report` needs told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pliant.core.accounting.pauses import SPENT_MAX, SWITCHING, Pause
from pliant.core.messages import Command, Report

SHORT_S = 0.0005  # less is not worth a word


class Pauses:
    """Seconds by step, kept until their step is reported; of too many, the oldest are forgotten. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[tuple[int, str], float] = {}
        self._reduced = (0, 0.0)  # the generation of the last reduction, and how long it took

    @contextmanager
    def during(self, step: int, what: str) -> Iterator[None]:
        """Around whatever the training thread waits for in that step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(step, what, time.monotonic() - began)

    def add(self, step: int, what: str, seconds: float) -> None:
        if seconds < SHORT_S:
            return
        with self._lock:
            self._seconds[step, what] = self._seconds.get((step, what), 0.0) + seconds
            for oldest in sorted(self._seconds)[:-SPENT_MAX]:
                del self._seconds[oldest]

    def reduced(self, step: int, generation: int, seconds: float) -> None:
        """After every reduction: by what the first of a generation takes longer than the one before, it was a pause."""
        before, usual_s = self._reduced
        if before not in (0, generation):
            self.add(step, SWITCHING, seconds - usual_s)
        self._reduced = (generation, seconds)

    def said(self, command: Command) -> Command:
        """The command, with what belongs to the steps it reports."""
        if not isinstance(command, Report) or not command.lines:
            return command
        first, last = command.lines[0].lineage.step, command.lines[-1].lineage.step
        with self._lock:
            spent = tuple(
                Pause(step, what, seconds) for (step, what), seconds in self._seconds.items() if first <= step <= last
            )
        return replace(command, pauses=spent) if spent else command


def process_age_s() -> float:
    """How long ago this process was started, or forked; 0 where the system does not tell."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
