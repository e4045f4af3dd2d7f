"""Output of `pliant run`: lines of workers, events of the job and messages, as text or as JSON."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from pliant.cli.output import clean

if TYPE_CHECKING:
    from pliant.core.messages import Event

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
LINE_MAX = 4000  # characters of a line on the screen; the log has the whole line
PROGRESS_S = 10.0


class _LineWriter:
    """Writes whole lines. After a write error it stays silent, so that training and logs go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        printable = text.encode(encoding, "replace").decode(encoding)  # the terminal may lack some characters
        with self._lock:
            if not self._closed:
                try:
                    click.echo(printable)
                except OSError:  # a closed pipe or terminal
                    self._closed = True


class PlainOutput(_LineWriter):
    """Text for people. Each line starts with its source in brackets."""

    def __init__(self) -> None:
        super().__init__()
        self._colours: dict[str, str] = {}
        self._progress_at = time.monotonic()

    def worker(self, member: str, line: bytes) -> None:
        from pliant.agent.logs.capture import visible

        text = visible(line)
        if len(text) > LINE_MAX:
            text = f"{text[:LINE_MAX]} ... ({len(text) - LINE_MAX} more characters in the log)"
        with self._lock:
            colour = self._colours.setdefault(member, COLOURS[len(self._colours) % len(COLOURS)])
        self._write(f"{click.style(f'[{member}]', fg=colour)} {text}")

    def event(self, _revision: int, event: Event) -> None:
        from pliant.core.messages import AgentReadied, HoldersChanged, StepsCommitted
        from pliant.core.messages.describe import describe

        if isinstance(event, HoldersChanged | AgentReadied):
            return
        if isinstance(event, StepsCommitted):
            if time.monotonic() - self._progress_at < PROGRESS_S:
                return  # members report every few steps
            self._progress_at = time.monotonic()
        self.say(describe(event))

    def say(self, text: str) -> None:
        self._write(f"{click.style('[pliant]', bold=True)} {clean(text)}")


class JsonOutput(_LineWriter):
    """One JSON object on each line: `worker` and `line`, `revision` and `event`, or `message`."""

    def worker(self, member: str, line: bytes) -> None:
        self._write_object({"worker": member, "line": line.decode("utf-8", "replace")})

    def event(self, revision: int, event: Event) -> None:
        from pliant.wire.api import EVENTS

        self._write(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')

    def say(self, text: str) -> None:
        self._write_object({"message": text})

    def _write_object(self, fields: dict[str, str]) -> None:
        import msgspec

        self._write(msgspec.json.encode(fields).decode())
