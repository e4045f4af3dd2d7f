"""Parameter servers under test: every command goes through `decide` and `evolve`, and is held to the invariants."""

from __future__ import annotations

from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Mode
from pliant.core.model.names import MemberId
from pliant.core.ps import messages as p
from pliant.core.ps.model import NONE, BucketLayout
from unit.core.tasks.queue import Queue, X

ROUNDS_MAX = 12
A, B, C, D = (MemberId(f"ps-{name}") for name in "abcd")


class Fleet(Queue):
    """A job with parameter servers."""

    def __init__(self, spec: JobSpec | None = None) -> None:
        super().__init__(spec=spec or JobSpec(1, 4, mode=Mode.TASKS))

    @property
    def layout(self) -> BucketLayout:
        assert self.it.ps is not None
        return self.it.ps.layout

    def serve(self, *servers: MemberId) -> None:
        """Let servers join, one after the other, without filling copies."""
        for server in servers:
            self.tell(p.JoinServers(server, X, f"{server}:1"))

    def fill(self) -> None:
        """Let primaries fill copies until none is left to fill."""
        for _ in range(ROUNDS_MAX):
            due = sorted(self.layout.fillers())
            if not due:
                return
            for server in due:
                self.tell(p.ReportCopied(server, self.layout.number))
        raise AssertionError(f"buckets still move after {ROUNDS_MAX} layouts: {self.primaries()}, {self.backups()}")

    def settle(self, *servers: MemberId) -> None:
        """Let servers join, and fill all copies."""
        self.serve(*servers)
        self.fill()

    def kill(self, server: MemberId) -> tuple[m.Event, ...]:
        return self.tell(m.Exited(server, -9))

    def primaries(self) -> dict[MemberId, int]:
        return self._counts(self.layout.primary)

    def backups(self) -> dict[MemberId, int]:
        return self._counts(self.layout.backup)

    def moving(self) -> int:
        return sum(at != NONE for at in self.layout.incoming)

    def _counts(self, row: tuple[int, ...]) -> dict[MemberId, int]:
        return {server: row.count(at) for at, server in enumerate(self.layout.ids)}
