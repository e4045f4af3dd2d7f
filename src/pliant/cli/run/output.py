"""Output of `pliant run`: lines of workers, events of the job and messages, as text or as JSON."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from pliant.cli.output import clean
from pliant.cli.run.writer import LineWriter, Stream

if TYPE_CHECKING:
    from pliant.core.messages import Event

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
LINE_MAX = 4000  # characters of a line on the screen; the log has the whole line
PROGRESS_S = 10.0


class Verbosity(IntEnum):
    """The share of the job's events that is shown, beside the output of workers."""

    QUIET = 0  # problems alone
    NORMAL = 1  # one line for each change
    VERBOSE = 2  # every event


class PlainOutput:
    """Text for people. Each line starts with its source in brackets. Call `close` at the end.

    `agent` is this machine's own. Its comings and goings are not shown, except with `VERBOSE`.
    """

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL, agent: str = "") -> None:
        from pliant.cli.run.narrator import Narrator

        self._verbosity = verbosity
        self._narrator = Narrator(agent, time.monotonic)
        self._writer = LineWriter(lambda count: self._sentence(describe_dropped(count)))
        self._lock = threading.Lock()
        self._colours: dict[str, str] = {}
        self._bars: dict[tuple[str, bool], str] = {}  # by member and stream
        self._progress_at = time.monotonic()

    def worker(self, member: str, line: bytes, *, is_error: bool = False) -> None:
        from pliant.agent.logs.capture import visible

        text = visible(line)
        if len(text) > LINE_MAX:
            text = f"{text[:LINE_MAX]} ... ({len(text) - LINE_MAX} more characters in the log)"
        stream = Stream.ERR if is_error else Stream.OUT
        self._writer.put(self._for_screen(f"{self._source(member)} {text}", stream), stream, from_worker=True)

    def bar(self, member: str, state: bytes, *, is_error: bool = False) -> None:
        """Draw the bar of the lowest rank that has one at the bottom of a terminal."""
        text = "".join(sign for sign in click.unstyle(state.decode("utf-8", "replace")) if sign.isprintable())
        with self._lock:
            if text:
                self._bars[member, is_error] = text
            else:
                self._bars.pop((member, is_error), None)
            bars = {name: bar for (name, _), bar in self._bars.items()}
        if bars:
            first = self._narrator.first_rank([*bars])
            self._writer.draw_bar(f"[{first}] {bars[first]}")
        else:
            self._writer.draw_bar("")

    def event(self, _revision: int, event: Event) -> None:
        lines = [*self._narrator.narrate(event)]
        if self._verbosity is Verbosity.VERBOSE:
            self._tell_everything(event)
            return
        for line in lines:
            (self.warn if line.problem else self.say)(line.text)

    def say(self, text: str) -> None:
        if self._verbosity is not Verbosity.QUIET:
            self.warn(text)

    def warn(self, text: str) -> None:
        self._writer.put(self._sentence(text))

    def fail(self, text: str) -> None:
        """Show the error that ends the command."""
        self._writer.put(f"pliant: {text}", Stream.ERR)

    def close(self) -> None:
        self._writer.close()

    def _tell_everything(self, event: Event) -> None:
        from pliant.core.messages import AgentReadied, HoldersChanged, StepsCommitted
        from pliant.core.messages.describe import describe

        if isinstance(event, HoldersChanged | AgentReadied):
            return
        if isinstance(event, StepsCommitted):
            if time.monotonic() - self._progress_at < PROGRESS_S:
                return  # members report every few steps
            self._progress_at = time.monotonic()
        self.say(describe(event))

    def _source(self, member: str) -> str:
        with self._lock:
            colour = self._colours.setdefault(member, COLOURS[len(self._colours) % len(COLOURS)])
        return click.style(f"[{member}]", fg=colour)

    def _sentence(self, text: str) -> str:
        now = datetime.now().astimezone().strftime("%H:%M:%S")
        return self._for_screen(f"{click.style('[pliant]', bold=True)} {now} {clean(text)}", Stream.OUT)

    def _for_screen(self, text: str, stream: Stream) -> str:
        """Return the text without colours unless it is for a terminal."""
        return text if self._writer.is_terminal(stream) else click.unstyle(text)


class JsonOutput:
    """One JSON object on each line: `worker` and `line`, `revision` and `event`, or `message`; `close` as above."""

    def __init__(self) -> None:
        self._writer = LineWriter(lambda count: _object({"message": describe_dropped(count)}))

    def worker(self, member: str, line: bytes, *, is_error: bool = False) -> None:
        stream = "stderr" if is_error else "stdout"
        text = _object({"worker": member, "stream": stream, "line": line.decode("utf-8", "replace")})
        self.line(text, from_worker=True)

    def bar(self, member: str, state: bytes, *, is_error: bool = False) -> None:
        """Show nothing: the last state of a bar is a line."""

    def event(self, revision: int, event: Event) -> None:
        from pliant.wire.api import EVENTS

        self.line(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')

    def say(self, text: str) -> None:
        self.line(_object({"message": text}))

    def warn(self, text: str) -> None:
        self.say(text)

    def fail(self, text: str) -> None:
        """Show the error that ends the command."""
        self._writer.put(f"pliant: {text}", Stream.ERR)

    def line(self, text: str, *, from_worker: bool = False) -> None:
        """Write an object that is JSON already."""
        self._writer.put(text, from_worker=from_worker)

    def close(self) -> None:
        self._writer.close()


def describe_dropped(count: int) -> str:
    """Return the message in place of lines that were dropped because no program read them."""
    return f"{count} {'line' if count == 1 else 'lines'} not shown; see the log"


def _object(fields: dict[str, str]) -> str:
    import msgspec

    return msgspec.json.encode(fields).decode()
