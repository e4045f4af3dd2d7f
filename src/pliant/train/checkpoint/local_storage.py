"""A folder of this machine, or one that several machines share, as a place for checkpoints.

A file is written under a hidden name in its own folder, flushed, and linked to its name; then the folder is flushed. A
process or a machine that dies at any moment of it leaves what was there before, and perhaps a hidden file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pliant.train.checkpoint.storage import MANIFEST_FILE, OWNER_FILE, StorageOwner, checked_name

_GATHER = 1 << 20
_SEND = 32 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_FLUSH = (errno.EINVAL, errno.EOPNOTSUPP)  # a file system that keeps folders safe without being asked


class LocalNewFile:
    """A file on its way into a folder."""

    def __init__(self, folder: Path, file: str) -> None:
        self._path = folder / file
        self._nbytes = 0
        self._sent = 0  # so many of them the disk was asked to take
        self._hidden = folder / f".{file}.{secrets.token_hex(4)}"
        try:
            self._handle = _create(self._hidden)
        except FileNotFoundError:  # another member gave up meanwhile, and took the empty folder away
            self._handle = _create(self._hidden)

    def write(self, content: memoryview) -> None:
        while content.nbytes:
            written = os.write(self._handle, content)
            content = content[written:]
            self._nbytes += written
        if self._nbytes - self._sent >= _SEND:
            # The disk begins now, beside what is hashed next, and the flush at the end has little left to wait for;
            # and what others keep in the system's memory is not pushed out by what nobody reads soon.
            os.posix_fadvise(self._handle, self._sent, self._nbytes - self._sent, os.POSIX_FADV_DONTNEED)
            self._sent = self._nbytes

    def finish(self) -> None:
        """Returns once it is on the disk, whole, under its name. FileExistsError if somebody else has the name."""
        try:
            os.fsync(self._handle)
        finally:
            self._close()
        _link_name(self._hidden, self._path)
        _flush_folder(self._path.parent)

    def abandon(self) -> None:
        """Nothing of it is left; the folder neither, if it was the only thing in it."""
        with suppress(OSError):  # what was written may be reported as lost here; it is not wanted anyway
            self._close()
        with suppress(FileNotFoundError):
            self._hidden.unlink()
        with suppress(OSError):  # there is something else in it
            self._path.parent.rmdir()

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class LocalStorage:
    """The place itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def location(self) -> str:
        return str(self._path)

    def create_file(self, name: str, file: str) -> LocalNewFile:
        return LocalNewFile(self._path / checked_name(name), checked_name(file))

    def write_file(self, name: str, file: str, content: bytes) -> None:
        _write_whole(self._path / checked_name(name), checked_name(file), content)

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
            _flush_folder(folder)  # the name is no checkpoint any more before any piece of it goes
        with _entries(folder) as entries:
            for each in [*entries]:
                with suppress(FileNotFoundError):  # somebody else removes it, too
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
        mark = self.read_owner()
        if mark is None:
            with suppress(FileExistsError):  # another one was first
                _write_whole(self._path, OWNER_FILE, StorageOwner(secrets.token_hex(16), owner).content)
            mark = self.read_owner()
        if mark is None:
            raise FileNotFoundError(errno.ENOENT, "its mark is gone again", str(self._path / OWNER_FILE))
        return mark

    def _folders(self) -> list[str]:
        with _entries(self._path) as entries:
            return sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))


def _write_whole(folder: Path, file: str, content: bytes) -> None:
    new = LocalNewFile(folder, file)
    try:
        new.write(memoryview(content))
        new.finish()
    except BaseException:  # why: raised again; a hidden file must not be left by what could have removed it
        new.abandon()
        raise


@contextmanager
def _entries(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """What is in a folder; nothing if there is none."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        yield iter(())
        return
    with entries:
        yield entries


def _create(hidden: Path) -> int:
    """An empty file, open for writing, in a folder that is there."""
    _make_folder(hidden.parent)
    return os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _make_folder(folder: Path) -> None:
    """Make a folder so that it stays, with those above it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        _flush_folder(folder.parent)


def _link_name(hidden: Path, path: Path) -> None:
    """What is under a name never changes: a link is refused where there is one."""
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from error
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
