"""The page of the public API against the packages that it names."""

import importlib
import re

from tidy.files import ROOT

PAGE = (ROOT / "docs/internals/public-api.md").read_text(encoding="utf-8")


def listed(page: str) -> dict[str, set[str]]:
    """Return the public names of each package in the first table, as far as they are spelled out."""
    rows = re.findall(r"^\| `(pliant[.\w]*)` \| ([^|]*) \| [^|]*\|$", page.partition("| interface |")[0], re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", names)) - {"__all__", "exit_code"} for package, names in rows}


def test_every_public_name_exists() -> None:
    packages = listed(PAGE)
    assert set(packages) == {"pliant", "pliant.torch", "pliant.client", "pliant.errors"}
    for package, names in packages.items():
        assert all(hasattr(importlib.import_module(package), name) for name in names), package


def test_a_package_exports_what_the_page_lists() -> None:
    for package in ("pliant.torch", "pliant.client"):
        assert set(importlib.import_module(package).__all__) == listed(PAGE)[package]
    assert listed("| `pliant.x` | `A`, `b`: the names in `__all__` | y |\n") == {"pliant.x": {"A", "b"}}


def test_every_internal_package_exists() -> None:
    internal = PAGE.partition("## Internal")[2]
    named = set(re.findall(r"`pliant\.(\w+)`", internal)) | {"torch", "client", "errors"}
    there = {
        path.stem for path in (ROOT / "src/pliant").iterdir() if path.stem not in ("__init__", "__pycache__", "py")
    }
    assert named == there
