"""Saved means of models, each a file of arrays under a name of its own in the job's checkpoint storage."""

from __future__ import annotations

import re
import secrets
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.errors import BadInput
from pliant.train.checkpoint.storage import NewFile, Storage

FILE = "arrays.npz"
_NAME = re.compile(r"mean-(\d{8,})-[0-9a-f]{8}")

Array = npt.NDArray[Any]


def new_name(number: int) -> str:
    """Return a name for a save. Members that save under the same number never write the same file."""
    return f"mean-{number:08d}-{secrets.token_hex(4)}"


class _Stream:
    """A new file, as a zip archive is written to."""

    def __init__(self, file: NewFile) -> None:
        self._file = file

    def write(self, content: bytes | memoryview) -> int:
        view = memoryview(content).cast("B")
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Leave the flush to the end of the file."""


def write_mean(storage: Storage, name: str, arrays: Sequence[Array]) -> None:
    """Write a mean. It is on disk when this returns. Raises OSError."""
    file = storage.create_file(name, FILE)
    try:
        with zipfile.ZipFile(_Stream(file), "w") as archive:  # type: ignore[call-overload]
            for at, array in enumerate(arrays):
                with archive.open(f"{at}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        file.finish()
    except BaseException:  # why: a file that is not complete must not stay, whatever the error
        file.abandon()
        raise


def read_mean(storage: Storage, name: str, like: Sequence[Array]) -> list[Array]:
    """Return the arrays of a mean, which has those of a model. Raises OSError, also for a damaged file."""
    try:
        with storage.open_file(name, FILE) as file, np.load(file, allow_pickle=False) as archive:
            found = [np.asarray(archive[str(at)]) for at in range(len(like))]
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise OSError(f"{storage.location}/{name} is damaged: {error}") from error
    if [(each.shape, each.dtype) for each in found] != [(each.shape, each.dtype) for each in like]:
        raise BadInput(f"{storage.location}/{name} has other arrays than this model.")
    return found


def remove_before(storage: Storage, number: int) -> None:
    """Remove the means below a number. Raises OSError."""
    for name in storage.unfinished_names():
        if (found := _NAME.fullmatch(name)) is not None and int(found[1]) < number:
            storage.remove(name)
