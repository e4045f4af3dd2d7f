"""Packages that only some formats need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pliant.errors import BadInput


@contextmanager
def needs_package(name: str, extra: str = "records") -> Iterator[None]:
    """Turn a failed import into an error that names what to install."""
    try:
        yield
    except ImportError as error:
        raise BadInput(f"this format needs the package {name}: pip install 'pliant[{extra}]'") from error
