"""A fault is carried out, and whatever of it can be undone is undone before this returns, by error or not."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import Cut, Fault
from pliant.chaos.processes import Process, send
from pliant.chaos.socket_filter import RESCAN_S, Filters
from pliant.chaos.sockets import Around, End, Filter, every_end, treated
from pliant.chaos.undo import Mender

PERIOD_S = 0.02
STOPPED = 0.7  # how much of each period a slowed worker stands still


class Over:
    """Whether somebody wants everything to end. A signal's handler may say so: nothing here waits for a lock."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.signal = 0

    def say(self, number: int = 0, _frame: object = None) -> None:
        """Fit for `signal.signal`."""
        self.signal = self.signal or number
        os.write(self._write, b".")

    def wait(self, seconds: float) -> bool:
        """Wait so long, and no longer than until it is over; whether it is."""
        return bool(select.select([self._read], [], [], max(0.0, seconds))[0])

    def __bool__(self) -> bool:
        return self.wait(0.0)


class Strikes:
    """Carries faults out, on processes that were recognised."""

    def __init__(self, mender: Mender, over: Over) -> None:
        self._mender = mender
        self._over = over

    def strike(self, fault: Fault, processes: Mapping[str, Process], around: Callable[[], Around]) -> str:
        """Do it to its victims; what is to be said about it. It lasts as long as the fault says, or until it is over.

        `processes` are those of the whole job on this machine: a cut has two ends.
        """
        victims = [processes[name] for name in fault.victims]
        match fault.kind:
            case FaultKind.KILL | FaultKind.KILL_ALL | FaultKind.KILL_COORDINATOR:
                gone = [name for name, process in zip(fault.victims, victims, strict=True) if not _kill(process)]
                return f"{', '.join(gone)} had ended already" if gone else ""
            case FaultKind.STOP:
                return self._stop(victims[0], fault.lasts_s)
            case FaultKind.SLOW:
                return self._slow(victims[0], fault.lasts_s)
            case FaultKind.PARTITION:
                return self._cut(fault, processes, around)
            case _:
                raise ValueError(f"`pliant chaos` has no fault {fault.kind}.")

    @contextmanager
    def _held(self, process: Process, until: float) -> Iterator[None]:
        self._mender.hold(process, until)
        try:
            yield
        finally:
            send(process, signal.SIGCONT)
            self._mender.free(process)

    def _stop(self, victim: Process, lasts_s: float) -> str:
        with self._held(victim, time.monotonic() + lasts_s):
            if not send(victim, signal.SIGSTOP):
                return "it had ended already"
            self._over.wait(lasts_s)
        return ""

    def _slow(self, victim: Process, lasts_s: float) -> str:
        until = time.monotonic() + lasts_s
        with self._held(victim, until):
            while time.monotonic() < until:
                if not send(victim, signal.SIGSTOP):
                    return "it ended meanwhile"
                over = self._over.wait(PERIOD_S * STOPPED)
                send(victim, signal.SIGCONT)
                if over or self._over.wait(PERIOD_S * (1 - STOPPED)):
                    break
        return ""

    def _cut(self, fault: Fault, processes: Mapping[str, Process], around: Callable[[], Around]) -> str:
        victim, cut = fault.victims[0], fault.cut
        assert cut is not None, "every partition says who is cut off"

        known = around()

        def wanted() -> list[tuple[Process, End, Filter]]:
            now = around() if cut is Cut.ALONE else known  # our own connections may be others by now
            found = treated(cut, victim, every_end(processes), now)
            return [(processes[name], end, kind) for name, end, kind in found]

        until = time.monotonic() + fault.lasts_s
        filters = Filters(wanted, lambda process: self._mender.hold(process, until))
        try:
            while True:
                filters.put()
                if time.monotonic() >= until or self._over.wait(RESCAN_S):
                    break
        finally:
            touched = filters.processes
            filters.remove()
            for process in touched:
                self._mender.free(process)
        return f"{filters.count} ends of connections" if filters.count else "it had no connection to be cut"


def _kill(process: Process) -> bool:
    return send(process, signal.SIGKILL)
