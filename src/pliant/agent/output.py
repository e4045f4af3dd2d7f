"""The output of `pliant run`, as the agent sees it; `pliant.cli.run` implements it."""

from __future__ import annotations

from typing import Protocol

from pliant.core.messages import Event


class RunOutput(Protocol):
    """Shows lines to the user. Called from several threads, also at once."""

    def worker(self, member: str, line: bytes, *, is_error: bool = False) -> None:
        """Show a line that a worker wrote to standard output, or to standard error."""

    def bar(self, member: str, state: bytes, *, is_error: bool = False) -> None:
        """Show the present state of a worker's progress bar; empty: it has ended, and its last state is a line."""

    def event(self, revision: int, event: Event) -> None:
        """Show an event of the job."""

    def say(self, text: str) -> None:
        """Show a message of the agent itself."""

    def warn(self, text: str) -> None:
        """Show a message that a user of --quiet wants to see, too."""
