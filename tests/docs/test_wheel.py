"""The wheel: what is in it, and the README's quick start from an environment that has nothing else."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from pliant import __version__
from tidy.files import ROOT


def commands(readme: str, section: str) -> list[str]:
    """Return the commands of a section's first block."""
    block = re.search(rf"^## {section}\n.*?^```\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None, section
    return block[1].splitlines()


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make dist` built and names in WHEEL_DIR, or one that is built now."""
    if built := os.environ.get("WHEEL_DIR"):
        [made] = Path(built).glob("*.whl")
        return made
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [made] = out.glob("*.whl")
    return made


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"pliant", f"pliant-{__version__}.dist-info"}
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/pliant").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source
    assert "pliant/py.typed" in names


def test_the_quick_start_is_five_commands() -> None:
    assert [line.split()[:2] for line in commands(README, "Quick start")] == [
        ["pliant", "run"],
        ["pliant", "status"],
        ["pliant", "resize"],
        ["pliant", "cancel"],
        ["pliant", "audit"],
    ]
    assert commands("## A\n\n```\na\nb\n```\n\n```\nc\n```\n## B\n", "A") == ["a", "b"]
    with pytest.raises(AssertionError):
        commands("## A\n", "B")


class Fresh:
    """An environment that has the wheel and what it asks for, and a folder with the examples and no source."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        bin_ = folder / "env/bin"
        venv.create(folder / "env", with_pip=True, symlinks=True)
        copytree(ROOT / "examples", folder / "clone/examples")
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "no_"))}
        self.env = {**kept, "HOME": str(folder), "PATH": f"{bin_}:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
        self.folder = folder / "clone"
        [extras] = re.findall(r"^pip install '\.(\[\w+\])'$", README, re.MULTILINE)
        pins = str(ROOT / "constraints.txt")
        # torch has thousands of modules that the quick start does not import: compile on import only.
        self.run("python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", pins, f"{wheel}{extras}")

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *command: str) -> str:
        process = self.start(*command)
        out, _ = process.communicate()
        assert process.returncode == 0, out
        return out


def until(lines: Iterator[str], wanted: str) -> None:
    """Read until a line has the wanted words. On failure, show every line."""
    seen = []
    for line in lines:
        seen.append(line)
        if wanted in line:
            return
    raise AssertionError(f"no line has {wanted!r}:\n" + "".join(seen))


@pytest.mark.long
@pytest.mark.timeout(1800)  # torch is downloaded
def test_the_quick_start_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    fresh = Fresh(tmp_path, wheel)
    assert str(tmp_path / "env") in fresh.run("python", "-c", "import pliant; print(pliant.__file__)")
    run, status, resize, cancel, audit = commands(README, "Quick start")
    training = fresh.start(*run.split())
    assert training.stdout is not None
    try:
        until(training.stdout, "2 workers, loss")
        assert "2 in the world, 2 wanted" in fresh.run(*status.split())
        fresh.run(*resize.split())
        until(training.stdout, "3 workers, loss")
        assert "requested with pliant cancel" in fresh.run(*cancel.split())
        rest = training.stdout.read()  # until it has ended
        assert training.wait() == 1, rest  # cancelled
        assert "0 lost, 0 repeated" in fresh.run(*audit.split())
    finally:
        training.terminate()  # lets the workers leave, should a line above have failed
        training.wait()
        training.stdout.close()
