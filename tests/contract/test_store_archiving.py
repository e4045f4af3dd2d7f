"""Archiving on every store: what is written in groups of any size is moved in segments of another, and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.coordinator import archiver
from pliant.coordinator.archiver import Archiver
from pliant.coordinator.history import JobHistory
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Entry, Hold, Store, Write


@pytest.mark.parametrize("group", [1, 7, 60])
def test_a_history_is_archived_and_read_back_whole(
    store: Store, second: Store, group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEGMENT_EVENTS", 16), ("KEPT_EVENTS", 5), ("ENDED_EVENTS", 3), ("PAGE", 6)):
        monkeypatch.setattr(archiver, name, value)
    events = [b"event %d" % number for number in range(60)]
    for at in range(0, len(events), group):
        store.write([Write("demo", at, tuple(events[at : at + group]), b"record")])
    hold = store.hold("coordinator", "me", 60.0, 1000.0)
    assert isinstance(hold, Hold)
    mover = Archiver(store, Archive(FolderFiles(tmp_path), store.identity))
    for ended, kept in ((False, 12), (True, 1)):
        while mover.move("demo", hold, ended=ended).again:
            pass
        through = store.segments("demo")[-1].last
        assert len(store.events("demo", through, 100)) == len(events) - through == kept
        for handle in (store, second):
            history = JobHistory(handle, Archive(FolderFiles(tmp_path), handle.identity))
            for after in (0, 15, 16, 17, 40, 59, 60):
                wanted = tuple(Entry(number, events[number - 1]) for number in range(after + 1, 61))
                assert history.events("demo", after, 100) == wanted
    assert store.delete("demo", 60, hold) is None
    assert store.segments("demo") == ()
