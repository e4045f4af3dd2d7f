"""The contract of `pliant.stores.base` on an etcd cluster."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from types import TracebackType

import msgspec

from pliant.errors import BadInput, StoreError
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Segment,
    Stored,
    Write,
    check_after,
    check_batch,
    check_expected,
    check_hold,
    check_limit,
    check_now,
    check_text,
)
from pliant.stores.etcd import reading
from pliant.stores.etcd.access import EtcdAccess
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.holds import HoldLeases
from pliant.stores.etcd.keys import EtcdKeys
from pliant.stores.etcd.transactions import get, modified_at, put, range_of, txn
from pliant.stores.etcd.upkeep import Upkeep
from pliant.stores.etcd.writing import EtcdWriter

__all__ = ["EtcdStore"]

log = logging.getLogger(__name__)

FORMAT = 1
REVISIONS_MAX = 10**16  # a revision has 16 digits in a key


class _IdentityValue(msgspec.Struct, frozen=True):
    identity: str
    cluster_id: int
    format: int = FORMAT


class EtcdStore:
    """One handle on a store in etcd.

    Creates the store under the prefix if there is none, with `identity` or a random one. Threads may share a handle,
    and their calls run at the same time. Each request to etcd ends after `access.deadline_s` at the latest.
    """

    def __init__(self, access: EtcdAccess, *, identity: str | None = None) -> None:
        if identity is not None and not identity:
            raise BadInput("A store needs an identity.")
        self._client = EtcdClient(access)
        self._keys = EtcdKeys(access.prefix)
        self._holds = HoldLeases(self._client)
        self._upkeep = Upkeep(self._client)
        self._closed = False
        try:
            self.identity, revision = self._identify(identity or secrets.token_hex(16))
        except BaseException:  # why: no other code has this client, so close it after any failure
            self._client.close()
            raise
        self._writer = EtcdWriter(self._client, self._keys, revision)

    @property
    def place(self) -> str:
        return self._client.place

    # ------------------------------------------------------------------------------------------------- identity

    def _identify(self, new: str) -> tuple[str, int]:
        """Read the identity or create it. Assign a new one to a store that was restored into another cluster."""
        key = self._keys.identity
        seen = self._client.range(range_of(key))
        found, cluster_id = seen.kvs, seen.header.cluster_id
        if found:
            known = self._decode_identity(found[0].value)
            if known.cluster_id == cluster_id:
                return known.identity, found[0].mod_revision
            new = secrets.token_hex(16)
            log.warning(
                "The store at %s was restored into another etcd cluster: changed its identity to %s from %s.",
                self.place,
                new,
                known.identity,
            )
        value = msgspec.json.encode(_IdentityValue(new, cluster_id))
        unchanged = modified_at(key, found[0].mod_revision if found else 0)
        answer = self._client.change(txn([unchanged], [put(key, value)], [get(key)]))
        if answer.succeeded:
            return new, answer.header.revision
        (entry,) = answer.range(0).kvs  # another coordinator was faster
        return self._decode_identity(entry.value).identity, entry.mod_revision

    def _decode_identity(self, value: bytes) -> _IdentityValue:
        try:
            known = msgspec.json.decode(value, type=_IdentityValue)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"The keys under {self.place} are not a store of Pliant. Use another prefix. ({error})"
            ) from error
        if known.format > FORMAT:
            raise StoreError(
                f"The store at {self.place} has format {known.format}; this Pliant supports formats up to {FORMAT}. "
                "Use the newer Pliant that wrote it."
            )
        return known

    # -------------------------------------------------------------------------------------------------- reading

    def read(self, job: str) -> Stored | None:
        check_text(job)
        return reading.read(self._open_client(), self._keys.job(job), job)

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        check_limit(limit)
        check_text(after)
        return reading.read_page(self._open_client(), self._keys, after, limit)

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        check_after(after)
        check_limit(limit)
        check_text(job)
        if after >= REVISIONS_MAX:
            return ()
        return reading.events(self._open_client(), self._keys.job(job), job, after, limit)

    def jobs(self) -> tuple[str, ...]:
        return reading.names(self._open_client(), self._keys.revisions)

    # -------------------------------------------------------------------------------------------------- writing

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        check_batch(writes)
        check_text(*[write.job for write in writes])
        self._open_client()
        return self._writer.write(writes, under)

    def segments(self, job: str) -> tuple[Segment, ...]:
        check_text(job)
        return reading.segments(self._open_client(), self._keys.job(job))

    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        check_text(job, segment.name)
        self._open_client()
        return self._writer.trim(job, segment, under)

    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        check_expected(expected)
        check_text(job)
        self._open_client()
        return self._writer.delete(job, expected, under)

    # -------------------------------------------------------------------------------------------------- holding

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        check_hold(name, owner, ttl_s, now)
        check_text(name, owner, url)
        self._open_client()
        held = self._holds.hold(self._keys.hold(name), Hold(name, owner, 0, now + ttl_s, url), ttl_s, now)
        if isinstance(held, Hold):
            self._upkeep.start_if_due()
        return held

    def holder(self, name: str, now: float) -> Hold | None:
        check_now(now)
        check_text(name)
        self._open_client()
        return self._holds.holder(self._keys.hold(name), name, now)

    def release(self, hold: Hold) -> None:
        check_text(hold.name, hold.owner)
        self._open_client()
        self._holds.release(self._keys.hold(hold.name), hold)

    # -------------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Close the connections. May be called any number of times; every other call fails afterwards."""
        self._closed = True
        self._upkeep.close()
        self._client.close()

    def __enter__(self) -> EtcdStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_client(self) -> EtcdClient:
        if self._closed:
            raise StoreError(f"The store at {self.place} was closed. Open it again.")
        return self._client
