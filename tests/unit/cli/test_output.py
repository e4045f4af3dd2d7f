import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.cli.output import clean, format_age, format_size, local_time, print_table, short_path
from unit.cli.program import PLIANT, Done, Running

Pliant = Callable[..., Done]


def on_a_terminal(env: dict[str, str], *args: str) -> tuple[str, str]:
    """Return what a terminal of 60 columns is sent on standard output, and what goes to standard error."""
    ours, theirs = pty.openpty()
    env = {**env, "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen([PLIANT, *args], stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            shown += data
        assert process.stderr is not None
        err = process.stderr.read()
    os.close(ours)
    assert process.returncode == 0, err
    return shown.decode(), err.decode()


def test_a_table_is_plain_and_whole_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "why"), [("a", "x" * 300), ("longer", "[bold]")])
    assert capsys.readouterr().out == f"NAME    WHY\na       {'x' * 300}\nlonger  [bold]\n"


def test_a_table_is_drawn_on_a_terminal_and_loses_nothing(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "drawn", "--workers", "2:4")
    why = "a reason of more than sixty characters, [bold]which does not fit into one line[/bold]"
    pliant("cancel", "drawn", "--why", why)
    shown, _ = on_a_terminal(running.env(), "jobs")
    assert "cancelled" in shown
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()) <= 60
    words = "".join(line[line.find("0") + 1 :] if "drawn" in line else line for line in shown.splitlines())
    assert "".join(why.split()) in "".join(words.split())


def test_a_token_on_a_terminal_comes_with_a_warning(running: Running, pliant: Pliant) -> None:
    shown, err = on_a_terminal(running.env(), "token", "create", "--scope", "read")
    assert shown.startswith("pliant_")
    assert "this secret stays" in err


def test_a_path_below_the_home_is_written_as_people_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/person")
    assert short_path(Path("/person/state/token")) == "~/state/token"
    assert short_path(Path("/person-else/token")) == "/person-else/token"
    assert short_path(Path("relative")) == "relative"


def test_control_characters_are_shown_and_not_sent() -> None:
    assert clean("a\x1b]0;b\x07\n\u202ec\u00e9 \U0001f600") == "a\\x1b]0;b\\x07\\n\\u202ec\u00e9 \U0001f600"


def test_a_moment_that_no_calendar_has_is_shown_all_the_same() -> None:
    assert local_time(1e300) == "unknown time (invalid timestamp 1e+300)"
    assert local_time(-1e13) == "unknown time (invalid timestamp -1e+13)"
    assert len(local_time(1.8e9)) == len("2026-11-15 12:00:05")


def test_sizes_and_ages_are_those_of_people() -> None:
    assert [format_size(each) for each in (0, 999, 1000, 1.25e9, 2e12, 5e15)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.2 GB",
        "2.0 TB",
        "5000.0 TB",
    ]
    assert [format_age(each) for each in (-5, 3, 119, 120, 7199, 7200, 200_000)] == [
        "0 s",
        "3 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
        "2 d",
    ]
