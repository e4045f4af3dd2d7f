"""Two live jobs on one pool: the urgent one takes workers by consent, finishes, and the other one grows back."""

import time
from pathlib import Path

import pytest

from e2e.launched import Launched
from e2e.pools import SCRIPTS, SLOTS, alone, digests, watched, with_tests
from e2e.running import Running, start, wait_for
from pliant.core.allocate import Pool
from pliant.core.model.job import JobState
from unit.cli.program import environment, real


def launched(home: Path, at: Running, job: str, workers: str, priority: int, *script: str) -> Launched:
    options = ("--coordinator", at.url, "--token-file", str(at.home / "token"), "--queue", "default")
    ask = ("--workers", workers, "--priority", str(priority))
    return Launched(home / job, *options, *ask, *script, job=job, PYTHONPATH=with_tests())


def share(tmp_path: Path, name: str, steps: int, urgent_steps: int, pace_s: float) -> tuple[set[str], set[str]]:
    """Run both jobs, and return the digests that the workers of each of them end with."""
    script = str(SCRIPTS / name)
    quick, never = tmp_path / "quick", tmp_path / "never"
    with start(home=tmp_path / "coordinator") as coordinator, watched(coordinator.client()) as seen:
        client = coordinator.client()
        client.set_pool(Pool(SLOTS))
        with launched(
            tmp_path, coordinator, "low", f"1:{SLOTS}", 0, script, str(steps), str(pace_s), str(quick)
        ) as low:
            wait_for(lambda: seen.count("low") == SLOTS, "all workers of low")
            wait_for(lambda: seen.steps.get("low", 0) > 3, "steps of low")
            before = dict(seen.members["low"])
            asked_s = time.monotonic()
            arguments = (str(urgent_steps), str(pace_s), str(never))
            with launched(tmp_path, coordinator, "high", "2", 5, script, *arguments) as high:
                wait_for(lambda: "high" in seen.steps, "the urgent job")
                came_s = time.monotonic()
                wait_for(lambda: seen.count("high") == 2, "all workers of high")
                has_s = time.monotonic()
                assert seen.count("low") == 1
                assert high.ended() == 0
            wait_for(lambda: seen.count("low") == SLOTS, "low to grow back")
            back_s = time.monotonic()
            after = seen.members["low"]
            survivors = before.keys() & after.keys()
            assert survivors
            assert {name: after[name] for name in survivors} == {name: before[name] for name in survivors}
            quick.touch()
            assert low.ended() == 0
        assert seen.over == []
        assert seen.looks > 20
        for job in ("low", "high"):
            assert client.job(job).job.state is JobState.FINISHED
            env = environment(coordinator.home, PLIANT_COORDINATOR=coordinator.url)
            found = real(env, "audit", job, "--json", "--token-file", str(coordinator.home / "token")).json
            assert (found["ok"], found["lost"], found["repeated"]) == (True, 0, 0)
    print(f"urgent job: {has_s - came_s:.1f} s until it had its workers, {has_s - asked_s:.1f} s from its command")
    print(f"other job: {back_s - has_s:.1f} s later it had all its workers again")
    return digests(low.lines), digests(high.lines)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_urgent_job_takes_workers_from_another_and_returns_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = share(tmp_path, "pool_worker.py", 800, 8, 0.2)  # low is quick once it has grown back
    assert low == {alone("pool_worker.py", 800, monkeypatch)}
    assert high == {alone("pool_worker.py", 8, monkeypatch)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_torch_jobs_on_one_pool_end_with_the_bits_of_one_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    low, high = share(tmp_path, "pool_torch_worker.py", 480, 24, 0.2)
    assert low == {alone("pool_torch_worker.py", 480, monkeypatch)}
    assert high == {alone("pool_torch_worker.py", 24, monkeypatch)}
