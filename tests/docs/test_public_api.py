"""The page of the public API against the packages that it names."""

import ast
import importlib
import re

from tidy.files import ROOT

PAGE = (ROOT / "docs/internals/public-api.md").read_text(encoding="utf-8")


def listed(page: str) -> dict[str, set[str]]:
    """Return the public names of each package in the first table, as far as they are spelled out."""
    rows = re.findall(r"^\| `(pliant[.\w]*)` \| ([^|]*) \| [^|]*\|$", page.partition("| interface |")[0], re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", names)) - {"__all__", "exit_code"} for package, names in rows}


TABLES = ("pliant.jax.tables", "pliant.keras.tables")
ADAPTERS = ("pliant.jax", "pliant.keras", "pliant.tensorflow", *TABLES)  # their frameworks are not installed here


def exported(package: str) -> set[str]:
    """Return `__all__` of a package, from its source if its framework may be missing."""
    if package not in ADAPTERS:
        return set(importlib.import_module(package).__all__)
    path = ROOT / "src" / package.replace(".", "/")
    file = path.with_suffix(".py") if package in TABLES else path / "__init__.py"
    found = file.read_text(encoding="utf-8").partition("__all__ = ")[2].partition("]")[0]
    return set(ast.literal_eval(found + "]"))


def test_every_public_name_exists() -> None:
    packages = listed(PAGE)
    assert set(packages) == {
        "pliant",
        "pliant.torch",
        "pliant.records",
        "pliant.tasks",
        "pliant.ps",
        "pliant.torch.tables",
        "pliant.torch.pairs",
        "pliant.client",
        "pliant.errors",
        *ADAPTERS,
    }
    for package, names in packages.items():
        if package in ADAPTERS:
            continue
        assert all(hasattr(importlib.import_module(package), name) for name in names), package


def test_a_package_exports_what_the_page_lists() -> None:
    for package in ("pliant.torch", "pliant.records", "pliant.tasks", "pliant.client", *ADAPTERS):
        assert exported(package) == listed(PAGE)[package]
    assert listed("| `pliant.x` | `A`, `b`: the names in `__all__` | y |\n") == {"pliant.x": {"A", "b"}}


def test_every_internal_package_exists() -> None:
    internal = PAGE.partition("## Internal")[2]
    named = set(re.findall(r"`pliant\.(\w+)`", internal)) | {
        "torch",
        "jax",
        "keras",
        "tensorflow",
        "records",
        "tasks",
        "ps",
        "client",
        "errors",
    }
    there = {
        path.stem for path in (ROOT / "src/pliant").iterdir() if path.stem not in ("__init__", "__pycache__", "py")
    }
    assert named == there
