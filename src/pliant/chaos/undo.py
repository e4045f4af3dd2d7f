"""The process that undoes faults. Run as `python -m pliant.chaos.undo FD`.

FD is the read end of a pipe whose write end only `pliant chaos` holds. `pliant chaos` registers each process before it
touches it, and releases it afterwards. The pipe closes however `pliant chaos` ends, `kill -9` included. Then this
process resumes all registered processes and detaches the filters of their sockets. `pliant chaos` may also be stopped
with SIGSTOP. So each registration has a deadline, and a process that is not released soon after it is restored as well.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from pliant.chaos.processes import ProcessRef, send_signal
from pliant.chaos.socket_filter import remove_filters
from pliant.errors import PliantError
from pliant.parent_death import CleanupProcess, ignore_stop_signals

END_S = 30.0
MARGIN_S = 2.0  # how late a release may be, since `pliant chaos` may have to wait for a processor
REGISTER, RELEASE = "register", "release"
READ = 2**16


class UndoProcess(CleanupProcess):
    """Starts the undo process. Use it as a context manager around all faults."""

    def __init__(self) -> None:
        super().__init__("pliant.chaos.undo", end_s=END_S)

    def register(self, process: ProcessRef, until: float) -> None:
        """Register a process before it is touched. `until` is a monotonic time, which all processes share."""
        self._send(f"{REGISTER} {process.pid} {process.start_ticks} {until}\n")

    def release(self, process: ProcessRef) -> None:
        """Release a process after everything done to it was undone."""
        self._send(f"{RELEASE} {process.pid} {process.start_ticks}\n")

    def _send(self, line: str) -> None:
        try:
            self.write(line)
        except BrokenPipeError as error:
            raise PliantError("The process that undoes faults has ended. No further fault is injected.") from error


def undo_faults(*processes: ProcessRef) -> None:
    """Resume these processes and detach the filters of their sockets."""
    for process in processes:
        send_signal(process, signal.SIGCONT)  # first, since a stopped process accepts no connection
    remove_filters(*processes)


class PendingUndo:
    """The registered processes and their deadlines."""

    def __init__(self) -> None:
        self.until: dict[ProcessRef, float] = {}
        self._rest = b""

    def receive(self, data: bytes) -> None:
        """Parse the next bytes from the pipe; they may end within a line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            verb, pid, start_ticks, *until = line.decode().split()
            process = ProcessRef(int(pid), int(start_ticks))
            if verb == REGISTER:
                self.until[process] = float(until[0])
            else:
                self.until.pop(process, None)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the first process is overdue; None if none is registered."""
        return max(0.0, min(self.until.values()) + MARGIN_S - now) if self.until else None

    def overdue(self, now: float) -> list[ProcessRef]:
        """Return overdue processes, each once per `MARGIN_S`: `pliant chaos` may resume and touch them again."""
        found = [process for process, until in self.until.items() if until + MARGIN_S <= now]
        self.until |= dict.fromkeys(found, now)
        return found


def main(fd: int) -> None:
    """Run the undo process."""
    ignore_stop_signals()
    pending = PendingUndo()
    while True:
        if select.select([fd], [], [], pending.wait_s(time.monotonic()))[0]:
            if not (data := os.read(fd, READ)):
                break
            pending.receive(data)
        undo_faults(*pending.overdue(time.monotonic()))
    undo_faults(*pending.until)


if __name__ == "__main__":
    main(int(sys.argv[1]))
