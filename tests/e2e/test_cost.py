"""A live job with a cost limit: it stops with its state saved, and goes on when the limit is raised."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from e2e.launched import Launched
from e2e.pools import SCRIPTS, alone, digests, with_tests
from e2e.running import Running, start, wait_for
from pliant.core.model.job import JobState
from unit.cli.program import environment, real

STEPS = 96
NAME = "pool_worker.py"


def set_prices(at: Running, file: Path, price: str, *options: str) -> None:
    """Set the price of a slot and hour as a user does, from a minute ago on."""
    since = datetime.now(UTC) - timedelta(minutes=1)
    file.write_text(f"{since.isoformat(timespec='seconds')},{price}\n")
    called(at, "queue", "set", *options, "--prices", str(file))


def called(at: Running, *command: str) -> dict[str, object]:
    env = environment(at.home, PLIANT_COORDINATOR=at.url)
    found: dict[str, object] = real(env, *command, "--json", "--token-file", str(at.home / "token")).json
    return found


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_job_stops_at_its_cost_limit_with_its_state_and_finishes_when_the_limit_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tmp_path / "quick"
    with start(home=tmp_path / "coordinator") as coordinator:
        client = coordinator.client()
        set_prices(coordinator, tmp_path / "prices.csv", "0.25", "--slots", "2")
        options = ("--coordinator", coordinator.url, "--token-file", str(coordinator.home / "token"))
        ask = ("--queue", "default", "--workers", "1:2", "--at-most-cost", "50", str(SCRIPTS / NAME))
        home = tmp_path / "job"
        with Launched(home, *options, *ask, str(STEPS), "0.05", str(quick), PYTHONPATH=with_tests()) as run:
            wait_for(lambda: any(line.step > 3 for line in client.jobs()), "steps")
            set_prices(coordinator, tmp_path / "prices.csv", "3600")  # a minute of one worker costs more than the limit
            wait_for(lambda: [line.held for line in client.pool().jobs] == [0], "the end of its workers")
            [line] = client.pool().jobs
            assert (line.reason, line.granted, line.at_most_cost) == ("cost-limit", 0, 50.0)
            found = client.job("demo")
            assert (found.job.state, found.job.why) == (JobState.WAITING, line.why)
            why = "the rest of its cost limit of 50.00 is too little for 1 worker at 3600 for a slot and hour"
            assert line.why == why
            assert found.checkpoint is not None
            assert found.checkpoint.lineage == found.durable
            assert 0 < found.spent < 50
            assert client.job("demo").spent == found.spent  # it has no worker, so it pays nothing

            called(coordinator, "jobs", "set", "demo", "--at-most-cost", "1000000")
            quick.touch()
            assert run.ended() == 0
        assert digests(run.lines) == {alone(NAME, STEPS, monkeypatch)}
        assert called(coordinator, "status", "demo")["spent"] == called(coordinator, "report", "demo")["spent"]
        assert client.job("demo").spent > found.spent
        audit = called(coordinator, "audit", "demo")
        assert (audit["ok"], audit["lost"], audit["repeated"]) == (True, 0, 0)
