"""A store's file with damaged pages: it is refused, or returns nothing but what was written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fuzz.parser import Parser
from pliant.errors import PliantError
from pliant.stores.base import Write
from pliant.stores.sqlite import SqliteStore

FOLDER = Path(tempfile.mkdtemp(prefix="pliant-fuzz-store-"))
EVENTS = {b'{"type":"X","n":%d}' % number for number in range(1, 41)}
RECORDS = {b"record %d" % number for number in range(4)}


def whole() -> bytes:
    """Return the file of a store with some jobs."""
    path = FOLDER / "whole.db"
    with SqliteStore(path) as store:
        for number in range(4):
            some = tuple(sorted(EVENTS)[10 * number : 10 * number + 10])
            store.write([Write(f"job-{number}", 0, some[:5], b"record %d" % number)])
            store.write([Write(f"job-{number}", 5, some[5:])])
        store.hold("leader", "me", 3.0, 1.0)
    return path.read_bytes()


def read_everything(data: bytes) -> None:
    place = FOLDER / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "store.db").write_bytes(data)
    try:
        _read(place / "store.db")
    finally:
        shutil.rmtree(place)


def _read(path: Path) -> None:
    with SqliteStore(path, wait_s=0.2) as store:
        for name in store.jobs():
            stored = store.read(name)
            if stored is not None:
                assert stored.record in RECORDS, "a damaged record was returned"
                assert EVENTS.issuperset(stored.tail), "a damaged event was returned"
            found = store.events(name, 0, 100)
            assert EVENTS.issuperset(entry.data for entry in found), "a damaged event was returned"


PARSERS = [Parser("store file", read_everything, lambda: [whole()], (PliantError,))]
