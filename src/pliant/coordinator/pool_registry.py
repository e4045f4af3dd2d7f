"""The pool of a store: one record, which the leader changes and others read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pliant.core.allocate import Pool
from pliant.core.allocate.model import bad_pool
from pliant.errors import BadInput, StoreError, StoreUnavailable
from pliant.stores.base import Store, Write, Written
from pliant.wire.codec import decode_state, encode_state

STREAM = "@pool"
TRIES = 4


class PoolRegistry:
    """The pool as last read. The server calls the methods in one thread and reads `pool` on its loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._revision = 0
        self.pool: Pool | None = None

    def load(self) -> None:
        """Read the pool from the store."""
        stored = self._store.read(STREAM)
        if stored is not None:
            self.pool, self._revision = decode_state(stored.record, Pool), stored.revision

    def refresh(self) -> None:
        """Read changes of other coordinators. A store that does not answer leaves the pool as it is."""
        try:
            if self._store.events(STREAM, self._revision, 1):
                self.load()
        except StoreError:
            return

    def set(self, wanted: Pool) -> None:
        """Store another pool. One of lent machines keeps the slots that a cluster's operator reported."""

        def replaced(before: Pool | None) -> Pool:
            known = before.cluster_slots if before is not None and wanted.is_lent else 0
            return replace(wanted, cluster_slots=known)

        self._change(replaced)

    def set_cluster_slots(self, slots: int) -> None:
        """Store the slots that the nodes of a cluster lend. A pool of a fixed size, or none at all, stays as it is."""

        def replaced(before: Pool | None) -> Pool | None:
            return replace(before, cluster_slots=slots) if before is not None and before.is_lent else before

        self._change(replaced)

    def _change(self, replaced: Callable[[Pool | None], Pool | None]) -> None:
        for _ in range(TRIES):
            pool = replaced(self.pool)
            if pool is None or pool == self.pool:
                return
            if wrong := bad_pool(pool):
                raise BadInput(f"{wrong}.")
            data = encode_state(pool)
            (outcome,) = self._store.write([Write(STREAM, self._revision, (data,), data)])
            if isinstance(outcome, Written):
                self.pool, self._revision = pool, outcome.revision
                return
            self.load()  # another coordinator was faster
        raise StoreUnavailable("Other coordinators kept changing the pool; try again.")
