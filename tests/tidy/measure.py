"""Measures of a checkout's shape and language: `python -m tidy.measure [ROOT]`, from the folder tests.

ROOT may be any checkout, an old one as well, so that two can be compared. Prints a table and, last, one JSON object.
A training of two workers counts the files on the path of one step (`tidy.step_probe`).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tidy import prose
from tidy.files import ROOT, walk

_PRONOUN = re.compile(r"\b(?:who|whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)


def measures(root: Path) -> dict[str, int | str]:
    """Take every measure of a checkout; a folder that it does not have counts as empty."""
    source, tools = (_texts(root / folder, (".py",), root) for folder in ("src", "tools"))
    python = source | tools
    pages = _texts(root / "docs", (".md",), root)
    tests = _texts(root / "tests", (".py",), root)
    folders = Counter(str(Path(path).parent) for path in python if not path.endswith("__init__.py"))
    readme = root / "README.md"
    largest, modules = max(folders.items(), key=lambda item: item[1], default=("", 0))
    return {
        "source_lines": _lines(source),
        "source_files": len(source),
        "tools_lines": _lines(tools),
        "folders": len(folders),
        "modules_in_largest_folder": modules,
        "largest_folder": largest,
        "files_over_400_lines": sum(len(text.splitlines()) > 400 for text in python.values()),
        "class_name_collisions": len(prose.collisions(python)),
        "reexports": sum(len(prose.reexports(text)) for text in source.values()),
        "docstrings": sum(len(list(prose.docstrings(text))) for text in python.values()),
        "docstrings_with_question_word": sum(len(prose.question_docstrings(text)) for text in python.values()),
        "pronouns_in_source": _count(source | tools),
        "pronouns_in_docs": _count(pages),
        "test_docstrings_with_question_word": sum(len(prose.question_docstrings(text)) for text in tests.values()),
        "pronouns_in_tests": _count(tests),
        "private_codes_in_source": sum(len(prose.private_codes(text)) for text in python.values()),
        "docs_pages_over_200_lines": sum(len(prose.page_too_long(text)) for text in pages.values()),
        "readme_lines": len(readme.read_text(encoding="utf-8").splitlines()) if readme.exists() else 0,
    }


def step_path(root: Path) -> dict[str, int | str]:
    """Train with two workers and count the source files and calls on the path of one step, in the training thread."""
    with tempfile.TemporaryDirectory() as folder:
        command = "from pliant.cli.main import main; main()"
        probe = str(Path(__file__).with_name("step_probe.py"))
        env = {**os.environ, "PYTHONPATH": str(root / "src"), "PLIANT_HOME": folder, "OMP_NUM_THREADS": "1"}
        run = [sys.executable, "-c", command, "run", "--job", "probe", "--workers", "2", probe, folder]
        ended = subprocess.run(run, env=env, cwd=folder, text=True, capture_output=True, check=False)
        if ended.returncode != 0:
            raise SystemExit(ended.stdout + ended.stderr)
        steps = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.json"))]
    longest = max(steps, key=lambda step: len(step["files"]))
    packages = Counter(name.split("/")[0] for name in longest["files"])
    return {
        "files_in_a_step": len(longest["files"]),
        "files_in_a_step_by_package": " ".join(f"{name} {number}" for name, number in sorted(packages.items())),
        "calls_in_a_step": longest["calls"],
    }


def table(found: dict[str, int | str]) -> str:
    """Show the measures, one on a line."""
    width = max(len(name) for name in found)
    return "\n".join(f"{name.replace('_', ' '):{width}}  {value:>6}" for name, value in found.items())


def _texts(folder: Path, suffixes: tuple[str, ...], root: Path) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in walk(folder, suffixes)}


def _lines(texts: dict[str, str]) -> int:
    return sum(len(text.splitlines()) for text in texts.values())


def _count(texts: dict[str, str]) -> int:
    return sum(len(_PRONOUN.findall(text)) for text in texts.values())


def main() -> None:
    """Measure the checkout that is named, or this one."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    found = {**measures(root), **step_path(root)}
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
