"""The process that cleans up after a cluster. `python -m pliant_local.sweeper FD PID BEGAN FOLDER`.

`FD` is the end of a pipe whose other end the cluster alone holds. However that process ends, `kill -9` included, the
pipe closes; then what it had is taken away: namespaces with whatever runs in them, links, the socket. Processes are not
its business: those of a cluster end with the process that keeps them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from pliant.parent_death import CleanupProcess, ignore_stop_signals
from pliant_local import control, network
from pliant_local.network import Owner

END_S = 60.0


class Sweeper(CleanupProcess):
    """Have one around a cluster, as a context manager: at the end of the block everything is gone."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self._owner = owner
        self._folder = folder
        super().__init__("pliant_local.sweeper", str(owner.pid), str(owner.began), str(folder), end_s=END_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        sweep(self._owner, self._folder)  # it may have been killed


def sweep(owner: Owner, folder: Path) -> None:
    """Take away what a cluster had."""
    control.forget(folder)
    if not network.why_not():
        network.remove_all(owner)


def main(handle: int, owner: Owner, folder: Path) -> None:
    """The program."""
    ignore_stop_signals()
    while os.read(handle, 1):
        pass
    sweep(owner, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Owner(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[4]))
