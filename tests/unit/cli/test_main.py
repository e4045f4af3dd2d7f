import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pliant import __version__
from pliant.cli import main as program
from pliant.cli.main import COMMANDS, LazyCommand, LazyGroup, cli, main
from pliant.errors import StoreTimeout


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
        assert f"  {name}  {entry.short_help}" in result.output


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from pliant.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    print(sorted({name.partition('.')[0] for name in sys.modules} & {'rich', 'numpy', 'torch'}))\n"
        "    print([name for name in sys.modules if name.startswith('pliant.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy, ours = done.stdout.splitlines()[-2:]
    assert heavy == "[]"
    assert ours == "['pliant.cli', 'pliant.errors', 'pliant.cli.main']"


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
