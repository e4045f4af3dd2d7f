"""An archive in anything that fsspec reaches, object stores above all.

An object appears whole when its upload completes, and not before. So nothing is renamed.
"""

from __future__ import annotations

from contextlib import suppress

from pliant.file_systems import open_file_system, raising_oserror

__all__ = ["ObjectFiles"]


class ObjectFiles:
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        self.location = url
        self._fs, self._root = open_file_system(url)

    def write(self, path: str, content: bytes) -> None:
        raising_oserror(self._fs.pipe_file, f"{self._root}/{path}", content)

    def read(self, path: str) -> bytes:
        return bytes(raising_oserror(self._fs.cat_file, f"{self._root}/{path}"))

    def names(self, folder: str) -> list[str]:
        raising_oserror(self._fs.invalidate_cache)
        try:
            found = raising_oserror(self._fs.ls, f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return []
        return sorted(str(each["name"]).rstrip("/").rpartition("/")[2] for each in found)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            raising_oserror(self._fs.rm_file, f"{self._root}/{path}")
        with suppress(OSError):  # where folders are real, it may not be empty yet
            raising_oserror(self._fs.rmdir, f"{self._root}/{path.rpartition('/')[0]}")
