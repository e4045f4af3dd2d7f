"""The faults of a soak. A member that is struck may be lost, any other member may not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from e2e.launched import Launched
from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Drain
from pliant.core.model.names import MemberId
from pliant.errors import PliantError
from soak.looks import Looks

STOP_S = 1.5  # an agent kills a worker that is stopped for 2 s
GRACE_S = 30.0
_PAUSE = threading.Event()  # never set: it only passes time


@dataclass
class Striker:
    """`struck` are all whom anything was done to, `leaving` those of them that will not stay."""

    run: Launched
    looks: Looks
    chance: random.Random
    fired: Counter[FaultKind] = field(default_factory=Counter)
    struck: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    stops: list[tuple[float, float]] = field(default_factory=list)  # when one was stopped, and how long

    def strike(self, kind: FaultKind) -> bool:
        """Return whether it could be done; returns when it is."""
        with suppress(OSError, PliantError):
            if kind is FaultKind.KILL_COORDINATOR:
                os.kill(int(self.run.endpoint["pid"]), signal.SIGKILL)
            else:
                self._strike_worker(kind)
            self.fired[kind] += 1
            return True
        return False

    def _strike_worker(self, kind: FaultKind) -> None:
        pids = {name: pid for name, pid in self.looks.pids.items() if pid and name not in self.leaving}
        if not pids:
            raise ProcessLookupError
        member = self.chance.choice(sorted(pids))
        pidfd = os.pidfd_open(pids[member])
        self.struck.add(member)
        try:
            if kind is FaultKind.STOP:
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
                _PAUSE.wait(STOP_S)
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                self.stops.append((time.time(), STOP_S))
                return
            self.leaving.add(member)
            if kind is FaultKind.KILL:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return
            with self.run.client() as client:
                client.send(self.run.job, Drain(MemberId(member), GRACE_S, "a soak"))
        finally:
            os.close(pidfd)


@contextmanager
def burning() -> Iterator[int]:
    """As many busy processes as there are cores, twice over; every other member wants to run beside them."""
    count = 2 * (os.cpu_count() or 1)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield count
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
