"""The stores that are held to the contract, and how a test gets one.

To add a store, write a function that yields an `Opened` and name it in `STORES`. Every test of this folder
then runs on it. `another` opens one more handle on the same store, as a second process would; a store that
lives in one process hands out itself. `settle` returns once every watch has been told all there is to tell;
a store that tells before `write` returns has nothing to wait for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from pliant.stores.base import Store
from pliant.stores.memory import MemoryStore


@dataclass(frozen=True, slots=True)
class Opened:
    """A new, empty store under test."""

    store: Store
    another: Callable[[], Store]
    settle: Callable[[], None]


@contextmanager
def memory(identity: str) -> Iterator[Opened]:
    store = MemoryStore(identity)
    yield Opened(store, another=lambda: store, settle=lambda: None)


Factory = Callable[[str], AbstractContextManager[Opened]]

STORES: dict[str, Factory] = {"memory": memory}

HISTORIES = int(os.environ.get("PLIANT_TEST_HISTORIES", "200"))


@pytest.fixture(params=sorted(STORES))
def factory(request: pytest.FixtureRequest) -> Factory:
    """For a test that needs many stores: called with an identity, gives a new one each time."""
    return STORES[request.param]


@pytest.fixture
def opened(factory: Factory) -> Iterator[Opened]:
    with factory("the-store") as opened:
        yield opened


@pytest.fixture
def store(opened: Opened) -> Store:
    return opened.store


@pytest.fixture
def second(opened: Opened) -> Store:
    """Another handle on the store of the same test."""
    return opened.another()


@pytest.fixture
def settle(opened: Opened) -> Callable[[], None]:
    """Call before looking at what a watch was told."""
    return opened.settle


@pytest.fixture
def histories() -> int:
    """How many random histories each store is put through; PLIANT_TEST_HISTORIES asks for more."""
    return HISTORIES
