"""The lines that `pliant run` prints, for people and for programs."""

import io
import json
import sys

import pytest

from pliant.cli.run.output import JsonOutput, PlainOutput
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import AgentId
from unit.core.build import NOW, A, lines


def test_people_see_who_says_it_and_events_as_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    output = PlainOutput()
    output.worker("vm-2.1", b"10%\r100% \x1b[1mdone\x1b[0m")
    output.worker("vm-2.1", b"x" * 5000)
    output.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    output.event(4, m.HoldersChanged(NOW, 1, frozenset({A})))
    output.event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 1)))
    output.say("an agent's\x1bword")
    output.close()
    assert capsys.readouterr().out.splitlines() == [
        "[vm-2.1] 100% done",  # not a terminal: no colours
        f"[vm-2.1] {'x' * 4000} ... (1000 more characters in the log)",
        "[pliant] agent vm joined (room for 2 workers)",
        "[pliant] an agent's\\x1bword",
    ]


def test_programs_see_one_object_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = JsonOutput()
    output.worker("vm-2.1", b'a "b" \xff')
    output.event(3, m.AgentJoined(NOW, AgentId("vm"), 2))
    output.say("so it is")
    output.close()
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
        {"message": "so it is"},
    ]


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.cli.run.output.PROGRESS_S", 0.0)
    output = PlainOutput()
    output.event(5, m.StepsCommitted(NOW, 1, A, lines(GENESIS, 1, 4)))
    output.close()
    assert capsys.readouterr().out == "[pliant] steps up to 4 are durable (reported by a in generation 1)\n"


def test_a_sign_that_the_terminal_does_not_know_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    output = PlainOutput()
    output.worker("vm-2.1", "caf\u00e9".encode())
    output.close()
    assert written.getvalue() == b"[vm-2.1] caf?\n"
