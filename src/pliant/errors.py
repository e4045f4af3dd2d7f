"""Every exception Pliant raises on purpose, and the exit status a command ends with when it meets one.

    PliantError               1   anything below; catch this to catch us
      BadInput                2   what the caller gave cannot be used; nothing was done
      Refused                 3   understood and decided against, with a code; nothing was changed
      StoreError              4   the store did not do what was asked of it
        StoreUnavailable      4   it could not be reached, or refused: nothing was written
        StoreTimeout          4   no answer in time: the write may or may not have been applied
      Unreachable             5   no coordinator answered in time
      NotAllowed              6   the credential is missing, not good any more, or does not go so far

The difference between the two stores' errors decides what a caller may do. After `StoreUnavailable` it may simply
try again. After `StoreTimeout` it must read first, because the write may stand.

In the coordinator a decision that says no is not an exception: `pliant.core` returns a rejection with its code and
its reason. `Refused` is what a client makes of it. Either way a person can read why: the message is a sentence.
`tests/unit/test_errors.py` compares the drawing above with the classes below.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadInput",
    "NotAllowed",
    "PliantError",
    "Refused",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "Unreachable",
]


class PliantError(Exception):
    """Something Pliant could not do, with the reason in words."""

    exit_code: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class BadInput(PliantError):
    """What the caller gave cannot be used; nothing was done."""

    exit_code = 2


class Refused(PliantError):
    """A coordinator understood and decided against it. Nothing was changed.

    `code` is one of `pliant.core.messages.Code` or of the API's own; `revision` is what the refusal rests on: who
    knows a newer one must not take it at its word.
    """

    exit_code = 3

    def __init__(self, why: str, code: str = "", revision: int = 0) -> None:
        super().__init__(why)
        self.code = code
        self.revision = revision


class StoreError(PliantError):
    """The store did not do what was asked of it."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """The store could not be reached, or refused. Nothing was written; trying again is safe."""


class StoreTimeout(StoreError):
    """No answer in time. The write may or may not have been applied: read before writing again."""


class Unreachable(PliantError):
    """No coordinator answered in time. What was asked may or may not have been done; asking again is safe."""

    exit_code = 5


class NotAllowed(PliantError):
    """The credential is missing, not good any more, or does not go so far. Nothing was done."""

    exit_code = 6
