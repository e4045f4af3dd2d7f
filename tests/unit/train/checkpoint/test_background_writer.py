"""A part of a checkpoint on its way to the disk: what becomes of it when it is given up, and when the disk fails."""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from e2e.running import PATIENCE_S, wait_for
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.train.checkpoint import PieceWriter, open_storage, read_checkpoint
from pliant.train.checkpoint.background_writer import BLOCK, BackgroundWriter
from pliant.train.state.flat import flatten
from unit.train.checkpoint.states import LINEAGE, Blob, as_leaf

LEAVES = (2 * BLOCK + 5, 0, 7, 3 * BLOCK)


class Part:
    """The state of a small training, and what was said of its saving."""

    def __init__(self, path: Path, goes_on: threading.Event | None = None) -> None:
        """With `goes_on` nothing is copied before it is set."""

        def copy(content: memoryview) -> memoryview:
            assert goes_on is None or goes_on.wait(PATIENCE_S)
            return memoryview(bytes(content))

        self.place = open_storage(path)
        self.live = [bytearray([at + 1]) * count for at, count in enumerate(LEAVES)]
        self.before = [bytes(each) for each in self.live]
        self.written: list[tuple[Piece, ...]] = []
        self.failed: list[str] = []
        tree = flatten([Blob("uint8", (len(each),), bytes(each)) for each in self.live], as_leaf).tree
        writer = PieceWriter(self.place, "one", tree, 0, 1, "a")
        contents = [partial(memoryview, self.live[leaf]) for leaf in writer.leaves]
        self.copying = BackgroundWriter(writer, contents, copy, self.written.append, self.failed.append)

    def apply(self) -> None:
        """The step changes everything."""
        self.copying.copy_rest()
        for each in self.live:
            each[:] = bytes(len(each))

    def saved(self) -> list[bytes]:
        [pieces] = self.written
        return [bytes(each) for each in read_checkpoint(self.place, Checkpoint(LINEAGE, "one", 0, pieces)).contents]


@pytest.mark.parametrize("wanted_first", [True, False])
def test_what_is_written_is_the_state_of_the_boundary(tmp_path: Path, wanted_first: bool) -> None:
    part = Part(tmp_path)
    if wanted_first:
        part.copying.confirm()
    part.apply()
    part.copying.confirm()
    part.copying.wait()
    assert part.saved() == part.before
    assert part.failed == []


def test_what_is_all_written_need_not_be_secured(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.copying.confirm()
    part.copying.wait()
    assert part.copying.copy_rest() == 0
    part.apply()
    assert part.saved() == part.before


def test_nothing_is_said_before_it_is_wanted(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.apply()
    assert (part.written, part.copying.is_busy) == ([], False)
    part.copying.confirm()
    part.copying.wait()
    assert len(part.written) == 1


@pytest.mark.parametrize("secured", [True, False])
def test_what_nobody_wants_leaves_nothing_behind(tmp_path: Path, secured: bool) -> None:
    part = Part(tmp_path)
    if secured:
        part.apply()
    part.copying.abandon()
    part.copying.wait()
    assert (part.written, part.failed) == ([], [])
    assert (part.place.checkpoint_names(), part.place.unfinished_names()) == ([], [])


def test_what_is_wanted_is_not_abandoned(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.copying.confirm()
    part.copying.abandon()
    part.copying.wait()
    assert part.saved() == part.before


def test_what_is_dropped_is_not_written_though_it_was_wanted_and_counts_as_busy_until_it_has_stopped(
    tmp_path: Path,
) -> None:
    goes_on = threading.Event()
    part = Part(tmp_path, goes_on)
    part.copying.confirm()
    part.copying.cancel()
    assert part.copying.is_busy, "the next one must not begin beside it"
    goes_on.set()
    part.copying.wait()
    assert (part.written, part.failed, part.place.unfinished_names(), part.copying.is_busy) == ([], [], [], False)


def test_at_the_end_of_everything_even_what_is_wanted_is_given_up_and_never_half_there(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.copying.confirm()
    part.copying.cancel_and_wait()
    assert not part.copying.is_busy
    assert part.place.unfinished_names() == []
    assert part.failed == []
    if part.written:  # it was quicker
        assert part.saved() == part.before


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process can get larger than this, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    with small_files():
        part = Part(tmp_path)
        part.copying.confirm()
        part.copying.wait()
    part.apply()
    assert (part.written, part.failed) == ([], ["File too large"])
    assert (part.place.checkpoint_names(), part.place.unfinished_names(), part.copying.is_busy) == ([], [], False)


def test_a_disk_that_does_not_even_let_go_is_said_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = Part(tmp_path)
    wait_for(lambda: any(tmp_path.glob("one/.*")), "the file, not only its folder")
    (tmp_path / "one").rename(tmp_path / "away")  # from under its writer, which can then neither name nor remove it
    (tmp_path / "one").touch()
    part.copying.confirm()
    part.copying.wait()
    assert (part.written, part.failed) == ([], ["Not a directory"])
    assert "could not be removed: Not a directory" in caplog.text


def test_what_cannot_be_told_when_it_is_written_counts_as_not_written(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.copying._written = refuse_to_hear
    part.apply()
    part.copying.confirm()
    part.copying.wait()
    assert (part.written, part.failed) == ([], ["no listener"])


def refuse_to_hear(_: object) -> None:
    raise ValueError("no listener")


def test_a_place_that_cannot_be_written_to_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    part = Part(file)
    part.apply()
    part.copying.confirm()
    part.copying.wait()
    assert (part.written, part.failed) == ([], ["Not a directory"])
