"""Archives: files that hold the old events of jobs, so that a store keeps only the newest.

`segments` writes events into segments and reads them back. `folder` keeps the files in a folder, `objects` anywhere
that fsspec reaches. A store names the segments of a job (`pliant.stores.base`), and only those count: a file that no
store names is left from a process that was killed, and is never read.
"""

from __future__ import annotations

from pathlib import Path

from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.objects import ObjectFiles
from pliant.stores.archive.segments import Archive

__all__ = ["Archive", "open_archive"]


def open_archive(where: str | Path, identity: str) -> Archive:
    """Return the archive of the store with this identity, in a folder or at a URL of fsspec."""
    if isinstance(where, str) and "://" in where:
        return Archive(ObjectFiles(where), identity)
    return Archive(FolderFiles(Path(where).expanduser()), identity)
