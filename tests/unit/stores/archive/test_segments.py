"""Segments: what goes in comes out, or an error says what is wrong."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BadInput, StoreError
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.objects import ObjectFiles
from pliant.stores.archive.segments import FORMAT, Archive, ArchiveFiles, pack, unpack
from pliant.stores.base import Segment

EVENTS = (b'{"type":"JobCreated"}', b"", b"\x00\xff" * 300, b"last")


@pytest.fixture(params=["folder", "objects"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveFiles:
    if request.param == "folder":
        return FolderFiles(tmp_path / "archive")
    return ObjectFiles(f"memory://{tmp_path.name}-{os.getpid()}")


@pytest.fixture
def archive(files: ArchiveFiles) -> Archive:
    return Archive(files, "store-1")


def test_events_are_read_as_they_were_written(archive: Archive) -> None:
    segment = archive.write("demo", 7, EVENTS)
    assert (segment.first, segment.last) == (7, 10)
    assert segment.name.startswith("store-1/demo/0000000000000007-0000000000000010-")
    assert archive.read(segment) == EVENTS
    assert archive.write("demo", 7, EVENTS) == segment  # as after a kill before the store named it
    assert archive.jobs() == ["demo"]


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_any_events_can_be_packed(events: list[bytes]) -> None:
    assert unpack(pack(events)) == tuple(events)


@given(st.binary(max_size=200), st.booleans())
def test_bytes_that_are_no_segment_are_recognised(junk: bytes, compressed: bool) -> None:
    content = FORMAT + (zlib.compress(junk) if compressed else junk)
    found = unpack(content)
    assert found is None or pack(found) is not None
    assert unpack(junk) is None


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=10), st.data())
def test_a_damaged_file_is_never_taken_for_events(events: list[bytes], data: st.DataObject) -> None:
    whole = pack(events)
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    damaged = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
    found = unpack(damaged)
    assert found is None or found == tuple(events)  # a flag of the header may differ, the events may not


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-3], lambda whole: whole + b"x", lambda whole: b"", lambda whole: pack([b"other"] * 4)],
    ids=["cut", "longer", "empty", "another segment"],
)
def test_a_file_that_is_not_as_written_is_refused(
    files: ArchiveFiles, archive: Archive, damage: Callable[[bytes], bytes]
) -> None:
    segment = archive.write("demo", 1, EVENTS)
    files.write(segment.name, damage(files.read(segment.name)))
    with pytest.raises(StoreError, match="is not as it was written"):
        archive.read(segment)


def test_a_missing_file_is_named(archive: Archive) -> None:
    with pytest.raises(StoreError, match="has no store-1/demo/gone"):
        archive.read(Segment(1, 2, "store-1/demo/gone"))


def test_the_segments_of_a_deleted_job_are_removed_and_newer_ones_stay(archive: Archive, files: ArchiveFiles) -> None:
    for first in (1, 5):
        archive.write("demo", first, EVENTS)
    other = archive.write("other", 1, EVENTS)
    newer = archive.write("demo", 9, EVENTS)
    assert archive.remove("demo", 8) == 2
    assert archive.read(newer) == archive.read(other) == EVENTS
    assert archive.remove("demo", 12) == 1
    assert archive.remove("demo", 12) == 0
    assert archive.jobs() == ["other"]
    files.remove("store-1/demo/gone")  # no error


def test_a_store_never_removes_the_segments_of_another(files: ArchiveFiles, archive: Archive) -> None:
    theirs = Archive(files, "store-2").write("demo", 1, EVENTS)
    archive.write("demo", 1, EVENTS)
    assert archive.remove("demo", 100) == 1
    assert archive.read(theirs) == EVENTS  # a restored store reads the segments of the original


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\x00"])
def test_names_that_would_leave_the_archive_are_refused(archive: Archive, name: str) -> None:
    with pytest.raises(BadInput):
        archive.write(name, 1, EVENTS)
    with pytest.raises(BadInput):
        Archive(FolderFiles(Path("unused")), name)


# ------------------------------------------------------------------------------------------------ the folder


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    segment = Archive(FolderFiles(tmp_path / "archive"), "s").write("demo", 1, EVENTS)
    path = tmp_path / "archive" / segment.name
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    archive = Archive(FolderFiles(tmp_path / "file"), "s")
    with pytest.raises(StoreError, match="cannot be written: File exists"):
        archive.write("demo", 1, EVENTS)
    with pytest.raises(StoreError, match="cannot be read"):
        archive.read(Segment(1, 1, "s/demo/x"))
    with pytest.raises(StoreError, match="cannot be read"):
        archive.jobs()


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(FolderFiles(tmp_path), "s")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        archive.write("demo", 1, EVENTS)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_name_appears_after_the_content_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of system calls that makes a segment survive a power cut: content, rename, folder."""
    calls: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(fd: int) -> None:
        is_folder = Path(f"/proc/self/fd/{fd}").readlink().is_dir()
        calls.append("folder" if is_folder else "content")
        fsync(fd)

    def noted_rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    Archive(FolderFiles(tmp_path / "archive"), "s").write("demo", 1, EVENTS)
    assert calls == ["folder", "folder", "folder", "content", "rename", "folder"]


def test_a_url_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        ObjectFiles("nowhere-at-all://bucket")
