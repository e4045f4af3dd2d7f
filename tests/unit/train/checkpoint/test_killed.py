"""A writer is killed with SIGKILL at every call that changes the disk: what was there stays, and nothing false appears.

Each case is a real process, forked from this one, which counts the calls of the system that make, write, flush, link,
rename or remove, and kills itself just before the one that is its turn, or in the middle of it if that is a write.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.core.data.ledger import Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.errors import BadInput
from pliant.train.checkpoint import (
    DamagedCheckpoint,
    Storage,
    find_problems,
    open_storage,
    read_checkpoint,
    read_manifest,
)
from pliant.train.checkpoint import writer as writer_module
from unit.train.checkpoint.states import publish, training

CALLS = ("write", "fsync", "link", "rename", "replace", "unlink", "open", "mkdir", "rmdir")
REAL = {name: getattr(os, name) for name in CALLS}
OLD, NEW = Lineage(1, 10, 1), Lineage(1, 20, 2)
MEMORY = Path(
    "/dev/shm"
)  # what is killed is a process, not a machine: where the disk is slow, its flushes prove nothing


class Turn:
    """Notes the calls of this process and ends it at the one whose turn it is; -1: at none."""

    def __init__(self, last: int = -1, *, torn: bool = False) -> None:
        self.calls: list[str] = []
        self._last = last
        self._torn = torn

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(self.calls) == self._last:
                if self._torn and name == "write":
                    REAL[name](args[0], args[1][: max(1, len(args[1]) // 2)])
                os.kill(os.getpid(), signal.SIGKILL)
            self.calls.append(name)
            return REAL[name](*args, **kwargs)

        return call


def in_a_process(turn: Turn, act: Callable[[], object]) -> list[str]:
    """Act in a process of its own, which ends at its turn. The calls it made; none if it was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ours)
            turn.install()
            act()
            REAL["write"](theirs, " ".join(turn.calls).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return said.split()


def turns(calls: list[str]) -> Iterator[Turn]:
    """Every way to die among these calls."""
    for at, name in enumerate(calls):
        yield Turn(at)
        if name == "write":
            yield Turn(at, torn=True)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="pliant-killed-") as folder:
        yield Path(folder)


@pytest.fixture
def prepared(quick: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with a whole checkpoint in it; blocks are small, so that there are many writes."""
    monkeypatch.setattr(writer_module, "GATHERED", 256)
    monkeypatch.setattr(writer_module, "BLOCK", 1024)
    publish(open_storage(quick / "prepared"), "old", training(4), 1, OLD)
    return quick / "prepared"


def newest(place: Storage) -> Checkpoint:
    """The newest checkpoint, as a reader finds it; whatever claims to be one is whole."""
    found = [read_manifest(place, name).checkpoint for name in place.checkpoint_names()]
    for each in found:
        assert find_problems(place, each) == ()
    return max(found, key=lambda each: each.lineage.key())


@pytest.mark.parametrize("count", [1, 2])
def test_a_writer_killed_at_any_call_leaves_a_valid_checkpoint_and_never_a_wrong_one(
    prepared: Path, quick: Path, count: int
) -> None:
    state = training(width=600, seed=4)
    at = quick / "place"

    def act() -> object:
        return publish(open_storage(at), "new", state, count, NEW)

    shutil.copytree(prepared, at)
    calls = in_a_process(Turn(), act)
    whole = newest(open_storage(at))
    assert whole.lineage == NEW
    assert [name for name in CALLS if name not in calls] == ["rename", "replace", "rmdir"]
    taken = {OLD: 0, NEW: 0}
    for turn in turns(calls):
        shutil.rmtree(at)
        shutil.copytree(prepared, at)
        assert in_a_process(turn, act) == []
        place = open_storage(at)
        found = newest(place)
        taken[found.lineage] += 1
        if found.lineage == NEW:
            assert found == whole
            continue
        assert place.checkpoint_names() == ["old"]
        check_that_nobody_takes_it(place, whole)
        place.remove("new")
        assert place.unfinished_names() == []
    assert taken[OLD] > 20
    assert taken[NEW] == 3  # its manifest has its name: the hidden one is to go, the folder to be opened and flushed


def test_whoever_tries_again_is_not_hindered_by_what_a_dead_one_left(prepared: Path, quick: Path) -> None:
    state = training(width=600, seed=4)
    shutil.copytree(prepared, quick / "whole")
    calls = in_a_process(Turn(), lambda: publish(open_storage(quick / "whole"), "new", state, 2, NEW))
    for last in range(calls.index("link") + 1):  # the same name cannot be used once a piece has it: names have a nonce
        shutil.copytree(prepared, quick / f"{last}")
        place = open_storage(quick / f"{last}")
        in_a_process(Turn(last), lambda place=place: publish(place, "new", state, 2, NEW))  # type: ignore[misc]
        publish(place, "new", state, 2, NEW)
        assert newest(place).lineage == NEW


def test_what_has_a_name_was_flushed_and_so_is_the_name(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kill shows this, only a power cut would: the order of the calls, each with what it was about."""
    noted: list[tuple[str, str]] = []
    names: dict[int, str] = {}

    def note(name: str) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **kwargs: Any) -> Any:
            result = REAL[name](first, *rest, **kwargs)
            if name == "open":
                names[result] = Path(first).name
            about = names[first] if isinstance(first, int) else Path(rest[0] if name == "link" else first).name
            kind = "hidden" if about.startswith(".") else about
            if name != "open" and (not noted or noted[-1] != (name, kind)):
                noted.append((name, kind))
            return result

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, note(name))
    publish(open_storage(quick / "place"), "one", training())

    def named(name: str) -> list[tuple[str, str]]:
        return [("fsync", "hidden"), ("link", name), ("unlink", "hidden"), ("fsync", "one")]

    assert noted == [
        ("mkdir", "place"),
        ("fsync", quick.name),
        ("mkdir", "one"),
        ("fsync", "place"),
        ("write", "hidden"),  # of the piece, then of the tree
        *named("state.json"),
        *named("0-of-1-m-0.safetensors"),
        ("write", "hidden"),
        *named("manifest.json"),
    ]


