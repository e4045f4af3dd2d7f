"""Write and restore a member's part of checkpoints, in the background of training (rules 16, 17)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pliant.core.data.grid import Grid
from pliant.core.job.checkpoints import is_garbage, writer_generation
from pliant.core.job.launches import FENCED_CODE
from pliant.core.member import signals as s
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.view import View
from pliant.errors import BadInput
from pliant.train.checkpoint import (
    CheckpointFacts,
    DamagedCheckpoint,
    PieceWriter,
    Storage,
    StorageUnreachable,
    describe_other_owner,
    read_checkpoint,
    write_manifest,
)
from pliant.train.checkpoint.background_writer import BackgroundWriter
from pliant.train.live.engine import LiveState
from pliant.train.live.errors import Left
from pliant.train.state.transfer import ReceivedState, copy_state

log = logging.getLogger(__name__)

SEEN_S = 60.0  # time limit for another machine's files to appear: network file systems cache listings that long
LOOK_S = 1.0
LAST_LOOK_S = 10.0
DISCARDED_KEPT = 64

Feed = Callable[[s.Signal], None]


class MemberCheckpoints:
    """The checkpoints that a member writes and restores. The storage is None if the member cannot save."""

    def __init__(
        self,
        state: LiveState,
        place: Storage | None,
        job: str,
        member: str,
        grid: Grid,
        *,
        goes_back: bool,
        override_through: int | None = None,
    ) -> None:
        self._state = state
        self._place = place
        self._job = job
        self._member = member
        self._grid = grid
        self._goes_back = goes_back  # whether members whose states differ return to the last state they agreed on
        self._override_through = override_through
        self._initial: ReceivedState | None = None  # the initial state, until there is a checkpoint to return to
        self._owner = ""
        self._copying: BackgroundWriter | None = None
        self._collecting: threading.Thread | None = None
        self._newest: s.CollectGarbage | None = None  # the last order
        self._unseen_since: float | None = None  # since when files of the newest checkpoint are missing
        self._discarded: deque[str] = deque(maxlen=DISCARDED_KEPT)
        self._closing = threading.Event()
        self._boundary_at = 0.0  # time of the last boundary, by the monotonic clock
        self._rest_s = 0.0  # time from a boundary to the next apply, in which the state does not change
        self.feed: Feed = lambda _: None  # set once the session exists

    def set_grid(self, grid: Grid) -> None:
        """Describe checkpoints by a grid whose batch has changed."""
        self._grid = grid

    def claim_storage(self, owner: Callable[[], str]) -> None:
        """Claim the storage for this owner, before the job is joined. Raises BadInput if another job saves there.

        The claim takes effect now, though the first checkpoint may be hours away.
        """
        if self._place is None:
            return
        self._owner = owner()
        try:
            mark = self._place.claim(self._owner)
        except OSError as error:
            log.warning("cannot write to %s yet: %s", self._place.location, error.strerror or error)
            return
        if not mark.allows(self._owner):
            raise BadInput(f"{describe_other_owner(self._place.location, mark)}.")

    # ------------------------------------------------------------------------------------------------ writing

    def start_write(self, order: s.Snapshot) -> None:
        """Start to write this member's part of the state at a boundary."""
        place = self._place
        if place is None:
            raise AssertionError("a member without checkpoint storage got an order to write")
        if order.name in self._discarded:
            self._report_failure(order.name, "discarded before it was started")
            return
        if self._copying is not None:
            if self._copying.is_busy and not order.waits:
                self._report_failure(order.name, "the previous checkpoint is still being written")
                return
            self._copying.abandon()
            if order.waits:
                self._copying.wait()
        tree, arrays = self._state.layout()
        writer = PieceWriter(place, order.name, tree, order.part, order.count, self._member)
        contents, rests = self._state.contents([arrays[leaf] for leaf in writer.leaves])
        checkpoint = Checkpoint(order.lineage, order.name, self._state.fingerprint())

        def written(pieces: tuple[Piece, ...]) -> None:
            try:
                mark = place.claim(self._owner)
            except OSError as error:
                self._report_failure(order.name, error.strerror or str(error))
                return
            if mark.allows(self._owner):
                self.feed(
                    s.WriteDone(replace(checkpoint, pieces=pieces, storage_id=mark.storage_id), order.part, order.count)
                )
            else:
                self._report_failure(order.name, describe_other_owner(place.location, mark))

        failed, copy = partial(self._report_failure, order.name), self._state.copy
        self._copying = BackgroundWriter(writer, contents, copy, written, failed, self._rest_s / 2, is_stable=rests)

    def commit(self, order: s.Save) -> None:
        """Complete the checkpoint: its step is committed."""
        if self._copying is not None and self._copying.name == order.name:
            self._copying.confirm()

    def copy_before_change(self) -> None:
        """Copy what is not written yet. Call it before the state changes."""
        self._rest_s = time.monotonic() - self._boundary_at
        if self._copying is not None:
            self._copying.copy_rest()

    def close(self) -> None:
        """Abandon an unfinished checkpoint and leave no files of it. Waits briefly for the last manifest."""
        if self._copying is not None:
            self._copying.cancel_and_wait()
        if self._collecting is not None:
            self._collecting.join(LAST_LOOK_S)
            self._closing.set()
            self._collecting.join()

    def _report_failure(self, name: str, why: str) -> None:
        log.error("checkpoint %s could not be written: %s", name, why)
        self.feed(s.WriteFailed(name, why))

    # ---------------------------------------------------------------------------------------- garbage collection

    @property
    def can_save(self) -> bool:
        return self._place is not None

    @property
    def storage(self) -> Storage | None:
        return self._place

    def collect_garbage(self, order: s.CollectGarbage | s.Discard) -> None:
        """Remove superseded checkpoints and write the newest manifest, in a background thread."""
        copying, before = self._copying, self._collecting
        if isinstance(order, s.CollectGarbage):
            self._newest = order
        else:
            self._discarded.append(order.name)  # the training thread may be about to start it
            if copying is not None and copying.name == order.name:
                copying.cancel()
        # At exit the interpreter waits for this thread. A thread inherits `daemon` from the thread that starts it.
        self._collecting = threading.Thread(
            target=self._collect, args=(order, before), name="pliant-collect-garbage", daemon=False
        )
        self._collecting.start()

    def _collect(self, order: s.CollectGarbage | s.Discard, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # one at a time: both would remove the same files
        place = self._place
        assert place is not None
        try:
            mark = place.read_owner()
            if mark is not None and not mark.allows(self._owner):
                return  # the storage belongs to another job
            if isinstance(order, s.Discard):
                place.remove(order.name)
            else:
                self._remove_superseded(order, place)
        except OSError as error:
            log.warning("old checkpoints in %s could not be removed: %s", place.location, error.strerror or error)

    def _remove_superseded(self, order: s.CollectGarbage, place: Storage) -> None:
        newest = order.newest
        if not self._wait_for_pieces(order, place):
            return
        cursor = self._grid.cursor(newest.lineage.step)
        facts = CheckpointFacts(time.time(), self._job, writer_generation(newest.name), order.members, cursor)
        with suppress(FileExistsError):  # another member wrote it
            write_manifest(place, newest, facts)
        about = (
            order.kept_checkpoints,
            newest.lineage.step,
            order.history_from_generation,
            order.rollback_generation,
            order.generation,
        )
        for name in (*place.checkpoint_names(), *place.unfinished_names()):
            if is_garbage(name, *about):
                try:
                    place.remove(name)
                except OSError as error:
                    log.warning("%s in %s could not be removed: %s", name, place.location, error.strerror or error)

    def _wait_for_pieces(self, order: s.CollectGarbage, place: Storage) -> bool:
        """Wait until every piece of the newest checkpoint is visible. Return False if one stays missing.

        A shared file system may show files of other machines with some delay. If pieces are missing for long, other
        members write to another disk under the same path. Then the older checkpoints are the only complete ones, and
        none may be removed.
        """
        newest = order.newest
        while True:
            there, now = place.file_sizes(newest.name), time.monotonic()
            if all(there.get(piece.file) == piece.nbytes for piece in newest.pieces):
                self._unseen_since = None
                return True
            if self._unseen_since is None:
                self._unseen_since = now
            if now >= self._unseen_since + SEEN_S:
                self.feed(s.WriteFailed(newest.name, place.location, split_storage=True))
                return False
            if self._closing.wait(LOOK_S):
                log.error("files of %s are missing in %s: no manifest was written", newest.name, place.location)
                return False
            if order is not self._newest:
                return False  # a newer order checks a newer checkpoint, within the same time limit

    # ----------------------------------------------------------------------------------------------- restoring

    def at_boundary(self, step: int, view: View | None) -> None:
        """Keep a copy of the initial state while no checkpoint exists. Call it at every boundary."""
        self._boundary_at = time.monotonic()
        if not self._goes_back:
            return
        published = view.checkpoint if view is not None else None
        if step == 0 and published is None:
            self._initial = copy_state(self._state.capture())
        elif published is not None:
            self._initial = None

    def restore(self, checkpoint: Checkpoint | None, *, moved: bool) -> s.RestoreFailed | None:
        """Install a checkpoint, or the initial state for None. The latter is in place unless the state `moved`."""
        if checkpoint is not None:
            try:
                self._state.install(self._read(checkpoint))
            except (DamagedCheckpoint, StorageUnreachable) as error:
                log.error("the checkpoint of step %d cannot be restored: %s", checkpoint.lineage.step, error)
                return s.RestoreFailed(str(error), isinstance(error, DamagedCheckpoint))
            self._choose_hyperparameters(checkpoint)
        elif self._initial is not None:
            self._state.install(self._initial)
        elif moved:
            raise Left(FENCED_CODE, "the job starts again from its initial state, which this worker no longer has")
        return None

    def _choose_hyperparameters(self, checkpoint: Checkpoint) -> None:
        """Apply the script's hyperparameters if the user asked for it, or report which of them have no effect.

        They are applied to checkpoints from before the start with `--override`. Later ones contain them, perhaps with
        changes by a schedule.
        """
        applied = self._override_through is not None and checkpoint.lineage.generation <= self._override_through
        for line in self._state.choose_hyperparameters(from_script=applied):
            log.warning("%s", line)

    def _read(self, checkpoint: Checkpoint) -> ReceivedState:
        if self._place is None:
            raise StorageUnreachable("PLIANT_CHECKPOINT_DIR is not set: set it to where the job's checkpoints are.")
        try:
            there = self._place.file_sizes(checkpoint.name)
        except OSError as error:
            raise StorageUnreachable(f"{self._place.location} cannot be read: {error.strerror or error}.") from error
        if not there:
            raise StorageUnreachable(
                f"{checkpoint.name} is not in {self._place.location}: every machine must reach one place."
            )
        return read_checkpoint(self._place, checkpoint)
