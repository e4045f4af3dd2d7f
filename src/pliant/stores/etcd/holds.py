"""Holds in etcd: a key with a lease, which etcd removes when the lease ends.

The term of a hold is the revision at which its key was created. It grows with every change in the cluster, so it is
higher than all before, and it names one hold: a write under a hold compares it.

etcd measures the time to live on the clock of its own leader. A lease counts from the moment at which etcd renewed it,
which is after the caller took `now`. So a holder's `until_s` is never later than the end of the lease.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from pliant.stores.base import Busy, Hold
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.transactions import (
    EtcdEntry,
    created_at,
    delete,
    get,
    is_missing_key,
    put,
    range_of,
    txn,
)
from pliant.stores.etcd.values import damaged

__all__ = ["HoldLeases"]

LEASE_MIN_S = 2  # etcd grants no shorter lease


class _HolderValue(msgspec.Struct, frozen=True):
    owner: str
    ttl_s: float
    url: str = ""


class HoldLeases:
    """The holds of one store."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def hold(self, key: bytes, wanted: Hold, ttl_s: float, now: float) -> Hold | Busy:
        """Gain or renew a hold. `wanted` is complete except for its term."""
        value = _HolderValue(wanted.owner, ttl_s, wanted.url)
        found = self._client.range(range_of(key)).kvs
        if found:
            (entry,) = found
            holder = _holder(entry)
            if holder.owner != wanted.owner:
                return _busy(wanted.name, entry, now)
            if holder == value and self._client.keep_alive(entry.lease):
                return replace(wanted, term=entry.create_revision)
            if holder != value and self._replace(key, entry, value):
                return replace(wanted, term=entry.create_revision)
        return self._gain(key, wanted, value, now)

    def holder(self, key: bytes, name: str, now: float) -> Hold | None:
        """Return the hold in force; None if there is none."""
        found = self._client.range(range_of(key)).kvs
        return _busy(name, found[0], now).hold if found else None

    def release(self, key: bytes, hold: Hold) -> None:
        self._client.change(txn([created_at(key, hold.term)], [delete(key)]))

    def _gain(self, key: bytes, wanted: Hold, value: _HolderValue, now: float) -> Hold | Busy:
        new = put(key, msgspec.json.encode(value), self._grant(value.ttl_s))
        answer = self._client.change(txn([is_missing_key(key)], [new], [get(key)]))
        if answer.succeeded:
            return replace(wanted, term=answer.header.revision)
        return _busy(wanted.name, answer.range(0).kvs[0], now)

    def _replace(self, key: bytes, entry: EtcdEntry, value: _HolderValue) -> bool:
        """Change the address or the time to live of a hold. Return False if the hold has ended meanwhile."""
        new = put(key, msgspec.json.encode(value), self._grant(value.ttl_s))
        return self._client.change(txn([created_at(key, entry.create_revision)], [new])).succeeded

    def _grant(self, ttl_s: float) -> int:
        return self._client.grant(max(LEASE_MIN_S, math.ceil(ttl_s)))


def _busy(name: str, entry: EtcdEntry, now: float) -> Busy:
    holder = _holder(entry)
    latest_s = now + max(LEASE_MIN_S, math.ceil(holder.ttl_s))
    return Busy(Hold(name, holder.owner, entry.create_revision, latest_s, holder.url))


def _holder(entry: EtcdEntry) -> _HolderValue:
    try:
        return msgspec.json.decode(entry.value, type=_HolderValue)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise damaged("A hold", str(error)) from error
