"""A damaged file may hold a value of any type in any column: that is damage, and never a Python error."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.stores.base import Write
from pliant.stores.sqlite import SqliteStore


def read(store: SqliteStore) -> object:
    return store.read("a")


def events(store: SqliteStore) -> object:
    return store.events("a", 0, 10)


def page(store: SqliteStore) -> object:
    return store.read_page("", 10)


def names(store: SqliteStore) -> object:
    return store.jobs()


@pytest.mark.parametrize(
    ("change", "ask"),
    [
        ("UPDATE events SET data = 'text'", events),
        ("UPDATE events SET data = 7", events),
        ("UPDATE events SET checksum = 'text'", events),
        ("UPDATE jobs SET record = 'text'", read),
        ("UPDATE jobs SET record = 'text'", page),
        ("UPDATE jobs SET record_revision = 'text'", read),
        ("UPDATE jobs SET name = x'ff'", names),
    ],
)
def test_a_value_of_another_type_is_damage(tmp_path: Path, change: str, ask: Callable[[SqliteStore], object]) -> None:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        store.write([Write("a", 0, (b"one", b"two"), b"record")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with SqliteStore(path) as store, pytest.raises(StoreError, match="is damaged"):
        ask(store)
