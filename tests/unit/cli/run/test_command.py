import io
import json
import sys
from pathlib import Path

import pytest

from pliant.cli.run.command import JsonScreen, PlainScreen
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import AgentId
from unit.cli.program import invoke
from unit.core.build import NOW, A, lines


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "PLIANT_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--job", "../x", "--workers", "1", "no.py"), "That is no job's name"),
        (("--job", "x", "--workers", "1"), "Which script?"),
        (("--job", "x", "--workers", "two", "no.py"), "'two' is not MIN:MAX"),
        (("--job", "x", "--workers", "1", "no.py", "--lr", "1"), "There is no script 'no.py'"),
        (("--job", "x", "--workers", "1", "--lr", "1", "no.py"), "No such option '--lr'"),
        (("--job", "x", "--workers", "1", "--grace-s", "-1", "no.py"), "not in the range"),
        (("--job", "x", "--workers", "1", "--token-file", "t", "-m", "no"), "name it with --coordinator"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is_started(home: Path, args: tuple[str, ...], why: str) -> None:
    done = invoke("run", *args)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert list(home.iterdir()) == []


def test_sizes_that_cannot_be_are_refused_and_leave_no_job(home: Path) -> None:
    (home / "x.py").touch()
    done = invoke("run", "--job", "x", "--workers", "4:2", str(home / "x.py"))
    assert done.code == 2
    assert "sizes must satisfy" in done.err


def test_people_see_who_says_it_and_events_as_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    screen.worker("vm-2.1", b"10%\r100% \x1b[1mdone\x1b[0m")
    screen.worker("vm-2.1", b"x" * 5000)
    screen.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    screen.event(4, m.HoldersChanged(NOW, 1, frozenset({A})))
    screen.event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 1)))
    screen.say("an agent's\x1bword")
    assert capsys.readouterr().out.splitlines() == [
        "[vm-2.1] 100% done",  # not a terminal: no colours
        f"[vm-2.1] {'x' * 4000} ... (1000 more characters, in its log)",
        "[pliant] agent vm has room for 2",
        "[pliant] an agent's\\x1bword",
    ]


def test_programs_see_one_object_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JsonScreen()
    screen.worker("vm-2.1", b'a "b" \xff')
    screen.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    screen.say("so it is")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"worker": "vm-2.1", "line": 'a "b" \ufffd'},
        {
            "revision": 3,
            "event": {
                "type": "AgentJoined",
                "at": NOW,
                "agent": "vm",
                "capacity": 2,
                "address": "",
                "install_id": "",
                "run_id": "",
            },
        },
        {"say": "so it is"},
    ]


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.cli.run.command.PROGRESS_S", 0.0)
    PlainScreen().event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 4)))
    assert capsys.readouterr().out == "[pliant] steps up to 4 are durable, said a of generation 1\n"


def test_a_sign_that_the_terminal_does_not_know_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    PlainScreen().worker("vm-2.1", "caf\u00e9".encode())
    assert written.getvalue() == b"[vm-2.1] caf?\n"


def test_once_nobody_reads_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            Closed.tries += 1
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    screen = PlainScreen()
    screen.say("one")
    tried = Closed.tries
    screen.say("two")
    assert Closed.tries == tried > 0
