"""The backup of docs/operating/maintenance.md, made of a store that is in use, and read again."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from pliant.coordinator import archiver
from pliant.coordinator.archiver import Archiver
from pliant.coordinator.history import JobHistory
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Hold, Write, Written
from pliant.stores.sqlite import SqliteStore
from tidy.files import ROOT

PAGE = (ROOT / "docs" / "operating" / "maintenance.md").read_text()


def commands() -> list[str]:
    section = PAGE.partition("## Backup")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return str(block).strip().split("\n")


def test_a_store_in_use_is_backed_up_with_its_newest_commits_and_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".local" / "state" / "pliant" / "jobs" / "demo"
    folder.mkdir(parents=True)
    with SqliteStore(folder / "store.db") as store:
        archive = Archive(FolderFiles(folder / "store.db.archive"), store.identity)
        for revision in range(8):
            assert store.write([Write("demo", revision, (b"%d" % revision,), b"r")]) == (Written(revision + 1),)
        hold = store.hold("lead", "c1", 60.0, 0.0)
        assert isinstance(hold, Hold)
        monkeypatch.setattr(archiver, "ENDED_EVENTS", 2)
        assert Archiver(store, archive).move("demo", hold, ended=True).through == 7
        for command in commands():
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=tmp_path,
                env={**os.environ, "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
    with SqliteStore(tmp_path / "demo-store.db") as copied:
        history = JobHistory(copied, Archive(FolderFiles(tmp_path / "demo-archive"), copied.identity))
        assert [entry.data for entry in history.events("demo", 0, 100)] == [b"%d" % number for number in range(8)]
