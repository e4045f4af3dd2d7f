"""What a child writes: cut into lines, kept in files of bounded size, shown or not, and its end remembered."""

from __future__ import annotations

import os
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
LINE_MAX = 1 << 16  # what is longer is cut into lines of this length
TAIL_LINES = 1000
TAIL_BYTES = 1 << 18


class Stream(IntFlag):
    """torchrun's numbers for the streams of a worker; ALL is also what comes through one pipe for both."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


# ------------------------------------------------------------------------------------------- what is to be done with it


@dataclass(frozen=True, slots=True)
class Mask:
    """Which streams something is asked for, as torchrun writes it: of all local ranks, or of some of them."""

    every: Stream = Stream.NONE
    by_rank: tuple[tuple[int, Stream], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mask:
        """`3`, or `0:1,1:2`: local rank and number. BadInput if it is neither."""
        if text in _NUMBERS:
            return cls(Stream(int(text)))
        pairs = [pair.partition(":") for pair in text.split(",")]
        if not all(rank.isdecimal() and bits in _NUMBERS for rank, _, bits in pairs):
            raise BadInput(
                f"{text!r} does not say which streams: 0 for none, 1 for standard output, 2 for standard error, 3 for "
                "both; or that for single local ranks, 0:3,1:2 for instance."
            )
        ranks = {int(rank): Stream(int(bits)) for rank, _, bits in pairs}
        if len(ranks) < len(pairs):
            raise BadInput(f"{text!r} names a local rank twice.")
        return cls(by_rank=tuple(sorted(ranks.items())))

    def has(self, local_rank: int, stream: Stream) -> bool:
        """Whether any of these streams is asked for."""
        return bool(dict(self.by_rank).get(local_rank, self.every) & stream)


_NUMBERS = frozenset("0123")


@dataclass(frozen=True, slots=True)
class Logs:
    """Where workers' lines go, by torchrun's flags. `log_dir` None is the job's own folder; /dev/null keeps no files.

    Without flags everything is shown and in a file. Unlike torchrun's, a file has also what is shown alone there, so
    that `pliant logs` and a failure's traceback have it.
    """

    log_dir: Path | None = None
    redirects: Mask = Mask()
    tee: Mask = Mask()
    shown: frozenset[int] | None = None  # None: every local rank
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()

    def shows(self, local_rank: int, stream: Stream) -> bool:
        """Whether it is to be seen on the screen."""
        if self.shown is not None and local_rank not in self.shown:
            return False
        return not self.redirects.has(local_rank, stream) or self.tee.has(local_rank, stream)

    def files(self, local_rank: int, stream: Stream) -> bool:  # noqa: ARG002  # asked as `shows` is
        """Whether it goes into the worker's file."""
        return self.keeps

    @property
    def keeps(self) -> bool:
        """Whether there are files at all."""
        return self.log_dir != Path(os.devnull)

    def path(self, folder: Path, member: str) -> Path | None:
        """A worker's file; `folder` is where logs are if `log_dir` does not say otherwise."""
        return (self.log_dir or folder) / f"{member}.log" if self.keeps else None

    def filters(self, local_rank: int, stream: Stream) -> tuple[str, ...]:
        """A line with one of these is copied. As torchrun does, only what is both shown and in a file is looked at."""
        if not (self.shows(local_rank, stream) and self.files(local_rank, stream)):
            return ()
        return self.stdout_filters if stream is Stream.OUT else self.stderr_filters

    def needs_two_pipes(self, local_rank: int) -> bool:
        """Whether it matters which stream a line came from; if not, one pipe keeps the order of both."""
        if any(self.filters(local_rank, each) for each in (Stream.OUT, Stream.ERR)):
            return True
        return self.shows(local_rank, Stream.OUT) != self.shows(local_rank, Stream.ERR)

    def sink(
        self,
        folder: Path,
        member: str,
        local_rank: int,
        show: Callable[[bytes], None],
        complain: Callable[[str], None],
    ) -> Sink:
        """Where this worker's lines go; `folder` as for `path`."""
        place, kept = self.log_dir or folder, self.path(folder, member)
        if kept is not None:
            with suppress(OSError):  # writing says what is wrong
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        streams = (Stream.OUT, Stream.ERR)
        shown = Stream(sum(each for each in streams if self.shows(local_rank, each)))
        copies = [
            _Copy(stream, words, member, LogFile(place / name, complain, lock=_SHARED))
            for stream, name in zip(streams, FILTERED, strict=True)
            if (words := self.filters(local_rank, stream))
        ]
        return Sink(kept, show, complain, shown=shown, copies=copies, two_pipes=self.needs_two_pipes(local_rank))


