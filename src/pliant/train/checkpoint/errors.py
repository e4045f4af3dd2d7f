"""What can be wrong with a checkpoint that is to be read."""

from __future__ import annotations

import errno

from pliant.errors import BadInput


class DamagedCheckpoint(BadInput):
    """A file of a checkpoint is not what was written: go back to an older one. `file` says which."""

    def __init__(self, file: str, wrong: str) -> None:
        super().__init__(f"{file} is damaged: {wrong}.")
        self.file = file
        self.wrong = wrong


class StorageUnreachable(BadInput):
    """A place cannot be read from here, or not now: that says nothing about what lies there."""


def read_error(where: str, error: OSError) -> BadInput:
    """What an error of the system means for the file that was to be read."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return DamagedCheckpoint(where, "it is not there")
        case IsADirectoryError():
            return DamagedCheckpoint(where, "it is a folder")
        case _ if error.errno in (errno.EIO, errno.EUCLEAN, errno.ENODATA):
            return DamagedCheckpoint(where, f"the disk cannot read it ({error_text(error)})")
        case _:
            return StorageUnreachable(f"{where} cannot be read: {error_text(error)}.")


def error_text(error: OSError) -> str:
    """The system's words, without numbers and paths where it gives them apart."""
    return error.strerror or str(error) or type(error).__name__
