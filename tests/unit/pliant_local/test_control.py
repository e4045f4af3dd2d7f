"""Requests to a running sandbox: one object each way, for its owner alone."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pliant.errors import PliantError, Refused
from pliant_local.control import LINE_MAX, Control, ask, claimed, forget


def echo(question: dict[str, Any]) -> dict[str, Any]:
    return {"ok": question["do"] == "yes", "why": f"you said {question['do']}"}


def raw(folder: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "control"))
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        answer: dict[str, Any] = json.loads(line.makefile().readline())
        return answer


def test_a_question_is_answered_and_a_no_is_a_refusal(tmp_path: Path) -> None:
    with Control(tmp_path, echo):
        assert ask(tmp_path, {"do": "yes"}) == {"ok": True, "why": "you said yes"}
        with pytest.raises(Refused, match="you said no"):
            ask(tmp_path, {"do": "no"})
        assert (tmp_path / "control").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "control").exists()


@pytest.mark.parametrize("data", [b"", b"\n", b"yes\n", b"[]\n", b"{}\n", b'{"do": 1}\n', b'{"do": "yes"}', b"\xff\n"])
def test_what_is_no_question_is_told_so(tmp_path: Path, data: bytes) -> None:
    with Control(tmp_path, echo):
        answer = raw(tmp_path, data)
        assert not answer["ok"]
        assert "invalid request" in answer["why"]
        assert ask(tmp_path, {"do": "yes"})["ok"], "and the next one is answered"


def test_a_question_without_end_is_not_kept(tmp_path: Path) -> None:
    with Control(tmp_path, echo):
        assert "line too long" in raw(tmp_path, b"x" * (LINE_MAX + 8192))["why"]


def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    assert len(str(folder)) > 108, "more than the name of a socket may have"
    with Control(folder, echo):
        assert ask(folder, {"do": "yes"})["ok"]


def test_where_nobody_listens_it_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(Refused, match=f"No sandbox named '{folder.name}' is running"):
            ask(folder, {"do": "yes"})
    (tmp_path / "control").touch()  # left over
    with pytest.raises(Refused, match="No sandbox named"):
        ask(tmp_path, {"do": "yes"})
    with Control(tmp_path, echo):
        assert ask(tmp_path, {"do": "yes"})["ok"], "what is left over is no trouble"


def test_an_answer_that_never_comes_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "control"))
        mute.listen()
        closing = threading.Thread(target=lambda: mute.accept()[0].close())
        closing.start()
        with pytest.raises(PliantError, match=r"did not answer: .* It may have just ended"):
            ask(tmp_path, {"do": "yes"})
        closing.join()
    forget(tmp_path)
    forget(tmp_path)
    assert not (tmp_path / "control").exists()


def test_a_cluster_has_its_folder_for_itself(tmp_path: Path) -> None:
    folder = tmp_path / "local" / "mine"
    with claimed(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Refused, match="A sandbox named 'mine' is already running"), claimed(folder):
            pass
    with claimed(folder):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(PliantError, match="Cannot use"), claimed(tmp_path / "file" / "below"):
        pass
