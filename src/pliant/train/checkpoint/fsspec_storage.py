"""Checkpoint storage in anything that fsspec reaches, object stores above all.

An object store has no rename and needs none: an object appears whole when its upload completes, and not before. It has
no folders either: a name exists as long as one of its objects does.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from pliant.file_systems import open_file_system, raising_oserror
from pliant.train.checkpoint.storage import MANIFEST_FILE, OWNER_FILE, StorageOwner, checked_name

BLOCK = 16 << 20  # bytes per request of an upload or download; S3 allows 10 000 requests per upload


class FsspecNewFile:
    """An upload. Its object appears when it is finished."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: Any = None
        self._file = raising_oserror(fs.open, path, "wb", block_size=BLOCK, autocommit=False)

    def write(self, content: memoryview) -> None:
        raising_oserror(self._file.write, content)

    def finish(self) -> None:
        raising_oserror(self._file.close)
        raising_oserror(self._file.commit)
        self._file = None

    def abandon(self) -> None:
        """Discard the upload. If that fails, the store's own rule for unfinished uploads removes it."""
        with suppress(OSError):
            raising_oserror(self._file.discard)
        self._let_go()
        with suppress(OSError):  # some file systems show a file while it grows
            raising_oserror(self._fs.rm_file, self._path)

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Drop the file object; its finalizer would otherwise continue the upload, even after an error."""
        file, self._file = self._file, None
        with suppress(AttributeError):  # a file class without that attribute has no such finalizer
            file.closed = True


class FsspecStorage:
    """Checkpoint storage at a URL."""

    def __init__(self, url: str) -> None:
        self.location = url
        self._fs, self._root = open_file_system(url)

    def create_file(self, name: str, file: str) -> FsspecNewFile:
        return FsspecNewFile(self._fs, self._path(name, file))

    def write_file(self, name: str, file: str, content: bytes) -> None:
        raising_oserror(self._fs.pipe_file, self._path(name, file), content)

    @contextmanager
    def open_file(self, name: str, file: str) -> Iterator[BinaryIO]:
        raw = raising_oserror(self._fs.open, self._path(name, file), "rb", block_size=BLOCK, cache_type="none")
        with io.BufferedReader(_OSErrorReader(raw), BLOCK) as gathered:
            yield cast("BinaryIO", gathered)

    def checkpoint_names(self) -> list[str]:
        return [name for name in self._folders() if MANIFEST_FILE in self.file_sizes(name)]

    def unfinished_names(self) -> list[str]:
        return [name for name in self._folders() if MANIFEST_FILE not in self.file_sizes(name)]

    def file_sizes(self, name: str) -> Mapping[str, int]:
        return {
            _base_name(each["name"]): int(each["size"] or 0)
            for each in self._list(f"{self._root}/{checked_name(name)}")
            if each["type"] == "file"
        }

    def remove(self, name: str) -> None:
        files = self.file_sizes(name)
        for file in sorted(files, key=lambda each: each != MANIFEST_FILE):
            with suppress(FileNotFoundError):
                raising_oserror(self._fs.rm_file, f"{self._root}/{name}/{file}")
        with suppress(OSError, NotImplementedError):  # where folders are real, an empty one may remain
            raising_oserror(self._fs.rmdir, f"{self._root}/{name}")

    def read_owner(self) -> StorageOwner | None:
        try:
            return StorageOwner.parse(bytes(raising_oserror(self._fs.cat_file, f"{self._root}/{OWNER_FILE}")))
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> StorageOwner:
        known = self.read_owner()
        if known is not None:
            return known
        self._write_owner(StorageOwner(secrets.token_hex(16), owner).content)
        known = self.read_owner()
        if known is None:
            raise FileNotFoundError(f"{self.location} accepted {OWNER_FILE}, but does not list it")
        return known

    def _write_owner(self, content: bytes) -> None:
        """Write the owner file unless it exists, where the store supports that condition.

        In other stores the last of several concurrent writers wins. The file is read again for every checkpoint, so all
        readers see the same one.
        """
        path = f"{self._root}/{OWNER_FILE}"
        try:
            raising_oserror(self._fs.pipe_file, path, content, mode="create")
        except FileExistsError:
            return
        except OSError:  # some stores refuse the condition, or report a conflict with another error
            if self.read_owner() is None:
                raising_oserror(self._fs.pipe_file, path, content)

    def _path(self, name: str, file: str) -> str:
        return f"{self._root}/{checked_name(name)}/{checked_name(file)}"

    def _folders(self) -> list[str]:
        return sorted(_base_name(each["name"]) for each in self._list(self._root) if each["type"] == "directory")

    def _list(self, path: str) -> list[dict[str, Any]]:
        """Return the entries below a path, bypassing caches; empty if there is no such path."""
        raising_oserror(self._fs.invalidate_cache)
        try:
            return list(raising_oserror(self._fs.ls, path, detail=True))
        except FileNotFoundError:
            return []


class _OSErrorReader(io.RawIOBase):
    """A file of fsspec's whose errors are OSError. It reads straight into the caller's memory."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(raising_oserror(self._file.seek, offset, whence))

    def readinto(self, buffer: Any) -> int:
        return int(raising_oserror(self._file.readinto, buffer))

    def close(self) -> None:
        super().close()
        self._file.close()


def _base_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
