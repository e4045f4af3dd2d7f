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
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType

from pliant.chaos.processes import ProcessRef, send_signal
from pliant.chaos.socket_filter import remove_filters
from pliant.errors import PliantError

END_S = 30.0
MARGIN_S = 2.0  # how late a release may be, since `pliant chaos` may have to wait for a processor
REGISTER, RELEASE = "register", "release"
READ = 2**16


class UndoProcess:
    """Starts the undo process. Use it as a context manager around all faults."""

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pliant.chaos.undo", str(read_end)],
                pass_fds=[read_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal must not end it
            )
        finally:
            os.close(read_end)

    def __enter__(self) -> UndoProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._write_end)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def register(self, process: ProcessRef, until: float) -> None:
        """Register a process before it is touched. `until` is a monotonic time, which all processes share."""
        self._send(f"{REGISTER} {process.pid} {process.start_ticks} {until}\n")

    def release(self, process: ProcessRef) -> None:
        """Release a process after everything done to it was undone."""
        self._send(f"{RELEASE} {process.pid} {process.start_ticks}\n")

    def _send(self, line: str) -> None:
        try:
            os.write(self._write_end, line.encode())
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
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
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
