"""The map of the code against the code: every file and every name on docs/internals/architecture.md exists."""

import ast
import re
from pathlib import Path

import pytest

from tidy.files import ROOT

PAGE = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src/pliant"
FILE = re.compile(r"`(?!tests/)([\w/]+\.py)`")
NAME = re.compile(r"`((?:[A-Za-z]\w*\.)?\w+)`")


def pairs(page: str) -> list[tuple[list[str], list[str]]]:
    """Return, for each line that names files of the source, these and the names of the code beside them."""
    return [(FILE.findall(line), NAME.findall(FILE.sub("", line))) for line in page.splitlines() if FILE.search(line)]


def defined(path: Path) -> set[str]:
    """Return the functions, classes, methods and imported names of a file; methods also as Class.method."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name, body=body):
                members = [each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                found |= {name, *members, *(f"{name}.{member}" for member in members)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.Attribute(attr=name):
                found.add(name)
            case _:
                pass
    return found


def missing(page: str, source: Path) -> list[str]:
    """Return the files and names of a page that the source does not have."""
    found = []
    for files, names in pairs(page):
        absent = [file for file in files if not (source / file).exists()]
        there = set().union(*(defined(source / file) for file in files if file not in absent))
        found += absent + [f"{', '.join(files)}: {name}" for name in names if name not in there]
    return found


def test_every_file_and_name_exists() -> None:
    assert missing(PAGE, SOURCE) == []
    assert len(pairs(PAGE)) > 60


def test_every_folder_exists() -> None:
    folders = re.findall(r"`((?:cli|coordinator|agent|core|torch|train|stores)/\w+)`", PAGE)
    assert folders
    assert [folder for folder in folders if not (SOURCE / folder).is_dir()] == []


def test_every_folder_of_the_source_is_named() -> None:
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} - {"."}
    core = PAGE.partition("In `core`, ")[2].partition("\n\n")[0]
    named = PAGE + "".join(f"`core/{name}`" for name in NAME.findall(core))
    assert sorted(folder for folder in folders if not re.search(rf"`{folder}[`/]", named)) == []


def test_every_package_is_in_the_table() -> None:
    table = PAGE.partition("## Packages")[2].partition("## To change")[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| \d \|([^|]*)\|", table, re.MULTILINE))))
    there = {path.stem for path in SOURCE.iterdir() if path.stem not in ("__init__", "__pycache__", "py")}
    assert named == there


@pytest.mark.parametrize("line", ["`b.py` x", "`a.py` `g`", "`a.py` `A.g`", "`a.py` `B.f`"])
def test_a_wrong_name_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text("class A:\n    def f(self): ...\n")
    assert missing("`a.py` `A`, `A.f` and `f`\n`pliant run` and `x`\n", tmp_path) == []
    assert len(missing(line, tmp_path)) == 1
