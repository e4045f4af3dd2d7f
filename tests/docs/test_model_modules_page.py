"""The page about model modules: its commands can be run, and its functions fit together."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from e2e.launched import ENDS_S
from pliant.cli.main import cli
from pliant.model_modules.work import LoadedWork, WorkOptions, check
from tidy.files import ROOT
from unit.cli.program import PLIANT, environment

PAGE = (ROOT / "docs/guides/model-modules.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^(?:python|pliant) .*$", PAGE, re.MULTILINE)


def test_every_option_on_the_page_exists() -> None:
    names = [line.split()[1] for line in COMMANDS]
    assert names == ["examples/income.py", "train", "evaluate", "predict"]
    for line in COMMANDS[1:]:
        name, *args = shlex.split(line)[1:]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, args)


def test_the_functions_on_the_page_fit_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "shown.py").write_text(MODULES[0])
    (tmp_path / "data.csv").write_text("age,hours,earns_much\n" + "40,30,1\n20,10,0\n" * 9)
    options = WorkOptions("train", str(tmp_path / "shown.py"), str(tmp_path / "data.csv"))
    assert check(options)["records"] == 18
    assert {*LoadedWork(options).module.metrics} == {"accuracy"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_on_the_page_do_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in COMMANDS:
        program, *args = shlex.split(line.replace(" 20000", " 2000"))
        found = {"python": sys.executable, "pliant": PLIANT}[program]
        env = environment(tmp_path / "home", OMP_NUM_THREADS="1")
        subprocess.run([found, *args], cwd=tmp_path, env=env, check=True, timeout=ENDS_S)
    lines = [line for file in (tmp_path / "predictions").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 200
