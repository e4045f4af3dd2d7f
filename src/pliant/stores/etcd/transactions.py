"""The requests and answers of etcd's JSON gateway.

etcd's JSON has bytes as base64 and 64-bit numbers as text. msgspec converts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

__all__ = [
    "EtcdAnswer",
    "EtcdEntry",
    "LeaseAnswer",
    "Op",
    "OpAnswer",
    "RangeAnswer",
    "StatusAnswer",
    "TxnAnswer",
    "created_at",
    "delete",
    "get",
    "has_value",
    "is_missing_key",
    "modified_at",
    "prefix_end",
    "put",
    "range_of",
    "txn",
    "txn_op",
]

Op: TypeAlias = dict[str, Any]


class AnswerHeader(msgspec.Struct, frozen=True):
    cluster_id: int = 0
    revision: int = 0


class EtcdAnswer(msgspec.Struct, frozen=True):
    """The part that all answers share."""

    header: AnswerHeader = AnswerHeader()


class EtcdEntry(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class RangeAnswer(EtcdAnswer, frozen=True):
    kvs: tuple[EtcdEntry, ...] = ()
    more: bool = False


class OpAnswer(msgspec.Struct, frozen=True):
    """The answer to one operation of a transaction."""

    response_range: RangeAnswer | None = None
    response_txn: TxnAnswer | None = None


class TxnAnswer(EtcdAnswer, frozen=True):
    succeeded: bool = False
    responses: tuple[OpAnswer, ...] = ()

    def range(self, place: int) -> RangeAnswer:
        """Return the answer to the operation at `place`, which was a range."""
        found = self.responses[place].response_range if place < len(self.responses) else None
        return found if found is not None else RangeAnswer()

    def number(self, place: int) -> int:
        """Return the number that a range found; 0 if there is no such key."""
        found = self.range(place).kvs
        return int(found[0].value) if found else 0

    def inner(self, place: int) -> TxnAnswer:
        """Return the answer to the operation at `place`, which was a transaction."""
        found = self.responses[place].response_txn
        return found if found is not None else TxnAnswer()


class LeaseAnswer(EtcdAnswer, frozen=True):
    lease: int = msgspec.field(name="ID", default=0)
    ttl_s: int = msgspec.field(name="TTL", default=0)


class StatusAnswer(EtcdAnswer, frozen=True):
    version: str = ""
    size: int = msgspec.field(name="dbSize", default=0)
    size_in_use: int = msgspec.field(name="dbSizeInUse", default=0)
    quota: int = msgspec.field(name="dbSizeQuota", default=0)  # from etcd 3.6 on
    errors: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ operations


def put(key: bytes, value: bytes, lease: int = 0) -> Op:
    body: Op = {"key": key, "value": value}
    return {"request_put": {**body, "lease": lease} if lease else body}


def delete(key: bytes, end: bytes | None = None) -> Op:
    return {"request_delete_range": {"key": key} if end is None else {"key": key, "range_end": end}}


def get(key: bytes, end: bytes | None = None, **options: Any) -> Op:
    return {"request_range": range_of(key, end, **options)}


def range_of(key: bytes, end: bytes | None = None, **options: Any) -> Op:
    """Return the body of a range request. `options`: limit, revision, keys_only."""
    chosen = {name: value for name, value in options.items() if value}
    return {"key": key, **({} if end is None else {"range_end": end}), **chosen}


def txn(compare: Sequence[Op], success: Sequence[Op], failure: Sequence[Op] = ()) -> Op:
    return {"compare": compare, "success": success, "failure": failure}


def txn_op(body: Op) -> Op:
    return {"request_txn": body}


# ------------------------------------------------------------------------------------------------ comparisons


def has_value(key: bytes, value: bytes) -> Op:
    return {"key": key, "target": "VALUE", "result": "EQUAL", "value": value}


def created_at(key: bytes, revision: int) -> Op:
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision}


def is_missing_key(key: bytes) -> Op:
    return created_at(key, 0)


def modified_at(key: bytes, revision: int) -> Op:
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix`, whose last byte is not 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
