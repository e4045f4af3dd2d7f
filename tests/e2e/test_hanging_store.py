"""A store that does not answer stops decisions, and nothing else."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from e2e.asked import Asked, gone
from e2e.examples import JOB, furnish
from e2e.raw import Line, bearer, host, request
from e2e.running import Running, start, wait_for
from pliant.coordinator.service.leader import HOLD_TTL_S

TESTS = Path(__file__).parents[1]
LEASE_S = 2.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    program = ("env", f"PYTHONPATH={TESTS}", sys.executable, "-m", "e2e.hanging")
    with start(f"sqlite:{tmp_path / 'store.db'}", home=tmp_path, lease_ttl_s=LEASE_S, program=program) as running:
        furnish(running)
        yield running
        (tmp_path / "hang").unlink(missing_ok=True)


def test_health_checks_and_renewals_are_answered_and_no_lease_expires(running: Running) -> None:
    """Members renew all the time. The store hangs for longer than a hold and several times longer than a lease."""
    hang = running.home / "hang"
    asked = Asked(running)
    asked.once()
    hang.touch()
    resize = f"/v1/jobs/{JOB}/resize"
    stuck = threading.Thread(target=lambda: running.admin.post(resize, json={"target": {"size": 3}}))
    stuck.start()
    newest = running.client().job(JOB).job.revision
    watch = Line(running)
    watch.send(request(f"/v1/jobs/{JOB}/members/m1/watch?after={newest}&wait_s=60", host(running), bearer(running)))
    asked.ask_for(2 * HOLD_TTL_S + LEASE_S)
    assert watch.answer().status == 503  # its client looks for another coordinator, and does not wait for a minute
    watch.close()
    hang.unlink()
    stuck.join()
    wait_for(running.client().is_healthy, "the store to be asked again")
    asked.once()
    statuses = [answer.status for answer in asked.health]
    assert statuses[0] == statuses[-1] == 200
    assert "its store does not answer" in next(answer.text for answer in asked.health if answer.status == 503)
    assert {answer.status for answer in asked.renewals} == {200, 503}
    asked.check_answered_at_once()
    assert gone(running) == []


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
    wait_for(running.client().is_healthy, "the store to be asked again")


def test_it_can_be_stopped_while_its_store_hangs(running: Running) -> None:
    (running.home / "hang").touch()
    wait_for(lambda: running.admin.get("/healthz").status_code == 503, "the hold to be over")
    assert running.admin.get("/readyz").status_code == 503
    assert running.stop() == 0
    assert "the hold was not released" in running.log
