"""The process that cleans up after a sandbox. `python -m pliant_local.sweeper FD PID BEGAN FOLDER`.

`FD` is one end of a pipe; only the sandbox holds the other. When the sandbox ends, even by `kill -9`, the pipe closes,
and the sweeper removes its namespaces with the processes in them, its links and its socket. Other processes of the
sandbox end with the spawner.
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
    """Run a sweeper around a sandbox, as a context manager: after the block nothing is left."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self._owner = owner
        self._folder = folder
        super().__init__("pliant_local.sweeper", str(owner.pid), str(owner.began), str(folder), end_s=END_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        sweep(self._owner, self._folder)  # it may have been killed


def sweep(owner: Owner, folder: Path) -> None:
    """Remove what a sandbox left."""
    control.forget(folder)
    if not network.namespaces_unavailable():
        network.remove_all(owner)


def main(handle: int, owner: Owner, folder: Path) -> None:
    """Run the sweeper."""
    ignore_stop_signals()
    while os.read(handle, 1):
        pass
    sweep(owner, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Owner(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[4]))
