"""The lines that `pliant run` prints, for people and for programs."""

import io
import json
import re
import sys

import pytest

from pliant.cli.run.output import JsonOutput, PlainOutput, Verbosity
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import AgentId
from unit.core.build import NOW, A, lines


def without_times(text: str) -> list[str]:
    return [re.sub(r"^(\[pliant\]) \d\d:\d\d:\d\d ", r"\1 TIME ", line) for line in text.splitlines()]


def test_people_see_who_says_it_and_events_as_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    output = PlainOutput(agent="own")
    output.worker("vm-2.1", b"10%\r100% \x1b[1mdone\x1b[0m")
    output.worker("vm-2.1", b"x" * 5000)
    output.event(3, m.AgentJoined(NOW, AgentId("own"), 2))
    output.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    output.event(4, m.HoldersChanged(NOW, 1, frozenset({A})))
    output.event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 1)))
    output.say("an agent's\x1bword")
    output.worker("vm-2.1", b"a warning", is_error=True)
    output.fail("it failed")
    output.close()
    shown = capsys.readouterr()
    assert without_times(shown.out) == [
        "[vm-2.1] 100% done",  # not a terminal: no colours
        f"[vm-2.1] {'x' * 4000} ... (1000 more characters in the log)",
        "[pliant] TIME agent vm joined (2 worker slots)",
        "[pliant] TIME an agent's\\x1bword",
    ]
    assert shown.err == "[vm-2.1] a warning\npliant: it failed\n"


def test_a_bar_is_not_drawn_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for output in (PlainOutput(), JsonOutput()):
        output.bar("vm-2.1", b"10%")
        output.bar("vm-2.1", b"")
        output.close()
    assert capsys.readouterr().out == ""


def test_programs_see_one_object_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = JsonOutput()
    output.worker("vm-2.1", b'a "b" \xff')
    output.worker("vm-2.1", b"c", is_error=True)
    output.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    output.say("so it is")
    output.close()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"worker": "vm-2.1", "stream": "stdout", "line": 'a "b" \ufffd'},
        {"worker": "vm-2.1", "stream": "stderr", "line": "c"},
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
                "role": "",
                "started": 0,
                "workers": [],
            },
        },
        {"message": "so it is"},
    ]


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.cli.run.output.PROGRESS_S", 0.0)
    output = PlainOutput(Verbosity.VERBOSE)
    output.event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 4)))
    output.close()
    assert without_times(capsys.readouterr().out) == [
        "[pliant] TIME steps up to 4 are committed (reported by a in generation 1)"
    ]


def test_quiet_shows_workers_and_problems_only(capsys: pytest.CaptureFixture[str]) -> None:
    output = PlainOutput(Verbosity.QUIET)
    output.worker("vm-2.1", b"loss 1")
    output.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    output.event(4, m.MemberGone(NOW, A, "lost", "its process ended with signal 9"))
    output.say("a note")
    output.warn("a warning")
    output.close()
    assert without_times(capsys.readouterr().out) == [
        "[vm-2.1] loss 1",
        "[pliant] TIME worker a was lost (its process ended with signal 9)",
        "[pliant] TIME a warning",
    ]


def test_a_sign_that_the_terminal_does_not_know_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    output = PlainOutput()
    output.worker("vm-2.1", "caf\u00e9".encode())
    output.close()
    assert written.getvalue() == b"[vm-2.1] caf?\n"
