"""The claims of the pages against the code: version, make targets, files, rule numbers, promises, exit statuses."""

import re

import pytest

from pliant import __version__, errors
from tidy.files import ROOT, name_of, pages, sources, suite

RULES = range(1, 25)

# The words the design rests on; each must be defined.
WORDS = (
    "job, coordinator, agent, worker, member, lease, renew, expire, generation, world, rank, size, spare, "
    "donor, joiner, snapshot, checkpoint, step, commit, grid, slot, cursor, ledger, shard, epoch, resize, "
    "target, drain, leave, lost, store, revision, command, event, view"
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def top_version(changelog: str) -> str | None:
    """The newest version a changelog speaks of."""
    for version in re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE):
        if version.lower() != "unreleased":
            return str(version)
    return None


def targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):.*?##", makefile, re.MULTILINE))


def targets_named(page: str) -> set[str]:
    """The make targets a page tells its reader to call, in code."""
    return set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page, re.MULTILINE))


def rules_defined(page: str) -> list[int]:
    return [int(number) for number in re.findall(r"^### Rule (\d+):", page, re.MULTILINE)]


def rules_cited(text: str) -> set[int]:
    """The rules a text cites: `rule 8`, `rules 5, 11 and 17`, `rules 21-24`."""
    cited: set[int] = set()
    for numbers in re.findall(r"\brules? (\d+(?:(?:, | and |, and | or |-)\d+)*)", text, re.IGNORECASE):
        cited |= {int(number) for number in re.findall(r"\d+", numbers)}
    return cited


def test_the_changelog_is_about_this_version() -> None:
    """Until there is a release, the page names the version that will be the first."""
    changelog = read("CHANGELOG.md")
    released = top_version(changelog)
    assert released == __version__ or (released is None and f"The first release will be {__version__}." in changelog)
    headings = re.findall(r"^### (.+)$", changelog, re.MULTILINE)
    assert headings[:3] == ["Added", "Changed", "Fixed"]


def test_the_make_targets_that_pages_name_exist() -> None:
    there = targets(read("Makefile"))
    assert {"install", "test", "check"} <= there
    missing = {name_of(page): targets_named(page.read_text(encoding="utf-8")) - there for page in pages()}
    assert {page: names for page, names in missing.items() if names} == {}


def files_named(page: str) -> set[str]:
    """The files and folders of the repository that a page names in code."""
    return set(re.findall(r"`((?:tests|bench|tools|examples|src)/[\w./-]*\w)/?`", page))


def test_the_files_that_pages_name_exist() -> None:
    missing = {
        name_of(page): {name for name in files_named(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()}
        for page in pages()
    }
    assert {page: names for page, names in missing.items() if names} == {}


def test_every_rule_has_its_paragraph() -> None:
    assert rules_defined(read("docs/internals/protocol.md")) == list(RULES)


def test_every_rule_that_is_cited_exists() -> None:
    wrong = {
        name_of(path): sorted(rules_cited(path.read_text(encoding="utf-8")) - set(RULES))
        for path in [*sources(), *suite(), *pages()]
        if name_of(path) != "tests/docs/test_pages.py"
    }
    assert {name: numbers for name, numbers in wrong.items() if numbers} == {}


def counterexamples_defined(page: str) -> set[str]:
    return set(re.findall(r"^\| (H\d+) \|", page, re.MULTILINE))


def test_every_counterexample_that_tests_cite_is_defined() -> None:
    defined = counterexamples_defined(read("docs/internals/protocol.md"))
    own = {"tests/docs/test_pages.py", "tests/tidy/test_prose.py"}
    texts = [path.read_text(encoding="utf-8") for path in suite() if name_of(path) not in own]
    cited = {code for text in texts for code in re.findall(r"\bH\d{1,2}\b", text)}
    assert cited
    assert cited - defined == set()
    assert counterexamples_defined("| H1 | x | 1 |\n| H2x | y |\nH3\n") == {"H1"}


def words_defined(glossary: str) -> set[str]:
    """The words that have a row, with something in the second column."""
    rows = re.findall(r"^\| ([\w, ]+) \| [^|\s]", glossary, re.MULTILINE)
    return {word for row in rows for word in row.split(", ")}


def test_every_word_of_the_design_is_defined() -> None:
    assert set(WORDS.split(", ")) - words_defined(read("docs/internals/glossary.md")) == set()


@pytest.mark.parametrize("number", range(1, 9))
def test_every_promise_has_its_row_and_its_section(number: int) -> None:
    text = read("docs/concepts/promises.md")
    page = re.findall(rf"^## P{number}: .+?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    row = re.findall(rf"^\| P{number} \|.*\| (\w+) \|$", text, re.MULTILINE)
    assert len(page) == len(row) == 1
    assert f"Status: {row[0]}" in page[0]
    assert re.search(r"\bTest:[^.]*`(tests/|make )", page[0]), "which test would break?"
    assert re.search(r"^Figure: `[^`]+`[^.]*\d", page[0], re.MULTILINE), "how well is it kept, by which command?"


def test_the_exit_statuses_are_in_the_reference() -> None:
    rows = re.findall(r"^\| (\d+) \|", read("docs/reference/README.md"), re.MULTILINE)
    statuses = {getattr(errors, name).exit_code for name in errors.__all__}
    assert {int(row) for row in rows} == {0, *statuses}


def test_continuous_integration_runs_what_we_run() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert re.findall(r"^make (\w+)$", script.read_text(encoding="utf-8"), re.MULTILINE) == ["test", "check"]


def test_each_of_these_checks_can_fail() -> None:
    assert top_version("# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027\n\n## [0.1.0]\n") == "0.2.0"
    assert top_version("# Changelog\n") is None
    assert targets("a:  ## one\n.PHONY: b\nc:\n\techo ## no\n") == {"a"}
    assert targets_named("`make nothing`, make do, \nmake help\n") == {"nothing", "help"}
    assert files_named("`tests/x.py`, `src/a/`, tests/y.py and `make test`") == {"tests/x.py", "src/a"}
    assert rules_defined("### Rule 1: one\n### Rule 3: three\n## Rule 4\n") == [1, 3]
    assert words_defined("| job | one run | x |\n| rank | | x |\n| open, sealed | y | z |\n") == {
        "job",
        "open",
        "sealed",
    }
    assert rules_cited("rule 8, rules 5, 11 and 27; Rule 3; rule of thumb 99; rules 21-24") == {
        3,
        5,
        8,
        11,
        21,
        24,
        27,
    }
