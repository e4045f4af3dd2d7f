"""A coordinator that is asked all the time: health checks and renewals, with the time of each answer."""

import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from e2e.examples import JOB, OTHER
from e2e.running import Running
from pliant.core import messages as m
from pliant.core.model.names import MemberId

AT_ONCE_S = 0.2
EVERY_S = 0.05
MEMBERS = (MemberId("m1"), MemberId("m2"))


@dataclass(frozen=True)
class Timed:
    """An answer: its seconds, status and body. In `queued_s` of them, one of the two processes waited for a core."""

    seconds: float
    queued_s: float
    status: int
    text: str


@dataclass
class Asked:
    """Requests of the members of both jobs, one after the other."""

    running: Running
    health: list[Timed] = field(default_factory=list)
    renewals: list[Timed] = field(default_factory=list)

    def once(self) -> None:
        self.health.append(self._timed("GET", "/healthz"))
        for job in (JOB, OTHER):
            for member in MEMBERS:
                body = {"member": member, "revision": 0}
                self.renewals.append(self._timed("POST", f"/v1/jobs/{job}/renew", body))

    def ask_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        pause = threading.Event()
        while time.monotonic() < until:
            self.once()
            pause.wait(EVERY_S)

    def check_answered_at_once(self) -> None:
        """Require that most answers of each kind came at once. None would while the coordinator waits for its store.

        Time in which other programs had the cores does not count, as far as the kernel tells it. `make failover` is
        for a machine that does nothing else, and requires it of every health check.
        """
        for answers in (self.health, self.renewals):
            assert statistics.median(each.seconds - each.queued_s for each in answers) < AT_ONCE_S

    def _timed(self, method: str, path: str, body: object = None) -> Timed:
        begun, queued_s = time.monotonic(), self._queued_s()
        found = self.running.admin.request(method, path, json=body)
        return Timed(time.monotonic() - begun, self._queued_s() - queued_s, found.status_code, found.text)

    def _queued_s(self) -> float:
        """Return how long the threads of both processes have waited for a core, ready to run."""
        tasks = [*Path(f"/proc/{self.running.process.pid}/task").iterdir(), Path("/proc/thread-self")]
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9


def gone(running: Running) -> list[m.MemberGone]:
    """Return every member that both jobs lost."""
    found = [event for job in (JOB, OTHER) for _, event in running.client().events(job, 0, 1000)]
    return [event for event in found if isinstance(event, m.MemberGone)]
