"""The exceptions that Pliant raises on purpose, and the exit status of a command that ends with one.

    PliantError               1   the base class: catch it to catch all of them
      BadInput                2   the caller's input cannot be used; nothing was done
        DamagedRecord         2   a record of a data file is damaged
      Refused                 3   a coordinator refused the request, with a code; nothing was changed
      StoreError              4   the store failed
        StoreUnavailable      4   it could not be reached, or refused: nothing was written
        StoreTimeout          4   no answer in time: the write may or may not have been applied
        HoldLost              4   the hold that a write was made under is over: nothing was written
        EventsTrimmed         4   the events are in an archive, and not in the store any more
      Unreachable             5   no coordinator answered in time
        NotSecure             5   TLS failed: a certificate is missing or not accepted
      NotAllowed              6   the credential is missing, expired, or its scope is too narrow

The store errors differ in what a caller may do. After `StoreUnavailable` it may retry. After `StoreTimeout` it must
read first, because the write may have been applied. After `HoldLost` it must stop leading.

Inside the coordinator a refusal is not an exception: `pliant.core` returns a rejection with a code and a reason. A
client turns it into `Refused`. Each message is a sentence for people. `tests/unit/test_errors.py` compares the table
above with the classes below.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadInput",
    "DamagedRecord",
    "EventsTrimmed",
    "HoldLost",
    "NotAllowed",
    "NotSecure",
    "PliantError",
    "Refused",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "Unreachable",
]


class PliantError(Exception):
    """An operation failed, with the reason as a sentence."""

    exit_code: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class BadInput(PliantError):
    """The caller's input cannot be used; nothing was done."""

    exit_code = 2


class DamagedRecord(BadInput):
    """A record of a data file is damaged. `offset` is where it begins in the file, after decompression."""

    def __init__(self, why: str, location: str = "", offset: int = 0) -> None:
        super().__init__(why)
        self.location = location
        self.offset = offset


class Refused(PliantError):
    """A coordinator refused the request. Nothing was changed.

    `code` is one of `pliant.core.messages.Code` or of the API's own. `revision` is the job's revision that the refusal
    is based on: a caller that has a newer one must not rely on it.
    """

    exit_code = 3

    def __init__(self, why: str, code: str = "", revision: int = 0) -> None:
        super().__init__(why)
        self.code = code
        self.revision = revision


class StoreError(PliantError):
    """The store failed."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """The store could not be reached, or refused. Nothing was written; a retry is safe."""


class StoreTimeout(StoreError):
    """No answer in time. The write may or may not have been applied: read before writing again."""


class HoldLost(StoreError):
    """The hold that a write was made under is over, and another coordinator may lead. Nothing was written."""


class EventsTrimmed(StoreError):
    """The events up to revision `through` are not in the store any more: read them from the archive."""

    def __init__(self, why: str, through: int = 0) -> None:
        super().__init__(why)
        self.through = through


class Unreachable(PliantError):
    """No coordinator answered in time. The request may or may not have been carried out; a retry is safe."""

    exit_code = 5


class NotSecure(Unreachable):
    """There is no secure connection: a certificate is missing or not accepted. Waiting does not help."""


class NotAllowed(PliantError):
    """The credential is missing, expired, or its scope is too narrow. Nothing was done."""

    exit_code = 6
