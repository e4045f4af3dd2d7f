"""The guides show the real difference between two scripts that are really there."""

import difflib
import re
from pathlib import Path

import pytest

from tidy.files import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").glob("from-*.md"))
SHOWN = re.compile(r"^<!-- diff (\S+) (\S+) -->\n\n```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def difference(before: Path, after: Path) -> str:
    """As `diff -u` shows it, with the files' bare names."""
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (before, after))
    return "".join(f"{line}\n" for line in difflib.unified_diff(old, new, before.name, after.name, lineterm=""))


def wrong(page: str, root: Path) -> list[str]:
    """The pairs whose difference is not the one that is shown; a page without any is wrong, too."""
    pairs = SHOWN.findall(page)
    found = [f"{a} {b}" for a, b, shown in pairs if shown != difference(root / a, root / b)]
    return found if pairs else ["shows no difference"]


def test_there_is_a_guide_for_each_way_to_get_here() -> None:
    assert [guide.stem for guide in GUIDES] == ["from-ddp", "from-plain-pytorch"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_shows_the_difference_there_is(guide: Path) -> None:
    assert wrong(guide.read_text(encoding="utf-8"), ROOT) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_says_what_changes_and_what_does_not(guide: Path) -> None:
    headings = re.findall(r"^## (.+)$", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["What changes", "What does not"]


def test_another_difference_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / "b.py").write_text("two\n")
    page = f"<!-- diff a.py b.py -->\n\n```diff\n{difference(tmp_path / 'a.py', tmp_path / 'b.py')}```\n"
    assert wrong(page, tmp_path) == []
    (tmp_path / "b.py").write_text("three\n")
    assert wrong(page, tmp_path) == ["a.py b.py"]
    assert wrong("nothing\n", tmp_path) == ["shows no difference"]
