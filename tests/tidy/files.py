"""The files that the tidy tests and the tests of the documentation read."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_HIDDEN_BUT_OURS = {".ci", ".github"}
_MADE_BY_TOOLS = {"__pycache__", "build", "dist", "htmlcov"}


def walk(under: Path, suffixes: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield every file of the project below a folder, in a fixed order, without environments and caches."""
    for path in sorted(under.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name not in _HIDDEN_BUT_OURS
            if not hidden and path.name not in _MADE_BY_TOOLS:
                yield from walk(path, suffixes)
        elif not suffixes or path.suffix in suffixes:
            yield path


def text_files() -> list[Path]:
    """Every file of the project that is text."""
    return [
        path for path in walk(ROOT) if path.name != ".git" and not path.name.startswith(".coverage") and _is_text(path)
    ]


def sources() -> list[Path]:
    """The Python files that are shipped."""
    return list(walk(ROOT / "src", (".py",)))


def tools() -> list[Path]:
    """The Python files of the programs that stay outside the wheel."""
    return list(walk(ROOT / "tools", (".py",)))


def suite() -> list[Path]:
    """The Python files that test them."""
    return list(walk(ROOT / "tests", (".py",)))


def programs() -> list[Path]:
    """The Python files of the benchmarks and the examples."""
    return [path for folder in ("bench", "examples") for path in walk(ROOT / folder, (".py",))]


def pages() -> list[Path]:
    """Everything written for people: the files at the top and the folder docs/."""
    return [*sorted(ROOT.glob("*.md")), *walk(ROOT / "docs", (".md",))]


def name_of(path: Path) -> str:
    """A file's name as a failure message says it."""
    return path.relative_to(ROOT).as_posix()


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True
