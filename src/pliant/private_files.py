"""Write small files as a whole: tokens, keys, and files of a job's folder.

A file is written and flushed under a hidden name beside its own, then renamed. So a reader finds the old content or the
new one, and a process that is killed leaves no half file under the name.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pliant.errors import BadInput

__all__ = ["create_file", "draft_of", "replace_file"]

OWNER_ONLY = 0o600


def create_file(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Write a file that must not exist, and flush it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)


@contextmanager
def draft_of(path: Path, data: bytes, mode: int = OWNER_ONLY) -> Iterator[Path]:
    """Yield a hidden file beside `path` with this content, for the caller to rename or link. Remove it at the end."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        create_file(new, data, mode)
        yield new
    finally:
        with suppress(OSError):  # already renamed, or never created
            new.unlink()


def replace_file(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Create a file, or replace it atomically. Raises BadInput if that is not possible."""
    try:
        with draft_of(path, data, mode) as new:
            new.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from error
