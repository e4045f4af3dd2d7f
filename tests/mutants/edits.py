"""A mutant: an exact change of the source, made in a copy of the tree and never in the tree itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/pliant"


def path_of(file: str, root: Path) -> Path:
    """Return the path of a file, which is named from `src/pliant` on, or from the root if it is under `tools`."""
    return root / file if file.startswith("tools/") else root / SOURCE / file


class Misplaced(Exception):
    """An edit does not fit the source: the code it was written against has moved."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In this file (see `path_of`) this text, which occurs there exactly once, becomes that text."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise Misplaced(
                f"{self.file} must contain this text exactly once, and contains it {found} times:\n"
                f"{self.old}\nThe code has moved: bring the edit in tests/mutants/planted.py up to date."
            )
        return text.replace(self.old, self.new)


def mutated(edits: tuple[Edit, ...], root: Path) -> dict[str, str]:
    """The files that these edits touch, by name, as they are after all of them."""
    texts: dict[str, str] = {}
    for edit in edits:
        before = texts.get(edit.file) or path_of(edit.file, root).read_text(encoding="utf-8")
        texts[edit.file] = edit.apply(before)
    return texts
