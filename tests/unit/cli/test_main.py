import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pliant import __version__
from pliant.cli import main as program
from pliant.cli.main import COMMANDS, LazyCommand, LazyGroup, cli, main
from pliant.errors import StoreTimeout
from unit.cli.program import PLIANT, invoke


@click.command()
def plain() -> None:
    """A command that is there from the start."""


@click.command()
def failing() -> None:
    raise StoreTimeout("no answer from the store in 5 s")


def group(**targets: str) -> LazyGroup:
    lazy = {name: LazyCommand(target, f"What {name} does.") for name, target in targets.items()}
    return LazyGroup("pliant", lazy=lazy, commands={"plain": plain})


def test_the_version_is_the_package_s() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.output == f"pliant, version {__version__}\n"
    assert result.exit_code == 0


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command_with_a_line_about_it(flag: str) -> None:
    result = CliRunner().invoke(cli, [flag])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.short_help)}$", result.output, re.MULTILINE)


HEAVY = {
    "rich",
    "numpy",
    "torch",
    "starlette",
    "uvicorn",
    "uvloop",
    "msgspec",
    "httpx2",
    "prometheus_client",
    "sqlite3",
}


def modules_after(*commands: tuple[str, ...]) -> list[set[str]]:
    """Return what is imported once the program has done this, and then that."""
    script = (
        "import json, sys\n"
        "from pliant.cli.main import main\n"
        "for args in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        main(args)\n"
        "    except SystemExit:\n"
        "        print('MODULES', *sys.modules)\n"
    )
    command = [sys.executable, "-c", script, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines() if line.startswith("MODULES")]


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each command and each command of a group, as they are typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


def test_help_imports_no_command_and_nothing_heavy() -> None:
    (there,) = modules_after(("--help",))
    assert {name for name in there if name.startswith("pliant.")} == {
        "pliant.cli",
        "pliant.errors",
        "pliant.cli.interrupts",
        "pliant.cli.main",
    }
    assert there & HEAVY == set()


def test_help_of_no_command_imports_anything_heavy() -> None:
    commands = list(every_command(cli))
    there = modules_after(*((*command, "--help") for command in commands))
    found = {" ".join(command): modules & HEAVY for command, modules in zip(commands, there, strict=True)}
    assert {command: heavy for command, heavy in found.items() if heavy} == {}
    assert len(found) > len(COMMANDS)


@pytest.mark.parametrize("command", list(every_command(cli)), ids=" ".join)
def test_every_command_and_option_says_what_it_is_for(command: tuple[str, ...]) -> None:
    found: click.Command = cli
    for name in command:
        assert isinstance(found, click.Group)
        next_one = found.get_command(click.Context(found), name)
        assert next_one is not None
        found = next_one
    assert found.help
    for option in found.params:
        assert not isinstance(option, click.Option) or option.help, option.name
    if not isinstance(found, click.Group) and command != ("completion",):
        assert any(option.name == "as_json" for option in found.params), "--json is for every command"


def test_help_costs_little() -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([PLIANT, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(cpu_s() < 0.150 for _ in range(10))  # the machine is shared: one quick start shows that it can be


def test_ctrl_c_ends_a_command_with_130_and_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "cli", interrupted)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == ""


def test_ctrl_c_during_the_imports_leaves_no_trace(tmp_path: Path) -> None:
    """Here it comes while click is imported."""
    (tmp_path / "click.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([PLIANT, "run", "train.py"], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_a_usage_error_shows_how_it_is_used_and_ends_with_2() -> None:
    done = invoke("status", "--nonsense")
    assert (done.code, done.out) == (2, "")
    assert "Usage: pliant status [OPTIONS] JOB" in done.err
    assert "No such option" in done.err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_line_in_the_list_is_the_command_s_own(name: str) -> None:
    command = COMMANDS[name].load()
    assert command.name == name
    assert command.get_short_help_str(limit=100) == COMMANDS[name].short_help


def test_a_command_is_imported_only_when_it_is_called() -> None:
    lazy = group(echo="no.such.module:echo", version=f"{__name__}:plain")
    listed = CliRunner().invoke(lazy, ["--help"]).output
    assert "  echo     What echo does.\n" in listed
    assert "  plain    A command that is there from the start.\n" in listed
    assert "  version  What version does.\n" in listed
    assert CliRunner().invoke(lazy, ["plain"]).exit_code == 0


def test_a_command_that_cannot_be_imported_says_what_is_missing() -> None:
    result = CliRunner().invoke(group(echo="no.such.module:echo"), ["echo"])
    assert result.exit_code == 1
    assert "`pliant echo` cannot start: No module named 'no'" in result.output


def test_a_target_that_is_no_command_is_a_bug_and_shown_as_one() -> None:
    with pytest.raises(TypeError, match="sys:version is a str, not a click command"):
        LazyCommand("sys:version", "").load()


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["sym"])
    assert result.exit_code == 2
    assert "No such command 'sym'" in result.output


def test_a_group_without_commands_prints_no_empty_section() -> None:
    assert "Commands" not in CliRunner().invoke(LazyGroup("empty", lazy={}), ["--help"]).output


def test_an_error_of_ours_ends_the_process_with_its_status_and_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "cli", failing)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == StoreTimeout.exit_code
    assert capsys.readouterr().err == "pliant: no answer from the store in 5 s\n"
