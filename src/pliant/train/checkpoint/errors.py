"""Errors in reading a checkpoint."""

from __future__ import annotations

import errno

from pliant.errors import BadInput


class DamagedCheckpoint(BadInput):
    """A file of a checkpoint differs from what was written; go back to an older checkpoint. `file` names it."""

    def __init__(self, file: str, wrong: str) -> None:
        super().__init__(f"{file} is damaged: {wrong}.")
        self.file = file
        self.wrong = wrong


class StorageUnreachable(BadInput):
    """The storage cannot be read from here, or not now. Its content may be sound."""


def read_error(where: str, error: OSError) -> BadInput:
    """Return the error to raise for a system error in reading a file."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return DamagedCheckpoint(where, "the file is missing")
        case IsADirectoryError():
            return DamagedCheckpoint(where, "it is a folder")
        case _ if error.errno in (errno.EIO, errno.EUCLEAN, errno.ENODATA):
            return DamagedCheckpoint(where, f"the disk cannot read it ({error_text(error)})")
        case _:
            return StorageUnreachable(f"{where} cannot be read: {error_text(error)}.")


def error_text(error: OSError) -> str:
    """Return the system's description of an error, without number and path if it provides them separately."""
    return error.strerror or str(error) or type(error).__name__
