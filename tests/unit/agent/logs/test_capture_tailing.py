"""Logs read by others, while they are written and moved aside."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.agent.job_dir import JobDir
from pliant.agent.logs import tail as tail_module
from pliant.agent.logs.rotate import LogFile, older
from pliant.agent.logs.tail import Tail, logs_in, place_of_logs


def handles() -> int:
    """Return how many files are open."""
    return len([*Path("/proc/self/fd").iterdir()])


def test_logs_are_where_the_agent_says(tmp_path: Path) -> None:
    folder = JobDir(tmp_path / "jobs" / "demo")
    assert place_of_logs(folder) == folder.logs
    folder.make()
    folder.logs_at.write_text(f"{tmp_path / 'else where'}\n")
    assert place_of_logs(folder) == tmp_path / "else where"
    for nothing in (b"\n", b"\xff"):
        folder.logs_at.write_bytes(nothing)
        assert place_of_logs(folder) == folder.logs


def test_members_logs_are_found_oldest_first_and_others_are_not(tmp_path: Path) -> None:
    assert logs_in(tmp_path / "none") == {}
    for age, name in enumerate(("vm-g2.0", "vm-12.3", "a.b-c-g10.11")):
        (tmp_path / f"{name}.log").touch()
        os.utime(tmp_path / f"{name}.log", (1000 - age, 1000 - age))
    for name in ("coordinator.log", "filtered_stdout.log", "vm-g2.0.log.1", "vm-g2.0.txt"):
        (tmp_path / name).touch()
    assert [*logs_in(tmp_path)] == ["a.b-c-g10.11", "vm-12.3", "vm-g2.0"]


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (None, [b"1", b"2", b"3", b"4"]),
        (0, []),
        (1, [b"4"]),
        (2, [b"3", b"4"]),
        (3, [b"2", b"3", b"4"]),
        (9, [b"1", b"2", b"3", b"4"]),
    ],
)
def test_the_last_lines_may_be_in_the_older_file(tmp_path: Path, count: int | None, lines: list[bytes]) -> None:
    path = tmp_path / "a.log"
    older(path).write_bytes(b"1\n2\n")
    path.write_bytes(b"3\n4\n")
    tail = Tail(path)
    assert [*tail.begin(count)] == lines
    assert [*tail.more()] == []
    with path.open("ab") as file:
        file.write(b"5\n")
    assert [*tail.more()] == [b"5"]
    assert [*tail.end()] == []


@given(
    st.lists(st.binary(max_size=5).filter(lambda line: not {*b"\r\n"} & {*line}), max_size=12),
    st.booleans(),
    st.integers(0, 14),
    st.integers(1, 7),
)
def test_the_last_lines_are_the_last_of_all(lines: list[bytes], ended: bool, count: int, block: int) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    path = folder / f"tailing-{os.getpid()}.log"
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(text)
    before, tail_module.BLOCK = tail_module.BLOCK, block
    try:
        tail = Tail(path)
        found = [*tail.begin(count), *tail.end()]
    finally:
        tail_module.BLOCK = before
        path.unlink()
    whole = text.split(b"\n")
    if whole[-1] == b"":
        whole.pop()
    assert found == whole[len(whole) - min(count, len(whole)) :]


def test_a_log_is_followed_when_it_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, pytest.fail, limit=30)
    written: list[bytes] = []

    def write(count: int) -> None:
        for _ in range(count):
            written.append(b"line %04d" % len(written))
            file.line(written[-1])

    tail = Tail(path)
    write(2)
    seen = [*tail.begin(None)]
    for count in (0, 1, 2, 3, 4, 3, 1):  # three lines fit into a file
        write(count)
        seen += tail.more()
        assert seen == written
    assert [*tail.end()] == []
    file.end()


def test_an_old_log_is_not_held_open_and_followed_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"old\n")
    os.utime(path, (1000, 1000))
    before = handles()
    tail = Tail(path)
    assert [*tail.begin(None)] == [b"old"]
    assert handles() == before
    with path.open("ab") as file:
        file.write(b"more\n")
    path.rename(older(path))
    path.write_bytes(b"new\n")
    assert [*tail.more()] == [b"more", b"new"]
    assert handles() == before + 1
    assert [*tail.end()] == []
    assert handles() == before


def test_one_that_was_moved_twice_between_two_looks_has_a_gap_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, pytest.fail, limit=30)
    file.line(b"line 0000")
    tail = Tail(path)
    assert [*tail.begin(None)] == [b"line 0000"]
    for number in range(1, 8):
        file.line(b"line %04d" % number)
    assert [*tail.more()] == [b"line %04d" % number for number in (1, 2, *range(3, 8))]  # what we hold is not lost
    for number in range(8, 18):
        file.line(b"line %04d" % number)
    assert [*tail.more()] == [b"line %04d" % number for number in (8, *range(12, 18))]
    assert [*tail.end()] == []
    file.end()


def test_half_a_line_waits_for_its_rest_and_one_that_is_taken_back_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    tail = Tail(path)
    assert [*tail.begin(None)] == [b"one"]
    os.truncate(path, 4)
    assert [*tail.more()] == []
    with path.open("ab") as file:
        file.write(b"three\nfo")
    assert [*tail.more()] == [b"three"]
    assert [*tail.end()] == [b"fo"]
    assert [*tail.end()] == []


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "a.log")
    assert [*tail.begin(3), *tail.more(), *tail.end()] == []
    (tmp_path / "a.log").write_bytes(b"now\n")
    assert [*tail.more()] == [b"now"]
    assert [*tail.end()] == []
