"""States that go to disk and come back, for the protocol's own needs (rules 16, 17)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from pliant.core.job import FENCED_CODE
from pliant.core.ledger import Lineage
from pliant.core.model import Checkpoint, View
from pliant.errors import BadInput
from pliant.torch.left import Left
from pliant.torch.state import TrainingState
from pliant.train.checkpoint import Directory
from pliant.train.transfer import Received, copied

log = logging.getLogger(__name__)


class Shelf:
    """The snapshot a member keeps, and the directory it may be written to."""

    def __init__(self, state: TrainingState, path: Path | None, *, goes_back: bool = False) -> None:
        self._state = state
        self._goes_back = goes_back  # whether members that find themselves different go back to where they agreed
        self._initial: Received | None = None  # the state before the first step, while nothing is on disk to go back to
        self._directory = Directory(path) if path is not None else None
        self._said = False  # that there is none
        self._snapshot: tuple[Lineage, int, Received] | None = None
        self._written: list[tuple[int, str]] = []  # by this member, and not forgotten

    def keep(self, lineage: Lineage) -> None:
        """Copy the state as it is at this boundary."""
        if self._directory is None:
            if not self._said:
                log.warning("PLIANT_CHECKPOINT_DIR is not set: step %d and later ones cannot be saved", lineage.step)
            self._said = True
            return
        self._snapshot = (lineage, self._state.fingerprint(), copied(self._state.capture()))

    def save(self, lineage: Lineage, name: str, then: Callable[[Checkpoint], None]) -> None:
        """Write the snapshot beside training; `then` is called, on another thread, once it is on the disk."""
        if self._directory is None or self._snapshot is None or self._snapshot[0] != lineage:
            return
        _, state, content = self._snapshot
        self._snapshot = None  # the thread has it
        self._written.append((lineage.step, name))
        arguments = (self._directory, Checkpoint(lineage, name, state), content, then)
        threading.Thread(target=_write, args=arguments, name="pliant-save", daemon=True).start()

    def at_boundary(self, step: int, view: View | None) -> None:
        """Call with what the coordinator says, at every boundary: keeps what may be needed, and no more."""
        if not self._goes_back:
            return
        published = view.checkpoint if view is not None else None
        if step == 0 and published is None:
            self._initial = copied(self._state.capture())
        elif published is not None:
            self._initial = None
            self._forget_before(published)

    def _forget_before(self, published: Checkpoint) -> None:
        """Remove what this member wrote of earlier steps than the one that is published: nobody goes back to it."""
        old = [each for each in self._written if each[0] < published.lineage.step]
        for each in old:
            self._written.remove(each)
            if self._directory is not None:
                self._directory.remove(each[1])

    def bring_back(self, checkpoint: Checkpoint | None, *, moved: bool) -> None:
        """Install a checkpoint; None: the state before the first step, which is in place unless it `moved`."""
        if checkpoint is not None:
            self._state.install(self.read(checkpoint))
        elif self._initial is not None:
            self._state.install(self._initial)
        elif moved:
            raise Left(FENCED_CODE, "the job starts again from its beginning, and this worker's state has moved on")

    def read(self, checkpoint: Checkpoint) -> Received:
        if self._directory is None:
            raise BadInput("PLIANT_CHECKPOINT_DIR is not set, so the job's checkpoint cannot be read: set it.")
        return self._directory.read(checkpoint)


def _write(directory: Directory, checkpoint: Checkpoint, content: Received, then: Callable[[Checkpoint], None]) -> None:
    try:
        directory.write(checkpoint.name, content)
    except OSError as error:
        log.error("the checkpoint of step %d could not be written: %s", checkpoint.lineage.step, error)
        return
    then(checkpoint)
