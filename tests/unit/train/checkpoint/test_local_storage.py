"""A folder as a place: what is in it, what is removed, and that two who ask know whether they share it."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pliant.errors import BadInput
from pliant.train.checkpoint import open_storage, read_checkpoint
from unit.train.checkpoint.states import publish, training, write


def test_a_place_is_a_path_or_a_url(tmp_path: Path) -> None:
    assert (
        open_storage(str(tmp_path)).location
        == open_storage(tmp_path).location
        == open_storage(f"file://{tmp_path}").location
    )
    assert open_storage("a:b").location == "a:b"
    assert type(open_storage("memory://x")).__name__ == "FsspecStorage"
    with pytest.raises(BadInput, match="must be a folder"):
        open_storage("")


def test_names_are_those_with_a_manifest(tmp_path: Path) -> None:
    place = open_storage(tmp_path)
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("none")) == ([], [], {})
    publish(place, "b", training())
    publish(place, "a", training())
    write(place, "c", training())
    (tmp_path / "a file").write_text("x")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a" / ".state.json.1234").write_text("half")
    assert (place.checkpoint_names(), place.unfinished_names()) == (["a", "b"], ["c"])
    assert [*place.file_sizes("a")] == ["0-of-1-m-0.safetensors", "manifest.json", "state.json"]
    assert place.file_sizes("a")["state.json"] == (tmp_path / "a" / "state.json").stat().st_size


def test_a_place_that_is_not_there_has_nothing_in_it(tmp_path: Path) -> None:
    place = open_storage(tmp_path / "no" / "such")
    assert (place.checkpoint_names(), place.unfinished_names()) == ([], [])
    place.remove("x")
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_removed_whole_the_manifest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_storage(tmp_path)
    publish(place, "a", training(), 2)
    (tmp_path / "a" / ".half").write_text("x")
    gone: list[str] = []
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        gone.append(self.name)
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    place.remove("a")
    place.remove("a")
    assert gone[0] == "manifest.json"
    assert len(gone) == 6  # and once more in vain
    assert list(tmp_path.iterdir()) == []


def test_everybody_who_asks_hears_one_identity(tmp_path: Path) -> None:
    path = tmp_path / "new" / "place"
    start = threading.Barrier(8)

    def ask() -> str:
        start.wait(10)
        return open_storage(path).claim("me").storage_id

    with ThreadPoolExecutor(8) as pool:
        heard = {asked.result() for asked in [pool.submit(ask) for _ in range(8)]}
    assert len(heard) == 1
    assert open_storage(tmp_path / "other").claim("me").storage_id not in heard
    assert open_storage(path).checkpoint_names() == open_storage(path).unfinished_names() == []
    assert [each.name for each in path.iterdir()] == ["storage-owner"]


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    place = open_storage(tmp_path)
    state = training()
    assert read_checkpoint(place, publish(place, "a", state)).tree == state.tree
    with pytest.raises(FileExistsError):
        write(place, "a", training(seed=3))
    assert place.claim("me").storage_id == place.claim("you").storage_id


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") in (str(tmp_path), str(tmp_path / "a")):  # noqa: PTH115
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    place = open_storage(tmp_path)
    if fails:
        with pytest.raises(OSError, match="Input/output error"):
            publish(place, "a", training())
    else:
        assert read_checkpoint(place, publish(place, "a", training())).tree == training().tree


def test_a_member_that_gives_up_does_not_take_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One makes the folder; before it opens its file, another one that gave up removes what is empty."""
    place = open_storage(tmp_path)
    real = os.open
    stolen: list[Path] = []

    def thief(path: Path, flags: int, mode: int = 0o777) -> int:
        if not stolen and Path(path).name.startswith("."):
            stolen.append(path)
            Path(path).parent.rmdir()
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", thief)
    publish(place, "a", training())
    assert stolen
    assert place.checkpoint_names() == ["a"]


def test_a_failure_when_a_small_file_is_named_leaves_no_hidden_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="quota"):
        open_storage(tmp_path).write_file("a", "state.json", b"x")
    assert list(tmp_path.iterdir()) == []
