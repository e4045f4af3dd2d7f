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


def test_a_pool_of_lent_machines_takes_the_slots_of_a_cluster_and_keeps_them() -> None:
    store = MemoryStore("store")
    pools = PoolRegistry(store)
    pools.set_cluster_slots(4)  # there is no pool that could have them
    assert store.read("@pool") is None
    pools.set(Pool(8))
    pools.set_cluster_slots(4)
    assert pools.pool == Pool(8), "a pool of a fixed size"
    pools.set(Pool(0, is_lent=True))
    pools.set_cluster_slots(4)
    pools.set(Pool(0, is_lent=True, queues=(QueueRule("batch"),)))
    assert pools.pool is not None
    assert (pools.pool.cluster_slots, pools.pool.queues) == (4, (QueueRule("batch"),))
    after = PoolRegistry(store)
    after.load()
    assert after.pool == pools.pool
    pools.set(Pool(3))
    assert pools.pool == Pool(3)


def test_a_cluster_cannot_lend_a_negative_number_of_slots() -> None:
    pools = PoolRegistry(MemoryStore("store"))
    pools.set(Pool(0, is_lent=True))
    with pytest.raises(BadInput, match="a cluster can lend 0 to"):
        pools.set_cluster_slots(-1)


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
