"""Every exception Pliant raises on purpose, and the exit status a command ends with when it meets one.

    PliantError               1   anything below; catch this to catch us
      BadInput                2   what the caller gave cannot be used; nothing was done
      Conflict                3   somebody else wrote first; nothing was written, read again and decide again
      StoreError              4   the store did not do what was asked of it
        StoreUnavailable      4   it could not be reached, or refused: nothing was written
        StoreTimeout          4   no answer in time: the write may or may not have been applied

The difference between the last two decides what a caller may do. After `StoreUnavailable` it may simply try
again. After `StoreTimeout` it must read first, because the write may stand.

A decision that says no is not an exception: `pliant.core` returns a rejection with its code and its reason.
An exception means that no decision was reached. Either way a person can read why: the message is a sentence.
`tests/unit/test_errors.py` compares the drawing above with the classes below.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["BadInput", "Conflict", "PliantError", "StoreError", "StoreTimeout", "StoreUnavailable"]


class PliantError(Exception):
    """Something Pliant could not do, with the reason in words."""

    exit_code: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class BadInput(PliantError):
    """What the caller gave cannot be used; nothing was done."""

    exit_code = 2


class Conflict(PliantError):
    """Somebody else wrote first: the revision built on is no longer the newest. Nothing was written."""

    exit_code = 3


class StoreError(PliantError):
    """The store did not do what was asked of it."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """The store could not be reached, or refused. Nothing was written; trying again is safe."""


class StoreTimeout(StoreError):
    """No answer in time. The write may or may not have been applied: read before writing again."""
