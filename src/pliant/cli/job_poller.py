"""Poll the status of a job while it runs, through restarts of its coordinator."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import click

from pliant.cli.connect import Flags
from pliant.cli.output import clean
from pliant.errors import Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.wire.api import JobStatus

POLL_JOB_S = 1.0
UNANSWERED_MAX = 3  # requests in a row before a message; the coordinator also stops at the end of a job


class JobPoller:
    """Use it as a context manager, and call `poll` again and again. `stopped`: no process runs the job any more."""

    def __init__(self, flags: Flags, job: str, every_s: float = POLL_JOB_S) -> None:
        self.job = job
        self.stopped = False  # the job ran on this machine and does not any more
        self.flags = flags
        self._every_s = every_s
        self._exit_stack = ExitStack()
        self._client: Client | None = None
        self._next = 0.0
        self._unanswered = 0  # requests in a row without an answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def poll(self) -> JobStatus | None:
        """Return the job's status; None if it is too early to ask again or there is no answer."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + self._every_s
        try:
            if self._client is None:
                if self.flags.stopped_job(self.job) is not None:
                    self.stopped = True
                    return None
                self._client = self._exit_stack.enter_context(self.flags.connect(self.job, patience_s=0.0))
            status = self._client.job(self.job)
        except Unreachable as lost:
            self._exit_stack.close()
            self._client = None  # the next coordinator may listen elsewhere
            self._unanswered += 1
            if self._unanswered == UNANSWERED_MAX and self.flags.stopped_job(self.job) is None:
                click.echo(f"pliant: {clean(lost.why)} Waiting for it.", err=True)
            return None
        if self._unanswered >= UNANSWERED_MAX:
            click.echo("pliant: The coordinator answers again.", err=True)
        self._unanswered = 0
        return status

    def connect_once(self) -> JobStatus:
        """Return the status once, whether the job runs or not. An unknown job is an error that names the others."""
        with self.flags.connect(self.job) as client:
            return client.job(self.job)
