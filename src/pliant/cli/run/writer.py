"""Writes lines to the terminal or a pipe in one thread, so that a stopped reader stops nothing else."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from io import FileIO, UnsupportedOperation
from typing import Protocol, TextIO

QUEUE_BYTES = 8 << 20
WORKER_BYTES = QUEUE_BYTES // 2  # workers' lines leave room for the job's own
LINE_OVERHEAD = 100  # bytes that a queued line takes beyond its text
FLUSH_S = 2.0
BAR_S = 0.1  # a progress bar is drawn at most so often
COLUMNS = 80  # of a terminal that does not say
ERASE = b"\r\x1b[K"


class Stream(IntEnum):
    """The two streams of this process."""

    OUT = 1
    ERR = 2


class RawFile(Protocol):
    """A file without a buffer of its own."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes and return how many; None if it would block."""

    def fileno(self) -> int:
        """Return its file descriptor."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""


class LineWriter:
    """A bounded queue of lines and the thread that writes them. `put` never blocks; call `close` at the end.

    Lines that do not fit are dropped. Before the next line that fits, `describe_dropped` says how many were. After a
    write error the stream stays silent. On a terminal a progress bar may stand below the lines (`draw_bar`).
    """

    def __init__(self, describe_dropped: Callable[[int], str]) -> None:
        self._texts: dict[Stream, TextIO | None] = {Stream.OUT: sys.stdout, Stream.ERR: sys.stderr}
        self._files = {stream: open_raw(text) for stream, text in self._texts.items()}
        self._describe_dropped = describe_dropped
        self._queue: deque[tuple[Stream, bytes]] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._is_writing = False
        self._closed = False
        self._bar = ""
        self._drawn = ""
        self._drawn_at = 0.0
        self._bar_stream = next((stream for stream in Stream if self.is_terminal(stream)), None)
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="output writer", daemon=True).start()

    def is_terminal(self, stream: Stream) -> bool:
        file = self._files[stream]
        return file is not None and file.isatty()

    def put(self, text: str, stream: Stream = Stream.OUT, *, from_worker: bool = False) -> None:
        """Queue a line, or drop it if the queue is full."""
        data = self._encode(text, stream)
        with self._changed:
            limit = WORKER_BYTES if from_worker else QUEUE_BYTES
            if self._queued_bytes + len(data) + LINE_OVERHEAD > limit:
                self._dropped += 1
                return
            self._note_dropped()
            self._append(stream, data)
            self._changed.notify_all()

    def draw_bar(self, text: str) -> None:
        """Set the progress bar at the bottom of the terminal, without a newline; empty removes it."""
        if self._bar_stream is not None:
            with self._changed:
                self._bar = text
                self._changed.notify_all()

    def close(self, limit_s: float = FLUSH_S) -> None:
        """Write what is queued, for at most `limit_s`. May be called twice."""
        until = time.monotonic() + limit_s
        with self._changed:
            self._note_dropped()
            self._closed = True
            self._changed.notify_all()
            while (self._queue or self._is_writing) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _note_dropped(self) -> None:
        if self._dropped:
            text = self._describe_dropped(self._dropped)
            self._dropped = 0
            self._append(Stream.OUT, self._encode(text, Stream.OUT))

    def _append(self, stream: Stream, data: bytes) -> None:
        self._queue.append((stream, data))
        self._queued_bytes += len(data) + LINE_OVERHEAD

    def _encode(self, text: str, stream: Stream) -> bytes:
        """Return the bytes of a line; the terminal may lack some characters."""
        file = self._texts[stream]
        return f"{text}\n".encode((file.encoding if file is not None else None) or "utf-8", "replace")

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            if self._drawn and self._bar_stream is not None:
                self._write(self._bar_stream, ERASE)
            self._write(*taken)
            self._draw()
        if self._drawn and self._bar_stream is not None:
            self._write(self._bar_stream, ERASE)

    def _write(self, stream: Stream, data: bytes) -> None:
        file = self._files[stream]
        if file is not None and data:
            try:
                _write_all(file, data)
            except OSError:  # a closed pipe or terminal
                self._files[stream] = None

    def _draw(self) -> None:
        self._drawn, self._drawn_at = self._bar, time.monotonic()
        file = None if self._bar_stream is None else self._files[self._bar_stream]
        if self._drawn and file is not None and self._bar_stream is not None:
            shown = self._drawn[: _columns(file) - 1]  # a full line would scroll
            self._write(self._bar_stream, self._encode(shown, self._bar_stream).removesuffix(b"\n"))

    def _take(self) -> tuple[Stream, bytes] | None:
        """Wait for lines, and return the next ones of one stream; none if the bar is to be drawn; None at the end."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            while not self._queue and not self._closed:
                left = self._drawn_at + BAR_S - time.monotonic()
                if self._bar != self._drawn and left <= 0:
                    return Stream.OUT, b""
                self._changed.wait(left if self._bar != self._drawn else None)
            if not self._queue:
                return None
            stream = self._queue[0][0]
            lines = []
            while self._queue and self._queue[0][0] is stream:
                lines.append(self._queue.popleft()[1])
                self._queued_bytes -= len(lines[-1]) + LINE_OVERHEAD
            self._is_writing = True
            return stream, b"".join(lines)


def open_raw(text: TextIO | None) -> RawFile | None:
    """Return the file below a text stream: a writer that is stopped must not hold the lock of the stream's buffer."""
    if text is None:
        return None
    try:
        return FileIO(text.fileno(), "w", closefd=False)
    except UnsupportedOperation:
        return _TextInMemory(text)


class _TextInMemory:
    """A text stream without a file descriptor, as in a notebook."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._encoding = text.encoding or "utf-8"

    def write(self, data: memoryview, /) -> int:
        self._text.write(data.tobytes().decode(self._encoding))
        self._text.flush()
        return len(data)

    def fileno(self) -> int:
        return self._text.fileno()

    def isatty(self) -> bool:
        return False


def _columns(file: RawFile) -> int:
    try:
        return os.get_terminal_size(file.fileno()).columns or COLUMNS
    except OSError:  # the terminal has been closed
        return COLUMNS


def _write_all(file: RawFile, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = file.write(view)
        if written is None:  # another program has made the terminal non-blocking
            select.select([], [file], [])
        else:
            view = view[written:]
