"""Mutants that nothing can catch because they change nothing that matters, each with the reason.

`harmless.toml` is read by people as much as by the program. An entry matches a mutant by its file, its
source line (blanks apart), its kind and its change, so it holds wherever the line moves to;
`tests/unit/test_mutants.py` finds entries that match no mutant any more.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutants.mechanical import Mutant

LIST = Path(__file__).with_name("harmless.toml")


@dataclass(frozen=True, slots=True)
class Harmless:
    """The reason why one mutant, or several that differ in their change alone, may survive."""

    file: str
    line: str
    kind: str
    changes: tuple[str, ...]
    why: str

    def matches(self, mutant: Mutant) -> bool:
        file, line, kind, change = mutant.key
        return (file, line, kind) == (self.file, self.line, self.kind) and change in self.changes


def read() -> tuple[Harmless, ...]:
    entries = tomllib.loads(LIST.read_text(encoding="utf-8")).get("harmless", [])
    return tuple(
        Harmless(entry["file"], entry["line"], entry["kind"], tuple(entry["changes"]), entry["why"])
        for entry in entries
    )


def reason(known: tuple[Harmless, ...], mutant: Mutant) -> str:
    """Return why this mutant is harmless; empty if no member has said so."""
    return next((entry.why for entry in known if entry.matches(mutant)), "")
