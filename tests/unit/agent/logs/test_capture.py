import os
from pathlib import Path

import pytest

from pliant.agent.logs.capture import LINE_MAX, LineSplitter, OutputReader, OutputSink, visible


def fed(*pieces: bytes) -> list[bytes]:
    found: list[bytes] = []
    lines = LineSplitter(found.append)
    for piece in pieces:
        lines.feed(piece)
    lines.end()
    return found


def test_lines_are_whole_however_they_arrive() -> None:
    assert fed(b"one\ntw", b"o", b"\n\nthree\n") == [b"one", b"two", b"", b"three"]
    assert fed(b"\r\n") == [b"\r"]
    assert fed() == []


def test_a_last_line_may_lack_its_end() -> None:
    assert fed(b"one\ntwo") == [b"one", b"two"]


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_line_without_end_is_cut_and_nothing_of_it_is_lost(pieces: int) -> None:
    text = bytes(range(1, 9)) * (LINE_MAX // 2)
    size = -(-len(text) // pieces)
    found = fed(*(text[start : start + size] for start in range(0, len(text), size)), b"\nnext\n")
    assert found.pop() == b"next"
    assert b"".join(found) == text.replace(b"\n", b"")
    assert all(len(line) <= LINE_MAX for line in found)


def test_a_progress_bar_is_told_state_by_state_and_its_line_is_the_last() -> None:
    found: list[bytes] = []
    states: list[bytes] = []
    lines = LineSplitter(found.append, states.append)
    for piece in (b"begin\n\r 10", b"%\r", b" 20%", b"\r100%\nplain\npart", b"ial"):
        lines.feed(piece)
    assert states == [b" 10", b" 10%", b" 20%", b""]
    lines.feed(b"\r1\r2")
    lines.end()
    assert states[4:] == [b"2", b""]
    assert found == [b"begin", b"100%", b"plain", b"2"]


def test_a_bar_of_any_length_takes_the_room_of_one_state() -> None:
    found: list[bytes] = []
    lines = LineSplitter(found.append)
    for number in range(20_000):
        lines.feed(b"\r%06d" % number)
    assert found == []
    lines.feed(b"\n")
    assert found == [b"019999"]


def test_of_a_progress_bar_the_last_is_seen() -> None:
    assert visible(b"10%\r20%\r100%") == "100%"
    assert visible(b"10%\r100%\r") == "100%"
    assert visible(b"windows\r") == "windows"
    assert visible(b"caf\xc3\xa9 \xff") == "caf\u00e9 \ufffd"


def test_what_is_read_goes_into_the_file_and_on(tmp_path: Path) -> None:
    shown: list[bytes] = []
    complaints: list[str] = []
    reading, writing = os.pipe()
    reader = OutputReader(reading, OutputSink(tmp_path / "log", shown.append, complaints.append))
    os.write(writing, b"one\ntwo")
    os.close(writing)
    reader.wait(20)
    assert not reader.reads
    assert (shown, complaints) == ([b"one", b"two"], [])
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    for _ in range(2):
        sink = OutputSink(tmp_path / "log", lambda _: None, lambda _: None)
        sink.line(b"again")
        sink.end()
        sink.end()
    assert (tmp_path / "log").read_bytes() == b"again\nagain\n"


@pytest.mark.parametrize("place", ["no/such/folder", "/dev/full"])
def test_a_log_that_cannot_be_written_is_told_once_and_lines_go_on(tmp_path: Path, place: str) -> None:
    shown: list[bytes] = []
    complaints: list[str] = []
    sink = OutputSink(tmp_path / place, shown.append, complaints.append)
    for line in (b"one", b"two"):
        sink.line(line)
    sink.end()
    assert shown == [b"one", b"two"]
    (complaint,) = complaints
    assert complaint.startswith(f"{tmp_path / place} cannot be written: ")