def check_that_nobody_takes_it(place: Storage, checkpoint: Checkpoint) -> None:
    """Return what is under a piece's name is whole even so; all else is missing."""
    for piece in checkpoint.pieces:
        if piece.file in place.file_sizes("new"):
            assert place.file_sizes("new")[piece.file] == piece.nbytes
    try:
        received = read_checkpoint(place, checkpoint)
    except DamagedCheckpoint:
        return
    assert received.tree  # every piece was written, the manifest not yet: it is the right one, to the byte


def test_a_removal_killed_at_any_call_leaves_no_checkpoint_that_lacks_a_piece(prepared: Path, quick: Path) -> None:
    publish(open_storage(prepared), "new", training(seed=4), 2, NEW)
    at = quick / "place"
    shutil.copytree(prepared, at)
    calls = in_a_process(Turn(), lambda: open_storage(at).remove("old"))
    assert open_storage(at).checkpoint_names() == ["new"]
    assert calls.count("unlink") == 3
    for turn in turns(calls):
        shutil.rmtree(at)
        shutil.copytree(prepared, at)
        in_a_process(turn, lambda: open_storage(at).remove("old"))
        place = open_storage(at)
        assert newest(place).lineage == NEW
        place.remove("old")
        assert (place.checkpoint_names(), place.unfinished_names()) == (["new"], [])


def test_an_identity_killed_at_any_call_is_asked_for_again(quick: Path) -> None:
    at = quick / "place"
    calls = in_a_process(Turn(), lambda: open_storage(at).claim("me").storage_id)
    assert "link" in calls
    for turn in turns(calls):
        shutil.rmtree(at)
        in_a_process(turn, lambda: open_storage(at).claim("me").storage_id)
        assert len(open_storage(at).claim("me").storage_id) == 32
        assert open_storage(at).claim("me").storage_id == open_storage(at).claim("you").storage_id


# ------------------------------------------------------------------------------------------------ every byte


def test_every_flipped_byte_is_found(quick: Path) -> None:
    place = open_storage(quick)
    checkpoint = publish(place, "one", training(width=4))
    for file in place.file_sizes("one"):
        with (quick / "one" / file).open("r+b", buffering=0) as opened:
            whole = opened.read()
            for at, byte in enumerate(whole):
                os.pwrite(opened.fileno(), bytes([byte ^ (1, 0x20, 0x80)[at % 3]]), at)
                check_that_it_is_damaged(place, checkpoint, file)
                os.pwrite(opened.fileno(), bytes([byte]), at)
    assert read_checkpoint(place, checkpoint).tree == training(width=4).tree


def test_every_cut_is_found(quick: Path) -> None:
    place = open_storage(quick)
    checkpoint = publish(place, "one", training(width=4))
    for file in place.file_sizes("one"):
        path = quick / "one" / file
        whole = path.read_bytes()
        for more in (b"\0", b" ", b"\n", whole):
            path.write_bytes(whole + more)
            check_that_it_is_damaged(place, checkpoint, file)
        for length in reversed(range(len(whole))):
            os.truncate(path, length)
            check_that_it_is_damaged(place, checkpoint, file)
        path.write_bytes(whole)
    assert read_checkpoint(place, checkpoint).tree == training(width=4).tree


def check_that_it_is_damaged(place: Storage, checkpoint: Checkpoint, file: str) -> None:
    """For a member, with the manifest of the coordinator's store; for a person, with the one beside it."""
    is_manifest = file == "manifest.json"
    with pytest.raises(DamagedCheckpoint):
        _ = read_manifest(place, checkpoint.name) if is_manifest else read_checkpoint(place, checkpoint)


def test_a_manifest_whose_hash_is_wrong_spoils_nothing_else(quick: Path) -> None:
    place = open_storage(quick)
    checkpoint = publish(place, "one", training())
    lying = replace(checkpoint, pieces=tuple(replace(each, sha256="0" * 64) for each in checkpoint.pieces))
    with pytest.raises(BadInput, match="its SHA-256 differs from the manifest's"):
        read_checkpoint(place, lying)
    assert len(find_problems(place, lying)) == 2
    read_checkpoint(place, checkpoint)
