"""The page about torchrun's command line has every flag of the pinned torchrun, and `pliant run` takes each of them."""

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest

from pliant.cli.run.command import RunCommand, run
from pliant.cli.run.option_types import CONF_KEYS
from tidy.files import ROOT

PAGE = ROOT / "docs/reference/torchrun.md"
FOR_EACH = {  # a value that torchrun takes, too
    "--nnodes": "1:2",
    "--nproc-per-node": "2",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "localhost:0",
    "--rdzv-conf": "join_timeout=60",
    "--start-method": "spawn",
    "--numa-binding": "node",
    "--signals-to-handle": "SIGTERM",
    "--local-ranks-filter": "0",
}


@dataclass(frozen=True)
class Flag:
    """One of torchrun's: how it may be written, and whether a value follows."""

    names: tuple[str, ...]
    has_value: bool

    @property
    def longest(self) -> str:
        return max((name for name in self.names if "_" not in name), key=len)


def flags(text: str) -> list[Flag]:
    """The flags that argparse's help lists: lines that begin with two blanks and a dash."""
    _, _, options = text.partition("\noptions:\n")
    found = []
    for line in options.splitlines():
        if re.match(r"  -", line):
            spelled = line.strip().split("  ")[0]
            names = tuple(re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.sub(r"\{[^}]*\}", "", spelled)))
            found.append(Flag(names, has_value=bool(re.search(r" (?:[A-Z]|\{)", spelled))))
    return found


@cache
def torchruns() -> list[Flag]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), "--help"], capture_output=True, text=True, check=True
    )
    return flags(done.stdout)


def rows(page: str, heading: str) -> list[tuple[str, ...]]:
    """Return what stands in code in the first column of the table below a heading, row by row."""
    section = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [tuple(re.findall(r"`([^`]+)`", cell)) for cell in first]


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def parsed(*args: str) -> dict[str, object]:
    """Return what our parser makes of them; nothing is run."""
    assert isinstance(run, RunCommand)
    with run.make_context("run", [*args, "train.py", "--its", "own"]) as ctx:
        assert ctx.params.pop("script") == "train.py"
        assert ctx.params.pop("args") == ("--its", "own")
        return dict(ctx.params)


def test_every_flag_of_torchrun_has_its_row_in_all_its_spellings_and_no_other_has() -> None:
    assert [set(row) for row in rows(page(), "Flags")] == [set(flag.names) for flag in torchruns()]


def test_every_spelling_is_taken_with_its_value_behind_it_or_attached() -> None:
    nothing = parsed()
    for flag in torchruns():
        value = FOR_EACH.get(flag.longest, "1")
        for name in flag.names:
            ways = [[name]] if not flag.has_value else [[name, value]]
            if flag.has_value:
                ways.append([f"{name}={value}"] if name.startswith("--") else [f"{name}{value}"])
            if flag.longest == "--help":
                continue  # it ends the program
            results = [parsed(*way) for way in ways]
            assert all(result == results[0] != nothing for result in results), name


def test_every_variable_of_torchrun_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = parsed()
    for flag in torchruns():
        name, value = flag.longest, FOR_EACH.get(flag.longest, "1")
        if name == "--help":
            continue
        with monkeypatch.context() as patch:
            patch.setenv(f"PET_{name.removeprefix('--').replace('-', '_').upper()}", value)
            found = parsed()
        said = [name, value] if flag.has_value else [name]
        expected = nothing if name in ("--logs-specs", "--numa-binding") else parsed(*said)
        assert found == expected, name


def test_torchrun_reads_those_variables_and_no_other() -> None:
    """That two of its flags have none is how its parser is made, not what its help says."""
    show = (
        "import sys; from torch.distributed import run, argparse_util as a\n"
        "for each in run.get_args_parser()._actions:\n"
        "    if not isinstance(each, (a.env, a.check_env)): print(each.dest)\n"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["help", "logs_specs", "numa_binding", "training_script", "training_script_args"]


def test_every_key_is_on_the_page() -> None:
    told = [key for row in rows(page(), "Keys of --rdzv-conf") for key in row]
    assert sorted(told) == sorted(CONF_KEYS)


def test_what_torchrun_sets_for_workers_is_on_the_page() -> None:
    told = {name for row in rows(page(), "Worker environment") for name in row}
    show = "import inspect; from torch.distributed.elastic.agent.server import local_elastic_agent as l; "
    show += "print(inspect.getsource(l.LocalElasticAgent))"
    source = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
    sets = set(re.findall(r'^ {16}"([A-Z_]+)": ', source, re.MULTILINE))
    sets |= set(re.findall(r'worker_env\["([A-Z_]+)"\] = ', source))
    assert {"RANK", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "OMP_NUM_THREADS"} <= sets
    assert sets - told == set()


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed("--nproc", "2")


def test_help_is_read_as_people_read_it() -> None:
    help_text = """usage: torchrun [-h] [--new-one X]

options:
  -h, --help            show this help message and exit
  --new-one NEW_ONE, --new_one NEW_ONE
                        --not-a-flag, but a text
  -r REDIRECTS, --redirects REDIRECTS
                        more
  --kind {a-b,c}, --a_kind {a-b,c}
  --no-python, --no_python
"""
    assert flags(help_text) == [
        Flag(("-h", "--help"), has_value=False),
        Flag(("--new-one", "--new_one"), has_value=True),
        Flag(("-r", "--redirects"), has_value=True),
        Flag(("--kind", "--a_kind"), has_value=True),
        Flag(("--no-python", "--no_python"), has_value=False),
    ]
    assert rows("## A\n| `-a`, `--b` | `c` |\n|---|\n| d | e |\n## B\n| `f` |\n", "A") == [("-a", "--b")]
