"""The process that undoes what was done. `python -m pliant.chaos.mender FD`.

`FD` is the end of a pipe whose other end `pliant chaos` alone holds. It says whom it touches before it does, and whom
it let go. However it ends, `kill -9` included, the pipe closes; then whoever was not let go is: continued if it was
stopped, and the filters are taken off its sockets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType

from pliant.chaos.cuts import uncut
from pliant.chaos.processes import Process, send
from pliant.errors import PliantError

END_S = 30.0
_LINE = "{word} {pid} {began}\n"
HOLD, FREE = "hold", "free"


class Mender:
    """Have one around everything that can be undone, as a context manager."""

    def __init__(self) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pliant.chaos.mender", str(theirs)],
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

    def hold(self, process: Process) -> None:
        """Call before a process is stopped, slowed or cut off."""
        self._say(HOLD, process)

    def free(self, process: Process) -> None:
        """Call when all of that is undone."""
        self._say(FREE, process)

    def _say(self, word: str, process: Process) -> None:
        try:
            os.write(self._ours, _LINE.format(word=word, pid=process.pid, began=process.began).encode())
        except BrokenPipeError as error:
            raise PliantError("The process that would undo a fault was ended; no other is begun without it.") from error


def mend(process: Process) -> None:
    """Let a process be as it was, whatever was done to it."""
    uncut(process)
    send(process, signal.SIGCONT)


def held(said: str) -> list[Process]:
    """Who is to be mended, after all that was said."""
    found: dict[Process, None] = {}
    for word, pid, began in (line.split() for line in said.splitlines()):
        process = Process(int(pid), int(began))
        if word == HOLD:
            found[process] = None
        else:
            found.pop(process, None)
    return list(found)


def main(handle: int) -> None:
    """The program."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    with os.fdopen(handle, encoding="ascii") as line:
        said = line.read()
    for process in held(said):
        mend(process)


if __name__ == "__main__":
    main(int(sys.argv[1]))
