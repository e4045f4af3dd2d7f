"""The exception that ends the loop of a member which leaves its queue early."""

from __future__ import annotations


class LeftQueue(SystemExit):
    """This member left the queue before all shards were done. Code after the loop must not run.

    It is a `SystemExit`, with code 0 if the leave was planned, 75 if the member was fenced, and 1 if the job failed.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code)
        self.why = why

    def __str__(self) -> str:
        return self.why
