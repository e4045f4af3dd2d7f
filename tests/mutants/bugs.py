"""A planted bug."""

from __future__ import annotations

from dataclasses import dataclass

from mutants.edits import Edit


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug. `rule` is what it breaks: a rule, a promise or a counterexample of the protocol."""

    name: str
    rule: str
    what: str
    edits: tuple[Edit, ...]
