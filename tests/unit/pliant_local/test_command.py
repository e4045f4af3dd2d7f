"""`pliant local`: which words are its own, which are for `pliant run`, and what is shown of what agents write."""

from pathlib import Path

import click
import pytest

from pliant.cli.run.command import run
from pliant_local.command import JsonSandboxOutput, PlainSandboxOutput, local, parse_agent_line, split
from unit.cli.program import invoke


def names(command: click.Command) -> set[str]:
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}


@pytest.mark.parametrize(
    ("args", "own", "rest"),
    [
        ("--agents 3 train.py", "--agents 3", "train.py"),
        ("--workers 1:6 --agents 3 --for 60 train.py --lr 3", "--agents 3 --for 60", "--workers 1:6 train.py --lr 3"),
        ("--agents=3 --workers=1:6 train.py", "--agents=3", "--workers=1:6 train.py"),
        ("--nproc_per_node 2 --lease_ttl_s 3 train.py", "--lease-ttl-s 3", "--nproc-per-node 2 train.py"),
        ("--log_dir=a_b --name=x_y my_train.py --a_b", "--name=x_y", "--log-dir=a_b my_train.py --a_b"),
        ("-m --agents 3 my.module --agents 9", "--agents 3", "-m my.module --agents 9"),
        ("--agents 3 -- --workers 2 --json train.py", "--agents 3", "--workers 2 --json train.py"),
        ("--json train.py --json", "--json", "train.py --json"),
        ("-t3 --agent-schedule 0:1 train.py", "--agent-schedule 0:1", "-t3 train.py"),
        ("-t 3 --name x train.py", "--name x", "-t 3 train.py"),
        ("--strange --agents 3 train.py", "--agents 3", "--strange train.py"),
        ("-h", "-h", ""),
        ("--agents", "--agents", ""),
        ("--agents 2 - x", "--agents 2", "- x"),
        ("", "", ""),
    ],
)
def test_options_of_both_may_stand_in_any_order_before_the_script(args: str, own: str, rest: str) -> None:
    assert split(args.split(), local.params, run.params) == (own.split(), tuple(rest.split()))


def test_no_option_is_both_ours_and_theirs() -> None:
    assert names(local) & names(run) == {"--json"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--agents", "0", "x.py"), "--agents must be from 1 to 64"),
        (("--agents", "two", "x.py"), "'two' is not a valid integer"),
        (("--agent-schedule", "10", "x.py"), "'10' is not SECOND:AGENTS"),
        (("--agents", "2", "missing.py"), "There is no script 'missing.py'"),
        (("--agents", "2"), "No script given"),
        (("--strange", "x.py"), "--strange"),
        (("--name", "a/b", "-m", "this"), "Invalid --name"),
        (("--coordinator", "http://x:1", "-m", "this"), "`pliant local` starts its own coordinator"),
        (("cut",), "Missing argument 'AGENT'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_started(
    args: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    monkeypatch.delenv("PLIANT_JOB", raising=False)
    done = invoke("local", *args)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_command_to_a_cluster_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    for command in (("add",), ("remove",), ("kill", "x"), ("cut", "x"), ("heal", "x"), ("list",)):
        done = invoke("local", *command, "--name", "other")
        assert (done.code, done.out) == (3, "")
        assert "No sandbox named 'other' is running" in done.err


def test_help_has_everything() -> None:
    out = invoke("local", "--help").out
    for text in ("--agents", "--agent-schedule", "--for", "--network", "heal", "Usage: pliant local [OPTIONS]"):
        assert text in out


def test_what_agents_write_is_shown_once_and_with_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        b'{"worker":"agent-1-g1.0","line":"step 1"}',
        b'{"message":"hello"}',
        b'{"revision":1,"event":{}}',
        b"[1]",
        b"oh \xff",
    ]
    for told in (PlainSandboxOutput(), JsonSandboxOutput()):
        for line in lines:
            told.agent("agent-1", line)
        told.close()
    assert capsys.readouterr().out.splitlines() == [
        "[agent-1-g1.0] step 1",
        "[agent-1] hello",
        "[agent-1] [1]",
        "[agent-1] oh \ufffd",
        '{"agent": "agent-1", "worker": "agent-1-g1.0", "line": "step 1"}',
        '{"agent": "agent-1", "message": "hello"}',
        '{"agent": "agent-1", "message": "[1]"}',
        '{"agent": "agent-1", "message": "oh \\ufffd"}',
    ]
    assert parse_agent_line(b"null") == {"message": "null"}
