"""Where checkpoints may lie: a folder, shared or not, or whatever fsspec reaches.

A place holds names, and each name holds files. A file appears whole under its name or not at all. What makes a name a
checkpoint is its manifest, which is written last and removed first; which one counts for a job is said by the manifest
in the coordinator's store alone (rule 17).
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
OWNER_FILE = "place-id"
NAME_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]*")  # never hidden, never a way out of the folder
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)")


class StorageOwner(NamedTuple):
    """What tells a place from others, and who saves there, as `owner_name` names it; empty: nobody said."""

    storage_id: str
    owner: str

    @property
    def content(self) -> bytes:
        """As it is in its file."""
        return f"{self.storage_id} {self.owner}\n".encode()

    @staticmethod
    def parse(content: bytes) -> StorageOwner:
        identity, _, owner = content.decode(errors="replace").strip().partition(" ")
        return StorageOwner(identity, owner)

    def allows(self, owner: str) -> bool:
        """Whether that owner may save here."""
        return self.owner in ("", owner)


class NewFile(Protocol):
    """A file that is being written. Nobody sees it before `finish` has returned. Errors are OSError."""

    def write(self, content: memoryview) -> None: ...
    def finish(self) -> None: ...
    def abandon(self) -> None: ...


class Storage(Protocol):
    """All that writing, reading and removing checkpoints needs. What fails raises OSError, and nothing else."""

    @property
    def location(self) -> str:
        """As a person would name it."""
        ...

    def create_file(self, name: str, file: str) -> NewFile:
        """Call to write a file of any size."""
        ...

    def write_file(self, name: str, file: str, content: bytes) -> None:
        """Call to write a small file."""
        ...

    def open_file(self, name: str, file: str) -> AbstractContextManager[BinaryIO]:
        """Call to read a file, from the beginning or from where one seeks; small reads are gathered."""
        ...

    def checkpoint_names(self) -> list[str]:
        """The names that have a manifest, sorted: whether it is a good one is for `read_manifest` to say."""
        ...

    def unfinished_names(self) -> list[str]:
        """The names that have none, sorted: they are being written or removed, or whoever did so was killed."""
        ...

    def file_sizes(self, name: str) -> Mapping[str, int]:
        """The files under a name with their sizes; empty if there is no such name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a name with everything under it, the manifest first. Calling it again does no harm."""
        ...

    def read_owner(self) -> StorageOwner | None:
        """Its mark: who reads the same one shares the place. None: nobody has saved here yet."""
        ...

    def claim(self, owner: str) -> StorageOwner:
        """The same; if there is none, that owner's is made."""
        ...


def owner_name(born: float) -> str:
    """A job that was created then, as the owner of a place. Its name is in the place's own; stores come and go."""
    if not born:
        return ""
    return datetime.fromtimestamp(born, UTC).isoformat(timespec="microseconds")


def describe_other_owner(where: str, mark: StorageOwner) -> str:
    """Why another job may not save there."""
    return (
        f"{where} has the checkpoints of another job of this name, created {mark.owner}: "
        "name another place with --checkpoint-dir, or move what is there away"
    )


def open_storage(where: str | Path) -> Storage:
    """The place that somebody named: a path, or a URL of fsspec's. Nothing is made or looked for yet."""
    text = str(where)
    if not text:
        raise BadInput("A place for checkpoints has a name: a folder, or a URL such as s3://bucket/folder.")
    if text.startswith(("file://", "local://")):
        text = text.partition("://")[2]
    elif _URL.match(text):
        from pliant.train.checkpoint.fsspec_storage import FsspecStorage

        return FsspecStorage(text)
    from pliant.train.checkpoint.local_storage import LocalStorage

    return LocalStorage(Path(text))


def is_url(where: str) -> bool:
    """Whether a person means a URL, not a folder."""
    return _URL.match(where) is not None


def checked_name(name: str) -> str:
    """The name, if a file or a checkpoint may be called so. BadInput if not: it would lead out of its place."""
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be the name of a checkpoint or of its file: letters, digits and ._@+=- make one, "
            f"beginning with a letter or a digit, at most {NAME_MAX} of them."
        )
    return name
