"""Logs of bounded size, on disks that are full and in folders that vanish."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pliant.agent.logs.rotate import LOOK_S, RETRY_S, LogFile, older, remove_oldest


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Disk:
    """A full disk for `os.write`: room for so many bytes, then none."""

    room: int = 1 << 30

    def __call__(self, handle: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        fits = data[: self.room]
        self.room -= len(fits)
        return os.pwrite(handle, fits, os.fstat(handle).st_size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    with monkeypatch.context() as patch:
        patch.setattr("pliant.agent.logs.rotate.os.write", found)
        yield found


def test_a_log_that_is_too_large_is_moved_aside_whole_and_one_older_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, pytest.fail, limit=30)
    for number in range(12):
        file.line(b"line %04d" % number)  # ten bytes each
    file.end()
    assert path.read_bytes() == b"line 0009\nline 0010\nline 0011\n"
    assert older(path) == tmp_path / "a.log.1"
    assert older(path).read_bytes() == b"line 0006\nline 0007\nline 0008\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_a_line_longer_than_the_limit_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, pytest.fail, limit=10)
    for _ in range(2):
        file.line(b"x" * 25)
    assert path.read_bytes() == older(path).read_bytes() == b"x" * 25 + b"\n"


def test_two_that_write_one_file_move_it_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lock = threading.Lock()
    one, two = (LogFile(path, pytest.fail, limit=30, lock=lock) for _ in range(2))
    for number in range(3):
        one.line(b"line %04d" % number)
    one.line(b"one moves")
    two.line(b"two finds")  # what it has open is full
    assert path.read_bytes() == b"one moves\ntwo finds\n"
    assert older(path).read_bytes() == b"line 0000\nline 0001\nline 0002\n"


def test_what_is_no_plain_file_is_never_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(path, pytest.fail, limit=5)
    file.line(b"longer than five")
    assert os.read(reading, 100) == b"longer than five\n"
    file.end()
    os.close(reading)


def test_a_link_that_another_user_may_have_put_there_is_not_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "a.log"
    precious.write_text("mine")
    path.symlink_to(precious)
    said: list[str] = []
    file = LogFile(path, said.append)
    file.line(b"a line")
    file.end()
    assert precious.read_text() == "mine"
    assert said == [
        f"{path} cannot be written: it is a symbolic link. What follows is not in it; it is tried again every 10 s."
    ]


def test_a_hard_link_that_another_user_may_have_put_there_is_not_written(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "a.log"
    precious.write_text("mine")
    path.hardlink_to(precious)
    said: list[str] = []
    file = LogFile(path, said.append)
    file.line(b"a line")
    file.end()
    assert precious.read_text() == "mine"
    assert "it is a hard link to another file" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_that_another_user_made_and_can_read_gets_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.touch(0o666)
    os.chown(path, 65534, 65534)
    said: list[str] = []
    file = LogFile(path, said.append)
    file.line(b"a secret of the user")
    file.end()
    assert path.read_bytes() == b""
    assert "it belongs to another user (uid 65534)" in said[0]


def test_a_pipe_that_no_process_reads_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    os.mkfifo(path)
    said: list[str] = []
    file = LogFile(path, said.append)
    file.line(b"a line")
    file.end()
    assert "it is a pipe that no process reads" in said[0]


def test_a_full_disk_is_told_once_and_the_log_goes_on_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    said: list[str] = []
    clock = Clock()
    path = tmp_path / "a.log"
    file = LogFile(path, said.append, now=clock)
    disk.room = 9
    file.line(b"first")
    file.line(b"second")  # there is room for half of it
    assert path.read_bytes() == b"first\n"
    (told,) = said
    assert told.startswith(f"{path} cannot be written: No space left on device. What follows is not in it; ")
    assert told.endswith(f"it is tried again every {RETRY_S:g} s.")
    file.line(b"third")
    clock.now += RETRY_S
    file.line(b"fourth")  # tried, and nothing has changed
    disk.room = 1000
    file.line(b"fifth")  # too early to try again
    assert (len(said), path.read_bytes()) == (1, b"first\n")
    clock.now += RETRY_S
    file.line(b"sixth")
    file.line(b"seventh")
    missing = len(b"second\nthird\nfourth\nfifth\n")
    assert said[1:] == [f"{path} can be written again and goes on; {missing} bytes are missing in it."]
    assert path.read_bytes() == b"first\n[pliant: %d bytes are missing here]\nsixth\nseventh\n" % missing


def test_a_disk_that_fills_up_again_is_told_again(tmp_path: Path, disk: Disk) -> None:
    said: list[str] = []
    clock = Clock()
    file = LogFile(tmp_path / "a.log", said.append, now=clock)
    for _ in range(2):
        disk.room = 0
        file.line(b"lost")
        clock.now += RETRY_S
        disk.room = 1000
        file.line(b"kept")
    assert ["cannot" in each for each in said] == [True, False, True, False]


def test_a_folder_that_vanishes_is_made_again_later(tmp_path: Path) -> None:
    said: list[str] = []
    clock = Clock()
    path = tmp_path / "logs" / "a.log"
    path.parent.mkdir()
    file = LogFile(path, said.append, now=clock)
    file.line(b"first")
    path.unlink()
    path.parent.rmdir()
    clock.now += LOOK_S
    file.line(b"second")
    assert "No such file or directory" in said[0]
    clock.now += RETRY_S
    file.line(b"third")
    assert path.read_bytes() == b"[pliant: 7 bytes are missing here]\nthird\n"
    assert len(said) == 2


def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "a.log"
    file = LogFile(path, pytest.fail, now=clock)
    file.line(b"first")
    path.rename(tmp_path / "elsewhere")
    file.line(b"second")
    clock.now += LOOK_S
    file.line(b"third")
    assert (tmp_path / "elsewhere").read_bytes() == b"first\nsecond\n"
    assert path.read_bytes() == b"third\n"


def test_after_its_end_nothing_is_written(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", pytest.fail)
    file.end()
    file.end()
    file.line(b"late")
    assert (tmp_path / "a.log").read_bytes() == b""


def test_of_many_workers_the_logs_written_last_are_kept_and_those_of_running_ones(tmp_path: Path) -> None:
    for number in range(10):
        for path in (tmp_path / f"w.{number}.log", tmp_path / f"w.{number}.log.1", tmp_path / f"w.{number}.txt"):
            path.write_text("x")
            os.utime(path, (number, number))
    remove_oldest(tmp_path, 4, ["w.0", "w.10"])
    left = ["w.0", "w.8", "w.9"]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{name}.log" for name in left]
    assert sorted(path.name for path in tmp_path.glob("*.log.1")) == [f"{name}.log.1" for name in left]
    assert len([*tmp_path.glob("*.txt")]) == 10
    remove_oldest(tmp_path, 4, ["w.0", "w.10"])
    remove_oldest(tmp_path / "missing", 4, [])
    assert len([*tmp_path.glob("*.log")]) == 3
