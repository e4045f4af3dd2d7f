"""A task queue under `pliant run`: real workers that are killed, frozen and resized, and a killed coordinator."""

import os
import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from pliant.core.model.view import MemberState
from pliant.errors import PliantError
from unit.cli.program import environment, real

# Each worker appends the numbers of the records that it processed, one batch at a time, so that effects can be counted.
# While there is a file out.hold, the second epoch does not go on: the test has all the time that it needs.
SCRIPT = """
import os, sys, time
import pliant.tasks

out, records, batch_s, deadline_s, poison = sys.argv[1], *map(float, sys.argv[2:])
with pliant.tasks.join() as job:
    run = job.train(range(int(records)), batch_size=5, records_per_shard=50, epochs=2, deadline_s=deadline_s,
                    evaluation=range(20))
    with open(os.path.join(out, job.member), "a", buffering=1) as file:
        for batch in run:
            if run.evaluating:
                run.add(total=sum(batch))
                continue
            if poison in batch:
                raise ValueError(f"record {poison:g} is bad")
            while run.epoch and os.path.exists(out + ".hold"):
                time.sleep(0.01)
            time.sleep(batch_s)
            file.write(f"{run.epoch} {batch[0]} {batch[-1]}\\n")
print("all", run.complete)
"""


class Work:
    """A script in a folder, and what its workers did."""

    def __init__(self, folder: Path) -> None:
        self.script, self.out = folder / "work.py", folder / "out"
        self.script.write_text(SCRIPT)
        self.out.mkdir()
        self.hold = folder / "out.hold"

    def arguments(self, records: int, batch_s: float, deadline_s: float = 300.0, poison: int = -1) -> list[str]:
        return [str(self.script), str(self.out), *map(str, (records, batch_s, deadline_s, poison))]

    def processed(self) -> list[tuple[int, int]]:
        """Return (epoch, record) as often as a worker processed it."""
        found = []
        for file in self.out.iterdir():
            for line in file.read_text().splitlines():
                epoch, first, last = map(int, line.split())
                found += [(epoch, record) for record in range(first, last + 1)]
        return found


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def done(run: Launched) -> int:
    try:
        with run.client() as client:
            tasks = client.job(run.job).tasks
            return tasks.done if tasks is not None else 0
    except (OSError, PliantError):
        return -1


def active(run: Launched) -> dict[str, int]:
    """Return the process of each member that holds a shard."""
    with run.client() as client:
        return {x.id: x.pid or 0 for x in client.job(run.job).members if x.state is MemberState.ACTIVE}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_record_is_accounted_for_through_kills_a_resize_and_a_killed_coordinator(
    tmp_path: Path, work: Work
) -> None:
    env = environment(tmp_path)
    work.hold.touch()
    arguments = work.arguments(2000, 0.01)
    with Launched(tmp_path, "--workers", "1:3", "--target", "2", "--mode", "tasks", *arguments) as run:
        run.has_members(2)
        wait_for(lambda: len(active(run)) == 2, "both at work", 90)
        before = active(run)
        victim, survivor = sorted(before)
        kill(before[victim])
        wait_for(lambda: len(found := run.members()) == 2 and victim not in found, "its replacement", 90)
        kill(run.endpoint["pid"])
        run.sees("the coordinator answers again")
        wait_for(lambda: done(run) >= 1, "a shard that is done", 90)
        assert run.members()[survivor] == before[survivor], "a survivor keeps its process"
        assert real(env, "resize", "demo", "3").code == 0
        run.has_members(3)
        assert "of 80 done" in real(env, "status", "demo").out
        work.hold.unlink()
        assert run.process.wait(200) == 0
    found = real(env, "audit", "demo", "--json").json
    assert found["ok"]
    assert (found["records"], found["shards"], found["shards_missing"]) == (4000, 80, 0)
    processed = work.processed()
    assert {*processed} == {(epoch, record) for epoch in range(2) for record in range(2000)}
    assert len(processed) - len({*processed}) <= found["repeated_max"]
    assert found["returned"] >= 1
    told = real(env, "audit", "demo").out
    assert "demo: every record done exactly once" in told
    assert "may have been processed more than once" in told
    evaluations = [line for line in real(env, "events", "demo").out.splitlines() if "evaluation" in line]
    assert sum("20 records, total 9.5" in line for line in evaluations) == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_frozen_worker_loses_its_shard_by_the_deadline_and_another_one_does_it(tmp_path: Path, work: Work) -> None:
    arguments = work.arguments(1000, 0.05, deadline_s=2.0)
    with Launched(tmp_path, "--workers", "1:2", "--target", "2", "--mode", "tasks", *arguments) as run:
        run.has_members(2)
        wait_for(lambda: active(run), "a member at work", 90)
        victim = next(iter(active(run).values()))
        os.kill(victim, signal.SIGSTOP)
        run.sees("made no progress for 2 s")
        os.kill(victim, signal.SIGCONT)
        assert run.process.wait(200) == 0
    assert real(environment(tmp_path), "audit", "demo", "--json").json["ok"]
    assert {*work.processed()} == {(epoch, record) for epoch in range(2) for record in range(1000)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_record_that_raises_on_two_workers_fails_the_job_and_is_named(tmp_path: Path, work: Work) -> None:
    arguments = work.arguments(300, 0.0, poison=123)
    with Launched(tmp_path, "--workers", "1:2", "--max-restarts", "5", "--mode", "auto", *arguments) as run:
        assert run.process.wait(200) == 1
        assert "(shard " in run.output
        assert "ValueError: record 123 is bad" in run.output
        assert "records 120 to 149 of epoch 0" in run.output
