"""The writer of `pliant run`: bounded, in order, and never in the way of its callers."""

import fcntl
import io
import os
import select
import sys
import threading
import tty
from collections.abc import Iterator

import pytest

from pliant.cli.run import writer
from pliant.cli.run.writer import LineWriter, Stream

PIPE_BYTES = 4096


class Reader:
    """The reading end of a small pipe that a test makes its standard output."""

    def __init__(self) -> None:
        self.handle, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stdout = os.fdopen(writing, "w")
        self.found = b""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def text(self) -> str:
        """Everything that was written, once the writer is closed."""
        self.stdout.close()
        self._thread.join(20)
        return self.found.decode()

    def _read(self) -> None:
        while data := os.read(self.handle, 1 << 16):
            self.found += data


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    os.close(reader.handle)


def dropped(count: int) -> str:
    return f"{count} dropped"


def test_lines_that_do_not_fit_are_counted_and_the_jobs_own_still_fit(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", reader.stdout)
    monkeypatch.setattr(writer, "QUEUE_BYTES", 100_000)
    monkeypatch.setattr(writer, "WORKER_BYTES", 50_000)
    lines = LineWriter(dropped)
    for number in range(3000):
        lines.put(f"worker {number}", from_worker=True)
    lines.put("own")
    lines.close(limit_s=0.0)
    reader.start()
    lines.close(limit_s=20.0)
    *lines_before, last = reader.text().splitlines()
    notes = [line for line in lines_before if line.endswith(" dropped")]
    shown = [int(line.removeprefix("worker ")) for line in lines_before if line not in notes]
    assert notes
    assert shown == sorted(shown)
    assert len(shown) + sum(int(note.partition(" ")[0]) for note in notes) == 3000
    assert last == "own"


def test_closing_gives_up_on_a_reader_that_stopped(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", reader.stdout)
    lines = LineWriter(dropped)
    lines.put("x" * PIPE_BYTES * 2)
    lines.close(limit_s=0.05)  # returns
    reader.start()
    lines.close(limit_s=20.0)
    assert reader.text() == "x" * PIPE_BYTES * 2 + "\n"


def test_a_terminal_that_another_program_made_non_blocking_is_waited_for(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", reader.stdout)
    os.set_blocking(sys.stdout.fileno(), False)
    lines = LineWriter(dropped)
    for number in range(1000):
        lines.put(f"line {number}")
    reader.start()
    lines.close(limit_s=20.0)
    assert reader.text().splitlines() == [f"line {number}" for number in range(1000)]


def test_after_a_write_error_the_stream_is_silent_and_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            Closed.tries += 1
            raise BrokenPipeError

    errors = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setattr(sys, "stderr", errors)
    lines = LineWriter(dropped)
    lines.put("one")
    lines.put("two", Stream.ERR)
    lines.put("three")
    lines.put("four", Stream.ERR)
    lines.close()
    assert (Closed.tries, errors.getvalue()) == (1, "two\nfour\n")


def test_a_process_without_standard_output_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    lines = LineWriter(dropped)
    lines.put("one")
    assert not lines.is_terminal(Stream.OUT)
    lines.close(limit_s=20.0)


def test_a_bar_stands_below_the_lines_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, side = os.openpty()
    tty.setraw(side)  # no carriage returns of the terminal's own
    with os.fdopen(side, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(writer, "COLUMNS", 10)  # the size of a new terminal is 0
        monkeypatch.setattr(writer, "BAR_S", 0.0)
        lines = LineWriter(dropped)
        seen = b""

        def sees(text: bytes) -> None:
            nonlocal seen
            while text not in seen:
                ready, _, _ = select.select([terminal], [], [], 20.0)
                assert ready, f"{text!r} was not drawn: {seen!r}"
                seen += os.read(terminal, 1 << 12)

        lines.draw_bar("[a] 10% of all")
        sees(b"[a] 10% o")
        lines.put("line")
        sees(b"\r\x1b[Kline\n[a] 10% o")
        lines.draw_bar("[a] 20%")
        sees(b"\r\x1b[K[a] 20%")
        lines.draw_bar("")
        lines.put("last")
        lines.close(limit_s=20.0)
        sees(b"last\n")
    os.close(terminal)
    assert seen.endswith(b"\r\x1b[Klast\n")
    assert b"of all" not in seen
