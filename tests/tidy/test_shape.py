from collections.abc import Callable
from pathlib import Path

import pytest

from tidy import shape
from tidy.files import ROOT, name_of, sources, suite, text_files, tools

Check = Callable[[str], list[str]]


def findings(check: Check, paths: list[Path]) -> str:
    return "\n".join(
        f"{name_of(path)}: {finding}" for path in paths for finding in check(path.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("check", [shape.file_too_long, shape.functions_too_long, shape.catches_without_why])
def test_the_source_keeps_its_shape(check: Check) -> None:
    found = findings(check, sources())
    assert not found, found


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    assert shape.crowded_folders([*sources(), *tools()]) == []
    folder = [Path("a") / f"{number}.py" for number in range(shape.FOLDER_MODULES_MAX)]
    assert shape.crowded_folders([*folder, Path("a/__init__.py"), Path("b/c.py")]) == []
    assert shape.crowded_folders([*folder, Path("a/more.py")]) == ["a: 13 modules, at most 12: group some by topic"]


def test_every_package_says_what_may_live_in_it() -> None:
    packages = sorted({path.parent for path in sources()})
    assert [name_of(package) for package in packages if not (package / "__init__.py").exists()] == []
    found = findings(shape.missing_docstring, [package / "__init__.py" for package in packages])
    assert not found, found


def test_no_test_sleeps() -> None:
    found = findings(shape.sleeps, suite())
    assert not found, found


def test_settings_is_the_only_reader_of_the_environment() -> None:
    others = [path for path in sources() if name_of(path) != "src/pliant/settings.py"]
    found = findings(shape.environment_reads, others)
    assert not found, found


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    found = findings(shape.machine_paths, text_files())
    assert not found, found


def test_there_are_at_least_as_many_test_lines_as_code_lines() -> None:
    code = sum(shape.code_lines(path.read_text(encoding="utf-8")) for path in sources())
    test = sum(shape.code_lines(path.read_text(encoding="utf-8")) for path in suite())
    assert test >= code, f"{test} lines of tests for {code} lines of code"


def test_the_project_has_the_files_the_checks_look_at() -> None:
    assert (ROOT / "pyproject.toml").exists()
    assert sources()
    assert Path(__file__).resolve() in suite()


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * shape.FUNCTION_LINES_MAX
LONG_DOCSTRING = 'def f():\n    """One.\n' + "\n" * 70 + '    """\n    return 1\n'
MACHINE = "/".join(["see ", "work", "main"]) + "/x"


@pytest.mark.parametrize(
    ("check", "bad", "good"),
    [
        (shape.file_too_long, "x = 1\n" * 601, "x = 1\n" * 600),
        (shape.functions_too_long, LONG_FUNCTION, LONG_FUNCTION.removesuffix("    x = 1\n")),
        (shape.functions_too_long, "async " + LONG_FUNCTION, LONG_DOCSTRING),
        (
            shape.catches_without_why,
            "try:\n    f()\nexcept:\n    raise\n",
            "try:\n    f()\nexcept KeyError:\n    pass\n",
        ),
        (
            shape.catches_without_why,
            "try:\n    f()\nexcept Exception as e:\n    pass\n",
            "try:\n    f()\nexcept Exception:  # why: a plug-in may raise anything\n    pass\n",
        ),
        (
            shape.catches_without_why,
            "try:\n    f()\nexcept (OSError, BaseException):\n    raise\n",
            "try:\n    f()\n# why: shown and raised again\nexcept BaseException:\n    raise\n",
        ),
        (shape.missing_docstring, "x = 1\n", '"""Values only."""\n'),
        (shape.missing_docstring, "# Values only.\n", '"""Values only."""\nx = 1\n'),
        (shape.sleeps, "import time\ntime.sleep(1)\n", "import time\ntime.monotonic()\n"),
        (shape.sleeps, "from time import sleep\nsleep(1)\n", "def sleep(s): ...\nsleep(1)\n"),
        (shape.environment_reads, "import os\nos.environ['A']\n", "import os\nos.getpid()\n"),
        (shape.environment_reads, "import os\nos.getenv('A')\n", "environ = {}\nenviron['A']\n"),
        (shape.environment_reads, "from os import environ\n", "from os import getpid\n"),
        (shape.machine_paths, MACHINE, "src/work/main, ~/work/x and https://example.org/work/x"),
        (shape.machine_paths, "a\n" + MACHINE, "/etc/hosts, /tmp/x"),
    ],
)
def test_each_check_can_fail(check: Check, bad: str, good: str) -> None:
    assert len(check(bad)) == 1
    assert check(good) == []


def test_blank_lines_and_comments_are_not_code() -> None:
    assert shape.code_lines("# one\n\nx = 1  # two\n    # three\n\n\ny = 2\n") == 2
