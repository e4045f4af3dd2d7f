"""File systems that fsspec reaches by a URL, object stores above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from pliant.errors import BadInput

__all__ = ["open_file_system", "raising_oserror"]

_PASSED_ON = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def open_file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it. Raises BadInput if a package for it is missing."""
    try:
        import fsspec
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"{url} needs fsspec, which is not installed. Run pip install 'pliant[fsspec]', and the package "
            "that fsspec needs for this kind of URL, for instance s3fs."
        ) from missing
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise BadInput(f"{url} cannot be used: {str(error).rstrip('.')}.") from error
    return file_system, str(path).rstrip("/")


def raising_oserror(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function of fsspec; any error it raises becomes an OSError.

    The error number is dropped: it would describe a disk, and a store in trouble does not mean damaged files.
    """
    try:
        return function(*args, **kwargs)
    except _PASSED_ON:
        raise
    except OSError as error:
        raise OSError(error.strerror or str(error) or type(error).__name__) from error
    except Exception as error:  # why: every file system has its own errors, and callers handle OSError
        raise OSError(f"{type(error).__name__}: {error}") from error
