"""The process that cleans up after a cluster. `python -m pliant_local.sweeper FD PID BEGAN FOLDER`.

`FD` is the end of a pipe whose other end the cluster alone holds. However that process ends, `kill -9` included, the
pipe closes; then what it had is taken away: namespaces with whatever runs in them, links, the socket. Processes are not
its business: those of a cluster end with the process that keeps them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pliant_local import control, network
from pliant_local.network import Owner

END_S = 60.0


class Sweeper:
    """Have one around a cluster, as a context manager: at the end of the block everything is gone."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self._owner = owner
        self._folder = folder
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pliant_local.sweeper"),
                    *(str(theirs), str(owner.pid), str(owner.began), str(folder)),
                ],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what is typed at the terminal is not for it
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Sweeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._ours)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        sweep(self._owner, self._folder)  # in case somebody killed it


def sweep(owner: Owner, folder: Path) -> None:
    """Take away what a cluster had."""
    control.forget(folder)
    if not network.why_not():
        network.remove_all(owner)


def main(handle: int, owner: Owner, folder: Path) -> None:
    """The program."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    while os.read(handle, 1):
        pass
    sweep(owner, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Owner(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[4]))
