"""An archive in anything that fsspec reaches, object stores above all.

An object appears whole when its upload completes, and not before. So nothing is renamed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pliant.errors import BadInput

__all__ = ["ObjectFiles"]

_T = TypeVar("_T")


class ObjectFiles:
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        self.location = url
        try:
            import fsspec
        except ModuleNotFoundError as missing:
            raise BadInput(
                f"{url} needs fsspec, which is not installed. Run pip install 'pliant[fsspec]', and the package "
                "that fsspec needs for this kind of URL, for instance s3fs."
            ) from missing
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BadInput(f"{url} cannot be used: {str(error).rstrip('.')}.") from error
        self._root = str(root).rstrip("/")

    def write(self, path: str, content: bytes) -> None:
        _raising_oserror(lambda: self._fs.pipe_file(f"{self._root}/{path}", content))

    def read(self, path: str) -> bytes:
        return _raising_oserror(lambda: bytes(self._fs.cat_file(f"{self._root}/{path}")))

    def names(self, folder: str) -> list[str]:
        def listed() -> list[dict[str, Any]]:
            self._fs.invalidate_cache()
            return list(self._fs.ls(f"{self._root}/{folder}", detail=True))

        try:
            found = _raising_oserror(listed)
        except FileNotFoundError:
            return []
        return sorted(str(each["name"]).rstrip("/").rpartition("/")[2] for each in found)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            _raising_oserror(lambda: self._fs.rm_file(f"{self._root}/{path}"))
        with suppress(OSError):  # where folders are real, it may not be empty yet
            _raising_oserror(lambda: self._fs.rmdir(f"{self._root}/{path.rpartition('/')[0]}"))


def _raising_oserror(action: Callable[[], _T]) -> _T:
    """Call fsspec; any error it raises becomes an OSError."""
    try:
        return action()
    except OSError:
        raise
    except Exception as error:  # why: every file system has its own errors, and callers handle OSError
        raise OSError(f"{type(error).__name__}: {error}") from error
