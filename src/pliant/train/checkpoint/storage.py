"""Storage for checkpoints: a folder, shared or not, or anything that fsspec reaches.

Storage holds names, and each name holds files. A file appears whole under its name or not at all. The manifest makes a
name a checkpoint: it is written last and removed first. Which checkpoint counts for a job is decided only by the
manifest in the coordinator's store (rule 17).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from pliant.errors import BadInput

MANIFEST_FILE = "manifest.json"
OWNER_FILE = "storage-owner"
NAME_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]*")  # never hidden, never outside the folder
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)")


class StorageOwner(NamedTuple):
    """The id of a storage, and the job that saves there as `owner_name` returns it; empty if unknown."""

    storage_id: str
    owner: str

    @property
    def content(self) -> bytes:
        """The content of the owner file."""
        return f"{self.storage_id} {self.owner}\n".encode()

    @staticmethod
    def parse(content: bytes) -> StorageOwner:
        identity, _, owner = content.decode(errors="replace").strip().partition(" ")
        return StorageOwner(identity, owner)

    def allows(self, owner: str) -> bool:
        """Return whether that owner may save here."""
        return self.owner in ("", owner)


class NewFile(Protocol):
    """A file being written. It is invisible until `finish` returns. Errors are OSError."""

    def write(self, content: memoryview) -> None: ...
    def finish(self) -> None: ...
    def abandon(self) -> None: ...


class Storage(Protocol):
    """Operations to write, read and remove checkpoints. Every failure raises OSError."""

    @property
    def location(self) -> str:
        """The folder or URL, for messages."""
        ...

    def create_file(self, name: str, file: str) -> NewFile:
        """Start to write a file of any size."""
        ...

    def write_file(self, name: str, file: str, content: bytes) -> None:
        """Write a small file."""
        ...

    def open_file(self, name: str, file: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading, also with seeks. Small reads are buffered."""
        ...

    def checkpoint_names(self) -> list[str]:
        """Return the sorted names that have a manifest. `read_manifest` checks whether it is valid."""
        ...

    def unfinished_names(self) -> list[str]:
        """Return the sorted names without a manifest: being written or removed, or left by a killed process."""
        ...

    def file_sizes(self, name: str) -> Mapping[str, int]:
        """Return the files under a name with their sizes; empty if there is no such name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a name with everything under it, the manifest first. Repeating it is harmless."""
        ...

    def read_owner(self) -> StorageOwner | None:
        """Return the owner; members that read the same one share the storage. None if it was never claimed."""
        ...

    def claim(self, owner: str) -> StorageOwner:
        """Return the owner; if there is none, claim the storage for this one."""
        ...


def owner_name(created_at: float) -> str:
    """Return the owner name of a job created at that time.

    The job's name is in the path; coordinators' stores may change.
    """
    if not created_at:
        return ""
    return datetime.fromtimestamp(created_at, UTC).isoformat(timespec="microseconds")


def describe_other_owner(location: str, owner: StorageOwner) -> str:
    """Return the reason why a job may not save in storage of another owner."""
    return (
        f"{location} holds the checkpoints of another job of this name, created {owner.owner}: "
        "choose other storage with --checkpoint-dir, or move its content away"
    )


def open_storage(where: str | Path) -> Storage:
    """Return the storage at a path or a URL. Nothing is created or read yet."""
    text = str(where)
    if not text:
        raise BadInput("Checkpoint storage must be a folder, or a URL such as s3://bucket/folder, not empty.")
    if text.startswith(("file://", "local://")):
        text = text.partition("://")[2]
    elif _URL.match(text):
        from pliant.train.checkpoint.fsspec_storage import FsspecStorage

        return FsspecStorage(text)
    from pliant.train.checkpoint.local_storage import LocalStorage

    return LocalStorage(Path(text))


def is_url(where: str) -> bool:
    """Return whether the text is a URL rather than a folder."""
    return _URL.match(where) is not None


def checked_name(name: str) -> str:
    """Return the name, if a file or a checkpoint may have it. Raises BadInput if it could lead out of the storage."""
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no valid name of a checkpoint or its file. Use letters, digits and ._@+=-, beginning with "
            f"a letter or a digit, at most {NAME_MAX} characters."
        )
    return name
