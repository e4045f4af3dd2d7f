"""`pliant run`: train a script elastically on this machine."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.connect import PROGRAM, Flags, connection, the_job
from pliant.cli.jobs import sizes
from pliant.cli.show import clean, json_option

if TYPE_CHECKING:
    from pliant.core.messages import Event

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
SHOWN_MAX = 4000  # characters of a line on the screen; the log has it whole
PROGRESS_S = 10.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--job", metavar="NAME", help="The job's name.  [default: PLIANT_JOB]")
@click.option(
    "--workers", type=sizes, required=True, metavar="MIN:MAX", help="How few and how many workers; 4 means 4:4."
)
@click.option("--target", type=click.IntRange(1), help="How many are wanted at first.  [default: MAX]")
@click.option("--grace-s", type=click.FloatRange(0), default=30.0, show_default=True, help="How long leaving may take.")
@click.option(
    "--max-restarts", type=click.IntRange(0), default=3, show_default=True, help="Workers that may fail by themselves."
)
@click.option("--wait-limit-s", type=click.FloatRange(0, min_open=True), help="Fail after waiting so long for workers.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@json_option
@connection
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    job: str | None,
    workers: tuple[int, int],
    target: int | None,
    grace_s: float,
    max_restarts: int,
    wait_limit_s: float | None,
    module: bool,
    script: str,
    args: tuple[str, ...],
    flags: Flags,
    as_json: bool,
) -> int:
    """Train SCRIPT elastically on this machine.

    Starts the workers, replaces those that are lost, and shows what they write and what happens to the job. Ctrl-C lets
    them leave; the same command goes on where they left.
    """
    from pliant.agent.loop import Agent
    from pliant.agent.opening import Elsewhere, Plan

    name = the_job(job)
    if not module and not Path(script).is_file():
        raise click.UsageError(f"There is no script {script!r}. Options of pliant run go before it.")
    python = (sys.executable, "-u", *(("-m",) if module else ()), script, *args)
    plan = Plan(name, *workers, target, python, grace_s, max_restarts, wait_limit_s)
    said = settings.read()
    place = flags.place()
    if flags.token_file is not None and not (flags.urls or said.coordinators):
        raise click.UsageError("--token-file is for a coordinator that is there already: name it with --coordinator.")
    elsewhere = Elsewhere(place.urls, place.token_file) if flags.urls or said.coordinators else None
    return Agent(plan, said.home, JsonScreen() if as_json else PlainScreen(), PROGRAM, elsewhere).run()


class _Screen:
    """Writes whole lines, one at a time. Once nobody reads them any more it is silent; logs and training go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone = False

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        known = text.encode(encoding, "replace").decode(encoding)  # a terminal need not know every sign
        with self._lock:
            if not self._gone:
                try:
                    click.echo(known)
                except OSError:  # a closed pipe, a terminal that is gone
                    self._gone = True


class PlainScreen(_Screen):
    """For people: who says it, in brackets, and what."""

    def __init__(self) -> None:
        super().__init__()
        self._colours: dict[str, str] = {}
        self._progress_at = time.monotonic()

    def worker(self, member: str, line: bytes) -> None:
        from pliant.agent.output import visible

        text = visible(line)
        if len(text) > SHOWN_MAX:
            text = f"{text[:SHOWN_MAX]} ... ({len(text) - SHOWN_MAX} more characters, in its log)"
        with self._lock:
            colour = self._colours.setdefault(member, COLOURS[len(self._colours) % len(COLOURS)])
        self._write(f"{click.style(f'[{member}]', fg=colour)} {text}")

    def event(self, _revision: int, event: Event) -> None:
        from pliant.core.messages import HoldersChanged, StepsCommitted
        from pliant.core.sentences import sentence

        if isinstance(event, HoldersChanged):
            return
        if isinstance(event, StepsCommitted):
            if time.monotonic() - self._progress_at < PROGRESS_S:
                return  # there is one for every few steps
            self._progress_at = time.monotonic()
        self.say(sentence(event))

    def say(self, text: str) -> None:
        self._write(f"{click.style('[pliant]', bold=True)} {clean(text)}")


class JsonScreen(_Screen):
    """For programs: one object on each line, with `worker` and `line`, `event` and `revision`, or `say`."""

    def worker(self, member: str, line: bytes) -> None:
        self._object({"worker": member, "line": line.decode("utf-8", "replace")})

    def event(self, revision: int, event: Event) -> None:
        from pliant.wire.api import EVENTS

        self._write(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')

    def say(self, text: str) -> None:
        self._object({"say": text})

    def _object(self, said: dict[str, str]) -> None:
        import msgspec

        self._write(msgspec.json.encode(said).decode())
