"""States that go to disk beside training, and come back (rules 16, 17)."""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from pliant.core.data.grid import Grid
from pliant.core.job.checkpoints import is_garbage, writer_generation
from pliant.core.job.launches import FENCED_CODE
from pliant.core.member import signals as s
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.view import View
from pliant.errors import BadInput
from pliant.torch.errors import Left
from pliant.torch.state.gpu_copy import copy_on_gpu
from pliant.torch.state.training_state import TrainingState, as_leaf
from pliant.train.checkpoint import (
    CheckpointFacts,
    DamagedCheckpoint,
    PieceWriter,
    Storage,
    StorageUnreachable,
    describe_other_owner,
    owner_name,
    read_checkpoint,
    write_manifest,
)
from pliant.train.checkpoint.background_writer import BackgroundWriter
from pliant.train.state.transfer import ReceivedState, copy_state

log = logging.getLogger(__name__)

SEEN_S = 60.0  # until what another machine wrote is seen here: a shared folder remembers a listing for as long
LOOK_S = 1.0
LAST_LOOK_S = 10.0
DISCARDED_KEPT = 64
HUGE = 2 << 20  # bytes of a huge page

Feed = Callable[[s.Signal], None]


class MemberCheckpoints:
    """What a member writes, and what it may have to go back to. `place` is None if nothing can be saved."""

    def __init__(
        self, state: TrainingState, place: Storage | None, job: str, member: str, grid: Grid, *, goes_back: bool
    ) -> None:
        self._state = state
        self._place = place
        self._job = job
        self._member = member
        self._grid = grid
        self._goes_back = goes_back  # whether members that find themselves different go back to where they agreed
        self._initial: ReceivedState | None = (
            None  # the state before the first step, while nothing is on disk to go back to
        )
        self._owner = ""
        self._copying: BackgroundWriter | None = None
        self._tidying: threading.Thread | None = None
        self._newest: s.CollectGarbage | None = None  # what was ordered last
        self._unseen_since: float | None = None  # since when no newest checkpoint was all there
        self._discarded: deque[str] = deque(maxlen=DISCARDED_KEPT)
        self._closing = threading.Event()
        self._boundary = 0.0  # when the last one was, by the monotonic clock
        self._apart_s = 0.0  # from it to the apply after it: for so long the state is at rest
        self.feed: Feed = lambda _: None  # set by whoever runs the member's machine

    def claim_storage(self, born: Callable[[], float]) -> None:
        """Call before the job is joined; `born` says when it was created. BadInput if another one saves here.

        From now on the place is this job's, though its first checkpoint may be hours away.
        """
        if self._place is None:
            return
        self._owner = owner_name(born())
        try:
            mark = self._place.claim(self._owner)
        except OSError as error:
            log.warning("nothing can be written to %s yet: %s", self._place.location, error.strerror or error)
            return
        if not mark.allows(self._owner):
            raise BadInput(f"{describe_other_owner(self._place.location, mark)}.")

    # ------------------------------------------------------------------------------------------------ writing

    def start_write(self, order: s.Snapshot) -> None:
        """Begin to write this member's part of the state, which is that of a boundary."""
        place = self._place
        if place is None:
            raise AssertionError("a member without a place for checkpoints was told to write one")
        if order.name in self._discarded:
            self._not_written(order.name, "it was given up before it was begun")
            return
        if self._copying is not None:
            if self._copying.is_busy and not order.waits:
                self._not_written(order.name, "the previous checkpoint is still being written")
                return
            self._copying.abandon()
            if order.waits:
                self._copying.wait()
        tree, tensors = self._state.layout()
        writer = PieceWriter(place, order.name, tree, order.part, order.count, self._member)
        part = [tensors[leaf] for leaf in writer.leaves]
        aside = copy_on_gpu(part)
        contents = aside if aside is not None else [partial(_content, tensor) for tensor in part]
        checkpoint = Checkpoint(order.lineage, order.name, self._state.fingerprint())

        def written(pieces: tuple[Piece, ...]) -> None:
            try:
                mark = place.claim(self._owner)
            except OSError as error:
                self._not_written(order.name, error.strerror or str(error))
                return
            if mark.allows(self._owner):
                self.feed(
                    s.WriteDone(replace(checkpoint, pieces=pieces, storage_id=mark.storage_id), order.part, order.count)
                )
            else:
                self._not_written(order.name, describe_other_owner(place.location, mark))

        failed = partial(self._not_written, order.name)
        rests = aside is not None
        self._copying = BackgroundWriter(writer, contents, _copy, written, failed, self._apart_s / 2, is_stable=rests)

    def commit(self, order: s.Save) -> None:
        """The step of what was begun is committed."""
        if self._copying is not None and self._copying.name == order.name:
            self._copying.confirm()

    def copy_before_change(self) -> None:
        """Call before the state changes."""
        self._apart_s = time.monotonic() - self._boundary
        if self._copying is not None:
            self._copying.copy_rest()

    def close(self) -> None:
        """The last thing to call: what is not finished leaves nothing behind. The last manifest has a moment."""
        if self._copying is not None:
            self._copying.cancel_and_wait()
        if self._tidying is not None:
            self._tidying.join(LAST_LOOK_S)
            self._closing.set()
            self._tidying.join()

    def _not_written(self, name: str, why: str) -> None:
        log.error("the checkpoint %s could not be written: %s", name, why)
        self.feed(s.WriteFailed(name, why))

    # ----------------------------------------------------------------------------------------------- tidying

    @property
    def can_save(self) -> bool:
        return self._place is not None

    def collect_garbage(self, order: s.CollectGarbage | s.Discard) -> None:
        """Remove what nobody can need, in a thread of its own; and put the newest manifest beside its files."""
        copying, before = self._copying, self._tidying
        if isinstance(order, s.CollectGarbage):
            self._newest = order
        else:
            self._discarded.append(order.name)  # the training thread may be about to begin it
            if copying is not None and copying.name == order.name:
                copying.cancel()
        self._tidying = threading.Thread(target=self._tidy, args=(order, before), name="pliant-tidy")
        self._tidying.start()

    def _tidy(self, order: s.CollectGarbage | s.Discard, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # one at a time: they would remove the same things
        place = self._place
        assert place is not None
        try:
            mark = place.read_owner()
            if mark is not None and not mark.allows(self._owner):
                return  # nothing here is ours, whatever its name
            if isinstance(order, s.Discard):
                place.remove(order.name)
            else:
                self._tidy_after(order, place)
        except OSError as error:
            log.warning("old checkpoints in %s could not be tidied up: %s", place.location, error.strerror or error)

    def _tidy_after(self, order: s.CollectGarbage, place: Storage) -> None:
        newest = order.newest
        if not self._sees_all(order, place):
            return
        cursor = self._grid.cursor(newest.lineage.step)
        facts = CheckpointFacts(time.time(), self._job, writer_generation(newest.name), order.members, cursor)
        with suppress(FileExistsError):  # whoever tidied up before us was there already
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
                place.remove(name)

    def _sees_all(self, order: s.CollectGarbage, place: Storage) -> bool:
        """Whether every piece is here. A file system that is shared may show others' with some delay.

        If none of the newest was all here for long, others write to another disk, which looks like this one. Then the
        older ones are all there is, and nothing may be removed.
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
                log.error(
                    "not all of %s was seen in %s: it has no manifest beside its files", newest.name, place.location
                )
                return False
            if order is not self._newest:
                return False  # the next one is looked for instead, and for what is left of the time

    # ------------------------------------------------------------------------------------------- coming back

    def at_boundary(self, step: int, view: View | None) -> None:
        """Call with what the coordinator says, at every boundary: keeps what may be needed, and no more."""
        self._boundary = time.monotonic()
        if not self._goes_back:
            return
        published = view.checkpoint if view is not None else None
        if step == 0 and published is None:
            self._initial = copy_state(self._state.capture())
        elif published is not None:
            self._initial = None

    def restore(self, checkpoint: Checkpoint | None, *, moved: bool) -> s.RestoreFailed | None:
        """Install a checkpoint; None: the state before the first step, which is in place unless it `moved`."""
        if checkpoint is not None:
            try:
                self._state.install(self._read(checkpoint))
            except (DamagedCheckpoint, StorageUnreachable) as error:
                log.error("the checkpoint of step %d cannot be used: %s", checkpoint.lineage.step, error)
                return s.RestoreFailed(str(error), isinstance(error, DamagedCheckpoint))
        elif self._initial is not None:
            self._state.install(self._initial)
        elif moved:
            raise Left(FENCED_CODE, "the job starts again from its beginning, and this worker's state has moved on")
        return None

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


def _content(tensor: torch.Tensor) -> memoryview:
    leaf = as_leaf(tensor)
    assert leaf is not None
    return leaf.content


def _copy(content: memoryview) -> memoryview:
    """Torch's copy uses several threads, and lets others run meanwhile.

    Memory that is fresh from the system costs five times as much as the copy itself, a page fault for every 4 KiB; with
    huge pages it is a fault for every 2 MiB.
    """
    if not content.nbytes:
        return content
    room = torch.frombuffer(_allocate(content.nbytes), dtype=torch.uint8, count=content.nbytes)
    room.copy_(torch.frombuffer(content, dtype=torch.uint8))
    return room.numpy().data


def _allocate(nbytes: int) -> mmap.mmap | bytearray:
    """Memory that goes back to the system once nobody looks at it."""
    if nbytes < HUGE:
        return bytearray(nbytes)
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # where there are none, it takes longer
        room.madvise(mmap.MADV_HUGEPAGE)
    return room
