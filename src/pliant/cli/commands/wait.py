"""`pliant wait`: wait until a job ends."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from pliant.cli.commands.status import describe_state
from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job
from pliant.cli.job_poller import JobPoller
from pliant.cli.output import clean, json_option, print_json

if TYPE_CHECKING:
    from pliant.wire.api import JobStatus

FINISHED, FAILED, STOPPED, TIMED_OUT = 0, 1, 3, 124  # exit statuses; the last is that of timeout(1)
LOOK_S = 0.2
SCREEN_MAX = 78  # a longer line would wrap, and a wrapped line cannot be replaced
PROGRESS_S = 60.0  # how often the step is printed where standard error is no terminal


@click.command()
@job_argument
@click.option(
    "--timeout-s", type=click.FloatRange(0), metavar="S", help="Stop waiting after this many seconds.  [default: never]"
)
@json_option
@connection_options
def wait(job: str | None, timeout_s: float | None, flags: Flags, as_json: bool) -> int:
    """Wait until a job ends.

    Exits with 0 if the job finished, 1 if it failed or was cancelled, 3 if no process runs it, and 124 if the time
    was up before it ended. Progress goes to standard error.
    """
    poller = JobPoller(flags, resolve_job(job))
    runs = flags.stopped_job(poller.job) is None
    found = poller.connect_once()
    timed_out = False
    if runs:
        found, timed_out = _wait(poller, found, timeout_s)
    line, stopped = found.job, flags.stopped_job(poller.job) is not None
    if as_json:
        print_json({"job": line.name, "state": line.state, "why": line.why, "step": line.step, "timed_out": timed_out})
    else:
        click.echo(f"{line.name}: {clean(describe_state(line, stopped))}")
    if line.state.ended:
        return FINISHED if line.state.value == "finished" else FAILED
    return TIMED_OUT if timed_out else STOPPED


def _wait(poller: JobPoller, found: JobStatus, timeout_s: float | None) -> tuple[JobStatus, bool]:
    """Return the last status, and whether the time was up before the job ended."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with poller, _Progress() as progress:
        while not found.job.state.ended:
            progress.show(found)
            if until is not None and time.monotonic() >= until:
                return found, True
            time.sleep(LOOK_S if until is None else max(0.0, min(LOOK_S, until - time.monotonic())))
            found = poller.poll() or found
            if poller.stopped:
                return poller.connect_once(), False
    return found, False


class _Progress:
    """Shows state and step on standard error: in one line of a terminal, elsewhere at changes and every minute."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._state = ""
        self._at = 0.0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._shown:
            click.echo(err=True)

    def show(self, found: JobStatus) -> None:
        line = found.job
        state = describe_state(line)
        total = "" if line.total_steps is None else f" of {line.total_steps}"
        text = clean(f"{line.name}: {state}, step {line.step}{total}")
        if text == self._shown:
            return
        if self._live:
            click.echo(f"\r\x1b[2K{text[:SCREEN_MAX]}", nl=False, err=True)
        elif state != self._state or time.monotonic() - self._at >= PROGRESS_S:
            click.echo(text, err=True)
        else:
            return
        self._shown, self._state, self._at = text, state, time.monotonic()
