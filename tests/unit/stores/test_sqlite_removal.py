"""Trimmed events and deleted jobs make room in the file, and older files are brought up to date."""

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pliant.core.data.ledger import GENESIS, make_line
from pliant.core.data.sample_order import Cursor
from pliant.core.messages import StepsCommitted
from pliant.core.model.names import MemberId
from pliant.errors import StoreError
from pliant.stores.base import Busy, Hold, Segment, Write
from pliant.stores.sqlite import SqliteStore, schema
from pliant.stores.sqlite.checksum import checksum
from pliant.wire.api import EVENTS

BATCH = 64  # events between two records, as the coordinator writes them


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def steps() -> Iterator[bytes]:
    """The events of a job that commits step after step, one in each report."""
    lineage, step = GENESIS, 0
    while True:
        step += 1
        line = make_line(lineage, 1, step, Cursor(0, 16 * step), 16, step * 0x9E3779B97F4A7C15 % 2**64)
        lineage = line.lineage
        yield EVENTS.encode(StepsCommitted(1.8e9 + step / 10, 1, MemberId("vm-g1.0"), (line,)))


def fill(store: SqliteStore, count: int, job: str = "a", begin: int = 0) -> list[bytes]:
    found = steps()
    events = [next(found) for _ in range(count)]
    for at in range(0, count, BATCH):
        part = tuple(events[at : at + BATCH])
        store.write([Write(job, begin + at, part, b"a record of %d" % (at + len(part)))])
    return events


def test_a_file_that_is_trimmed_stays_as_large_as_its_newest_events(path: Path) -> None:
    with SqliteStore(path) as store:
        for turn in range(12):
            fill(store, 1024, begin=1024 * turn)
            first = max(1, 1024 * turn - 63)
            assert store.trim("a", Segment(first, 1024 * (turn + 1) - 64, f"{turn}"))
    assert path.stat().st_size < 1 << 20  # 12,288 events take four times as much


def test_deleted_jobs_make_room_for_others(path: Path) -> None:
    with SqliteStore(path) as store:
        for turn in range(20):
            revision = store.write([Write("a", 0, tuple(b"x" * 4000 for _ in range(50)), b"record")])[0].revision
            assert revision == 50 * (turn + 1)
            assert store.delete("a", revision) is None
    assert path.stat().st_size < 1 << 20


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_a_store_of_an_older_version_gets_the_new_tables(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        schema.create(path, "an old store")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO jobs (id, name, record_revision, checksum, record) VALUES (1, 'a', 1, ?, ?)",
            (checksum(1, b"record"), b"record"),
        )
        connection.execute("INSERT INTO events VALUES (1, 1, ?, ?)", (checksum(1, b"one"), b"one"))
        columns = "name, term, owner, until_s, boot_id, pid_namespace, pid, start_ticks"
        connection.execute(f"INSERT INTO holds ({columns}) VALUES ('lead', 4, 'x', 1e9, '', '', 1, 0)")
    with SqliteStore(path) as store:
        assert [entry.data for entry in store.events("a", 0, 10)] == [b"one"]
        assert [name for name, _ in store.read_page("", 10)] == ["a"]  # ended or not, it counts as live
        store.write([Write("a", 1, (b"two",), b"record", live=False)])
        assert [entry.data for entry in store.events("a", 0, 10)] == [b"one", b"two"]
        assert store.read_page("", 10) == ()
        assert isinstance(store.hold("lead", "y", 3.0, 5.0), Busy)
        assert store.hold("lead", "y", 3.0, 8.0) == Hold("lead", "y", 5, 11.0)
        assert store.trim("a", Segment(1, 1, "one"))
        assert store.delete("a", 2) is None


def with_a_block(path: Path, monkeypatch: pytest.MonkeyPatch, found: int | None = None) -> list[bytes]:
    """A store of version 2, which kept old events in compressed blocks: events 1 to 600 in a block, 601 beside it."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        schema.create(path, "an old store")
    made = steps()
    events = [next(made) for _ in range(601)]
    packed = zlib.compress(b"".join(struct.pack("<I", len(data)) + data for data in events[:600]))
    with closing(sqlite3.connect(path)) as connection, connection:
        record = (601, checksum(601, b"record"), b"record")
        connection.execute(
            "INSERT INTO jobs (id, name, record_revision, checksum, record) VALUES (1, 'a', ?, ?, ?)", record
        )
        row = (1, 1, 600, checksum(600, packed) if found is None else found, packed)
        connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", row)
        connection.execute("INSERT INTO events VALUES (1, 601, ?, ?)", (checksum(601, events[600]), events[600]))
    return events


def test_blocks_of_an_older_version_become_events_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = with_a_block(path, monkeypatch)
    with SqliteStore(path) as store:
        assert [entry.data for entry in store.events("a", 0, 10_000)] == events
        assert store.trim("a", Segment(1, 600, "one"))


def test_a_damaged_block_is_not_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_block(path, monkeypatch, found=7)
    with pytest.raises(StoreError, match="revisions 1 to 600, is not as it was written"):
        SqliteStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM blocks").fetchone() == (1,)  # the old version can read it


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data = X'00' WHERE revision = 7",
        "DELETE FROM events WHERE revision = 7",
        "DELETE FROM events WHERE revision = 1",
    ],
)
def test_a_damaged_event_is_noticed(path: Path, damage: str) -> None:
    with SqliteStore(path) as store:
        fill(store, 100)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with SqliteStore(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.events("a", 0, 10_000)
