"""The stores that are held to the contract, and how a test gets one.

To add a store, write a function that yields an `Opened` and name it in `STORES`. Every test of this folder
then runs on it. `another` opens one more handle on the same store, as a second process would; a store that
lives in one process hands out itself. `where` names the store to other processes; a
store that has one belongs into `SHARED` too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pliant.stores.base import Store
from pliant.stores.memory import MemoryStore
from pliant.stores.sqlite import SqliteStore


@dataclass(frozen=True, slots=True)
class Opened:
    """A new, empty store under test."""

    store: Store
    another: Callable[[], Store]
    where: str = ""


@contextmanager
def memory(identity: str) -> Iterator[Opened]:
    store = MemoryStore(identity)
    yield Opened(store, another=lambda: store)


@contextmanager
def sqlite(identity: str) -> Iterator[Opened]:
    handles: list[SqliteStore] = []

    def another() -> SqliteStore:
        # On a machine that is busy with other tests, waiting long for another writer is no failure.
        handles.append(SqliteStore(path, identity=identity, wait_s=30.0))
        return handles[-1]

    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        try:
            yield Opened(another(), another, where=f"sqlite:{path}")
        finally:
            for handle in handles:
                handle.close()


Factory = Callable[[str], AbstractContextManager[Opened]]

STORES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite}
SHARED = ["sqlite"]  # those of them that several processes can open; `racer.py` must know how

HISTORIES = int(os.environ.get("PLIANT_TEST_HISTORIES", "100"))


@pytest.fixture(params=sorted(STORES))
def factory(request: pytest.FixtureRequest) -> Factory:
    """For a test that needs many stores: called with an identity, gives a new one each time."""
    return STORES[request.param]


@pytest.fixture
def opened(factory: Factory) -> Iterator[Opened]:
    with factory("the-store") as opened:
        yield opened


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """For a test with several processes: the processes open `shared.where`."""
    with STORES[request.param]("the-shared-store") as opened:
        yield opened


@pytest.fixture
def store(opened: Opened) -> Store:
    return opened.store


@pytest.fixture
def second(opened: Opened) -> Store:
    """Another handle on the store of the same test."""
    return opened.another()


@pytest.fixture
def histories() -> int:
    """How many random histories each store is put through; PLIANT_TEST_HISTORIES asks for more."""
    return HISTORIES
