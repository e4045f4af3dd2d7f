"""Old events take little room, and are read as if they had never been moved."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pliant.core.data.ledger import GENESIS, make_line
from pliant.core.data.sample_order import Cursor
from pliant.core.messages import StepsCommitted
from pliant.core.model.names import MemberId
from pliant.errors import StoreError
from pliant.stores.base import Busy, Hold, Write
from pliant.stores.sqlite import SqliteStore, blocks, schema
from pliant.stores.sqlite.blocks import BLOCK_EVENTS, BLOCKS_AT_ONCE, KEPT_EVENTS
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


def fill(store: SqliteStore, count: int, job: str = "a") -> list[bytes]:
    found = steps()
    events = [next(found) for _ in range(count)]
    for at in range(0, count, BATCH):
        part = tuple(events[at : at + BATCH])
        store.write([Write(job, at, part, b"a record of %d" % (at + len(part)))])
    return events


def rows(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        connection.close()


def test_events_are_read_as_they_were_written_wherever_a_read_begins(path: Path) -> None:
    with SqliteStore(path) as store:
        events = fill(store, 4000)
        assert rows(path, "blocks") == (4000 - KEPT_EVENTS) // BLOCK_EVENTS
        assert rows(path, "events") < KEPT_EVENTS + BLOCK_EVENTS + BATCH
        for after in (0, 1, 510, 511, 512, 513, 2000, 3583, 3584, 3999, 4000, 5000):
            for limit in (1, 2, 600, 10_000):
                found = store.events("a", after, limit)
                assert [entry.data for entry in found] == events[after : after + limit]
                assert [entry.revision for entry in found] == [*range(after + 1, after + 1 + len(found))]
        stored = store.read("a")
        assert stored is not None
        assert (stored.revision, stored.record) == (4000, b"a record of 4000")
        assert store.events("other", 0, 10) == ()


def test_a_day_of_steps_takes_a_fifth_of_its_events(path: Path) -> None:
    with SqliteStore(path) as store:
        events = fill(store, 20_000)
    size = sum(map(len, events))
    assert size > 200 * len(events)
    assert path.stat().st_size < size / 4  # the newest events included, which are not compressed


def test_what_no_record_covers_is_left_alone(path: Path) -> None:
    with SqliteStore(path) as store:
        fill(store, BATCH)
        store.write([Write("a", BATCH, tuple(b"%d" % number for number in range(3000)))])
        assert rows(path, "blocks") == 0


def test_long_events_make_short_blocks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    with SqliteStore(path) as store:
        events = fill(store, KEPT_EVENTS + BLOCK_EVENTS + BATCH)
        assert rows(path, "blocks") == BLOCKS_AT_ONCE
        assert [entry.data for entry in store.events("a", 0, 10_000)] == events


def test_an_older_store_is_compressed_as_it_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "KEPT_EVENTS", 1 << 60)
        with SqliteStore(path) as store:
            events = fill(store, 6000)
    assert rows(path, "blocks") == 0
    with SqliteStore(path) as store:
        for number in range(3):
            store.write([Write("a", 6000 + number, (b"new",), b"record")])
        assert rows(path, "blocks") == (6003 - KEPT_EVENTS) // BLOCK_EVENTS
        assert [entry.data for entry in store.events("a", 0, 10_000)] == [*events, *[b"new"] * 3]


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
            (blocks.checksum(1, b"record"), b"record"),
        )
        connection.execute("INSERT INTO events VALUES (1, 1, ?, ?)", (blocks.checksum(1, b"one"), b"one"))
        connection.execute("INSERT INTO holds VALUES ('lead', 4, 'x', 1e9, '', '', 1, 0)")
    with SqliteStore(path) as store:
        assert [entry.data for entry in store.events("a", 0, 10)] == [b"one"]
        assert [name for name, _ in store.read_page("", 10)] == ["a"]  # ended or not, it counts as live
        store.write([Write("a", 1, (b"two",), b"record", live=False)])
        assert [entry.data for entry in store.events("a", 0, 10)] == [b"one", b"two"]
        assert store.read_page("", 10) == ()
        assert isinstance(store.hold("lead", "y", 3.0, 5.0), Busy)
        assert store.hold("lead", "y", 3.0, 8.0) == Hold("lead", "y", 5, 11.0)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE blocks SET data = zeroblob(length(data)) WHERE first = 1",
        "UPDATE blocks SET last = last - 1 WHERE first = 1",
        "DELETE FROM blocks WHERE first > 1",
        "DELETE FROM blocks WHERE first = 1",
    ],
)
def test_a_damaged_block_is_noticed(path: Path, damage: str) -> None:
    with SqliteStore(path) as store:
        fill(store, 3000)
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with SqliteStore(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.events("a", 0, 10_000)


def test_a_damaged_event_is_not_hidden_in_a_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "KEPT_EVENTS", 1 << 60)
        with SqliteStore(path) as store:
            fill(store, 2000)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET data = X'00' WHERE revision = 7")
    connection.commit()
    connection.close()
    with SqliteStore(path) as store, pytest.raises(StoreError, match="is damaged; nothing was written"):
        store.write([Write("a", 2000, (b"new",), b"record")])
