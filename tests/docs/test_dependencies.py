"""Every dependency is on the page that gives its reason, and pinned for development."""

import re
import tomllib
from typing import Any

from tidy.files import ROOT


def base_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower()


def declared(project: dict[str, Any]) -> set[str]:
    """Everything pyproject.toml asks for, extras and build included, the project itself left out."""
    metadata = project["project"]
    groups = [
        project["build-system"]["requires"],
        metadata["dependencies"],
        *metadata["optional-dependencies"].values(),
    ]
    return {base_name(requirement) for group in groups for requirement in group} - {metadata["name"]}


def explained(page: str) -> set[str]:
    """The packages the page has a row for, with a reason in the last column."""
    return set(re.findall(r"^\| `([\w-]+)` \|.*?[^|\s][^|]*\|$", page, re.MULTILINE))


def pinned(constraints: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", constraints, re.MULTILINE))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_dependency_has_a_reason_and_every_reason_a_dependency() -> None:
    page = (ROOT / "docs/internals/dependencies.md").read_text(encoding="utf-8")
    assert explained(page) == declared(project())


def test_every_dependency_is_pinned_for_development() -> None:
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert declared(project()) - set(pins) - {"hatchling"} == set()  # pip builds apart and reads no pins there
    assert pins["torch"] == "2.13.0"


def test_the_base_install_is_small() -> None:
    coordinator = {"httptools", "prometheus-client", "starlette", "uvicorn", "uvloop"}
    small = {"click", "httpx2", "msgspec", "psutil", "rich"} | coordinator
    assert {base_name(name) for name in project()["project"]["dependencies"]} == small


def test_an_unexplained_dependency_is_found() -> None:
    given = {
        "build-system": {"requires": ["hatchling>=1"]},
        "project": {
            "name": "pliant",
            "dependencies": ["click>=8.1"],
            "optional-dependencies": {"dev": ["pliant[train]", "coverage[toml]>=7", "Ruff ; python_version>'3'"]},
        },
    }
    assert declared(given) == {"hatchling", "click", "coverage", "ruff"}
    assert explained("| `click` | parsing |\n| `ruff` | |\n| rich | tables |\n| `numpy` | `train` | order |\n") == {
        "click",
        "numpy",
    }


def test_a_missing_pin_is_found() -> None:
    assert pinned("# a\nclick==8.5.1\nrich>=3\n") == {"click": "8.5.1"}
