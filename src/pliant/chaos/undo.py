"""The process that undoes what was done. `python -m pliant.chaos.undo FD`.

`FD` is the end of a pipe whose other end `pliant chaos` alone holds. It says whom it touches before it does, and whom
it let go. However it ends, `kill -9` included, the pipe closes; then whoever was not let go is: continued if it was
stopped, and the filters are taken off its sockets. It may also be stopped itself, by a SIGSTOP that it cannot see: so
it says of everybody until when, and whoever is not let go soon after that is mended all the same.
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

from pliant.chaos.processes import Process, send
from pliant.chaos.socket_filter import uncut
from pliant.errors import PliantError

END_S = 30.0
MARGIN_S = 2.0  # how late somebody may be let go: whoever strikes is not always given the processor at once
HOLD, FREE = "hold", "free"
READ = 2**16


class Mender:
    """Have one around everything that can be undone, as a context manager."""

    def __init__(self) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pliant.chaos.undo", str(theirs)],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what is typed at the terminal is not for it
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Mender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._ours)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self, process: Process, until: float) -> None:
        """Call before a process is stopped, slowed or cut off, until then by the monotonic clock: all have the same."""
        self._say(f"{HOLD} {process.pid} {process.began} {until}\n")

    def free(self, process: Process) -> None:
        """Call when all of that is undone."""
        self._say(f"{FREE} {process.pid} {process.began}\n")

    def _say(self, line: str) -> None:
        try:
            os.write(self._ours, line.encode())
        except BrokenPipeError as error:
            raise PliantError("The process that would undo a fault was ended; no other is begun without it.") from error


def mend(*processes: Process) -> None:
    """Let them be as they were, whatever was done to them."""
    for process in processes:
        send(process, signal.SIGCONT)  # first: one that stands still accepts no connection
    uncut(*processes)


class Held:
    """Who is to be mended, and when, after all that was said."""

    def __init__(self) -> None:
        self.until: dict[Process, float] = {}
        self._rest = b""

    def hear(self, said: bytes) -> None:
        """What came next; it may end within a line."""
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            word, pid, began, *until = line.decode().split()
            process = Process(int(pid), int(began))
            if word == HOLD:
                self.until[process] = float(until[0])
            else:
                self.until.pop(process, None)

    def wait_s(self, now: float) -> float | None:
        """How long nobody is overdue; None: nobody is held."""
        return max(0.0, min(self.until.values()) + MARGIN_S - now) if self.until else None

    def overdue(self, now: float) -> list[Process]:
        """Who should have been let go, each once in `MARGIN_S`: whoever strikes may go on where it was stopped."""
        found = [process for process, until in self.until.items() if until + MARGIN_S <= now]
        self.until |= dict.fromkeys(found, now)
        return found


def main(handle: int) -> None:
    """The program."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    held = Held()
    while True:
        if select.select([handle], [], [], held.wait_s(time.monotonic()))[0]:
            if not (said := os.read(handle, READ)):
                break
            held.hear(said)
        mend(*held.overdue(time.monotonic()))
    mend(*held.until)


if __name__ == "__main__":
    main(int(sys.argv[1]))
