"""The page about the commands has every command and every option, and no other."""

import re
from collections.abc import Iterator

import click

from pliant.cli.main import cli
from tidy.files import ROOT

SHARED = {
    "--json",
    "--coordinator",
    "--token-file",
    "--ca-file",
    "--help",
    "--version",
}  # said once, at the top of the page


def sections(page: str) -> dict[str, str]:
    """By command, what the page says about it."""
    found = re.findall(r"^## pliant (\w+).*?\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return dict(found)


def options(text: str) -> set[str]:
    """The options a text names in code."""
    code = " ".join(re.findall(r"`([^`]+)`", text))
    return set(re.findall(r"(?<!\S)--[a-z][a-z-]*", code))


def own_options(command: click.Command) -> Iterator[str]:
    """The options of a command and of the commands below it."""
    for option in command.params:
        if isinstance(option, click.Option):
            yield from (name for name in option.opts if name.startswith("--"))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from own_options(below)


def test_every_command_has_its_section_with_all_its_options() -> None:
    told = sections((ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"))
    told["sim"] = (ROOT / "docs/reference/sim.md").read_text(encoding="utf-8").replace("pliant sim", "`pliant sim")
    names = set(cli.list_commands(click.Context(cli)))
    assert set(told) == names
    for name in names - {"sim"}:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert options(told[name]) - SHARED == set(own_options(command)) - SHARED, name


def test_every_command_below_another_one_is_named() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            for below in command.list_commands(click.Context(command)):
                assert f"`pliant {name} {below}" in page


def test_what_is_missing_or_too_much_is_found() -> None:
    assert sections("## pliant a X\n`--b`\n\n## Other\n") == {"a": "`--b`\n\n"}
    assert options("`--b-c N`, --d, `x --e`, `a--f`") == {"--b-c", "--e"}
    assert set(own_options(click.Command("x", params=[click.Option(["--y", "-z"])]))) == {"--y"}
