"""Submissions through the coordinator, for users without rights in the cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags
from pliant.cli.output import clean, print_json
from pliant.core.messages.rejection import Code
from pliant.core.model.job import JobState
from pliant.core.submissions import Submission, SubmissionState
from pliant.errors import Refused, Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.wire.api import SubmissionLine

POLL_S = 1.0


def submit_remotely(flags: Flags, wanted: Submission, *, waits: bool, shows: bool, as_json: bool) -> int:
    """Submit a job. With `waits`, return after its end; with `shows`, print each change until then."""
    with flags.connect() as client:
        line = client.submit(wanted)
        if not waits:
            _print(line, as_json=as_json)
            return 0
        return _wait(client, wanted.task, shows=shows and not as_json, as_json=as_json)


def show_remotely(flags: Flags, task: str, *, as_json: bool) -> None:
    with flags.connect() as client:
        _print(client.submission(task), as_json=as_json)


def stop_remotely(flags: Flags, task: str, *, as_json: bool) -> None:
    with flags.connect() as client:
        _print(client.stop_submission(task), as_json=as_json)


def describe_submission(line: SubmissionLine) -> str:
    """Return one line about a submission: the operator's words about its job, or its own state."""
    if line.state is SubmissionState.CREATED and line.status:
        return line.status
    return f"{line.task} is {line.state.value}: {line.why}"


def _print(line: SubmissionLine, *, as_json: bool) -> None:
    if as_json:
        print_json(line)
    else:
        click.echo(clean(describe_submission(line)))


def _wait(client: Client, task: str, *, shows: bool, as_json: bool) -> int:
    """Wait for the end of a submitted job. A coordinator that does not answer is asked again."""
    last = ""
    while True:
        try:
            line = client.submission(task)
            ended = _exit_code(client, line)
        except Unreachable as error:
            click.echo(f"pliant: {clean(error.why)} Trying again.", err=True)
            time.sleep(POLL_S)
            continue
        text = describe_submission(line)
        if shows and text != last:
            click.echo(clean(text))
        last = text
        if ended is not None:
            if not shows:
                _print(line, as_json=as_json)
            return ended
        time.sleep(POLL_S)


def _exit_code(client: Client, line: SubmissionLine) -> int | None:
    """Return the exit status for a submission whose job has ended; None if it goes on."""
    if line.state.is_over:
        return Refused.exit_code if line.state is SubmissionState.REFUSED else 1
    if not line.job:
        return None
    try:
        state = client.job(line.job).job.state
    except Refused as error:
        if error.code != Code.NO_JOB:
            raise
        return None  # the operator has not created it yet
    return (0 if state is JobState.FINISHED else 1) if state.ended else None
