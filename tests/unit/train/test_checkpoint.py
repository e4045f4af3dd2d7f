"""States on disk: whole or not at all, and never another under the same name."""

from pathlib import Path

import pytest

from pliant.core.ledger import Lineage
from pliant.core.model import Checkpoint
from pliant.errors import BadInput
from pliant.train.checkpoint import Directory
from pliant.train.state import Leaf, flatten, restore
from pliant.train.transfer import Received

NAME = "g2-s40-00000000000000ff-a-3"
CHECKPOINT = Checkpoint(Lineage(2, 40, 255), NAME, 7)


def as_leaf(value: object) -> Leaf | None:
    return Leaf("u1", (len(value),), memoryview(value)) if isinstance(value, bytearray) else None


def content(*values: bytes, **more: object) -> Received:
    state = flatten({"tensors": [bytearray(value) for value in values], **more}, as_leaf)
    return Received(state.tree, tuple(leaf.content for leaf in state.leaves))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = Directory(tmp_path / "not" / "there" / "yet")
    folder.write(NAME, content(b"12345", b"", b"6", step=40))
    found = folder.read(CHECKPOINT)
    value = restore(found.tree, found.contents, lambda _d, _s, memory: memory.tobytes())
    assert value == {"tensors": [b"12345", b"", b"6"], "step": 40}


def test_what_was_read_can_be_changed_without_touching_the_file(tmp_path: Path) -> None:
    """Tensors are made on top of it and trained."""
    folder = Directory(tmp_path)
    folder.write(NAME, content(b"12345"))
    folder.read(CHECKPOINT).contents[0][0] = 0
    assert folder.read(CHECKPOINT).contents[0].tobytes() == b"12345"


def test_nothing_but_the_checkpoint_is_left_behind(tmp_path: Path) -> None:
    Directory(tmp_path).write(NAME, content(b"1"))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_what_is_under_a_name_never_changes(tmp_path: Path) -> None:
    folder = Directory(tmp_path)
    folder.write(NAME, content(b"first"))
    folder.write(NAME, content(b"other"))
    assert folder.read(CHECKPOINT).contents[0].tobytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("at", [0, 20, -70, -1])
def test_any_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    folder = Directory(tmp_path)
    folder.write(NAME, content(b"x" * 100))
    data = bytearray((tmp_path / NAME).read_bytes())
    data[at] ^= 1
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(BadInput, match="damaged"):
        folder.read(CHECKPOINT)


@pytest.mark.parametrize("length", [0, 10, 87, 150])
def test_a_file_cut_short_is_noticed(tmp_path: Path, length: int) -> None:
    folder = Directory(tmp_path)
    folder.write(NAME, content(b"x" * 100))
    data = (tmp_path / NAME).read_bytes()
    assert length < len(data)
    (tmp_path / NAME).write_bytes(data[:length])
    with pytest.raises(BadInput, match="damaged"):
        folder.read(CHECKPOINT)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{NAME} cannot be read: No such file"):
        Directory(tmp_path).read(CHECKPOINT)
