"""Checkpoint storage in a folder of this machine, or in one that several machines share.

A file is written under a hidden name in its own folder, flushed, and linked to its name; then the folder is flushed. A
process or machine that dies at any moment leaves the previous content, and perhaps a hidden file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pliant.train.checkpoint.storage import MANIFEST_FILE, OWNER_FILE, StorageOwner, checked_name

_GATHER = 1 << 20
_SEND = 32 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_FLUSH = (errno.EINVAL, errno.EOPNOTSUPP)  # from file systems that need no flush of folders


class LocalNewFile:
    """A file being written into a folder."""

    def __init__(self, folder: Path, file: str) -> None:
        self._path = folder / file
        self._nbytes = 0
        self._sent = 0  # bytes that the system was asked to write out
        self._hidden = folder / f".{file}.{secrets.token_hex(4)}"
        try:
            self._handle = _create(self._hidden)
        except FileNotFoundError:  # another member abandoned its file meanwhile, and removed the empty folder
            self._handle = _create(self._hidden)

    def write(self, content: memoryview) -> None:
        while content.nbytes:
            written = os.write(self._handle, content)
            content = content[written:]
            self._nbytes += written
        if self._nbytes - self._sent >= _SEND:
            # The disk starts now, beside the hashing, and the final flush has little left to wait for. It also keeps
            # these pages, which are not read soon, from evicting others from the page cache.
            os.posix_fadvise(self._handle, self._sent, self._nbytes - self._sent, os.POSIX_FADV_DONTNEED)
            self._sent = self._nbytes

    def finish(self) -> None:
        """Return once the file is on disk, whole, under its name. Raises FileExistsError if the name is taken."""
        try:
            os.fsync(self._handle)
        finally:
            self._close()
        _link_name(self._hidden, self._path)
        _flush_folder(self._path.parent)

    def abandon(self) -> None:
        """Remove the file, and its folder if it is empty."""
        with suppress(OSError):  # close may report lost writes of a file that is not wanted anyway
            self._close()
        with suppress(FileNotFoundError):
            self._hidden.unlink()
        with suppress(OSError):  # the folder is not empty
            self._path.parent.rmdir()

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class LocalStorage:
    """Checkpoint storage in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def location(self) -> str:
        return str(self._path)

    def create_file(self, name: str, file: str) -> LocalNewFile:
        return LocalNewFile(self._path / checked_name(name), checked_name(file))

    def write_file(self, name: str, file: str, content: bytes) -> None:
        write_whole(self._path / checked_name(name), checked_name(file), [memoryview(content)])

    def open_file(self, name: str, file: str) -> AbstractContextManager[BinaryIO]:
        return (self._path / checked_name(name) / checked_name(file)).open("rb", buffering=_GATHER)

    def checkpoint_names(self) -> list[str]:
        return [name for name in self._folders() if (self._path / name / MANIFEST_FILE).is_file()]

    def unfinished_names(self) -> list[str]:
        return [name for name in self._folders() if not (self._path / name / MANIFEST_FILE).exists()]

    def file_sizes(self, name: str) -> Mapping[str, int]:
        with _entries(self._path / checked_name(name)) as entries:
            return {
                each.name: each.stat().st_size
                for each in sorted(entries, key=lambda entry: entry.name)
                if each.is_file() and not each.name.startswith(".")
            }

    def remove(self, name: str) -> None:
        folder = self._path / checked_name(name)
        with suppress(FileNotFoundError):
            (folder / MANIFEST_FILE).unlink()
            _flush_folder(folder)  # without its manifest the name is no checkpoint, before any piece is removed
        with _entries(folder) as entries:
            for each in [*entries]:
                with suppress(FileNotFoundError):  # another process removes it, too
                    (folder / each.name).unlink()
        with suppress(FileNotFoundError):
            folder.rmdir()
            _flush_folder(self._path)

    def read_owner(self) -> StorageOwner | None:
        try:
            return StorageOwner.parse((self._path / OWNER_FILE).read_bytes())
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> StorageOwner:
        known = self.read_owner()
        if known is None:
            with suppress(FileExistsError):  # another job claimed it first
                write_whole(self._path, OWNER_FILE, [memoryview(StorageOwner(secrets.token_hex(16), owner).content)])
            known = self.read_owner()
        if known is None:
            raise FileNotFoundError(errno.ENOENT, "it was removed again", str(self._path / OWNER_FILE))
        return known

    def _folders(self) -> list[str]:
        with _entries(self._path) as entries:
            return sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))


def write_whole(folder: Path, file: str, contents: Iterable[memoryview]) -> None:
    """Write a file completely, or leave nothing under its name."""
    new = LocalNewFile(folder, file)
    try:
        for content in contents:
            new.write(content)
        new.finish()
    except BaseException:  # why: raised again, after the hidden file is removed
        new.abandon()
        raise


@contextmanager
def _entries(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Yield the entries of a folder; none if it does not exist."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        yield iter(())
        return
    with entries:
        yield entries


def _create(hidden: Path) -> int:
    """Create an empty file, open for writing, and its folder."""
    _make_folder(hidden.parent)
    return os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _make_folder(folder: Path) -> None:
    """Create a folder durably, with its parents."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        _flush_folder(folder.parent)


def _link_name(hidden: Path, path: Path) -> None:
    """Give the file its name. A name's content never changes, so an existing name is refused."""
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it exists already", str(path)) from error
        hidden.rename(path)
        return
    hidden.unlink()


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(handle)
