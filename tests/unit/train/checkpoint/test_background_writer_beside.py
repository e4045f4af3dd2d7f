"""Whatever the thread is at, `secure` goes ahead without it, and what is written is the state of the boundary."""

import errno
import os
import threading
from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path

import pytest

from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.train.checkpoint import PieceWriter, Storage, open_storage, read_checkpoint
from pliant.train.checkpoint.background_writer import BLOCK, BackgroundWriter
from pliant.train.state.flat import State, flatten
from unit.train.checkpoint.states import LINEAGE, Blob, as_leaf

PATIENCE_S = 60.0


class Training:
    """Memory that is saved while it is in use."""

    def __init__(self, place: Storage, *nbytes: int) -> None:
        self.place = place
        self.live = [bytearray([at + 1]) * count for at, count in enumerate(nbytes)]
        self.before = [bytes(each) for each in self.live]
        self.in_copy = threading.Event()
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.copies = 0
        self.pieces: tuple[Piece, ...] = ()
        self.failed: list[str] = []
        self.has_memory = True

    def begin(self, writes_for_s: float = inf) -> BackgroundWriter:
        state: State = flatten([Blob("uint8", (len(each),), bytes(each)) for each in self.live], as_leaf)
        writer = PieceWriter(self.place, "one", state.tree, 0, 1, "a")
        contents = [partial(memoryview, self.live[leaf]) for leaf in writer.leaves]
        return BackgroundWriter(writer, contents, self._copy, self._written, self.failed.append, writes_for_s)

    def _copy(self, content: memoryview) -> memoryview:
        if threading.current_thread() is not threading.main_thread():
            self.in_copy.set()
            assert self.may_copy.wait(PATIENCE_S)
            self.copies += content.nbytes
        elif not self.has_memory:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return memoryview(bytes(content))

    def _written(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces

    def apply(self) -> None:
        """The step changes everything."""
        for each in self.live:
            each[:] = bytes(len(each))

    @property
    def saved(self) -> list[bytes]:
        return [
            bytes(each) for each in read_checkpoint(self.place, Checkpoint(LINEAGE, "one", 0, self.pieces)).contents
        ]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(open_storage(tmp_path), 2 * BLOCK + 5, 0, 7, BLOCK + 1)
    yield made
    made.may_copy.set()


def test_a_thread_that_is_stuck_in_a_block_holds_nobody_up(training: Training) -> None:
    training.may_copy.clear()
    copying = training.begin()
    assert training.in_copy.wait(PATIENCE_S)
    assert copying.copy_rest() == sum(map(len, training.live))
    training.apply()
    training.may_copy.set()
    copying.confirm()
    copying.wait()
    assert training.saved == training.before


def test_what_the_thread_has_copied_need_not_be_copied_again(training: Training) -> None:
    copying = training.begin(writes_for_s=0.0)
    copying.confirm()
    copying.wait()
    assert copying.copy_rest() == 0
    training.apply()
    assert training.copies == sum(map(len, training.live))
    assert training.saved == training.before


def test_late_in_a_step_it_copies_before_it_writes(training: Training) -> None:
    training.may_copy.clear()
    copying = training.begin(writes_for_s=0.0)
    assert training.in_copy.wait(PATIENCE_S)
    assert training.place.unfinished_names() == []
    training.may_copy.set()
    copying.confirm()
    copying.wait()
    assert training.saved == training.before


def test_one_that_is_abandoned_while_it_is_stuck_leaves_nothing(training: Training) -> None:
    training.may_copy.clear()
    copying = training.begin()
    assert training.in_copy.wait(PATIENCE_S)
    copying.abandon()
    assert copying.copy_rest() == sum(map(len, training.live))
    training.may_copy.set()
    copying.wait()
    assert training.pieces == ()
    assert training.failed == []
    assert training.place.unfinished_names() == []


def test_where_memory_ends_the_checkpoint_fails_and_training_goes_on(training: Training) -> None:
    training.may_copy.clear()
    training.has_memory = False
    copying = training.begin()
    assert training.in_copy.wait(PATIENCE_S)
    copying.copy_rest()
    training.apply()
    training.may_copy.set()
    copying.confirm()
    copying.wait()
    assert training.failed == ["Cannot allocate memory"]
    assert training.pieces == ()
    assert training.place.unfinished_names() == []
