"""Answers of etcd, as errors of the contract. The messages are etcd's own."""

from __future__ import annotations

import pytest

from pliant.errors import StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.etcd.errors import Compacted, TokenExpired, explain_answer

PLACE = "127.0.0.1:2379/pliant"


def explained(message: str, *, code: int = 2, status: int = 500, changes: bool = True) -> Exception:
    return explain_answer(status, code, message, PLACE, changes=changes)


@pytest.mark.parametrize(
    "message",
    [
        "etcdserver: request timed out",
        "etcdserver: request timed out, possibly due to previous leader failure",
        "etcdserver: request timed out, possibly due to connection lost",
        "etcdserver: leader changed",
        "rpc error: code = Unavailable desc = transport is closing",
        "a message of a later version",
        "",
    ],
)
def test_a_change_that_may_have_been_proposed_is_in_doubt(message: str) -> None:
    error = explained(message)
    assert type(error) is StoreTimeout
    assert "it is unknown whether it was applied" in error.why
    assert type(explained(message, changes=False)) is StoreUnavailable  # a read leaves nothing in doubt


@pytest.mark.parametrize("message", ["etcdserver: no leader", "etcdserver: too many requests"])
def test_a_change_that_was_not_proposed_may_be_sent_again(message: str) -> None:
    assert type(explained(message)) is StoreUnavailable


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("etcdserver: mvcc: database space exceeded", "`etcdctl alarm disarm`"),
        ("etcdserver: corrupt cluster", "alarm CORRUPT"),
        ("etcdserver: permission denied", "role grant-permission"),
        ("etcdserver: user name is empty", "PLIANT_ETCD_USER"),
        ("etcdserver: authentication failed, invalid user ID or password", "PLIANT_ETCD_PASSWORD_FILE"),
        ("etcdserver: authentication is not enabled", "unset PLIANT_ETCD_USER"),
        ("etcdserver: request is too large", "--max-request-bytes"),
        ("etcdserver: too many operations in txn request", "--max-txn-ops"),
    ],
)
def test_what_needs_a_person_says_what_to_do(message: str, action: str) -> None:
    error = explained(message)
    assert isinstance(error, StoreError)
    assert not isinstance(error, (StoreTimeout, StoreUnavailable))
    assert "nothing was written" in error.why
    assert action in error.why
    assert PLACE in error.why


def test_an_old_session_and_a_compacted_revision_are_tried_again() -> None:
    assert isinstance(explained("etcdserver: invalid auth token", code=16), TokenExpired)
    assert isinstance(explained("auth: revision in header is old", code=3), TokenExpired)
    assert isinstance(explained("etcdserver: mvcc: required revision has been compacted", code=11), Compacted)


def test_another_server_is_recognised() -> None:
    error = explained("", status=404)
    assert type(error) is StoreError
    assert "is no etcd of version 3.4 or newer" in error.why
