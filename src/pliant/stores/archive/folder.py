"""An archive in a folder of a local or shared file system."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["FolderFiles"]

FOLDER_MODE = 0o700
FILE_MODE = 0o600


class FolderFiles:
    """Files below a folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self._root = folder.absolute()

    @property
    def location(self) -> str:
        return str(self._root)

    def write(self, path: str, content: bytes) -> None:
        """Write under a temporary name, flush, rename, and flush the folders that changed."""
        target = self._root / path
        self._make(target.parent)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(target)
        except BaseException:  # why: no draft may stay, whatever interrupted the write
            with suppress(OSError):
                draft.unlink()
            raise
        _flush(target.parent)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / folder).iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        target = self._root / path
        target.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty yet
            target.parent.rmdir()

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        _flush(folder.parent)


def _flush(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
