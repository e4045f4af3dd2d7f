"""Capture a child's output: split it into lines, write them to bounded files, show them, and keep the last ones."""

from __future__ import annotations

import os
import re
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntFlag
from functools import partial
from pathlib import Path

from pliant.agent.logs.rotate import LogFile
from pliant.errors import BadInput

READ = 1 << 16
LINE_MAX = 1 << 16  # longer lines are split
TAIL_LINES = 1000
TAIL_BYTES = 1 << 18


class OutputStream(IntFlag):
    """torchrun's numbers for a worker's streams; ALL is also the stream of one pipe for both."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


# ------------------------------------------------------------------------------------------- what is to be done with it


@dataclass(frozen=True, slots=True)
class StreamMask:
    """A selection of streams in torchrun's notation, for all local ranks or for some."""

    every: OutputStream = OutputStream.NONE
    by_rank: tuple[tuple[int, OutputStream], ...] = ()

    @classmethod
    def parse(cls, text: str) -> StreamMask:
        """`3`, or `0:1,1:2`: local rank and number. BadInput if it is neither."""
        if text in _NUMBERS:
            return cls(OutputStream(int(text)))
        pairs = [pair.partition(":") for pair in text.split(",")]
        if not all(_RANK.fullmatch(rank) and bits in _NUMBERS for rank, _, bits in pairs):
            raise BadInput(
                f"{text!r} does not say which streams: 0 for none, 1 for standard output, 2 for standard error, 3 for "
                "both; or that for single local ranks, 0:3,1:2 for instance."
            )
        ranks = {int(rank): OutputStream(int(bits)) for rank, _, bits in pairs}
        if len(ranks) < len(pairs):
            raise BadInput(f"{text!r} names a local rank twice.")
        return cls(by_rank=tuple(sorted(ranks.items())))

    def has(self, local_rank: int, stream: OutputStream) -> bool:
        """Return whether any of these streams is selected."""
        return bool(dict(self.by_rank).get(local_rank, self.every) & stream)


_NUMBERS = frozenset("0123")
_RANK = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Destinations of workers' lines, from torchrun's flags. `log_dir` None is the job's folder, /dev/null no files.

    Without flags everything is shown and written to a file. Unlike with torchrun, lines that are only shown are in the
    file too, so that `pliant logs` and a failure's traceback have them.
    """

    log_dir: Path | None = None
    redirects: StreamMask = StreamMask()
    tee: StreamMask = StreamMask()
    shown: frozenset[int] | None = None  # None: every local rank
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()

    def shows(self, local_rank: int, stream: OutputStream) -> bool:
        """Return whether the stream is shown to the user."""
        if self.shown is not None and local_rank not in self.shown:
            return False
        return not self.redirects.has(local_rank, stream) or self.tee.has(local_rank, stream)

    def files(self, local_rank: int, stream: OutputStream) -> bool:  # noqa: ARG002  # asked as `shows` is
        """Return whether the stream is written to the worker's file."""
        return self.keeps

    @property
    def keeps(self) -> bool:
        """True if lines are written to files."""
        return self.log_dir != Path(os.devnull)

    def path(self, folder: Path, member: str) -> Path | None:
        """Return a worker's file; `folder` is used if there is no `log_dir`."""
        return (self.log_dir or folder) / f"{member}.log" if self.keeps else None

    def filters(self, local_rank: int, stream: OutputStream) -> tuple[str, ...]:
        """Return the words that select lines to copy. As with torchrun, they must be shown and in a file."""
        if not (self.shows(local_rank, stream) and self.files(local_rank, stream)):
            return ()
        return self.stdout_filters if stream is OutputStream.OUT else self.stderr_filters

    def needs_two_pipes(self, local_rank: int) -> bool:
        """Return whether the streams are shown in different ways; otherwise one pipe keeps their order."""
        return self.shows(local_rank, OutputStream.OUT) or self.shows(local_rank, OutputStream.ERR)

    def sink(
        self,
        folder: Path,
        member: str,
        local_rank: int,
        show: Callable[[bytes], None],
        complain: Callable[[str], None],
        show_error: Callable[[bytes], None] | None = None,
        show_bar: Callable[[bytes, OutputStream], None] | None = None,
    ) -> OutputSink:
        """Return the sink of a worker; `folder` as for `path`, `show_error` and `show_bar` as for `OutputSink`."""
        place, kept = self.log_dir or folder, self.path(folder, member)
        if kept is not None:
            with suppress(OSError):  # writing reports the error
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        streams = (OutputStream.OUT, OutputStream.ERR)
        shown = OutputStream(sum(each for each in streams if self.shows(local_rank, each)))
        copies = [
            _Copy(stream, words, member, LogFile(place / name, complain, lock=_SHARED))
            for stream, name in zip(streams, FILTERED, strict=True)
            if (words := self.filters(local_rank, stream))
        ]
        two_pipes = self.needs_two_pipes(local_rank)
        return OutputSink(
            kept,
            show,
            complain,
            show_error=show_error,
            show_bar=show_bar,
            shown=shown,
            copies=copies,
            two_pipes=two_pipes,
        )


_SHARED = threading.Lock()  # all workers' sinks write to the same copies
FILTERED = ("filtered_stdout.log", "filtered_stderr.log")  # torchrun's names


# ------------------------------------------------------------------------------------------------------------- lines


