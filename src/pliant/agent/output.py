"""What a child writes, cut into lines: whole ones, of bounded length, as soon as they are whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

READ = 1 << 16
LINE_MAX = 1 << 16  # what is longer is cut into lines of this length


class Lines:
    """Feed it bytes; it calls `line` with every line, without its end."""

    def __init__(self, line: Callable[[bytes], None]) -> None:
        self._line = line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        for each in whole:
            self._whole(each)
        while len(rest) > LINE_MAX:
            self._line(rest[:LINE_MAX])
            rest = rest[LINE_MAX:]
        self._rest = rest

    def end(self) -> None:
        """Call when there is no more: a last line may lack its end."""
        if self._rest:
            self._whole(self._rest)
            self._rest = b""

    def _whole(self, text: bytes) -> None:
        for start in range(0, len(text) or 1, LINE_MAX):
            self._line(text[start : start + LINE_MAX])


class Sink:
    """Where lines go: into a file, and on to `show`. A file that cannot be written is given up, and said so once.

    What is written must be read whatever happens, or the process that writes it waits for ever.
    """

    def __init__(self, path: Path, show: Callable[[bytes], None], complain: Callable[[str], None]) -> None:
        self._path = path
        self._show = show
        self._complain = complain
        self._handle: int | None = None
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error)

    def line(self, line: bytes) -> None:
        if self._handle is not None:
            try:
                os.write(self._handle, line + b"\n")
            except OSError as error:
                self._give_up(error)
        self._show(line)

    def end(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _give_up(self, error: OSError) -> None:
        self.end()
        self._complain(f"{self._path} cannot be written: {error.strerror}. What follows is not in it.")


class Reader:
    """Reads a pipe to its end in a thread of its own. Owns the handle."""

    def __init__(self, handle: int, sink: Sink) -> None:
        self._handle = handle
        self._sink = sink
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @property
    def reads(self) -> bool:
        return self._thread.is_alive()

    def wait(self, limit_s: float) -> None:
        """Until all was read, but not longer than this."""
        self._thread.join(limit_s)

    def _read(self) -> None:
        with os.fdopen(self._handle, "rb", buffering=0) as pipe:
            lines = Lines(self._sink.line)
            while data := pipe.read(READ):
                lines.feed(data)
            lines.end()
            self._sink.end()


def visible(line: bytes) -> str:
    """A line as a terminal would have left it: of what was overwritten, as progress bars do, the last."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text.rpartition("\r")[2]
