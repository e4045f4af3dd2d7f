"""The stored pool: it survives its coordinator, and two coordinators agree on it."""

from __future__ import annotations

import pytest

from pliant.coordinator.pool_registry import PoolRegistry
from pliant.core.allocate import Pool, QueueRule
from pliant.errors import BadInput, StoreUnavailable
from pliant.stores.memory import MemoryStore
from unit.coordinator.shaky import Shaky


def test_a_pool_is_stored_and_read_again() -> None:
    store = MemoryStore("store")
    first, second = PoolRegistry(store), PoolRegistry(store)
    first.load()
    assert first.pool is None
    first.set(Pool(8, 2, (QueueRule("batch", 2.0, 4),)))
    second.refresh()
    assert second.pool == Pool(8, 2, (QueueRule("batch", 2.0, 4),))
    second.set(Pool(9))
    first.set(Pool(10))  # after it lost the race
    second.refresh()
    assert second.pool == Pool(10)


def test_a_wrong_pool_is_refused() -> None:
    with pytest.raises(BadInput, match="a pool must have 0 to"):
        PoolRegistry(MemoryStore("store")).set(Pool(-1))


def test_a_store_that_does_not_answer_leaves_the_pool_as_it_is() -> None:
    store = Shaky(MemoryStore("store"))
    pools = PoolRegistry(store)
    pools.set(Pool(8))
    store.trouble["events"] = [StoreUnavailable("the disk is away")]
    pools.refresh()
    assert pools.pool == Pool(8)
