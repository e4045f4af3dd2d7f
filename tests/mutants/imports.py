"""The source files that a test file imports, directly or not: only a change of one of those can make it fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mutants.edits import ROOT


def reaches(test: str, file: str) -> bool:
    """Return whether `test` (below `tests`) imports `file` (below `src/pliant`)."""
    return ROOT / "src/pliant" / file in _closure(ROOT / "tests" / test)


@cache
def _closure(start: Path) -> frozenset[Path]:
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(path)
    return frozenset(seen)


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    names = {name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for name in _names(node)}
    return tuple(found for name in sorted(names) for found in _files(name))


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield module
            yield from (f"{module}.{alias.name}" for alias in names)
        case _:
            pass


def _files(name: str) -> Iterator[Path]:
    """The file of a module of ours, and those of the packages it is in."""
    parts = name.split(".")
    for folder in (ROOT / "src", ROOT / "tools", ROOT / "tests"):
        for length in range(1, len(parts) + 1):
            base = folder.joinpath(*parts[:length])
            yield from (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())
