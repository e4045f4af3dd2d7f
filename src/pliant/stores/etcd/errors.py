"""Translate answers of etcd into errors of the store contract.

etcd answers a failed request with a code of gRPC and a message. The table below names the answers that etcd gives
before it has proposed a change to its members: nothing was written. Every other failure of a change leaves its outcome
open, because the members may still agree on it.
"""

from __future__ import annotations

from pliant.errors import StoreError, StoreTimeout, StoreUnavailable

__all__ = ["Compacted", "SpaceExceeded", "TokenExpired", "explain_answer", "in_doubt", "unreachable"]

UNAUTHENTICATED = 16

_TOKEN = ("invalid auth token", "auth: revision in header is old")
_COMPACTED = "has been compacted"
_RETRY = ("too many requests", "no leader", "not leader", "server stopped", "raft proposal dropped")

_NOSPACE = (
    "etcd has reached its quota (alarm NOSPACE). Run `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`, "
    "then delete old jobs; or raise the quota of etcd"
)
_CORRUPT = (
    "The members of etcd disagree about its contents (alarm CORRUPT). Replace the member that differs, as etcd's "
    "manual describes, then run `etcdctl alarm disarm`"
)
# A part of the message, and the action for an operator. Nothing was written, and a retry does not help.
_OPERATOR = (
    ("database space exceeded", _NOSPACE),
    ("corrupt cluster", _CORRUPT),
    ("permission denied", "Grant the user readwrite on the prefix: `etcdctl role grant-permission --prefix=true`"),
    ("user name is empty", "etcd wants a user: set PLIANT_ETCD_USER and PLIANT_ETCD_PASSWORD_FILE"),
    ("authentication failed", "Check PLIANT_ETCD_USER and the file PLIANT_ETCD_PASSWORD_FILE"),
    ("authentication is not enabled", "etcd has no users: unset PLIANT_ETCD_USER, or run `etcdctl auth enable`"),
    ("request is too large", "Raise --max-request-bytes of etcd to its default of 1.5 MiB or more"),
    ("too many operations in txn", "Raise --max-txn-ops of etcd to its default of 128 or more"),
    ("larger than max", "Raise --max-request-bytes of etcd to its default of 1.5 MiB or more"),
)


class TokenExpired(Exception):
    """The session with etcd is over. Authenticate again and repeat the request; nothing was done."""


class SpaceExceeded(StoreError):
    """etcd has reached its quota."""


class Compacted(Exception):
    """The revision to read was compacted. Read again from the newest."""


def explain_answer(status: int, code: int, message: str, place: str, *, changes: bool) -> Exception:
    """Translate an answer that is not a success. `changes`: the request may have written something."""
    if code == UNAUTHENTICATED or any(part in message for part in _TOKEN):
        return TokenExpired(message)
    if _COMPACTED in message:
        return Compacted(message)
    for part, action in _OPERATOR:
        if part in message:
            kind = SpaceExceeded if action is _NOSPACE else StoreError
            return kind(f"etcd at {place} refused; nothing was written. {action}. (etcd: {message})")
    if any(part in message for part in _RETRY):
        return StoreUnavailable(f"etcd at {place} cannot answer now; nothing was written. (etcd: {message})")
    if status == 404:
        return StoreError(
            f"The server at {place} is no etcd of version 3.4 or newer, or its gRPC gateway is off "
            "(--enable-grpc-gateway)."
        )
    if changes:
        return in_doubt(place, f"etcd: {message or status}")
    return StoreUnavailable(f"etcd at {place} could not be read. (etcd: {message or status})")


def in_doubt(place: str, detail: str) -> StoreTimeout:
    """Describe a change that was sent and not answered."""
    return StoreTimeout(
        f"etcd at {place} did not confirm a write, and it is unknown whether it was applied. ({detail})"
    )


def unreachable(place: str, detail: str) -> StoreUnavailable:
    """Describe a request that no endpoint received, or a read that none answered."""
    return StoreUnavailable(f"etcd at {place} does not answer; nothing was written. ({detail})")
