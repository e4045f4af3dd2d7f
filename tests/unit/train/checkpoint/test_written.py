"""A checkpoint that is written is the one that is read, in however many pieces, and nothing else passes for one."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.errors import BadInput
from pliant.train.checkpoint import (
    DamagedCheckpoint,
    PieceWriter,
    Storage,
    StorageUnreachable,
    find_problems,
    open_storage,
    read_checkpoint,
    read_manifest,
    write_manifest,
)
from pliant.train.checkpoint import reader as reader_module
from pliant.train.checkpoint import writer as writer_module
from pliant.train.state.flat import State, flatten, restore
from unit.train.checkpoint.states import FACTS, LINEAGE, as_leaf, from_leaf, numbers, publish, strange, training, write


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "place")


def contents(state: State) -> list[bytes]:
    return [bytes(leaf.content) for leaf in state.leaves]


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_what_was_written_is_read(place: Storage, count: int) -> None:
    state = flatten(strange(), as_leaf)
    received = read_checkpoint(place, publish(place, "one", state, count))
    assert received.tree == state.tree
    assert [bytes(content) for content in received.contents] == contents(state)
    assert not any(content.readonly for content in received.contents)
    assert repr(restore(received.tree, received.contents, from_leaf)) == repr(strange_as_restored())


def strange_as_restored() -> object:
    state = flatten(strange(), as_leaf)
    return restore(state.tree, [leaf.content for leaf in state.leaves], from_leaf)


@pytest.mark.parametrize("chunk", [1, 7, 0])
def test_the_bytes_may_come_in_any_cuts(place: Storage, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GATHERED", 500)
    monkeypatch.setattr(writer_module, "BLOCK", 64)
    monkeypatch.setattr(reader_module, "BLOCK", 50)
    state = training()
    pieces = write(place, "one", state, 2, chunk)
    assert [bytes(each) for each in read_checkpoint(place, Checkpoint(LINEAGE, "one", 1, pieces)).contents] == contents(
        state
    )


def test_a_state_without_tensors_has_pieces_too(place: Storage) -> None:
    state = flatten({"epoch": 3}, as_leaf)
    checkpoint = publish(place, "one", state, 2)
    assert [piece.file for piece in checkpoint.pieces] == [
        "0-of-2-m-0.safetensors",
        "state.json",
        "1-of-2-m-1.safetensors",
    ]
    assert read_checkpoint(place, checkpoint).contents == ()


def test_every_file_is_in_the_manifest_so_that_sha256sum_can_check_it(place: Storage, tmp_path: Path) -> None:
    publish(place, "one", training(), 2)
    folder = tmp_path / "place" / "one"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {each["file"] for each in manifest["pieces"]} == {*os.listdir(folder)} - {"manifest.json"}  # noqa: PTH208
    lines = "".join(f"{each['sha256']}  {each['file']}\n" for each in manifest["pieces"])
    done = subprocess.run(["sha256sum", "--check"], input=lines, cwd=folder, text=True, capture_output=True, check=True)
    assert done.stdout.count(": OK") == 3
    assert (manifest["step"], manifest["cursor"], manifest["world"]["members"]) == (
        40,
        {"epoch": 1, "position": 128},
        ["a-1", "b-1"],
    )
    assert manifest["time"] == "2027-01-15T08:00:00.250000+00:00"


def test_a_manifest_comes_back(place: Storage) -> None:
    checkpoint = publish(place, "one", training())
    manifest = read_manifest(place, "one")
    assert (manifest.checkpoint, manifest.facts) == (checkpoint, FACTS)
    assert manifest.nbytes == sum(place.file_sizes("one").values()) - place.file_sizes("one")["manifest.json"]
    bare = replace(FACTS, cursor=None, members=(), job="")
    write_manifest(place, replace(checkpoint, name="two", pieces=()), bare)
    assert read_manifest(place, "two").facts == bare


def test_a_manifest_of_another_name_is_not_taken(place: Storage, tmp_path: Path) -> None:
    publish(place, "one", training())
    (tmp_path / "place" / "one").rename(tmp_path / "place" / "two")
    with pytest.raises(DamagedCheckpoint, match=r"two/manifest\.json is damaged: it is the manifest of 'one'"):
        read_manifest(place, "two")


@pytest.mark.parametrize("text", ["{}", '{"format": "pliant checkpoint 2"}', '{"format": "pliant checkpoint 1"}', "[]"])
def test_a_manifest_of_another_version_is_not_taken(place: Storage, tmp_path: Path, text: str) -> None:
    body = text.removesuffix("}")
    last = f',\n  "check": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
    place.write_file("one", "manifest.json", (body + last).encode())
    with pytest.raises(DamagedCheckpoint, match=r"one/manifest\.json is damaged"):
        read_manifest(place, "one")


# ------------------------------------------------------------------------------------------------ the writer


def test_a_writer_knows_which_leaves_are_its_own(place: Storage) -> None:
    state = training()
    runs = [PieceWriter(place, "one", state.tree, index, 3, "m").leaves for index in range(3)]
    assert [leaf for run in runs for leaf in run] == list(range(len(state.leaves)))
    assert place.unfinished_names() == []  # nothing is opened before there are bytes


def test_too_many_or_too_few_bytes_are_refused(place: Storage) -> None:
    state = training()
    writer = PieceWriter(place, "one", state.tree, 0, 1, "m")
    with pytest.raises(BadInput, match="still lacks"):
        writer.finish()
    with pytest.raises(BadInput, match="1 bytes more than its leaves have"):
        writer.write(memoryview(bytes(state.nbytes + 1)))
    writer.abandon()
    assert place.unfinished_names() == []


@pytest.mark.parametrize(
    ("name", "index", "member"), [("../up", 0, "m"), ("a/b", 0, "m"), (".a", 0, "m"), ("a", 1, "m"), ("a", 0, "m/x")]
)
def test_names_that_lead_elsewhere_are_refused(place: Storage, name: str, index: int, member: str) -> None:
    with pytest.raises(BadInput, match=r"is no valid name of a checkpoint|no piece 1 of 1"):
        PieceWriter(place, name, training().tree, index, 1, member)


def test_what_is_abandoned_leaves_nothing(place: Storage, tmp_path: Path) -> None:
    state = training(1 << 20)
    writer = PieceWriter(place, "one", state.tree, 0, 1, "m")
    writer.write(state.leaves[0].content)
    assert place.unfinished_names() == ["one"]
    writer.abandon()
    writer.abandon()
    assert list((tmp_path / "place").iterdir()) == []


def test_what_is_under_a_name_never_changes(place: Storage) -> None:
    checkpoint = publish(place, "one", training())
    with pytest.raises(FileExistsError):
        write(place, "one", training(seed=5))
    with pytest.raises(FileExistsError):
        write_manifest(place, replace(checkpoint, state=78), FACTS)
    assert read_checkpoint(place, checkpoint).tree == training().tree


def test_several_may_write_the_manifest_of_one_checkpoint(place: Storage, tmp_path: Path) -> None:
    checkpoint = publish(place, "one", training())
    write_manifest(place, checkpoint, replace(FACTS, at=FACTS.at + 1))
    assert read_manifest(place, "one").facts == FACTS
    (tmp_path / "place" / "one" / "manifest.json").write_text("spoilt")
    with pytest.raises(FileExistsError):
        write_manifest(place, checkpoint, FACTS)


def test_the_disk_is_asked_to_begin_before_all_is_there(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def advise(handle: int, begin: int, nbytes: int, advice: int) -> None:
        asked.append((begin, nbytes))
        real(handle, begin, nbytes, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    pieces = write(place, "one", flatten(big(), as_leaf))
    assert sum(nbytes for _, nbytes in asked) > pieces[0].nbytes // 2
    assert [begin for begin, _ in asked] == [0, *(begin + nbytes for begin, nbytes in asked[:-1])]


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_storage(tmp_path)
    state = training(1 << 20)

    def full(handle: int, content: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = PieceWriter(place, "one", state.tree, 0, 1, "m")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            writer.write(state.leaves[0].content)
        writer.abandon()
        with pytest.raises(OSError, match="No space left"):
            place.write_file("two", "state.json", b"x")
    assert list(tmp_path.iterdir()) == []


def test_writing_and_reading_keep_no_second_copy(place: Storage) -> None:
    """Of a state of 64 MiB: the writer needs what it gathers, the reader what it hands out."""
    state = flatten({"a": numbers(0), "b": big(), "c": numbers(7)}, as_leaf)
    tracemalloc.start()
    try:
        pieces = write(place, "one", state)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 8 << 20
        tracemalloc.reset_peak()
        received = read_checkpoint(place, Checkpoint(LINEAGE, "one", 1, pieces))
        _, peak = tracemalloc.get_traced_memory()
        assert peak < state.nbytes + (8 << 20)
    finally:
        tracemalloc.stop()
    assert received.contents[1] == state.leaves[1].content


def big() -> object:
    one = numbers(1 << 20)
    return replace(one, shape=(16 << 20,), content=one.content * 16)


# ------------------------------------------------------------------------------------------------ the reader


def test_a_damaged_file_is_named_with_what_is_wrong(place: Storage, tmp_path: Path) -> None:
    checkpoint = publish(place, "one", training(), 2)
    folder = tmp_path / "place" / "one"
    piece = folder / "1-of-2-m-1.safetensors"
    whole = piece.read_bytes()

    def says(content: bytes | None) -> str:
        piece.unlink(missing_ok=True)
        if content is not None:
            piece.write_bytes(content)
        with pytest.raises(DamagedCheckpoint) as raised:
            read_checkpoint(place, checkpoint)
        assert [problem.file for problem in find_problems(place, checkpoint)] == [piece.name]
        assert raised.value.file == f"one/{piece.name}"
        return raised.value.why

    assert "the file is missing" in says(None)
    assert f"it ends after {len(whole) - 1} of {len(whole)} bytes" in says(whole[:-1])
    assert f"more than the {len(whole)} bytes" in says(whole + b"\0")
    assert "its SHA-256 differs from the manifest's" in says(whole[:-1] + b"\x7f")
    assert "is damaged" in says(b"\xff" * len(whole))
    assert "is damaged" in says((folder / "0-of-2-m-0.safetensors").read_bytes())
    piece.unlink()
    piece.mkdir()
    with pytest.raises(DamagedCheckpoint, match="it is a folder"):
        read_checkpoint(place, checkpoint)


def test_a_checkpoint_without_a_folder_or_a_place_is_damaged(place: Storage) -> None:
    checkpoint = publish(place, "one", training())
    place.remove("one")
    with pytest.raises(DamagedCheckpoint, match=r"one/state\.json is damaged: the file is missing"):
        read_checkpoint(place, checkpoint)
    assert len(find_problems(place, checkpoint)) == 2


def test_what_cannot_be_read_here_is_not_called_damaged(place: Storage, tmp_path: Path) -> None:
    checkpoint = publish(place, "one", training())
    loop = tmp_path / "place" / "one" / "state.json"
    loop.unlink()
    loop.symlink_to(loop.name)  # a refusal of the system that root gets, too
    with pytest.raises(StorageUnreachable, match=r"one/state\.json cannot be read: Too many levels"):
        read_checkpoint(place, checkpoint)
    with pytest.raises(StorageUnreachable):
        find_problems(place, checkpoint)


@pytest.mark.parametrize(
    ("keep", "more", "why"),
    [
        ((0, 2), (), "state.json is damaged: the manifest does not name it"),
        ((0, 1, 1, 2), (), "named twice"),
        ((0, 1), (), "some are missing or do not belong to it"),
        ((1,), (), "some are missing or do not belong to it"),
        ((0, 1, 2), ("0-of-1-m.safetensors",), "some are missing or do not belong to it"),
        ((0, 1, 2), ("../../etc.safetensors",), "its name is not that of a checkpoint file"),
        ((0, 1, 2), ("2-of-3-x/../y.safetensors",), "its name is not that of a checkpoint file"),
    ],
)
def test_a_list_of_pieces_that_is_no_checkpoint_is_refused(
    place: Storage, keep: tuple[int, ...], more: tuple[str, ...], why: str
) -> None:
    whole = publish(place, "one", training(), 2)
    pieces = (*(whole.pieces[at] for at in keep), *(Piece(file, 0, "") for file in more))
    with pytest.raises(DamagedCheckpoint, match=why):
        read_checkpoint(place, replace(whole, pieces=pieces))
    assert any(
        problem.wrong in why or why in problem.wrong for problem in find_problems(place, replace(whole, pieces=pieces))
    )


def test_a_piece_of_another_state_with_the_right_hash_is_refused(place: Storage, tmp_path: Path) -> None:
    """A manifest may be wrong, too: what a piece holds is held against the state."""
    right, wrong = publish(place, "one", training()), publish(place, "two", training(width=8))
    other = flatten({"other": numbers(3)}, as_leaf)
    foreign = publish(place, "three", other)

    def mixed(other: Checkpoint) -> Checkpoint:
        piece = next(each for each in other.pieces if each.file.endswith(".safetensors"))
        target = tmp_path / "place" / "one" / piece.file
        target.write_bytes((tmp_path / "place" / other.name / piece.file).read_bytes())
        return replace(right, pieces=(right.pieces[1], piece))

    with pytest.raises(DamagedCheckpoint, match="bytes in this file, and"):
        read_checkpoint(place, mixed(wrong))
    with pytest.raises(DamagedCheckpoint, match="the state has no tensor other"):
        read_checkpoint(place, mixed(foreign))
    empty = publish(place, "four", flatten({}, as_leaf))
    with pytest.raises(DamagedCheckpoint, match=r"no piece holds its tensor model\.layer\.0\.weight"):
        read_checkpoint(place, mixed(empty))


def test_progress_is_told(place: Storage) -> None:
    checkpoint = publish(place, "one", training(), 2)
    told: list[int] = []
    read_checkpoint(place, checkpoint, told.append)
    assert sum(told) == sum(piece.nbytes for piece in checkpoint.pieces)
    find_problems(place, checkpoint, told.append)
    assert sum(told) == 2 * sum(piece.nbytes for piece in checkpoint.pieces)


def test_a_base_install_can_read_checkpoints() -> None:
    code = (
        "import sys; import pliant.train.checkpoint, pliant.train.checkpoint.local_storage; "
        "print(sorted({'numpy', 'torch', 'fsspec', 'safetensors'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
