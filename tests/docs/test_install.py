"""The page about deployment: units that systemd accepts, scripts that parse, and options that exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pliant.cli.main import cli
from tidy.files import ROOT

PAGE = (ROOT / "docs" / "operating" / "install.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for each, text in found if each == kind]


def commands() -> list[list[str]]:
    """Every command line of `pliant` in the blocks, without the words before it."""
    joined = "\n".join(blocks("") + blocks("bash") + blocks("ini")).replace("\\\n", " ")
    found = re.findall(r"(?:^|/bin/|srun \S+ )pliant ([a-z].*)$", joined, re.MULTILINE)
    return [shlex.split(words) for words in found]


@pytest.mark.parametrize("unit", blocks("ini"), ids=["coordinator", "job"])
def test_systemd_accepts_a_unit(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    name = Path(unit.splitlines()[0].removeprefix("# ")).name
    program = shutil.which("true")
    checked = re.sub(r"ExecStart=\S+", f"ExecStart={program}", unit).replace("User=", "# User=")
    (tmp_path / name).write_text(checked)
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True, check=False)
    assert not [line for line in done.stderr.splitlines() if name in line]


def test_a_batch_script_parses() -> None:
    (script,) = blocks("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_option_of_pliant_exists() -> None:
    found = commands()
    assert [words[0] for words in found] == ["doctor", "coordinator", "jobs", "token", "run", "coordinator", "run"]
    for first, *words in found:
        command: click.Command | None = cli.get_command(click.Context(cli), first)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words[0])
        assert command is not None
        known = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= known
