"""The rules of docs/internals/writing.md, over the source, the tools, the tests and the pages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tidy import measure, prose
from tidy.files import ROOT, name_of, pages, programs, sources, suite, tools

Check = Callable[[str], list[str]]

# Pages that may break a rule, and why.
ALLOWED = {
    "pronouns": {
        "docs/internals/writing.md": "it lists the words that are not used",
        "tests/tidy/prose.py": "it looks for these words",
        "tests/tidy/measure.py": "it counts these words",
        "tests/tidy/test_prose.py": "it shows that they are found",
    },
    "page_too_long": {"docs/reference/cli.md": "a reference: one section and one table for each command"},
    "private_codes": {"docs/internals/protocol.md": "it defines the codes that tests cite"},
}


def findings(check: Check, paths: list[Path]) -> list[str]:
    allowed = ALLOWED.get(check.__name__, {})
    return [
        f"{name_of(path)}: {finding}"
        for path in paths
        if name_of(path) not in allowed
        for finding in check(path.read_text(encoding="utf-8"))
    ]


def require(found: list[str]) -> None:
    assert not found, "\n".join(found)


@pytest.mark.parametrize("check", [prose.question_docstrings, prose.pronouns, prose.private_codes])
def test_the_source_is_written_in_plain_english(check: Check) -> None:
    require(findings(check, [*sources(), *tools()]))


@pytest.mark.parametrize("check", [prose.question_docstrings, prose.pronouns])
def test_the_tests_benchmarks_and_examples_are_written_in_plain_english(check: Check) -> None:
    require(findings(check, [*suite(), *programs()]))


@pytest.mark.parametrize("check", [prose.pronouns, prose.private_codes])
def test_the_pages_are_written_in_plain_english(check: Check) -> None:
    require(findings(check, pages()))


def test_a_page_is_read_in_one_sitting() -> None:
    require(findings(prose.page_too_long, [page for page in pages() if page.parent != ROOT]))
    require(findings(prose.readme_too_long, [ROOT / "README.md"]))


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    require(findings(prose.reexports, sources()))


def test_no_two_classes_have_the_same_name() -> None:
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in [*sources(), *tools()]}
    require([f"{name}: {', '.join(paths)}" for name, paths in prose.collisions(texts).items()])


def test_every_allowance_is_still_needed() -> None:
    for check, allowed in ALLOWED.items():
        for path, why in allowed.items():
            assert why
            if (ROOT / path).exists():
                assert getattr(prose, check)((ROOT / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("check", "bad", "good"),
    [
        (prose.question_docstrings, '"""What a member is."""\n', '"""A member."""\n'),
        (prose.question_docstrings, 'def f():\n    """Whether it runs."""\n', 'def f():\n    """Return true."""\n'),
        (prose.question_docstrings, 'class A:\n    """One that left."""\n', 'class A:\n    """One member."""\n'),
        (prose.question_docstrings, 'async def f():\n    """How long."""\n', '"""However long."""\n'),
        (prose.pronouns, "# Nobody waits.\n", "# No member waits.\n"),
        (prose.pronouns, "Everybody's lease", "every member's lease"),
        (prose.pronouns, "One that left is gone.", "Not one that left."),
        (prose.pronouns, "It waits. One that left is gone.", "the one that left"),
        (prose.pronouns, '    """One that left."""', "    # of each, one that holds the state"),
        (prose.private_codes, "x = 1  # H15\n", "x = 0xH15, an H100 and sha256\n"),
        (prose.page_too_long, "a\n" * 201, "a\n" * 200),
        (prose.readme_too_long, "a\n" * 111, "a\n" * 110),
        (prose.reexports, "from a import B as B\n", "from a import B as C\nfrom a import D\nimport e as e\n"),
    ],
)
def test_each_check_can_fail(check: Check, bad: str, good: str) -> None:
    assert len(check(bad)) == 1
    assert check(good) == []


def test_a_finding_names_its_line() -> None:
    assert prose.pronouns("a\nb. One that left\nwhoever\n")[1].startswith("line 2:")
    assert prose.question_docstrings('x = 1\n\n\ndef f():\n    """Why."""\n')[0].startswith("line 4:")


def test_a_class_name_that_occurs_twice_is_found() -> None:
    texts = {"a.py": "class A: ...\nclass B:\n    class C: ...\n", "b.py": "class C: ...\n", "c.py": "class D: ...\n"}
    assert prose.collisions(texts) == {"C": ["a.py", "b.py"]}
    assert prose.collisions({"a.py": "class A: ...\nif x:\n    class A: ...\n"}) == {"A": ["a.py", "a.py"]}


def test_a_checkout_is_measured(tmp_path: Path) -> None:
    (tmp_path / "src/pliant/x").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text('"""How it waits."""\n# nobody, and somebody_else; who\n')
    (tmp_path / "src/pliant/x/__init__.py").write_text("from a import B as B\n")
    (tmp_path / "src/pliant/x/a.py").write_text('"""Who waits."""\n\nclass A: ...\n')
    (tmp_path / "src/pliant/x/b.py").write_text("class A: ...  # H3\n")
    (tmp_path / "docs/a.md").write_text("whoever and somebody, but not whose\n")
    found = measure.measures(tmp_path)
    assert found == {
        "source_lines": 5,
        "source_files": 3,
        "tools_lines": 0,
        "folders": 1,
        "modules_in_largest_folder": 2,
        "largest_folder": "src/pliant/x",
        "files_over_400_lines": 0,
        "class_name_collisions": 1,
        "reexports": 1,
        "docstrings": 1,
        "docstrings_with_question_word": 1,
        "pronouns_in_source": 1,
        "pronouns_in_docs": 2,
        "test_docstrings_with_question_word": 1,
        "pronouns_in_tests": 2,
        "private_codes_in_source": 1,
        "docs_pages_over_200_lines": 0,
        "readme_lines": 0,
    }
    assert "readme lines                             0" in measure.table(found)