class LineSplitter:
    """Splits bytes into lines and calls `line` with each, without its newline.

    Of a progress bar, which overwrites its line with carriage returns, `bar` gets each state, and an empty one when the
    line ends. The line is its last state.
    """

    def __init__(self, line: Callable[[bytes], None], bar: Callable[[bytes], None] = lambda _: None) -> None:
        self._line = line
        self._bar = bar
        self._rest = b""
        self._is_bar = False

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        for each in whole:
            self._whole(each)
        state = _last_state(rest)
        if state != rest:
            self._is_bar = True
        while len(state) > LINE_MAX:
            self._line(state[:LINE_MAX])
            state = state[LINE_MAX:]
        self._rest = state
        if self._is_bar:
            self._bar(state.rstrip(b"\r"))

    def end(self) -> None:
        """Deliver the last line, which may lack its newline."""
        if self._rest:
            self._whole(self._rest)
            self._rest = b""

    def _whole(self, text: bytes) -> None:
        if self._is_bar:
            self._is_bar = False
            self._bar(b"")
        state = _last_state(text)
        for start in range(0, len(state) or 1, LINE_MAX):
            self._line(state[start : start + LINE_MAX])


def _last_state(text: bytes) -> bytes:
    """Return what the last carriage return left of a line; one at its end overwrites nothing yet."""
    body = text.rstrip(b"\r")
    return body.rpartition(b"\r")[2] + text[len(body) :]


@dataclass(frozen=True, slots=True)
class _Copy:
    """Copies lines with certain words, of all workers, to one file."""

    stream: OutputStream
    words: tuple[str, ...]
    member: str
    file: LogFile

    def line(self, line: bytes, stream: OutputStream) -> None:
        if self.stream & stream and any(word.encode() in line for word in self.words):
            self.file.line(b"[%s] %s" % (self.member.encode(), line))


class OutputSink:
    """Writes a worker's lines to a file and to `show`, and keeps the last of them.

    The output must be read whatever happens, or the process that writes it blocks. `show_error` gets the lines of a
    standard error with a pipe of its own; None: `show`. `show_bar` gets the states of progress bars.
    """

    def __init__(
        self,
        path: Path | None,
        show: Callable[[bytes], None],
        complain: Callable[[str], None],
        *,
        show_error: Callable[[bytes], None] | None = None,
        show_bar: Callable[[bytes, OutputStream], None] | None = None,
        shown: OutputStream = OutputStream.ALL,
        copies: Sequence[_Copy] = (),
        two_pipes: bool = False,
    ) -> None:
        self._show = show
        self._show_error = show_error or show
        self._show_bar = show_bar
        self._shown = shown
        self._file = None if path is None else LogFile(path, complain)
        self._copies = copies
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.two_pipes = two_pipes  # True: the process gets one pipe for each stream; False: one for both
        self.written = 0  # bytes so far, also those that are no whole line yet

    def count(self, count: int) -> None:
        """Add to the number of bytes read."""
        self.written += count

    def line(self, line: bytes, stream: OutputStream = OutputStream.ALL) -> None:
        if self._file is not None:
            self._file.line(line)
        for copy in self._copies:
            copy.line(line, stream)
        self._remember(line)
        if self._shown & stream:
            (self._show_error if stream is OutputStream.ERR else self._show)(line)

    def bar(self, state: bytes, stream: OutputStream = OutputStream.ALL) -> None:
        """Show the state of a progress bar, which is not a line yet; empty: its line has ended."""
        if self._show_bar is not None and self._shown & stream:
            self._show_bar(state, stream)

    def tail(self) -> tuple[bytes, ...]:
        """Return the last lines, at most `TAIL_LINES` and `TAIL_BYTES`. Safe from any thread."""
        with self._lock:
            return tuple(self._last)

    def end(self) -> None:
        """Close the files once there is no more output."""
        if self._file is not None:
            self._file.end()
        for copy in self._copies:
            copy.file.end()
        self._ended.set()

    def wait(self, limit_s: float) -> bool:
        """Wait for the end of the output, at most `limit_s`; return whether it came."""
        return self._ended.wait(limit_s)

    def _remember(self, line: bytes) -> None:
        with self._lock:
            self._last.append(line)
            self._last_bytes += len(line)
            while len(self._last) > TAIL_LINES or self._last_bytes > TAIL_BYTES:
                self._last_bytes -= len(self._last.popleft())


class OutputReader:
    """Reads a process's output to its end, in a thread of its own. Owns the handles.

    `errors` is the pipe of standard error, if it has its own (`OutputSink.two_pipes`).
    """

    def __init__(self, handle: int, sink: OutputSink, errors: int | None = None) -> None:
        self._handle = handle
        self._errors = errors
        self._sink = sink
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @property
    def reads(self) -> bool:
        return self._thread.is_alive()

    def wait(self, limit_s: float) -> None:
        """Wait until all output was read, at most `limit_s`."""
        self._thread.join(limit_s)

    def _read(self) -> None:
        if self._errors is None:
            self._read_one(self._handle)
        else:
            self._read_both(self._handle, self._errors)
        self._sink.end()

    def _read_one(self, handle: int) -> None:
        with os.fdopen(handle, "rb", buffering=0) as pipe:
            lines = LineSplitter(self._sink.line, self._sink.bar)
            while data := pipe.read(READ):
                self._sink.count(len(data))
                lines.feed(data)
            lines.end()

    def _read_both(self, out: int, err: int) -> None:
        with selectors.DefaultSelector() as ready:
            for handle, stream in ((out, OutputStream.OUT), (err, OutputStream.ERR)):
                lines = LineSplitter(partial(self._sink.line, stream=stream), partial(self._sink.bar, stream=stream))
                ready.register(handle, selectors.EVENT_READ, lines)
            while ready.get_map():
                for key, _ in ready.select():
                    data = os.read(key.fd, READ)
                    self._sink.count(len(data))
                    key.data.feed(data)
                    if not data:
                        key.data.end()
                        ready.unregister(key.fd)
                        os.close(key.fd)


def visible(line: bytes) -> str:
    """Return a line as a terminal shows it: text after the last carriage return, as progress bars write it."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text.rpartition("\r")[2]
