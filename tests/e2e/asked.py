"""A coordinator that is asked all the time: health checks and renewals, with the time of each answer."""

import statistics
import threading
import time
from dataclasses import dataclass, field

from e2e.examples import JOB, OTHER
from e2e.running import Running
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.core import messages as m
from pliant.core.model.names import MemberId

AT_ONCE_S = 0.2
EVERY_S = 0.05
MEMBERS = (MemberId("m1"), MemberId("m2"))


@dataclass(frozen=True)
class Timed:
    """An answer: its seconds, status and body."""

    seconds: float
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
        """Require that no answer waited for the store. Single answers may be late, because machines are shared."""
        assert statistics.median(answer.seconds for answer in self.health) < AT_ONCE_S
        assert statistics.median(answer.seconds for answer in self.renewals) < AT_ONCE_S
        assert max(answer.seconds for answer in (*self.health, *self.renewals)) < HOLD_TTL_S

    def _timed(self, method: str, path: str, body: object = None) -> Timed:
        begun = time.monotonic()
        found = self.running.admin.request(method, path, json=body)
        return Timed(time.monotonic() - begun, found.status_code, found.text)


def gone(running: Running) -> list[m.MemberGone]:
    """Return every member that both jobs lost."""
    found = [event for job in (JOB, OTHER) for _, event in running.client().events(job, 0, 1000)]
    return [event for event in found if isinstance(event, m.MemberGone)]
