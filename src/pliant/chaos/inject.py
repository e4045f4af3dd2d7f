"""Carry out a fault. Everything that can be undone is undone before `inject` returns, even on an error."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import Cut, PlannedFault
from pliant.chaos.processes import ProcessRef, send_signal
from pliant.chaos.socket_filter import RESCAN_S, CutFilters
from pliant.chaos.sockets import NetworkFacts, SocketEnd, SocketFilter, all_socket_ends, plan_filters
from pliant.chaos.undo import UndoProcess

PERIOD_S = 0.02
STOPPED_SHARE = 0.7  # share of each period in which a slowed worker is stopped


class StopRequest:
    """A request to end the run. It takes no lock, so a signal handler may make it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.signal = 0

    def request(self, number: int = 0, _frame: object = None) -> None:
        """Request the end. Has the signature of a signal handler."""
        self.signal = self.signal or number
        os.write(self._write, b".")

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the end is requested. Return whether it is."""
        return bool(select.select([self._read], [], [], max(0.0, seconds))[0])

    def __bool__(self) -> bool:
        return self.wait(0.0)


class FaultInjector:
    """Injects faults into processes that `processes` has verified."""

    def __init__(self, undo: UndoProcess, stop_request: StopRequest) -> None:
        self._undo = undo
        self._stop_request = stop_request

    def inject(
        self, fault: PlannedFault, processes: Mapping[str, ProcessRef], facts: Callable[[], NetworkFacts]
    ) -> str:
        """Inject a fault into its victims for its duration, or until a stop is requested. Return a note for the report.

        `processes` are all of the job on this machine, because a cut has two ends. `facts` returns the current
        addresses.
        """
        victims = [processes[name] for name in fault.victims]
        match fault.kind:
            case FaultKind.KILL | FaultKind.KILL_ALL | FaultKind.KILL_COORDINATOR:
                gone = [name for name, process in zip(fault.victims, victims, strict=True) if not _kill(process)]
                return f"{', '.join(gone)} had already ended" if gone else ""
            case FaultKind.STOP:
                return self._stop(victims[0], fault.lasts_s)
            case FaultKind.SLOW:
                return self._slow(victims[0], fault.lasts_s)
            case FaultKind.PARTITION:
                return self._cut(fault, processes, facts)
            case _:
                raise ValueError(f"`pliant chaos` cannot inject {fault.kind}.")

    @contextmanager
    def _registered(self, process: ProcessRef, until: float) -> Iterator[None]:
        self._undo.register(process, until)
        try:
            yield
        finally:
            send_signal(process, signal.SIGCONT)
            self._undo.release(process)

    def _stop(self, victim: ProcessRef, lasts_s: float) -> str:
        with self._registered(victim, time.monotonic() + lasts_s):
            if not send_signal(victim, signal.SIGSTOP):
                return "the worker had already ended"
            self._stop_request.wait(lasts_s)
        return ""

    def _slow(self, victim: ProcessRef, lasts_s: float) -> str:
        until = time.monotonic() + lasts_s
        with self._registered(victim, until):
            while time.monotonic() < until:
                if not send_signal(victim, signal.SIGSTOP):
                    return "the worker ended meanwhile"
                stop = self._stop_request.wait(PERIOD_S * STOPPED_SHARE)
                send_signal(victim, signal.SIGCONT)
                if stop or self._stop_request.wait(PERIOD_S * (1 - STOPPED_SHARE)):
                    break
        return ""

    def _cut(self, fault: PlannedFault, processes: Mapping[str, ProcessRef], facts: Callable[[], NetworkFacts]) -> str:
        victim, cut = fault.victims[0], fault.cut
        assert cut is not None, "every partition has a cut"

        facts_at_start = facts()

        def plan() -> list[tuple[ProcessRef, SocketEnd, SocketFilter]]:
            current = facts() if cut is Cut.COORDINATOR_ISOLATED else facts_at_start  # own connections may have changed
            found = plan_filters(cut, victim, all_socket_ends(processes), current)
            return [(processes[name], end, kind) for name, end, kind in found]

        until = time.monotonic() + fault.lasts_s
        filters = CutFilters(plan, lambda process: self._undo.register(process, until))
        try:
            while True:
                filters.apply()
                if time.monotonic() >= until or self._stop_request.wait(RESCAN_S):
                    break
        finally:
            processes_touched = filters.processes
            filters.remove()
            for process in processes_touched:
                self._undo.release(process)
        return f"{filters.count} sockets cut" if filters.count else "no connection to cut"


def _kill(process: ProcessRef) -> bool:
    return send_signal(process, signal.SIGKILL)