_SHARED = threading.Lock()  # all workers' sinks write the same of these
FILTERED = ("filtered_stdout.log", "filtered_stderr.log")  # torchrun's names


# ------------------------------------------------------------------------------------------------------------- lines


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


@dataclass(frozen=True, slots=True)
class _Copy:
    """Lines with certain words, of all workers, in one file."""

    stream: Stream
    words: tuple[str, ...]
    member: str
    file: LogFile

    def line(self, line: bytes, stream: Stream) -> None:
        if self.stream & stream and any(word.encode() in line for word in self.words):
            self.file.line(b"[%s] %s" % (self.member.encode(), line))


class Sink:
    """Where a worker's lines go: into a file, and on to `show`. The last of them are remembered.

    What is written must be read whatever happens, or the process that writes it waits for ever.
    """

    def __init__(
        self,
        path: Path | None,
        show: Callable[[bytes], None],
        complain: Callable[[str], None],
        *,
        shown: Stream = Stream.ALL,
        copies: Sequence[_Copy] = (),
        two_pipes: bool = False,
    ) -> None:
        self._show = show
        self._shown = shown
        self._file = None if path is None else LogFile(path, complain)
        self._copies = copies
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.two_pipes = two_pipes  # whoever starts the process gives it one pipe for each stream, else one for both
        self.written = 0  # bytes so far, also those that are no whole line yet

    def heard(self, count: int) -> None:
        """So many bytes arrived."""
        self.written += count

    def line(self, line: bytes, stream: Stream = Stream.ALL) -> None:
        if self._file is not None:
            self._file.line(line)
        for copy in self._copies:
            copy.line(line, stream)
        self._remember(line)
        if self._shown & stream:
            self._show(line)

    def tail(self) -> tuple[bytes, ...]:
        """The last lines, at most `TAIL_LINES` and `TAIL_BYTES`. From any thread."""
        with self._lock:
            return tuple(self._last)

    def end(self) -> None:
        """Call when there is no more."""
        if self._file is not None:
            self._file.end()
        for copy in self._copies:
            copy.file.end()
        self._ended.set()

    def wait(self, limit_s: float) -> bool:
        """Until there is no more, but not longer than this; whether it is so."""
        return self._ended.wait(limit_s)

    def _remember(self, line: bytes) -> None:
        with self._lock:
            self._last.append(line)
            self._last_bytes += len(line)
            while len(self._last) > TAIL_LINES or self._last_bytes > TAIL_BYTES:
                self._last_bytes -= len(self._last.popleft())


class Reader:
    """Reads what a process writes to its end, in a thread of its own. Owns the handles.

    `errors` is the second pipe, if standard error has one of its own (`Sink.two_pipes`).
    """

    def __init__(self, handle: int, sink: Sink, errors: int | None = None) -> None:
        self._handle = handle
        self._errors = errors
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
        if self._errors is None:
            self._read_one(self._handle)
        else:
            self._read_both(self._handle, self._errors)
        self._sink.end()

    def _read_one(self, handle: int) -> None:
        with os.fdopen(handle, "rb", buffering=0) as pipe:
            lines = Lines(self._sink.line)
            while data := pipe.read(READ):
                self._sink.heard(len(data))
                lines.feed(data)
            lines.end()

    def _read_both(self, out: int, err: int) -> None:
        with selectors.DefaultSelector() as ready:
            for handle, stream in ((out, Stream.OUT), (err, Stream.ERR)):
                ready.register(handle, selectors.EVENT_READ, Lines(partial(self._sink.line, stream=stream)))
            while ready.get_map():
                for key, _ in ready.select():
                    data = os.read(key.fd, READ)
                    self._sink.heard(len(data))
                    key.data.feed(data)
                    if not data:
                        key.data.end()
                        ready.unregister(key.fd)
                        os.close(key.fd)


def visible(line: bytes) -> str:
    """A line as a terminal would have left it: of what was overwritten, as progress bars do, the last."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text.rpartition("\r")[2]
