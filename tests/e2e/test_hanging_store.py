"""A store that does not answer stops decisions, and nothing else."""

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from e2e.examples import JOB, OTHER, furnish
from e2e.running import Running, start, wait_for
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.core import messages as m
from pliant.core.model.names import MemberId

TESTS = Path(__file__).parents[1]
LEASE_S = 2.0
MEMBERS = (MemberId("m1"), MemberId("m2"))
AT_ONCE_S = 0.2


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    program = ("env", f"PYTHONPATH={TESTS}", sys.executable, "-m", "e2e.hanging")
    with start(f"sqlite:{tmp_path / 'store.db'}", home=tmp_path, lease_ttl_s=LEASE_S, program=program) as running:
        furnish(running)
        yield running
        (tmp_path / "hang").unlink(missing_ok=True)


def renewed(http: httpx2.Client, job: str, member: MemberId) -> httpx2.Response:
    return http.post(f"/v1/jobs/{job}/renew", json={"member": member, "revision": 0})


def test_health_checks_and_renewals_are_answered_and_no_lease_expires(running: Running) -> None:
    """Members renew all the time. The store hangs for longer than a hold and several times longer than a lease."""
    hang = running.home / "hang"
    http = running.admin
    health: list[tuple[float, int, str]] = []  # seconds, status, reason
    renewals: list[tuple[float, int]] = []

    def ask() -> None:
        begun = time.monotonic()
        found = http.get("/healthz")
        health.append((time.monotonic() - begun, found.status_code, found.text))
        for job in (JOB, OTHER):
            for member in MEMBERS:
                begun = time.monotonic()
                found = renewed(http, job, member)
                renewals.append((time.monotonic() - begun, found.status_code))

    ask()
    hang.touch()
    stuck = threading.Thread(target=lambda: http.post(f"/v1/jobs/{JOB}/resize", json={"target": {"size": 3}}))
    stuck.start()
    until = time.monotonic() + 2 * HOLD_TTL_S + LEASE_S
    pause = threading.Event()
    while time.monotonic() < until:
        ask()
        pause.wait(0.05)
    hang.unlink()
    stuck.join()
    wait_for(lambda: running.client().is_healthy(), "the store to be asked again")
    ask()

    statuses = [status for _, status, _ in health]
    assert statuses[0] == statuses[-1] == 200
    assert 503 in statuses
    assert "its store does not answer" in next(text for _, status, text in health if status == 503)
    assert {status for _, status in renewals} == {200, 503}
    assert statistics.median(took for took, _, _ in health) < AT_ONCE_S
    assert statistics.median(took for took, _ in renewals) < AT_ONCE_S
    slowest = max(*(took for took, _, _ in health), *(took for took, _ in renewals))
    assert slowest < HOLD_TTL_S  # a busy machine, and not the store
    for job in (JOB, OTHER):
        assert [event for _, event in running.client().events(job, 0, 1000) if isinstance(event, m.MemberGone)] == []


def test_commands_are_refused_soon_and_reads_do_not_hold_up_the_rest(running: Running) -> None:
    hang = running.home / "hang"
    hang.touch()
    reading = [
        threading.Thread(target=lambda: running.http(running.token).get(f"/v1/jobs/{JOB}/events")) for _ in range(3)
    ]
    for thread in reading:
        thread.start()
    told: list[str] = []

    def refused() -> bool:
        """A command that is in the pump under way is not answered before the store has answered."""
        try:
            answer = running.admin.post(f"/v1/jobs/{JOB}/cancel", json={"why": "x"}, timeout=0.5)
        except httpx2.ReadTimeout:
            return False
        told.append(answer.json()["why"])
        return answer.status_code == 503

    wait_for(refused, "a command to be refused without the store")
    assert "the store has not answered for" in told[-1]
    assert running.admin.get("/healthz").status_code in (200, 503)
    assert running.admin.get("/v1").status_code == 200
    hang.unlink()
    for thread in reading:
        thread.join()
    wait_for(lambda: running.client().is_healthy(), "the store to be asked again")


def test_it_can_be_stopped_while_its_store_hangs(running: Running) -> None:
    (running.home / "hang").touch()
    wait_for(lambda: running.admin.get("/healthz").status_code == 503, "the hold to be over")
    assert running.stop() == 0
    assert "the hold was not released" in running.log
