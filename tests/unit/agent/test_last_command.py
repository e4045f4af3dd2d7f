"""The command line of the last start: what is kept, and how the next one differs."""

import json
from pathlib import Path

import pytest

from pliant.agent.last_command import CommandLine, describe_changes, read_last_command, write_last_command
from pliant.errors import BadInput


def command(*args: str, script: str = "/a/train.py", **options: str) -> CommandLine:
    return CommandLine(script, args, {f"--{name.replace('_', '-')}": value for name, value in options.items()})


def test_a_command_line_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "command.json"
    assert read_last_command(path) is None
    kept = command("--lr", "0.1", "data", grace_s="5")
    write_last_command(path, kept)
    assert read_last_command(path) == kept
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["command.json"]
    path.write_text("{}")
    assert read_last_command(path) is None
    with pytest.raises(BadInput, match="cannot be written"):
        write_last_command(tmp_path / "nowhere" / "command.json", kept)


SECRETS = [
    ("--api-key", "s3"),
    ("--hf_token=s3",),
    ("--password", "s3"),
    ("wandb.key=s3",),
    ("--client-secret", "s3", "s3"),
    ("--auth", "s3"),
    ("https://user:s3@host/data",),
]


@pytest.mark.parametrize("args", SECRETS, ids=[args[0] for args in SECRETS])
def test_secrets_are_not_kept(tmp_path: Path, args: tuple[str, ...]) -> None:
    write_last_command(tmp_path / "command.json", command(*args, "--lr", "1", token_file="/home/t"))
    kept = json.loads((tmp_path / "command.json").read_text())
    assert "s3" not in [word for arg in kept["args"] for word in arg.replace("=", " ").replace(":", " ").split()]
    assert kept["args"][-2:] == ["--lr", "1"]
    assert kept["options"] == {"--token-file": "***"}


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (command("--lr", "0.001"), command("--lr", "0.001"), ""),
        (command("--lr", "0.001"), command("--lr=0.001"), ""),
        (command("--lr", "0.001", "x"), command("--lr", "0.5", "x"), "--lr 0.001 x -> 0.5 x"),
        (command("x", "--lr", "1e-3"), command("y", "--lr", "1e-3"), "argument 1 x -> y"),
        (command("--amp"), command(), "--amp yes -> none"),
        (command(), command("--amp", "--shift", "-3"), "--amp none -> yes, --shift none -> -3"),
        (command("optim.lr=0.1", "--n=1"), command("optim.lr=0.2", "--n=1"), "optim.lr 0.1 -> 0.2"),
        (command("--add", "a", "--add", "b"), command("--add", "a"), "--add a b -> a"),
        (command("--token", "one"), command("--token", "two"), ""),
        (command(grace_s="5"), command(grace_s="9"), "--grace-s 5 -> 9"),
        (command(), command(script="/b/train.py"), "script /a/train.py -> /b/train.py"),
    ],
)
def test_every_argument_that_differs_is_named_with_both_values(
    before: CommandLine, now: CommandLine, changes: str
) -> None:
    assert describe_changes(before, now) == changes
