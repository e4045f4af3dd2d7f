"""States that go to disk and come back, for the protocol's own needs (rules 16, 17)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from pliant.core.ledger import Lineage
from pliant.core.model import Checkpoint
from pliant.errors import BadInput
from pliant.torch.state import TrainingState
from pliant.train.checkpoint import Directory
from pliant.train.transfer import Received

log = logging.getLogger(__name__)


class Shelf:
    """The snapshot a member keeps, and the directory it may be written to."""

    def __init__(self, state: TrainingState, path: Path | None) -> None:
        self._state = state
        self._directory = Directory(path) if path is not None else None
        self._snapshot: tuple[Lineage, int, Received] | None = None

    def keep(self, lineage: Lineage) -> None:
        """Copy the state as it is at this boundary."""
        if self._directory is None:
            log.warning("PLIANT_CHECKPOINT_DIR is not set: step %d cannot be saved", lineage.step)
            return
        whole = self._state.capture()
        contents = tuple(memoryview(bytearray(leaf.content)) for leaf in whole.leaves)
        self._snapshot = (lineage, self._state.fingerprint(), Received(whole.tree, contents))

    def save(self, lineage: Lineage, name: str, then: Callable[[Checkpoint], None]) -> None:
        """Write the snapshot beside training; `then` is called, on another thread, once it is on the disk."""
        if self._directory is None or self._snapshot is None or self._snapshot[0] != lineage:
            return
        _, state, content = self._snapshot
        self._snapshot = None  # the thread has it
        arguments = (self._directory, Checkpoint(lineage, name, state), content, then)
        threading.Thread(target=_write, args=arguments, name="pliant-save", daemon=True).start()

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
